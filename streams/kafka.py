"""How every Kafka client reaches the cluster: one place for address, credentials and the rules all readers share."""

import ssl
from typing import TYPE_CHECKING, Any

from .errors import Misconfigured

if TYPE_CHECKING:
    from .settings import Kafka, Settings

READER = "crawlog-reader"
"""Group id of the plain consumers: librdkafka wants one, they never commit under it."""

QUEUED_BYTES = 32 << 20
"""What a plain consumer reads ahead, bytes; above the largest record, far below librdkafka's 64 MiB per partition."""


def kafka_config(settings: "Settings") -> dict[str, object]:
    """Address and credentials, for producers, consumers and admin clients of confluent-kafka.

    Raises: Misconfigured: no cluster is named; the local engine's address is put in by whoever started it.
    """
    kafka = settings.kafka
    if not kafka.bootstrap:
        raise Misconfigured("kafka.bootstrap is empty: name a cluster with --bootstrap HOST:PORT, or start one with crawlog up")
    config: dict[str, object] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "log_level": 2,  # what goes wrong arrives as an error; librdkafka's own lines would land on standard error
        "topic.metadata.refresh.interval.ms": 60_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,  # a restarted broker is found within a second
        "socket.keepalive.enable": True,
    }
    return config | _sasl(kafka) | _tls(kafka)


def consumer_config(settings: "Settings", group: str | None = None) -> dict[str, object]:
    """A plain consumer: reads what is there, commits nothing, and says so when its offset is not in the log."""
    largest = settings.kafka.max_record_bytes
    return kafka_config(settings) | {
        "group.id": group or READER,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "max.partition.fetch.bytes": largest,
        "fetch.max.bytes": max(largest, QUEUED_BYTES),
        "receive.message.max.bytes": max(largest, QUEUED_BYTES) + (1 << 20),
        "queued.max.messages.kbytes": max(largest, QUEUED_BYTES) // 1024,
    }


def aiokafka_credentials(settings: "Settings") -> Any:  # noqa: ANN401  # Faust's types are not typed
    """The same credentials as Faust's `broker_credentials`; None for PLAINTEXT."""
    from faust import SASLCredentials, SSLCredentials  # noqa: PLC0415  # a second of imports that readers do not need

    kafka = settings.kafka
    if kafka.security_protocol == "PLAINTEXT":
        return None
    context = _ssl_context(kafka) if kafka.security_protocol.endswith("SSL") else None
    if kafka.security_protocol == "SSL":
        return SSLCredentials(context=context)
    return SASLCredentials(
        username=kafka.sasl_username,
        password=kafka.sasl_password,
        mechanism=kafka.sasl_mechanism,
        ssl_context=context,
    )


def _sasl(kafka: "Kafka") -> dict[str, object]:
    if not kafka.security_protocol.startswith("SASL"):
        return {}
    return {
        "sasl.mechanism": kafka.sasl_mechanism,
        "sasl.username": kafka.sasl_username,
        "sasl.password": kafka.sasl_password,
    }


def _tls(kafka: "Kafka") -> dict[str, object]:
    if not kafka.security_protocol.endswith("SSL"):
        return {}
    files = {
        "ssl.ca.location": kafka.ssl_ca,
        "ssl.certificate.location": kafka.ssl_cert,
        "ssl.key.location": kafka.ssl_key,
    }
    return {name: str(path) for name, path in files.items() if path is not None}


def _ssl_context(kafka: "Kafka") -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(kafka.ssl_ca) if kafka.ssl_ca else None)
        if kafka.ssl_cert:
            context.load_cert_chain(kafka.ssl_cert, kafka.ssl_key)
    except OSError as error:  # ssl.SSLError is one
        raise Misconfigured(f"kafka.ssl_ca, ssl_cert or ssl_key cannot be read as PEM: {error}") from error
    return context
