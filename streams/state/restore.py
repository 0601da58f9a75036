"""Restore: fold crawl.urls from a state's offset to the log's end, with a plain consumer outside Faust.

One consumer reads all partitions of an assignment together, up to the end offsets captured at the start. A partition
dispatches no URLs before its end is reached. The same reader fills gaps in live reading, so the fold never depends on
the records that Faust delivers or skips. The calls block: run them in a thread that alone uses those partitions.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, cast

import structlog
import xxhash
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from crawlog.streams.cluster import consumer_config, is_transient, partition_edges
from crawlog.streams.errors import EngineError, RestoreInterrupted
from crawlog.streams.fold import Effects
from crawlog.streams.log import ReadPatience, check_jump, read_error
from crawlog.streams.settings import Settings

from .partition import Partition

if TYPE_CHECKING:
    from crawlog.streams.fold import Skip

log = structlog.get_logger()

BATCH_RECORDS = 500
# A record of 500 URLs makes 2,000 changes: with whole batches between two looks, memory held a million of them.
AFTER_RECORDS = 16

POLL_S = 0.2  # Longest wait for records, seconds; an interrupt is noticed as late as this

RESTORE_CHANGES = 200_000  # Limit of the changed rows of all partitions of a restore, some 750 bytes each

After = Callable[[Partition], None]  # Called with a partition after each `AFTER_RECORDS` records, if some are its own

# Handles the effects of a record: a restore forwards URLs and writes dead letters as live reading does.
Handle = Callable[[Partition, Message, Effects], None]


def checkpoint_due(live: int, partitions: Collection[Partition]) -> Callable[[Partition], bool]:
    """Says of a partition whether it is to be checkpointed: those restored together have too many changes.

    Their records come in long runs of one partition, so a limit for each would make many small checkpoints.

    Args:
        live: `state.checkpoint_changes`; with fewer changes no partition is checkpointed.
        partitions: Those restored together.
    """
    least = max(live, RESTORE_CHANGES // (2 * max(len(partitions), 1)))

    def is_due(partition: Partition) -> bool:
        return partition.changes >= least and sum(one.changes for one in partitions) >= RESTORE_CHANGES

    return is_due


def bounding(live: int, partitions: Collection[Partition]) -> After:
    """Checkpoints a partition where it is due; the arguments are those of `checkpoint_due`."""
    is_due = checkpoint_due(live, partitions)

    def bounded(partition: Partition) -> None:
        if is_due(partition):
            partition.checkpoint()

    return bounded


class _AnotherLog(Exception):
    """The last record that a state has folded differs from the one in the log."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"the record at offset {offset} is not the one it folded")
        self.partition = partition


class Restorer:
    """Reads crawl.urls for restores.

    Args:
        topic: Full name of crawl.urls.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self._settings = settings
        self._config = consumer_config(settings)
        self._topic = topic

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """The present end of each partition's log.

        Raises: EngineError: The log cannot be read.
        """
        consumer = Consumer(self._config)
        try:
            return {number: end for number, (_, end) in self._bounds(consumer, partitions).items()}
        finally:
            consumer.close()

    def restore(
        self,
        partitions: Iterable[Partition],
        handle: Handle,
        after: After,
        interrupt: threading.Event | None = None,
        ends: dict[int, int] | None = None,
        most: dict[int, int] | None = None,
    ) -> dict[int, int]:
        """Fold each partition to the log's end.

        Args:
            handle: Called for every record that has effects.
            after: Called after some records, for each partition that has one of them; it makes checkpoints.
            interrupt: Ends the restore early.
            ends: Offsets to stop at, by partition; None for the log's present end.
            most: Upper limits of the offsets to stop at, by partition.

        Returns: Number of records folded, by partition.

        Raises:
            EngineError: The log cannot be read. DamagedLog: It is damaged, so a retry will not help.
            Misconfigured: A state does not fit the log, which lacks its first records, and no snapshot fits.
            RestoreInterrupted: `interrupt` was set.
        """
        by_number = {partition.number: partition for partition in partitions}
        folded = Counter(dict.fromkeys(by_number, 0))
        while True:
            consumer = Consumer(self._config)
            try:
                bounds = self._bounds(consumer, by_number)
                ends_here = ends or self._prepare(by_number, bounds)
                if most is not None:
                    ends_here = {number: min(end, most.get(number, 0)) for number, end in ends_here.items()}
                reading = _Reading(self._settings, self._topic, consumer, by_number, ends_here, handle)
                reading.read(after, interrupt or threading.Event(), {n: low for n, (low, _) in bounds.items()})
            except _AnotherLog as error:
                partition = error.partition
                partition.cut = partition.offset
                partition.rebuild(str(error), low=bounds[partition.number][0], high=partition.offset - 1)
            else:
                folded.update(reading.folded)
                for number, skip in reading.rewound.items():
                    log.info("rewound", partition=number, start=skip.start, record=skip.end)
                    by_number[number].rewind(skip)
                    folded[number] = 0
                if not reading.rewound:
                    return dict(folded)
            finally:
                consumer.close()

    def _bounds(self, consumer: Consumer, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        try:
            return partition_edges(consumer, self._topic, partitions)
        except KafkaException as error:
            raise EngineError(f"{self._topic}: {error.args[0]}") from error

    @staticmethod
    def _prepare(partitions: dict[int, Partition], bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
        """The log's ends. Repairs states whose offset lies outside the log: by a rebuild, a snapshot, or a skip.

        Raises:
            Misconfigured: A state lies outside the log, and nothing that there is can replace it.
            SnapshotsAway: It may be replaced when the store of the snapshots answers again.
        """
        ends = {}
        for number, partition in partitions.items():
            low, ends[number] = bounds[number]
            if partition.offset > ends[number]:
                why = f"it is at offset {partition.offset}, the log ends at {ends[number]}"
                partition.cut = partition.offset
                partition.rebuild(why, low=low, high=ends[number])
            lacks = f"it ends at offset {partition.offset}"
            if partition.offset < low and not partition.leap(low, ends[number], needed=lacks):
                log.error("records_gone", partition=number, missing=f"{partition.offset}..{low - 1}", log_starts=low)
                partition.note = (
                    f"crawl.urls[{number}] has lost its records {partition.offset} to {low - 1}, and no snapshot goes "
                    "on from there: URLs that they found are missing, or are fetched again"
                )
                partition.skip_to(low)
        return ends


class _Reading:
    """One pass over the log, from each partition's offset to its end.

    A partition that meets a rewind ends its part of this pass.
    The record before a partition's offset is read again: its hash shows whether this is the log that was folded.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        consumer: Consumer,
        partitions: dict[int, Partition],
        ends: dict[int, int],
        handle: Handle,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._consumer = consumer
        self._partitions = partitions
        self._ends = ends
        self._handle = handle
        self.folded = dict.fromkeys(partitions, 0)
        self.rewound: dict[int, Skip] = {}
        self._next: dict[int, int] = {}

    def read(self, after: After, interrupt: threading.Event, lows: dict[int, int]) -> None:
        begin = {
            number: partition.offset - 1
            if partition.last_hash and partition.offset > lows[number]
            else partition.offset
            for number, partition in self._partitions.items()
        }
        left = {n for n in self._partitions if begin[n] < self._ends[n]}
        if left:
            self._next = {number: begin[number] for number in left}
            self._consumer.assign([TopicPartition(self._topic, n, begin[n]) for n in left])
        patience = ReadPatience(self._topic)
        while left:
            if interrupt.is_set():
                raise RestoreInterrupted
            messages = patience.take(self._consumer, left, wait_s=POLL_S, most=BATCH_RECORDS)
            for at in range(0, len(messages), AFTER_RECORDS):
                some = messages[at : at + AFTER_RECORDS]
                for number in {self._take(message) for message in some if not self._is_error(message)}:
                    after(self._partitions[number])
            left -= self._ended(left)

    def _ended(self, left: set[int]) -> set[int]:
        """Partitions read to their ends. Decided by position, since the last offsets may hold no record."""
        ended = left & self.rewound.keys()
        for tp in self._consumer.position([TopicPartition(self._topic, number) for number in left - ended]):
            partition, end = self._partitions[tp.partition], self._ends[tp.partition]
            if tp.offset >= end:
                ended.add(tp.partition)
                if partition.offset < end:
                    partition.skip_to(end)
        return ended

    def _is_error(self, message: Message) -> bool:
        """Whether the message is a transient error, not a record. Raises: EngineError: a permanent error."""
        error = message.error()
        if error is None:
            return False
        if not is_transient(error):
            raise read_error(message, self._settings)
        log.warning("restore_waits", error=str(error))
        return True

    def _take(self, message: Message) -> int:
        """Fold a record that lies from the state's offset to the end, and before any rewind; returns its partition."""
        number, offset = cast("int", message.partition()), cast("int", message.offset())
        partition = self._partitions[number]
        if offset != self._next[number]:
            check_jump(self._consumer, self._topic, number, self._next[number], offset)
        self._next[number] = offset + 1
        if offset < partition.offset:
            value = message.value() or b""
            if offset == partition.offset - 1 and xxhash.xxh3_64_intdigest(value) != partition.last_hash:
                raise _AnotherLog(partition, offset)
        elif offset < self._ends[number] and number not in self.rewound:
            partition.skip_to(offset)
            self._fold(partition, message, offset)
        return number

    def _fold(self, partition: Partition, message: Message, offset: int) -> None:
        effects = partition.take(message.value(), offset, message.timestamp()[1] / 1000)
        if effects.rewind is not None:
            self.rewound[partition.number] = effects.rewind
            return
        if effects.forward or effects.dead:
            self._handle(partition, message, effects)
        self.folded[partition.number] += 1
