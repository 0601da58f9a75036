"""Reading a range of a topic. A read ends by position, not by silence, and tells damage from an unreachable broker.

    Patience.take ─► record ─► at the expected offset, or `check_jump`
                  ├► error ──► transient: read on; else `read_error`: DamagedLog, AccessDenied, EngineError
                  └► nothing ─► for too long: `_stuck` asks the broker for the end of the partition

Callers read [start, end): `read_records` one partition, `read_partitions` several, `read_around` a damaged one.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from math import inf
from operator import methodcaller
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from crawlog.streams.cluster import (
    CLUSTER_TIMEOUT_S,
    DAMAGE_CODES,
    DENIED_CODES,
    access_denied,
    consumer_config,
    is_transient,
    log_bounds,
    partition_edges,
)
from crawlog.streams.errors import DamagedLog, EngineError

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

# Seconds after CLUSTER_TIMEOUT_S: if a broker answers but gives no record for so long, its log counts as damaged.
CONFIRM_S = 10.0

# Time budget of `read_around` after the first damage, seconds. A broker that cannot read its file is silent longer.
AROUND_S = 20.0

PROBED_BYTES = 32 << 20  # Bytes of a partition that `check_readable` reads: more than a worker's consumer reads ahead

# For a name that is not UTF-8 confluent-kafka 2.16 raises, and also returns a list with null pointers. A plain call of
# the method in a loop is one that Python optimizes: it ignores the exception, and the list ends the process (SIGSEGV).
_headers = methodcaller("headers")

READ_RECORDS = 1_000  # Largest number of records taken from librdkafka at once


def read_records(settings: "Settings", topic: str, partition: int, start: int, end: int) -> Generator[Message]:
    """The existing records at offsets [start, end) of one partition.

    Close it if you leave early: an exception of a signal, such as Ctrl-C, is dropped while a finalizer closes it.

    Raises: EngineError: the cluster does not answer, or `start` is no longer in the log. DamagedLog: a record
        is damaged.
    """
    if start >= end:
        return
    consumer = Consumer(consumer_config(settings) | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        patience, expected = ReadPatience(f"{topic}[{partition}], from offset {start} on,"), start
        while True:
            records = patience.take(consumer)
            for record in records:
                error, offset = record.error(), record.offset() or 0
                if error is not None and not is_transient(error):
                    raise read_error(record, settings)
                if error is None and offset != expected:
                    check_jump(consumer, topic, partition, expected, offset)
                if error is None and offset < end:
                    expected = offset + 1
                    yield record
                if (error is None and offset >= end - 1) or is_log_end(error):
                    return
    finally:
        consumer.close()


def record_at(settings: "Settings", topic: str, partition: int, offset: int) -> Message | None:
    """The record at an offset of the log; None if compaction or a transaction left none there.

    Raises: as `read_records`.
    """
    with closing(read_records(settings, topic, partition, offset, offset + 1)) as records:
        return next(records, None)


def read_around(
    settings: "Settings", topic: str, partition: int, start: int, end: int, passed: Callable[[DamagedLog], None]
) -> Iterator[Message]:
    """Like `read_records`, for records that may be missing: damage is skipped, in steps that double.

    Args:
        passed: Called with the first damage.

    Raises: EngineError: the cluster does not answer.
    """
    at, step, until = start, 1, 0.0
    while at < end:
        try:
            for record in read_records(settings, topic, partition, at, end):
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


def read_partitions(settings: "Settings", topic: str, ranges: Mapping[int, tuple[int, int]]) -> Generator[Message]:
    """The records at offsets [start, end) of several partitions, read together; in order within each partition.

    Raises: EngineError: the cluster does not answer, or a start is no longer in the log. DamagedLog: a record
        is damaged.
    """
    left = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not left:
        return
    expected = {partition: ranges[partition][0] for partition in left}
    consumer = Consumer(consumer_config(settings) | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, partition, ranges[partition][0]) for partition in left])
        patience = ReadPatience(topic)
        while left:
            records = patience.take(consumer, left)
            for record in records:
                error, offset, partition = record.error(), record.offset() or 0, record.partition() or 0
                if error is not None and not is_transient(error):
                    raise read_error(record, settings)
                if error is None and partition in left and offset != expected[partition]:
                    check_jump(consumer, topic, partition, expected[partition], offset)
                if error is None and offset < left.get(partition, 0):
                    expected[partition] = offset + 1
                    yield record
                if (error is None and offset >= left.get(partition, 0) - 1) or is_log_end(error):
                    left.pop(partition, None)
    finally:
        consumer.close()


def check_readable(settings: "Settings", topic: str, places: Mapping[int, int]) -> None:
    """Reads the next PROBED_BYTES of some partitions, to find damage.

    Raises: EngineError: the cluster does not answer. DamagedLog: a record cannot be read.
    """
    for partition, (first, end) in log_bounds(settings, topic, list(places)).items():
        size_bytes = 0
        with closing(read_records(settings, topic, partition, max(first, places[partition]), end)) as records:
            for record in records:
                size_bytes += len(record.value() or b"")
                if size_bytes > PROBED_BYTES:
                    break


class ReadPatience:
    """The time budget of a read that brings nothing. Only a record or the log's end refills it.

    Errors do not: an unreachable broker brings one after the other. The time in which the caller handles a record is
    not counted.

    Args:
        where: The topic or partition, for the message.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._waited_s = 0.0
        self._left_s = CLUSTER_TIMEOUT_S

    def take(
        self,
        consumer: Consumer,
        partitions: Iterable[int] = (),
        *,
        wait_s: float = inf,
        most: int = READ_RECORDS,
    ) -> list[Message]:
        """Like `take`; waits at most `wait_s`, and no longer than the budget lasts.

        Args:
            partitions: Partitions still to be read, for the message.

        Raises: EngineError: the budget is used up. DamagedLog: so too, but the broker reports records there.
        """
        began = time.monotonic()
        records = take(consumer, min(wait_s, max(self._left_s - self._waited_s, 0.0)), most)
        if any(record.error() is None or is_log_end(record.error()) for record in records):
            self._waited_s, self._left_s = 0.0, CLUSTER_TIMEOUT_S
            return records
        self._waited_s += time.monotonic() - began
        if self._waited_s >= self._left_s:
            stuck = _stuck(consumer, partitions)
            if stuck and self._left_s == CLUSTER_TIMEOUT_S:  # the broker may have come back just now
                self._left_s += CONFIRM_S
                return records
            if stuck:
                raise stuck
            left = f" (partitions {', '.join(map(str, sorted(partitions)))})" if partitions else ""
            raise EngineError(
                f"{self._where}{left} gave nothing for {CLUSTER_TIMEOUT_S:.0f} s: its broker is away, or no leader is"
                " elected; see `crawlog doctor`"
            )
        return records


def _stuck(consumer: Consumer, partitions: Iterable[int]) -> DamagedLog | None:
    """The damage, if the broker reports records that it does not give; None when it does not answer."""
    wanted = set(partitions)
    for place in consumer.position([at for at in consumer.assignment() if not wanted or at.partition in wanted]):
        try:
            first, end = partition_edges(consumer, place.topic, [place.partition])[place.partition]
        except KafkaException:
            return None
        at = max(place.offset, first)
        if at < end:
            why = f"the broker gives no record there, though it has them up to {end - 1}"
            return DamagedLog(place.topic, place.partition, at, why)
    return None


def take(consumer: Consumer, wait_s: float, most: int = READ_RECORDS) -> list[Message]:
    """The available records; waits for the first one only. `consume` alone would wait for `most` of them."""
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def record_headers(record: Message) -> list[tuple[str, bytes]]:
    """The headers of a record; one without a value is empty. None at all if a name is not UTF-8."""
    try:
        named: list[tuple[str, bytes | None]] = _headers(record) or []
    except (SystemError, UnicodeDecodeError):
        record.set_headers([])  # the record keeps the broken list
        return []
    return [(name, value or b"") for name, value in named]


def is_log_end(error: KafkaError | None) -> bool:
    """Whether the log ends here; it may end before the requested range does."""
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def check_jump(consumer: Consumer, topic: str, partition: int, expected: int, offset: int) -> None:
    """Checks a record that is not at the expected offset. A gap is legal, but no CRC covers a batch's offset.

    Raises: DamagedLog: the offset lies before the expected one, or behind the log's end.
    """
    place = TopicPartition(topic, partition)
    if offset < expected or 0 < consumer.get_watermark_offsets(place, cached=True)[1] <= offset:
        raise DamagedLog(topic, partition, expected, f"a batch there claims the offset {offset}")


def read_error(record: Message, settings: "Settings | None" = None) -> EngineError:
    """The exception for a permanent error that came in place of a record."""
    error = record.error()
    assert error is not None
    topic, partition, offset = record.topic() or "?", record.partition() or 0, record.offset() or 0
    if error.code() in DAMAGE_CODES:
        return DamagedLog(topic, partition, offset, error.str())
    if error.code() in DENIED_CODES and settings is not None:
        return access_denied(settings, f"{topic}[{partition}]: {error.str()}")
    return EngineError(f"{topic}[{partition}] cannot be read at offset {offset}: {error.str()}; see `crawlog doctor`")
