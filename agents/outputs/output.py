"""One output of a job: its records wait in memory, its state is open only while it is written.

take ─► pending ─► write: dead letters acknowledged → rows in the file → state in one batch ─► Feeder ─► a store
the job has ended, all is in ─► Completion
"""

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.control import beating
from crawlog.agents.seed import JobFeed, is_feed
from crawlog.schemas.codec import Record
from crawlog.schemas.dead import DeadLetter
from crawlog.streams.errors import CrawlError, Unusable
from crawlog.streams.recovery import ranges_text
from crawlog.streams.sink import (
    Entry,
    RawItems,
    SinkState,
    empty,
    entry,
    forget_others,
    has_pipelines,
    lose,
    sink_for,
    state_of,
)
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.state import environment_error
from crawlog.streams.stores import Store

from .feeder import Feeder
from .row_maker import Closing, RowMaker, pipelines_of

if TYPE_CHECKING:
    from crawlog.agents.downloads import Downloads

    from .items_log import ItemsLog
    from .wanted import WantedOutput

log = structlog.get_logger()


def filled_again(why: Unusable, aside: Path) -> str:
    """A line for the user about a state that was set aside."""
    return f"the rows are read again from the log: the sink's state was {why} (the old one is kept: {aside})"


class Output:  # long: one state is opened, written, completed and closed by its worker
    """See the module.

    Args:
        partition: Of crawl.items: its owner has this output.
        places: By partition, where the job's rows begin.
        downloads: Makes the requests of its pipelines.

    Attributes:
        seen: By partition, the offset before which all records of the job were taken.
        error: Why nothing is written; empty if all is well.
        note: A message for the user about the state; empty without one.
        goes_back: Whether the reader must go back to `seen`: the state began again.
        tries_at: When to try again after an error, by a monotonic clock.
        feeders: Those of the stores that get its rows, its own one or copies, by name; only while the state is open.
    """

    def __init__(
        self,
        log: "ItemsLog",
        beat: Callable[[], None],
        wanted: "WantedOutput",
        spec: SinkSpec,
        partition: int,
        places: Mapping[int, int],
        downloads: "Downloads | None" = None,
    ) -> None:
        self.wanted = wanted
        self.spec = spec
        self.partition = partition
        self.seen = dict(places)
        self.error = self.note = ""
        self.goes_back = False
        self.tries_at = self.written_at = self.pending_since = 0.0
        self.pending: list[Record] = []
        self.pending_bytes = 0
        self._log = log
        self._downloads = downloads
        self._data = log.settings.run.data
        self._beat = beat
        self._places = dict(places)
        self._durable: dict[int, int] = {}
        self._results: SinkState | None = None
        self._rows: RowMaker | None = None
        self._row_count: int | None = None
        self._making: asyncio.Task[None] | None = None
        self._stores: dict[str, SinkSpec] = {wanted.output.name: spec} if spec.is_store else {}
        self.feeders: dict[str, Feeder] = {}
        self._wanted_at = 0.0
        self._opens_again = False

    @property
    def is_open(self) -> bool:
        """Whether its state is open."""
        return self._results is not None

    @property
    def is_fed(self) -> bool:
        """Whether no store lacks rows of the open state."""
        return all(one.is_done for one in self.feeders.values())

    @property
    def has_pipelines(self) -> bool:
        """Whether pipelines make its rows: its state then stays open."""
        return self._making is not None or has_pipelines(self._data, self.spec)

    @property
    def partial(self) -> Path:
        """The file with the rows so far."""
        return self.spec.partial(self._data)

    @property
    def waiting(self) -> dict[str, int]:
        """By output that gets its rows, the records that are not in it yet."""
        pending = len(self.pending)
        found = {name: pending + one.waiting for name, one in self.feeders.items()}
        return {name: count for name, count in {self.wanted.output.name: pending, **found}.items() if count}

    @property
    def rows(self) -> int | None:
        """Rows that count, as the state had them when it was open last; None before."""
        if self._results is not None:
            self._row_count = (self._results.made or self._results).rows
        return self._row_count

    @property
    def is_stuck(self) -> bool:
        """Whether rows wait since they could not be written."""
        return bool(self.error and self.pending)

    @property
    def must_open(self) -> bool:
        """Whether its database is to be opened again, also if nothing waits: a write of rows has failed."""
        return self._opens_again or (self._rows is not None and self._rows.needs_opening)

    @property
    def trouble(self) -> str:
        """Why the pipelines make no row, or why nothing is written; empty if all is well."""
        trouble = self._rows.trouble if self._rows else ""
        away = next((str(one.error) for one in self.feeders.values() if one.error), "")
        return f"job {self.spec.job}, {trouble}" if trouble else self.error or away

    @property
    def is_mended(self) -> bool:
        """Whether its newest note says that it cannot be written, and all is well since it was written or opened.

        Of an output with pipelines these say so: its items are written while no row can be made. Only FILE itself says
        that it can be made again.
        """
        is_well = not self.error and not self.goes_back and (self.is_open or bool(self._durable))
        made = self._results.made if self._results is not None else None
        is_well = is_well and all(one.error is None and one.position >= 0 for one in self.feeders.values())
        if self.wanted.lacks_file and (made is None or made.is_done):
            return False
        return self.wanted.has_failed and is_well and (self._rows is None or self._rows.works)

    def passed(self, partition: int, read: int) -> int:
        """The offset up to which all rows are durable, where the reader is at `read`."""
        if self.goes_back:
            read = 0
        waiting = [record.offset for record in self.pending if record.partition == partition]
        return min(waiting) if waiting else max(self.seen.get(partition, 0), read)

    def want(self, wanted: "WantedOutput") -> None:
        """Go on as it is wanted now. An order to close the pipelines ends with the end that it was given for."""
        if self._rows is not None and (wanted.end is None or wanted.rev != self.wanted.rev):
            self._rows.closing = None
        if wanted.rev != self.wanted.rev or (wanted.note != self.wanted.note and not wanted.has_failed):
            self._wanted_at = time.monotonic()
        self.wanted = wanted

    def take(self, record: Record) -> None:
        """Take a record of the job, if it is new."""
        if record.offset < self.seen.get(record.partition, 0):
            return
        if not self.pending:
            self.pending_since = max(self.pending_since, time.monotonic())  # later after an error
        self.seen[record.partition] = record.offset + 1
        self.pending.append(record)
        self.pending_bytes += len(record.value or b"")

    async def begin(self, made_by: Mapping[int, int] | None = None) -> None:
        """Learn from the state where to go on; at the job's place if there is none.

        Args:
            made_by: Offsets of the reader, if FILE was made before. Then the state is opened only if there is something
                to write, as that takes the rows back out of FILE, and nothing is read again until then.

        Raises: as `open`.
        """
        if made_by is not None:
            self.seen = {at: max(place, made_by.get(at, 0)) for at, place in self.seen.items()}
        elif state_of(self.spec.folder(self._data)).exists():
            self._go_to((await self.open()).meta.offsets)

    def _go_to(self, offsets: Mapping[int, int]) -> None:
        self.pending.clear()
        self.pending_bytes = 0
        self._durable = dict(offsets)
        self.seen = {at: offsets.get(at, place) for at, place in self._places.items()}

    async def open(self) -> SinkState:
        """The state, open.

        Raises: RetryLater: another process has it. Misconfigured: its file cannot be written. Unusable: it is damaged.
            OSError: the pipelines' rows could not be written; it is closed, and the next call opens it.
        """
        if self._rows is not None and self._rows.needs_opening:
            self._opens_again, why = True, self._rows.trouble
            await self.close()
            raise OSError(why)
        if self._results is not None:
            return self._results
        opening = asyncio.ensure_future(asyncio.to_thread(self._opened))
        try:
            self._results = results = await beating(self._beat, asyncio.shield(opening))
        except asyncio.CancelledError:  # a revocation ran out of time: another worker may want the state
            opening.add_done_callback(_close_unwanted)
            raise
        if results.meta.offsets != self._durable:
            self._go_to(results.meta.offsets)
            self.goes_back = True
        if has_pipelines(self._data, self.spec):
            self._make_rows(results)
        self._opens_again = False
        for name in self._stores:
            self._start_feed(name, results)
        return results

    async def feed(self, name: str, spec: SinkSpec) -> None:
        """Feed a copy that is a store, beside what else is made of the rows. Raises: Misconfigured: it is not there."""
        if self._stores.get(name) != spec:
            await self.unfeed(name)
            self._stores[name] = spec
            if self._results is not None:
                self._start_feed(name, self._results)

    async def unfeed(self, name: str) -> None:
        """Feed a copy no more."""
        self._stores.pop(name, None)
        if (feeder := self.feeders.pop(name, None)) is not None:
            await feeder.end()

    def _start_feed(self, name: str, results: SinkState) -> None:
        spec = self._stores[name]
        store = JobFeed(spec, self._log.settings) if is_feed(spec) else sink_for(spec)
        assert isinstance(store, Store)
        self.feeders[name] = Feeder(spec, store, results)

    def _opened(self) -> SinkState:
        try:
            results = SinkState(self._data, self.spec, self._log.identity)
        except Unusable as error:
            aside = empty(self._data, self.spec)
            self.note = filled_again(error, aside)
            log.warning("sink_set_aside", why=str(error), aside=str(aside), job=self.spec.job)
            results = SinkState(self._data, self.spec, self._log.identity)
        forget_others(self._data, self.spec)
        return results

    def _make_rows(self, results: SinkState) -> None:
        settings = self._log.settings
        start = partial(pipelines_of, settings, self.spec.job, self._downloads)
        goes_on = settings.pipelines.resume == "continue"
        self._rows = RowMaker(results, start, self._log, goes_on=goes_on, must_write=self._opens_again)
        self._making = asyncio.create_task(self._rows.run())

    async def write(self, read: Mapping[int, int]) -> None:
        """Write what waits. After an exception it waits still. Raises: as `open`; OSError: as on a full disk."""
        results = await self.open()
        if self.goes_back:
            return
        try:
            await self._fold(results, read)
        except RawItems:
            log.info("sink_of_raw_items", job=self.spec.job, then="crawl.items is read from the job's place")
            self._go_to({})
            self.goes_back = True
            self._make_rows(results)
            return
        except Exception as error:  # RocksDB's have no class of their own
            fault = "" if isinstance(error, CrawlError | OSError) else environment_error(error)
            if not fault:
                raise
            await self.close()  # RocksDB takes no write after a failed one until it is opened again
            raise OSError(fault) from error
        self._durable = dict(results.meta.offsets)
        self.pending.clear()
        self.pending_bytes = 0
        self.written_at = time.monotonic()
        self.error = ""

    async def _fold(self, results: SinkState, read: Mapping[int, int]) -> None:
        """Write what waits in the order that survives a kill: dead letters, rows, state.

        Raises: RawItems: the state was emptied, for raw items, and must be filled from the beginning.
        """
        dead: list[DeadLetter] = []
        try:
            folded = [(one.partition, one.offset, self._entry(results, one, dead)) for one in self.pending]
        except RawItems:
            results.begin_again(raw=True)
            raise
        known, ends = results.meta.offsets, {at: max(end, self.seen.get(at, 0)) for at, end in read.items()}
        passed: list[tuple[int, int, Entry | None]] = [
            (at, end - 1, None) for at, end in ends.items() if end > known.get(at, 0)
        ]
        await self._log.bury(dead)
        results.fold(folded + passed)

    def _entry(self, results: SinkState, record: Record, dead: list[DeadLetter]) -> Entry | None:
        """The rows of a record; garbage becomes a dead letter, unless its key (`JOB URL`) names another job."""
        try:
            return entry(record.value, self.spec, raw=results.meta.raw)
        except ValueError as error:
            named, space, _ = (record.key or b"").partition(b" ")
            job = named.decode("utf-8", "replace") if space else ""  # any other key names no job: it has no other sink
            if job in ("", self.spec.job):
                dead.append(
                    DeadLetter(
                        topic=self._log.topic,
                        partition=record.partition,
                        offset=record.offset,
                        stage="sink",
                        job=job,
                        error=f"{type(error).__name__}: {error}",
                        key=record.key,
                        value=record.value,
                        traceback=traceback.format_exc(),
                    )
                )
            return None

    async def go_back(self, offsets: Mapping[int, int]) -> None:
        """Read on at earlier offsets, in some partitions: the log was cut. The rows stay. Raises: as `open`."""
        results = await self.open()
        results.move(offsets)
        self._durable = dict(results.meta.offsets)
        self.seen |= offsets

    async def lose(self, gone: Mapping[int, range]) -> None:
        """Read on behind records that are gone, by partition; FILE waits for their rows. Raises: as `open`."""
        results = await self.open()
        self.note = (
            f"{self._log.topic} lost records before they were read, by its retention or by DeleteRecords"
            f" ({ranges_text({**gone})}): rows that lack at the end are made again from their pages"
        )
        lose(results, gone)
        self._durable = dict(results.meta.offsets)
        self.seen |= {at: one.stop for at, one in gone.items()}

    async def close(self) -> None:
        """Close the state, also if the caller's time runs out; what waits is forgotten, and read again."""
        making, results, feeders = self._making, self._results, self.feeders
        self._making = self._rows = self._results = None
        self.feeders = {}
        await asyncio.shield(self._end(making, results, feeders))

    async def _end(
        self, making: "asyncio.Task[None] | None", results: SinkState | None, feeders: Mapping[str, Feeder]
    ) -> None:
        for feeder in feeders.values():
            await feeder.end()
        if making is not None:
            making.cancel()
            await asyncio.wait([making])
        if results is not None:
            self._durable = dict(results.meta.offsets)
            await asyncio.to_thread(results.close)

    def close_pipelines(self, ends: Mapping[int, int], reason: str) -> None:
        """Have the pipelines closed behind these offsets, if they are open here."""
        if self._rows is not None:
            self._rows.closing = Closing(dict(ends), reason)

    def pipelines_trouble(self) -> str:
        """Why the pipelines make no row, by a try since the output was wanted as it is; empty if they may."""
        rows = self._rows
        return rows.trouble if rows is not None and rows.tried_at >= self._wanted_at else ""


def _close_unwanted(opening: "asyncio.Future[SinkState]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def leading_of(wanted: "WantedOutput", outputs: Mapping[str, list[Output]]) -> Output | None:
    """The other output of its job whose pipelines make the rows of `wanted` too; None if it makes its own.

    Args:
        outputs: By job.
    """
    others = (one for one in outputs.get(wanted.job, ()) if one.spec.pipelines and one.wanted.key != wanted.key)
    return next(others, None) if wanted.spec.pipelines else None
