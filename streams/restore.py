"""Restore: fold crawl.urls from a state's offset to the log's end, with a plain consumer outside Faust.

One consumer reads all partitions of an assignment together, up to the end offsets captured at the start; nothing is
dispatched for a partition before. The same reader fills a gap in live reading, so nothing depends on what Faust
delivers or skips. It blocks: run it in a thread, with no one else at those partitions.
"""

import threading
import time
from collections.abc import Callable, Iterable

import structlog
import xxhash
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from .errors import CrawlError, EngineError
from .fold import Effects
from .kafka import consumer_config, watermarks
from .settings import Settings
from .store import Partition

log = structlog.get_logger()

BATCH_RECORDS = 500
STALL_S = 30.0
"""A read that gets nothing for this long fails: the caller reports it and the supervisor tries again."""

POLL_S = 0.2

After = Callable[[Partition], None]

Handle = Callable[[Partition, Message, Effects], None]
"""What to do with the effects of a record: forwarding and dead letters happen in restore as in live reading."""


class _AnotherLog(Exception):
    """A state's last record is not the one in the log."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"the record at offset {offset} is not the one it folded")
        self.partition = partition


class Interrupted(CrawlError):
    """The restore was told to stop; what it folded so far is right as far as it goes."""


class Restorer:
    """Reads crawl.urls for restores.

    Args:
        topic: Full name of crawl.urls.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self._config = consumer_config(settings)
        self._topic = topic

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Where the log of each partition ends now.

        Raises: EngineError: The log cannot be read.
        """
        consumer = Consumer(self._config)
        try:
            return {number: self._bounds(consumer, number)[1] for number in partitions}
        finally:
            consumer.close()

    def restore(
        self,
        partitions: Iterable[Partition],
        handle: Handle,
        after: After,
        interrupt: threading.Event,
        ends: dict[int, int] | None = None,
    ) -> dict[int, int]:
        """Fold each partition to the log's end.

        Args:
            handle: Gets every record that has effects.
            after: Called after each batch for each partition in it: checkpoints what grows large.
            interrupt: Ends the restore early.
            ends: Offsets to stop at, by partition; None for the log's end as it is now.

        Returns: Records folded, by partition.

        Raises:
            EngineError: The log cannot be read.
            Interrupted: `interrupt` was set.
        """
        by_number = {partition.number: partition for partition in partitions}
        while True:
            consumer = Consumer(self._config)
            try:
                return self._read(consumer, by_number, handle, after, interrupt, ends)
            except _AnotherLog as error:
                error.partition.rebuild(str(error))
            finally:
                consumer.close()

    def _bounds(self, consumer: Consumer, number: int) -> tuple[int, int]:
        try:
            return watermarks(consumer, self._topic, number)
        except KafkaException as error:
            raise EngineError(f"{self._topic}[{number}]: {error.args[0]}") from error

    def _read(
        self,
        consumer: Consumer,
        partitions: dict[int, Partition],
        handle: Handle,
        after: After,
        interrupt: threading.Event,
        wanted: dict[int, int] | None,
    ) -> dict[int, int]:
        ends = self._prepare(consumer, partitions) if wanted is None else wanted
        folded = dict.fromkeys(partitions, 0)
        # The last folded record is read again, one before the offset: its hash tells whether this is the same log.
        begin = {n: p.offset - 1 if p.last_hash else p.offset for n, p in partitions.items()}
        left = {n for n in partitions if begin[n] < ends[n]}
        if left:
            consumer.assign([TopicPartition(self._topic, n, begin[n]) for n in left])
        heard = time.monotonic()
        while left:
            if interrupt.is_set():
                raise Interrupted
            messages = consumer.consume(BATCH_RECORDS, timeout=POLL_S)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALL_S:
                raise EngineError(f"{self._topic}: nothing read for {STALL_S:.0f} s from partitions {sorted(left)}")
            for message in messages:
                if wanted is None or message.offset() < ends[message.partition()]:
                    self._take(message, partitions, folded, handle)
            for number in {message.partition() for message in messages}:
                after(partitions[number])
            for tp in consumer.position([TopicPartition(self._topic, n) for n in left]):
                end = ends[tp.partition]
                if tp.offset >= end:
                    if partitions[tp.partition].offset < end:
                        partitions[tp.partition].skip_to(end)
                    left.discard(tp.partition)
        return folded

    def _prepare(self, consumer: Consumer, partitions: dict[int, Partition]) -> dict[int, int]:
        """The log's ends; states that do not fit between its start and its end are mended."""
        ends = {}
        for number, partition in partitions.items():
            low, ends[number] = self._bounds(consumer, number)
            if partition.offset > ends[number]:
                partition.rebuild(f"it is at offset {partition.offset}, the log ends at {ends[number]}")
            if partition.offset < low:
                log.error("records_gone", partition=number, missing=f"{partition.offset}..{low - 1}", log_starts=low)
                partition.skip_to(low)
        return ends

    def _take(
        self, message: Message, partitions: dict[int, Partition], folded: dict[int, int], handle: Handle
    ) -> None:
        error = message.error()
        if error is not None:
            if error.retriable():
                log.warning("restore_waits", error=str(error))
                return
            raise EngineError(f"{self._topic}: {error}")
        partition = partitions[message.partition()]
        offset = message.offset()
        if offset < partition.offset:
            value = message.value() or b""
            if offset == partition.offset - 1 and xxhash.xxh3_64_intdigest(value) != partition.last_hash:
                raise _AnotherLog(partition, offset)
            return
        partition.skip_to(offset)
        effects = partition.take(message.value(), offset, message.timestamp()[1] / 1000)
        folded[partition.number] += 1
        if effects.forward or effects.dead:
            handle(partition, message, effects)
