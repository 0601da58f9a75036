"""Parses the stored pages of a job again, beside new pages: no partition moves, and no worker stops.

    JobCopy with `parse_again` ─► each partition of ours: a plain consumer, from the note, or from the order's start
        ─► the job's pages ─► ParseStage, as new pages ─► outputs acknowledged ─► ParsedAgain in crawl.control

Rules

    1  The owner of a partition of crawl.pages parses its stored pages, one job and partition after the other.
    2  It ends where this worker's own reading was when it knew the job's new record: later pages are parsed with that
       record anyway. An end that is noted already holds, if it is before that.
    3  A note has the offset before which all outputs are acknowledged. A kill or a rebalance goes on there.
    4  While new pages wait, stored ones get a share of this process's time (`REST_TIMES`), and few wait for spiders.
    5  The coordinator ends the job when every partition's note is done (`ControlState.is_parsing_again`).

The worst race: the former owner wakes up, and its older note replaces a newer one. The present owner reads it, too, and
goes on from the older place: outputs are written twice, which changes nothing.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from crawlog.agents.control import StageCommands, beating
from crawlog.schemas import pages
from crawlog.schemas.control import Control, JobCopy, ParsedAgain, key
from crawlog.schemas.pages import PageMeta
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import DamagedLog, EngineError
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import read_around, record_headers
from crawlog.streams.parse import KeptRecord

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings
    from crawlog.streams.worker import CrawlApp

    from .stage import ParseStage

log = structlog.get_logger()

LOOK_S = 0.2  # Time between two looks for pages to parse again

SHORT_S = 0.010  # Time between two looks for room, or for acknowledgements

SLICE_S = 5.0  # Time after which a note is written, and another job or partition has its turn

REST_TIMES = 3.0  # Rest after a stored page while new pages wait, in times of the CPU seconds that it took

MOST, MOST_FOR_SPIDERS = 1024, 32  # Stored pages on their way at once; pages that may wait for spiders beside them

BATCH, BATCH_BYTES = 256, 4 << 20  # Records read together at most, and bytes of the job's own pages among them

AGAIN_S = 5.0  # Pause after an error of the cluster, seconds


class StoredBatch(NamedTuple):
    """Records that were read.

    Attributes:
        pages: The job's own pages.
        next: The offset behind the last record, also of another job.
    """

    pages: list[tuple[KeptRecord, PageMeta]]
    next: int


class StoredPages:
    """The stored pages that one worker parses again.

    Args:
        is_behind: Whether new pages wait in the log.
        note: Writes a note to crawl.control.
        flush_soon: Called after each page.
    """

    def __init__(
        self,
        app: "CrawlApp",
        stage: "ParseStage",
        orders: StageCommands,
        is_behind: Callable[[], bool],
        note: Callable[[ParsedAgain], None],
        flush_soon: Callable[[], None],
    ) -> None:
        self._app = app
        self._stage = stage
        self._orders = orders
        self._is_behind = is_behind
        self._note = note
        self._flush_soon = flush_soon
        self._control = ControlState()
        self._jobs: set[str] = set()
        self._moves = 0
        self._turn = 0
        self._unread: ParsedAgain | None = None

    def learn(self, record: Control) -> None:
        """Take a record of crawl.control."""
        if isinstance(record, JobCopy | ParsedAgain):
            self._control.take(key(record), record)
            self._jobs.add(record.job)
            if record == self._unread:
                self._unread = None

    def moved(self) -> None:
        """Note that partitions come or go: what is under way is dropped, and begins again at its note."""
        self._moves += 1

    async def run(self) -> None:
        """Parse what is left, slice by slice, until the worker stops."""
        while not self._app.should_stop:
            await asyncio.sleep(LOOK_S)
            if not self._orders.works or self._orders.is_rebalancing or not (left := list(self._left())):
                continue
            self._turn += 1
            try:
                await self._parse(left[self._turn % len(left)])
            except EngineError as error:
                log.warning("stored_pages_unread", error=str(error), again_in_s=AGAIN_S)
                await asyncio.sleep(AGAIN_S)

    def _left(self) -> Iterator[ParsedAgain]:
        """What is left in our partitions."""
        for job in list(self._jobs):
            copy = self._control.job(job)
            if copy is None or not self._control.is_parsing_again(copy):
                self._jobs.discard(job)
                continue
            owned = self._app.positions.owned
            yield from (one for one in self._control.parsed_again(copy) if one.partition in owned and not one.is_done)

    async def _parse(self, left: ParsedAgain) -> None:
        """Parse pages for a while, then note how far."""
        moves, until_s, partition = self._moves, time.monotonic() + SLICE_S, left.partition
        place = self._stage.taken.get(partition) or self._app.positions.next(partition) or 0
        is_noted = self._control.records.get(key(left)) is left  # else its end is that at the order
        end, count, at = min(left.end, place) if is_noted else place, 0, left.next
        batches = _batches(self._app.crawl, self._app.input_name, msgspec.structs.replace(left, end=end))
        try:
            while at < end and time.monotonic() < until_s:
                batch = await beating(self._app.watchdog.beat, asyncio.to_thread(next, batches, StoredBatch([], end)))
                for record, meta in batch.pages:
                    if not await self._has_room(moves):
                        return
                    await self._take(record, meta)
                count, at = count + len(batch.pages), batch.next
        finally:
            with suppress(ValueError):  # it is read just now, and the worker ends
                await asyncio.to_thread(batches.close)
        while self._stage.again.undone:
            if not await self._goes_on(moves):
                return
        note = msgspec.structs.replace(left, next=at, end=end, pages=left.pages + count)
        crash_points.point("parse.again.noting")
        self._unread = note
        self._note(note)
        if note.is_done:
            log.info("parsed_again", job=note.job, partition=partition, pages=note.pages)
        while self._unread is not None and await self._goes_on(moves):  # the next look begins with it
            pass
        crash_points.point("parse.again.noted")

    async def _take(self, record: KeptRecord, meta: PageMeta) -> None:
        began_s = time.thread_time()
        self._stage.take_again(record, meta)
        self._flush_soon()
        used_s = time.thread_time() - began_s
        await asyncio.sleep(REST_TIMES * used_s if self._is_behind() else 0)

    async def _has_room(self, moves: int) -> bool:
        """Wait for room; False if a partition came or went."""
        stage = self._stage
        while not self._orders.works or stage.is_full or stage.again.undone >= MOST or self._spiders_are_busy:
            if not await self._goes_on(moves):
                return False
        return moves == self._moves

    @property
    def _spiders_are_busy(self) -> bool:
        return self._stage.spiders is not None and self._stage.spiders.count >= MOST_FOR_SPIDERS

    async def _goes_on(self, moves: int) -> bool:
        """Wait a moment; False if a partition came or went."""
        self._flush_soon()
        self._app.watchdog.beat()
        await asyncio.sleep(SHORT_S)
        return moves == self._moves and not self._app.should_stop


def _batches(settings: "Settings", topic: str, left: ParsedAgain) -> Generator[StoredBatch]:
    """The job's pages in what is left of a partition. Blocks.

    Raises: EngineError: the cluster does not answer.
    """

    def passed(error: DamagedLog) -> None:
        log.error("stored_pages_damaged", job=left.job, partition=left.partition, error=str(error))

    first = log_bounds(settings, topic, [left.partition])[left.partition][0]
    found, size_bytes, read = list[tuple[KeptRecord, PageMeta]](), 0, 0
    for record in read_around(settings, topic, left.partition, max(first, left.next), left.end, passed):
        offset, value, headers = record.offset() or 0, record.value(), record_headers(record)
        read += 1
        if (meta := _meta_of(headers)) is not None and (meta.job, meta.epoch) == (left.job, left.epoch):
            found.append((KeptRecord(left.partition, offset, record.key(), value, headers), meta))
            size_bytes += len(value or b"")
        if read >= BATCH or size_bytes >= BATCH_BYTES:
            yield StoredBatch(found, offset + 1)
            found, size_bytes, read = [], 0, 0
    yield StoredBatch(found, left.end)


def _meta_of(headers: list[tuple[str, bytes]]) -> PageMeta | None:
    """The metadata of a page; None for a record without it, which is a dead letter already."""
    try:
        return pages.meta_in(headers)
    except ValueError:
        return None
