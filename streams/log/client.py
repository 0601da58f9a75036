"""How every Kafka client reaches the cluster: one place for address, credentials and the rules all readers share."""

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from crawlog.streams.errors import AccessDenied, DamagedLog, EngineError, Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.settings import Kafka, Settings

READER = "crawlog-reader"
"""Group id of the plain consumers: librdkafka wants one, they never commit under it."""

QUEUED_BYTES = 32 << 20
"""What a plain consumer reads ahead, bytes; above the largest record, far below librdkafka's 64 MiB per partition."""


AGAIN_S = 0.05
"""Rest before a question is asked again whose answer passes."""

TIMEOUT_S = 30.0
"""How long an answer of the cluster may take, seconds; a broker that has just started needs some."""

CONFIRM_S = 10.0
"""Seconds after TIMEOUT_S for which a broker that answers may bring nothing, before its log counts as damaged."""

AROUND_S = 20.0
"""How long `read_around` looks behind damage; a broker that cannot read its file is silent for longer."""

PROBED_BYTES = 32 << 20
"""Read of a partition where damage is looked for: further than a worker's consumer reads ahead."""

READ_RECORDS = 1_000
"""Records taken from librdkafka at once."""

Answer = TypeVar("Answer")


def kafka_config(settings: "Settings") -> dict[str, Any]:
    """Address and credentials, for producers, consumers and admin clients of confluent-kafka.

    Raises: Misconfigured: no cluster is named; the local engine's address is put in by whoever started it.
    """
    kafka = settings.kafka
    if not kafka.bootstrap:
        raise Misconfigured(
            "kafka.bootstrap is empty: name a cluster with --bootstrap HOST:PORT, or start one with `crawlog up`"
        )
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "security.protocol": kafka.security_protocol,
        "log_level": 2,  # what goes wrong arrives as an error; librdkafka's own lines would land on standard error
        "topic.metadata.refresh.interval.ms": 60_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,  # a restarted broker is found within a second
        "socket.keepalive.enable": True,
    }
    return config | _sasl(kafka) | _tls(kafka)


def foreign_config(settings: "Settings") -> dict[str, str]:
    """Address and credentials alone, for other programs that are built on librdkafka, such as kcat."""
    there = ("bootstrap.servers", "security.protocol", "sasl.", "ssl.")
    return {name: value for name, value in kafka_config(settings).items() if name.startswith(there)}


def consumer_config(settings: "Settings", group: str | None = None) -> dict[str, Any]:
    """A plain consumer: reads what is there, commits nothing, and says so when its offset is not in the log."""
    largest = settings.kafka.max_record_bytes
    return kafka_config(settings) | {
        "group.id": group or READER,
        "auto.offset.reset": "error",
        "check.crcs": True,  # librdkafka's default is to hand out what a disk made of a record
        "isolation.level": "read_uncommitted",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "max.partition.fetch.bytes": largest,
        "fetch.max.bytes": max(largest, QUEUED_BYTES),
        "receive.message.max.bytes": max(largest, QUEUED_BYTES) + (1 << 20),
        "queued.max.messages.kbytes": max(largest, QUEUED_BYTES) // 1024,
    }


def aiokafka_credentials(settings: "Settings") -> Any:
    """The same credentials as Faust's `broker_credentials`; None for PLAINTEXT."""
    from faust import SASLCredentials, SSLCredentials  # a second of imports that readers do not need

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


class LogIdentity(NamedTuple):
    """Which log a state is a fold of: a topic created again, or another cluster, is another log."""

    cluster: str
    topic: str


def identity(settings: "Settings", topic: str) -> LogIdentity:
    """Cluster id and topic id (base64, as Kafka prints it) of `topic`; asked again while the answer is one that passes.

    Raises: EngineError: the cluster does not answer, or has no such topic.
    """
    admin = AdminClient(kafka_config(settings))

    def ask() -> LogIdentity:
        cluster = admin.describe_cluster(request_timeout=TIMEOUT_S).result()
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)[topic].result()
        return LogIdentity(str(cluster.cluster_id), str(described.topic_id))

    try:
        return _patiently(ask)
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error


PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,  # a topic that was just created is known to the controller first
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,  # a broker that starts knows its own partitions last
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
"""Errors of a broker that starts, moves or is away for a moment."""

DAMAGE = frozenset(
    {
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,  # a version of records that no Kafka has: the byte that says so was changed
        KafkaError._UNDERFLOW,
    }
)
"""Errors of a record that is not what was written."""

AWAY = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION})
"""Errors after which a client of the local engine looks whether its broker was started anew, with another password."""

Login = Callable[[], tuple[str, str]]
"""The user and password that the broker wants now. It may raise: that ends the command."""

DENIED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
"""What a cluster says to a client that it does not know, or that may not do what it asks for."""

_EPOCHS = frozenset({KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH})


def passes(error: KafkaError) -> bool:
    """Whether to ask again. `KafkaError.retriable` is about transactions, and False for all of these."""
    return error.code() in PASSING


def denied(settings: "Settings", said: str) -> AccessDenied:
    """The error for an answer of `DENIED`."""
    return AccessDenied(settings.kafka.bootstrap, settings.kafka.security_protocol, said)


def refused(record: Message, settings: "Settings | None" = None) -> EngineError:
    """The error that came in place of a record, and that does not pass."""
    error = record.error()
    assert error is not None
    topic, partition, offset = record.topic() or "?", record.partition() or 0, record.offset() or 0
    if error.code() in DAMAGE:
        return DamagedLog(topic, partition, offset, error.str())
    if error.code() in DENIED and settings is not None:
        return denied(settings, f"{topic}[{partition}]: {error.str()}")
    return EngineError(f"{topic}[{partition}] cannot be read at offset {offset}: {error.str()}; see `crawlog doctor`")


def check_jump(consumer: Consumer, topic: str, partition: int, expected: int, offset: int) -> None:
    """Call it where a record is not the expected one: an empty range is legal, but no CRC covers a batch's offset.

    Raises: DamagedLog: the record lies before one that was read, or behind the log's end.
    """
    place = TopicPartition(topic, partition)
    if offset < expected or 0 < consumer.get_watermark_offsets(place, cached=True)[1] <= offset:
        raise DamagedLog(topic, partition, expected, f"a batch there claims the offset {offset}")


def edges(consumer: Consumer, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The first offset of each partition and the one after its last, in two requests to each broker.

    Asked again for a while where the answer is one that passes, such as a leader that is not elected yet.

    Raises: KafkaException: no answer, or one that stays.
    """
    numbers = list(partitions)
    first, past = (
        _patiently(partial(_edge, consumer, topic, numbers, edge)) for edge in (OFFSET_BEGINNING, OFFSET_END)
    )
    return {number: (first[number], past[number]) for number in numbers}


def _edge(consumer: Consumer, topic: str, partitions: Sequence[int], edge: int) -> dict[int, int]:
    asked = [TopicPartition(topic, partition, edge) for partition in partitions]  # as a time it means the same
    try:
        places = consumer.offsets_for_times(asked, TIMEOUT_S)
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
    except KafkaException as error:
        if error.args[0].code() in _EPOCHS:
            consumer.list_topics(topic, TIMEOUT_S)  # else it may ask with the leader epochs it knows for ever
        raise
    return {place.partition: place.offset for place in places}


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """An answer of the cluster, asked for again for a while where it is an error that passes."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not passes(error.args[0]) or time.monotonic() > until:
                raise
            time.sleep(AGAIN_S)


def bounds(settings: "Settings", topic: str, partitions: list[int]) -> dict[int, tuple[int, int]]:
    """Offset of the first record and the one after the last, of each partition.

    Raises: EngineError: the cluster does not answer, or has no such partition.
    """
    consumer = Consumer(consumer_config(settings))
    try:
        return edges(consumer, topic, partitions)
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error
    finally:
        consumer.close()


def commits_of(settings: "Settings", group: str, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, str]]:
    """Offset and metadata of what a group has committed, by partition; those without a commit are left out.

    A consumer asks: while the broker loads its groups, librdkafka's admin client (2.16) crashes the process.

    Raises: EngineError: the cluster does not answer.
    """
    consumer = Consumer(consumer_config(settings, group))
    places = [TopicPartition(topic, at) for at in partitions]
    try:
        return _patiently(lambda: _commits(consumer.committed(places, TIMEOUT_S)))
    except KafkaException as error:
        raise _unanswered(settings, topic, error) from error
    finally:
        consumer.close()


def metadata_of(place: TopicPartition) -> str:
    """Of a commit; bytes may follow that are nobody's, as librdkafka (2.16) hands it out without an end."""
    try:
        return place.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode("latin-1")


def _commits(found: list[TopicPartition]) -> dict[int, tuple[int, str]]:
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return {place.partition: (place.offset, metadata_of(place)) for place in found if place.offset >= 0}


def read(settings: "Settings", topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
    """The records at offsets [start, end) of one partition, as far as they exist; ends by position, not by silence.

    Raises: EngineError: the cluster does not answer, or `start` is no longer in the log. DamagedLog: a record is not
        what was written.
    """
    if start >= end:
        return
    consumer = Consumer(consumer_config(settings) | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        patience, expected = Patience(f"{topic}[{partition}], from offset {start} on,"), start
        while True:
            records = patience.take(consumer)
            for record in records:
                error, offset = record.error(), record.offset() or 0
                if error is not None and not passes(error):
                    raise refused(record, settings)
                if error is None and offset != expected:
                    check_jump(consumer, topic, partition, expected, offset)
                if error is None and offset < end:
                    expected = offset + 1
                    yield record
                if (error is None and offset >= end - 1) or at_end(error):
                    return
    finally:
        consumer.close()


def read_around(
    settings: "Settings", topic: str, partition: int, start: int, end: int, passed: Callable[[DamagedLog], None]
) -> Iterator[Message]:
    """The same for records that nobody needs: what cannot be read is passed over, in ever larger steps.

    Args:
        passed: Told of the first damage.

    Raises: EngineError: the cluster does not answer.
    """
    at, step, until = start, 1, 0.0
    while at < end:
        try:
            for record in read(settings, topic, partition, at, end):
                at, step = (record.offset() or 0) + 1, 1
                yield record
        except DamagedLog as error:
            if not until:
                until = time.monotonic() + AROUND_S
                passed(error)
            at, step = at + step, 2 * step
            if time.monotonic() > until:
                return
        else:
            return


def read_all(settings: "Settings", topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Message]:
    """The records at offsets [start, end) of many partitions, read together; in order within each of them.

    Raises: EngineError: the cluster does not answer, or a start is no longer in the log. DamagedLog: a record is not
        what was written.
    """
    left = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not left:
        return
    expected = {partition: ranges[partition][0] for partition in left}
    consumer = Consumer(consumer_config(settings) | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in left])
        patience = Patience(topic)
        while left:
            records = patience.take(consumer, left)
            for record in records:
                error, offset, partition = record.error(), record.offset() or 0, record.partition() or 0
                if error is not None and not passes(error):
                    raise refused(record, settings)
                if error is None and partition in left and offset != expected[partition]:
                    check_jump(consumer, topic, partition, expected[partition], offset)
                if error is None and offset < left.get(partition, 0):
                    expected[partition] = offset + 1
                    yield record
                if (error is None and offset >= left.get(partition, 0) - 1) or at_end(error):
                    left.pop(partition, None)
    finally:
        consumer.close()


def probe(settings: "Settings", topic: str, places: Mapping[int, int]) -> None:
    """Whether the next records of some partitions can be read, a few megabytes of each.

    Raises: EngineError: the cluster does not answer. DamagedLog: they cannot.
    """
    for partition, (first, end) in bounds(settings, topic, list(places)).items():
        size_bytes = 0
        for record in read(settings, topic, partition, max(first, places[partition]), end):
            size_bytes += len(record.value() or b"")
            if size_bytes > PROBED_BYTES:
                break


class Patience:
    """How long a read may wait and be brought nothing: only a record or the log's end counts.

    A broker that is away brings errors, one after the other. The time that the reader takes over a record is no wait.

    Args:
        where: What is read, for the message.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._waited_s = 0.0
        self._left_s = TIMEOUT_S

    def take(
        self,
        consumer: Consumer,
        partitions: Iterable[int] = (),
        *,
        wait_s: float = inf,
        most: int = READ_RECORDS,
    ) -> list[Message]:
        """What is there, as `take`; waits at most `wait_s`, and no longer than patience lasts.

        Args:
            partitions: Those still to be read, for the message.

        Raises: EngineError: nothing came for too long. DamagedLog: and yet the broker says that records are there.
        """
        began = time.monotonic()
        records = take(consumer, min(wait_s, max(self._left_s - self._waited_s, 0.0)), most)
        if any(record.error() is None or at_end(record.error()) for record in records):
            self._waited_s, self._left_s = 0.0, TIMEOUT_S
            return records
        self._waited_s += time.monotonic() - began
        if self._waited_s >= self._left_s:
            stuck = _stuck(consumer, partitions)
            if stuck and self._left_s == TIMEOUT_S:  # a broker that came back just now has not been asked yet
                self._left_s += CONFIRM_S
                return records
            if stuck:
                raise stuck
            left = f" (partitions {', '.join(map(str, sorted(partitions)))})" if partitions else ""
            raise EngineError(
                f"{self._where}{left} gave nothing for {TIMEOUT_S:.0f} s: its broker is away, or no leader is elected;"
                " see `crawlog doctor`"
            )
        return records


def _stuck(consumer: Consumer, partitions: Iterable[int]) -> DamagedLog | None:
    """The damage that keeps a broker from giving the records that it says it has; None when it does not answer."""
    wanted = set(partitions)
    for place in consumer.position([at for at in consumer.assignment() if not wanted or at.partition in wanted]):
        try:
            first, end = edges(consumer, place.topic, [place.partition])[place.partition]
        except KafkaException:
            return None
        at = max(place.offset, first)
        if at < end:
            why = f"the broker gives no record there, though it has them up to {end - 1}"
            return DamagedLog(place.topic, place.partition, at, why)
    return None


def take(consumer: Consumer, wait_s: float, most: int = READ_RECORDS) -> list[Message]:
    """What is there; waits for the first record only. `consume` alone would wait until it has `most` of them."""
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def at_end(error: KafkaError | None) -> bool:
    """Whether the log ends here; it may be shorter than was asked for."""
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _unanswered(settings: "Settings", topic: str, error: KafkaException) -> EngineError:
    why = error.args[0]
    if why.code() in DENIED:
        return denied(settings, f"{topic}: {why.str()}")
    return EngineError(f"{settings.kafka.bootstrap} gives no answer about {topic}: {why}; see `crawlog doctor`")


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
