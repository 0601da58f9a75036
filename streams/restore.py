"""Restore: fold crawl.urls from a state's offset to the log's end, with a plain consumer outside Faust.

One consumer reads all partitions of an assignment together, up to the end offsets captured at the start; nothing is
dispatched for a partition before. The same reader fills a gap in live reading, so nothing depends on what Faust
delivers or skips. It blocks: run it in a thread, with no one else at those partitions.
"""

from collections.abc import Callable, Iterable

import structlog
import xxhash
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from .errors import EngineError
from .fold import Effects
from .kafka import consumer_config
from .settings import Settings
from .store import Partition

log = structlog.get_logger()

BATCH_RECORDS = 500
STALL_S = 30.0
"""A read that gets nothing for this long fails: the caller reports it and the supervisor tries again."""

Handle = Callable[[Partition, Message, Effects], None]
"""What to do with the effects of a record: forwarding and dead letters happen in restore as in live reading."""


class _AnotherLog(Exception):
    """A state's last record is not the one in the log."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"the record at offset {offset} is not the one it folded")
        self.partition = partition


class Restorer:
    """Reads one topic for restores.

    Args:
        topic: Full name of crawl.urls.
        handle: Gets every record that has effects.
    """

    def __init__(self, settings: Settings, topic: str, handle: Handle) -> None:
        self._config = consumer_config(settings, group="crawlog-restore")
        self._topic = topic
        self._handle = handle

    def restore(self, partitions: Iterable[Partition]) -> dict[int, int]:
        """Fold each partition to the log's end.

        Returns: Records folded, by partition.

        Raises: EngineError: The log cannot be read.
        """
        by_number = {partition.number: partition for partition in partitions}
        while True:
            consumer = Consumer(self._config)
            try:
                return self._read(consumer, by_number)
            except _AnotherLog as error:
                error.partition.rebuild(str(error))
            finally:
                consumer.close()

    def _read(self, consumer: Consumer, partitions: dict[int, Partition]) -> dict[int, int]:
        ends: dict[int, int] = {}
        for number, partition in partitions.items():
            low, high = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=STALL_S)
            ends[number] = high
            if partition.offset > high:
                partition.rebuild(f"it is at offset {partition.offset}, the log ends at {high}")
            if partition.offset < low:
                log.error("records_gone", partition=number, missing=f"{partition.offset}..{low - 1}", log_starts=low)
                partition.skip_to(low)
        folded = dict.fromkeys(partitions, 0)
        # The last folded record is read again, one before the offset: its hash tells whether this is the same log.
        assigned = [TopicPartition(self._topic, n, self._from(partitions[n])) for n in partitions if ends[n]]
        left = {n for n in partitions if partitions[n].offset < ends[n] or self._from(partitions[n]) < partitions[n].offset}
        if left:
            consumer.assign([tp for tp in assigned if tp.partition in left])
        while left:
            messages = consumer.consume(BATCH_RECORDS, timeout=STALL_S)
            if not messages:
                raise EngineError(f"{self._topic}: nothing read for {STALL_S:.0f} s, partitions {sorted(left)} not restored")
            for message in messages:
                self._take(message, partitions, folded)
            for tp in consumer.position([TopicPartition(self._topic, n) for n in left]):
                if tp.offset >= ends[tp.partition]:
                    partitions[tp.partition].skip_to(max(tp.offset, partitions[tp.partition].offset))
                    left.discard(tp.partition)
        return folded

    @staticmethod
    def _from(partition: Partition) -> int:
        return partition.offset - 1 if partition.last_hash else partition.offset

    def _take(self, message: Message, partitions: dict[int, Partition], folded: dict[int, int]) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            if error.retriable():
                log.warning("restore_waits", error=str(error))
                return
            raise EngineError(f"{self._topic}: {error}")
        partition = partitions[message.partition()]
        offset = message.offset()
        if offset < partition.offset:
            if offset == partition.offset - 1 and _hash(message) != partition.last_hash:
                raise _AnotherLog(partition, offset)
            return
        partition.skip_to(offset)
        effects = partition.take(message.value(), offset, message.timestamp()[1] / 1000)
        folded[partition.number] += 1
        if effects.forward or effects.dead:
            self._handle(partition, message, effects)


def _hash(message: Message) -> int:
    return xxhash.xxh3_64_intdigest(message.value() or b"")
