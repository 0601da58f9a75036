"""One output of a job on a fleet: its records wait in memory, its state is open only while it is written.

take ─► pending ─► write: dead letters → rows in the file → state in one batch
the job has ended, all is in ─► complete: pipelines closed → FILE by rename; `outputs_worker.py` notes it
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from crawlog.agents.control import beating
from crawlog.schemas.codec import Record
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import CrawlError, Misconfigured, Unusable
from crawlog.streams.jobs import SHUTDOWN
from crawlog.streams.recovery import fetch_again, ranges_text, sorted_out
from crawlog.streams.sink import (
    Final,
    RawItems,
    SinkState,
    empty,
    final_of,
    finalise,
    forget_others,
    has_pipelines,
    is_complete,
    lacking,
    lose,
    nowhere,
    state_of,
)
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.state import environment_error

from .output_copies import OutputCopies
from .output_stage import OutputStage
from .row_maker import Closing, RowMaker

if TYPE_CHECKING:
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings

    from .notes import OutputNotes
    from .row_maker import PipelinesProcess
    from .wanted import WantedOutput

log = structlog.get_logger()


LACKING_S = 5.0  # Pause between two looks for rows that are made again, seconds


def filled_again(why: Unusable, aside: Path) -> str:
    """A line for the user about a state that was set aside."""
    return f"the rows are read again from the log: the sink's state was {why} (the old one is kept: {aside})"


async def pipelines_process(settings: "Settings", job: str) -> "PipelinesProcess":
    """A fresh child with a job's pipelines. Raises: Misconfigured: the log does not name its spider."""
    from .pipelines_child import pipelines_of  # an output without pipelines needs no child

    return await pipelines_of(settings, job)


class OutputTools(NamedTuple):
    """What all outputs of a worker share.

    Attributes:
        topics: Full names of crawl.items and crawl.dead.
        identity: Of crawl.items.
        records: Notes what became of outputs.
        beat: Called while a state is opened and FILE is made: a large one takes minutes, and the worker is not stuck.
    """

    settings: "Settings"
    topics: tuple[str, str]
    identity: LogIdentity
    producer: "Producer"
    records: "OutputNotes"
    beat: Callable[[], None]


class Output:  # long: one state is opened, written, completed and closed by its worker
    """See the module.

    Args:
        partition: Of crawl.items: its owner has this output.
        places: By partition, where the job's rows begin.

    Attributes:
        seen: By partition, the offset before which all records of the job were taken.
        error: Why nothing is written; empty if all is well.
        note: A message for the user about the state; empty without one.
        goes_back: Whether the reader must go back to `seen`: the state began again.
        tries_at: When to try again after an error, by a monotonic clock.
        copies: Other outputs of the job, which get the rows that its pipelines make for this one.
        stats: Scrapy's, that its pipelines counted until FILE was made.
        unmade: See `Progress.unmade`.
    """

    def __init__(
        self, tools: OutputTools, wanted: "WantedOutput", spec: SinkSpec, partition: int, places: Mapping[int, int]
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
        self._tools = tools
        self._settings = tools.settings
        self._data = tools.settings.run.data
        self.copies = OutputCopies(self._data, tools.records, tools.beat)
        self.stats: dict[str, float] = {}
        self.unmade: dict[int, int] = {}
        self._places = dict(places)
        self._durable: dict[int, int] = {}
        self._results: SinkState | None = None
        self._stage: OutputStage | None = None
        self._rows: RowMaker | None = None
        self._making: asyncio.Task[None] | None = None
        self._wanted_at = 0.0
        self._opens_again = False

    @property
    def is_open(self) -> bool:
        """Whether its state is open."""
        return self._results is not None

    @property
    def has_pipelines(self) -> bool:
        """Whether pipelines make its rows: its state then stays open."""
        return self._making is not None or has_pipelines(self._data, self.spec)

    @property
    def partial(self) -> Path:
        """The file with the rows so far."""
        return self.spec.partial(self._data)

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
        return f"job {self.spec.job}, {trouble}" if trouble else self.error

    @property
    def is_mended(self) -> bool:
        """Whether its newest note says that it cannot be written, and all is well since it was written or opened.

        Of an output with pipelines these say so: its items are written while no row can be made. Only FILE itself says
        that it can be made again.
        """
        is_well = not self.error and not self.goes_back and (self.is_open or bool(self._durable))
        made = self._results.made if self._results is not None else None
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
            await self.open()
            assert self._results is not None
            self._go_to(self._results.meta.offsets)

    def _go_to(self, offsets: Mapping[int, int]) -> None:
        self.pending.clear()
        self.pending_bytes = 0
        self._durable = dict(offsets)
        self.seen = {at: offsets.get(at, place) for at, place in self._places.items()}

    async def open(self) -> None:
        """Open the state.

        Raises: RetryLater: another process has it. Misconfigured: its file cannot be written. Unusable: it is damaged.
            OSError: the pipelines' rows could not be written; it is closed, and the next call opens it.
        """
        if self._rows is not None and self._rows.needs_opening:
            self._opens_again, why = True, self._rows.trouble
            await self.close()
            raise OSError(why)
        if self._results is not None:
            return
        opening = asyncio.ensure_future(asyncio.to_thread(self._opened))
        try:
            self._results = await beating(self._tools.beat, asyncio.shield(opening))
        except asyncio.CancelledError:  # a revocation ran out of time: another worker may want the state
            opening.add_done_callback(_close_unwanted)
            raise
        if self._results.meta.offsets != self._durable:
            self._go_to(self._results.meta.offsets)
            self.goes_back = True
        self._stage = OutputStage(self._settings, self._tools.topics, self._results, self._tools.producer)
        if has_pipelines(self._data, self.spec):
            self._make_rows(self._stage)
        self._opens_again = False

    def _opened(self) -> SinkState:
        try:
            results = SinkState(self._data, self.spec, self._tools.identity)
        except Unusable as error:
            aside = empty(self._data, self.spec)
            self.note = filled_again(error, aside)
            log.warning("sink_set_aside", why=str(error), aside=str(aside), job=self.spec.job)
            results = SinkState(self._data, self.spec, self._tools.identity)
        forget_others(self._data, self.spec)
        return results

    def _make_rows(self, stage: OutputStage) -> None:
        start = partial(pipelines_process, self._settings, self.spec.job)
        rows = RowMaker(stage.results, start, stage.bury, stage.close_job, stage.original, self._tools.topics[0])
        rows.goes_on = self._settings.pipelines.resume == "continue"
        rows.must_write = self._opens_again
        self._rows = rows
        self._making = asyncio.create_task(rows.run())

    async def write(self, read: Mapping[int, int]) -> None:
        """Write what waits. After an exception it waits still. Raises: as `open`; OSError: as on a full disk."""
        await self.open()
        if self.goes_back:
            return
        assert self._stage is not None
        try:
            await self._stage.write(self.pending, {at: max(end, self.seen.get(at, 0)) for at, end in read.items()})
        except RawItems:
            log.info("sink_of_raw_items", job=self.spec.job, then="crawl.items is read from the job's place")
            self._go_to({})
            self.goes_back = True
            self._make_rows(self._stage)
            return
        except Exception as error:  # RocksDB's have no class of their own
            fault = "" if isinstance(error, CrawlError | OSError) else environment_error(error)
            if not fault:
                raise
            await self.close()  # RocksDB takes no write after a failed one until it is opened again
            raise OSError(fault) from error
        self._durable = dict(self._stage.results.meta.offsets)
        self.pending.clear()
        self.pending_bytes = 0
        self.written_at = time.monotonic()
        self.error = ""

    async def go_back(self, offsets: Mapping[int, int]) -> None:
        """Read on at earlier offsets, in some partitions: the log was cut. The rows stay. Raises: as `open`."""
        await self.open()
        assert self._results is not None
        self._results.move(offsets)
        self._durable = dict(self._results.meta.offsets)
        self.seen |= offsets

    async def lose(self, gone: Mapping[int, range]) -> None:
        """Read on behind records that are gone, by partition; `complete` waits for their rows. Raises: as `open`."""
        await self.open()
        assert self._results is not None
        self.note = (
            f"{self._tools.topics[0]} lost records before they were read, by its retention or by DeleteRecords"
            f" ({ranges_text({**gone})}): rows that lack at the end are made again from their pages"
        )
        lose(self._results, gone)
        self._durable = dict(self._results.meta.offsets)
        self.seen |= {at: one.stop for at, one in gone.items()}

    async def _has_all_rows(self) -> bool:
        """Whether no row lacks whose record was gone; else its page is fetched again, or `unmade` names it."""
        await self.open()
        results = self._results
        assert results is not None
        lacks = await beating(self._tools.beat, asyncio.to_thread(lacking, self._settings, results))
        self.unmade = {}
        if lacks:
            log.warning("rows_lack", job=self.spec.job, pages=len(lacks), then="they are made again")
            gone, self.unmade = await asyncio.to_thread(sorted_out, self._settings, lacks)
            await asyncio.to_thread(fetch_again, self._settings, gone)
            self.tries_at = time.monotonic() + LACKING_S
        elif results.meta.gaps:
            results.move({}, [])
        self._tools.records.lack(self.wanted, tuple(one.result.url for one, _ in lacks), self.unmade)
        return not lacks

    async def close(self) -> None:
        """Close the state, also if the caller's time runs out; what waits is forgotten, and read again."""
        making, results = self._making, self._results
        self._making = self._rows = self._results = self._stage = None
        await asyncio.shield(self._end(making, results))

    async def _end(self, making: "asyncio.Task[None] | None", results: SinkState | None) -> None:
        if making is not None:
            making.cancel()
            await asyncio.wait([making])
        if results is not None:
            self._durable = dict(results.meta.offsets)
            await asyncio.to_thread(results.close)

    def made(self, ends: Mapping[int, int]) -> Final | None:
        """The note about FILE, if it and the copies were made with all up to `ends`, and nothing came since."""
        final = final_of(self.spec.folder(self._data))
        is_made = final is not None and is_complete(self._data, self.spec, ends) and not self.partial.exists()
        return final if is_made and self.copies.are_made(self.spec, ends) else None

    async def complete(self, ends: Mapping[int, int], reason: str) -> int | None:
        """Write the copies and make FILE, with all rows up to `ends`.

        Returns: Their number; None while pipelines make rows, rows are made again, or only copies cannot be written.

        Raises: as `open` and `finalise`. Misconfigured: the pipelines make no row now.
        """
        if not await self._has_all_rows():
            return None
        if self.has_pipelines:
            await self.open()
            assert self._results is not None
            made = self._results.made
            if made is not None and made.meta.is_closed and made.meta.reason == SHUTDOWN != reason:
                made.unclose()  # the job was stopped, went on, and got no further item
            self._close_pipelines(ends, reason)
            if made is not None and not made.is_done:
                if trouble := self._pipelines_trouble():
                    raise Misconfigured(trouble)
                return None
            self.stats = made.meta.stats if made is not None else {}
        await self.close()
        await self.copies.make(self.spec, ends)
        if self.wanted.is_settled and self.copies.wanted:
            return None
        return await beating(self._tools.beat, asyncio.to_thread(self._finalised, ends))

    def _close_pipelines(self, ends: Mapping[int, int], reason: str) -> None:
        if self._rows is not None:
            self._rows.closing = Closing(dict(ends), reason)

    def _pipelines_trouble(self) -> str:
        """Why the pipelines make no row, by a try since the output was wanted as it is; empty if they may."""
        rows = self._rows
        return rows.trouble if rows is not None and rows.tried_at >= self._wanted_at else ""

    def _finalised(self, ends: Mapping[int, int]) -> int:
        with nowhere() as out:
            return finalise(self._data, self.spec, ends, out, keeps=bool(self.copies.wanted))

    async def leave(self, ends: Mapping[int, int], reason: str, *, is_begun: bool) -> int | None:
        """Leave the rows of a job that did not come to its end in FILE.partial, and have its pipelines closed.

        Rows that the pipelines cannot make now are left out: nobody waits for them.

        Args:
            ends, reason: As `complete` has them.
            is_begun: Whether the job has fetched anything.

        Returns: Their number; None while pipelines make rows or are closed.

        Raises: as `open`.
        """
        await self.open()
        assert self._results is not None
        made = self._results.made
        if made is not None and (is_begun or made.has_items):
            self._close_pipelines(ends, reason)
            if not made.is_done:
                if not (trouble := self._pipelines_trouble()):
                    return None
                log.warning("rows_left_out", job=self.spec.job, error=trouble)
            self.stats = made.meta.stats
        rows = (made or self._results).rows
        await self.close()
        return rows


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
