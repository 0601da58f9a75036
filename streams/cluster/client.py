"""How every Kafka client reaches the cluster: address, credentials, transient errors, and the bounds of a topic."""

import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakMethod

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from crawlog.streams.errors import AccessDenied, EngineError, Misconfigured

from .aborts import explain_aborts
from .listener import named_silent

if TYPE_CHECKING:
    from crawlog.streams.settings import Kafka, Settings

log = structlog.get_logger()

READER = "crawlog-reader"  # Group id of the plain consumers. librdkafka requires one; they never commit under it.

# Read-ahead of a plain consumer, bytes. More than the largest record, less than librdkafka's 64 MiB per partition.
QUEUED_BYTES = 32 << 20

# One answer to it, bytes as they lie in the log; unpacked at once they take several times that. A larger record comes
# alone.
FETCHED_BYTES = 4 << 20

AGAIN_S = 0.05  # Pause before a request is retried after a transient error

SILENT_S = 10.0  # Without an answer for this long a command says that it waits

CLUSTER_TIMEOUT_S = 30.0  # Timeout of a request to the cluster, seconds; a broker that has just started is slow

# A request that a broker does not answer for this long is sent again, to the partition's leader by then: Kafka puts a
# broker that hangs out of the cluster after 9 s. A record that was written already is not written twice (idempotence).
HUNG_MS = 10_000

# Errors of a broker that starts, changes its role or is unreachable for a moment.
TRANSIENT_CODES = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # the controller knows a new topic before the brokers do
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # a starting broker learns of its own partitions last
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._PARTITION_EOF,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }
)

# Errors of a damaged record.
DAMAGE_CODES = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,  # an unknown record version: the version byte was changed
        KafkaError._UNDERFLOW,
    }
)

# After these errors a client of the local engine asks for the password again: a restarted broker has a new one.
BROKER_AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION})

# Errors of a failed authentication or a missing permission.
DENIED_CODES = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)

_EPOCHS = frozenset({KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH})

Answer = TypeVar("Answer")

# Returns the present user and password of the broker. An exception from it ends the command.
BrokerLogin = Callable[[], tuple[str, str]]


class LogIdentity(NamedTuple):
    """Identifies the log that a state is folded from. A topic that was deleted and recreated is another log."""

    cluster: str
    topic: str


def weak_callback(method: Callable[[KafkaError], None]) -> Callable[[KafkaError], None]:
    """A callback for a client of the method's object: both end with the last reference to the object.

    The method itself would make both a cycle, which keeps threads and connections until cycles are collected.
    """
    held = WeakMethod(method)

    def call(error: KafkaError) -> None:
        if (alive := held()) is not None:
            alive(error)

    return call


def kafka_config(settings: "Settings") -> dict[str, Any]:
    """Address and credentials, for producers, consumers and admin clients of confluent-kafka.

    Raises: Misconfigured: no cluster is named. The command that starts the local engine sets its address.
    """
    kafka = settings.kafka
    if not kafka.bootstrap:
        raise Misconfigured(
            "kafka.bootstrap is empty: name a cluster with --bootstrap HOST:PORT, or start one with `crawlog up`"
        )
    explain_aborts(settings)
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "log_level": 2,  # errors arrive by callback; librdkafka would print its own lines to standard error
        "topic.metadata.refresh.interval.ms": 60_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,  # a restarted broker is found within a second
        "socket.keepalive.enable": True,
        "socket.timeout.ms": HUNG_MS,  # the default is a minute
    }
    return config | _sasl(kafka) | _tls(kafka)


def foreign_config(settings: "Settings") -> dict[str, str]:
    """Address and credentials only, for other programs built on librdkafka, such as kcat."""
    there = ("bootstrap.servers", "security.protocol", "sasl.", "ssl.")
    return {name: value for name, value in kafka_config(settings).items() if name.startswith(there)}


def consumer_config(settings: "Settings", group: str | None = None) -> dict[str, Any]:
    """A plain consumer: it commits nothing, and an offset outside the log is an error."""
    largest = settings.kafka.max_record_bytes
    return kafka_config(settings) | {
        "group.id": group or READER,
        "auto.offset.reset": "error",
        "check.crcs": True,  # by default librdkafka returns records that a disk has damaged
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "max.partition.fetch.bytes": largest,
        "fetch.max.bytes": FETCHED_BYTES,
        "receive.message.max.bytes": max(largest, QUEUED_BYTES) + (1 << 20),
        "queued.max.messages.kbytes": max(largest, QUEUED_BYTES) // 1024,
    }


def aiokafka_credentials(settings: "Settings") -> Any:
    """The same credentials as Faust's `broker_credentials`; None for PLAINTEXT."""
    from faust import SASLCredentials, SSLCredentials  # takes a second to import; plain readers do not need it

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


def aiokafka_login(settings: "Settings") -> dict[str, Any]:
    """Address and credentials, for consumers of aiokafka."""
    kafka = settings.kafka
    return {
        "bootstrap_servers": kafka.bootstrap,
        "security_protocol": kafka.security_protocol,
        "ssl_context": _ssl_context(kafka) if kafka.security_protocol.endswith("SSL") else None,
        "sasl_mechanism": kafka.sasl_mechanism,
        "sasl_plain_username": kafka.sasl_username,
        "sasl_plain_password": kafka.sasl_password,
    }


def _sasl(kafka: "Kafka") -> dict[str, object]:
    if not kafka.security_protocol.startswith("SASL"):
        return {}
    if not (kafka.sasl_username and kafka.sasl_password):
        raise Misconfigured(
            f"kafka.security_protocol is {kafka.security_protocol}: give kafka.sasl_username, and the password in the "
            "environment (CRAWLOG_KAFKA__SASL_PASSWORD)"
        )
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


def is_transient(error: KafkaError) -> bool:
    """Whether to retry. `KafkaError.retriable` is about transactions, and False for all of these."""
    return error.code() in TRANSIENT_CODES


def access_denied(settings: "Settings", said: str) -> AccessDenied:
    """The error for an answer of `DENIED_CODES`."""
    return AccessDenied(settings.kafka.bootstrap, settings.kafka.security_protocol, said)


def _unanswered(settings: "Settings", topic: str, error: KafkaException) -> EngineError:
    why = error.args[0]
    if why.code() in DENIED_CODES:
        return access_denied(settings, f"{topic}: {why.str()}")
    wrong = f"\n{told}" if why.code() < 0 and (told := named_silent(AdminClient(kafka_config(settings)))) else ""
    return EngineError(f"{settings.kafka.bootstrap} gives no answer about {topic}: {why}; see `crawlog doctor`{wrong}")


def log_identity(settings: "Settings", topic: str) -> LogIdentity:
    """Cluster id and topic id (base64, as Kafka prints it) of `topic`; retried after transient errors.

    Raises: EngineError: the cluster does not answer, or has no such topic.
    """
    admin = AdminClient(kafka_config(settings))

    def ask() -> LogIdentity:
        cluster = admin.describe_cluster(request_timeout=CLUSTER_TIMEOUT_S).result()
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=CLUSTER_TIMEOUT_S)[topic].result()
        return LogIdentity(str(cluster.cluster_id), str(described.topic_id))

    try:
        return _patiently(ask)
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error


def partition_edges(consumer: Consumer, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The first offset and the end offset of each partition, in two requests to each broker.

    Retried for a while after a transient error, such as a leader that is not elected yet.

    Raises: KafkaException: no answer, or a permanent error.
    """
    numbers = list(partitions)
    if not numbers:
        return {}  # librdkafka refuses to be asked about none
    first, past = (
        _patiently(partial(_edge, consumer, topic, numbers, edge)) for edge in (OFFSET_BEGINNING, OFFSET_END)
    )
    return {number: (first[number], past[number]) for number in numbers}


def _edge(consumer: Consumer, topic: str, partitions: Sequence[int], edge: int) -> dict[int, int]:
    asked = [TopicPartition(topic, partition, edge) for partition in partitions]  # as a timestamp it means the same
    try:
        places = consumer.offsets_for_times(asked, CLUSTER_TIMEOUT_S)
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
    except KafkaException as error:
        if error.args[0].code() in _EPOCHS:
            consumer.list_topics(topic, CLUSTER_TIMEOUT_S)  # refreshes leader epochs that may be stale
        raise
    return {place.partition: place.offset for place in places}


def log_bounds(settings: "Settings", topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    """The first offset and the end offset of each partition.

    Raises: EngineError: the cluster does not answer, or has no such partition.
    """
    consumer = Consumer(consumer_config(settings))
    try:
        return partition_edges(consumer, topic, partitions)
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error
    finally:
        consumer.close()


def log_end(settings: "Settings", topic: str, partition: int = 0) -> int:
    """The end offset of a partition. Raises: EngineError: as `log_bounds`."""
    return log_bounds(settings, topic, [partition])[partition][1]


def offset_at(settings: "Settings", topic: str, partition: int, at_ms: int, end: int) -> int:
    """The first offset of a time, UTC epoch milliseconds; `end` if all records are earlier.

    Raises: EngineError: the cluster does not answer.
    """
    consumer = Consumer(consumer_config(settings))
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, at_ms)], CLUSTER_TIMEOUT_S)
        if found.error is not None:
            raise KafkaException(found.error)
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error
    finally:
        consumer.close()
    return found.offset if found.offset >= 0 else end


def committed_offsets(
    settings: "Settings", group: str, topic: str, partitions: Iterable[int]
) -> dict[int, tuple[int, str]]:
    """Offset and metadata of a group's commits, by partition; partitions without a commit are left out.

    Asked by a consumer: librdkafka's admin client (2.16) crashes the process while the broker loads its groups.

    Raises: EngineError: the cluster does not answer.
    """
    consumer = Consumer(consumer_config(settings, group))
    places = [TopicPartition(topic, at) for at in partitions]
    try:
        return _patiently(lambda: _commits(consumer.committed(places, CLUSTER_TIMEOUT_S)))
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error
    finally:
        consumer.close()


def commit_metadata(place: TopicPartition) -> str:
    """The metadata of a commit. librdkafka (2.16) returns it without its length, so stray bytes may follow."""
    try:
        return place.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode("latin-1")


def _commits(found: list[TopicPartition]) -> dict[int, tuple[int, str]]:
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return {place.partition: (place.offset, commit_metadata(place)) for place in found if place.offset >= 0}


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """The answer to a request, retried for CLUSTER_TIMEOUT_S after transient errors; it is said once that it waits."""
    began, told = time.monotonic(), False
    while True:
        try:
            return ask()
        except KafkaException as error:
            waited_s = time.monotonic() - began
            if not is_transient(error.args[0]) or waited_s > CLUSTER_TIMEOUT_S:
                raise
            if not told and waited_s > SILENT_S:
                told = True
                wait = f"an answer is waited for, {CLUSTER_TIMEOUT_S:.0f} s in all"
                log.error("log_silent", reason=error.args[0].str(), then=wait)  # noqa: TRY400  # its trace tells nothing
            time.sleep(AGAIN_S)
