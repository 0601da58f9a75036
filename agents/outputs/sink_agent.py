"""The sink: reads crawl.items in micro-batches and folds them into one file of one job.

The environment names the job and the output. One worker holds the state and all partitions; a second one waits before
it joins the group. The state's offsets are the truth: reading starts there, and the group's commits only follow. But a
commit by `crawlog replay`, or by Kafka's own tool if it leaves no record out, is an order to read from there.

Order, for each batch: dead letters acknowledged → rows in the file → state in one batch → positions.

If the job's items pass pipelines, these rows are the items as scraped, and row_maker.py makes the rows of them.
"""

import asyncio
import contextlib
import os
import time
import traceback
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from crawlog.agents import progress
from crawlog.agents.control import StageCommands, follow
from crawlog.schemas import control
from crawlog.schemas.codec import Record
from crawlog.schemas.control import Command
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.progress import Progress
from crawlog.streams import exit_codes
from crawlog.streams.errors import CrawlError, DamagedLog, Misconfigured, RetryLater, Unusable
from crawlog.streams.log import (
    Producer,
    SinkSpec,
    Topics,
    committed_offsets,
    is_ours,
    is_planned,
    log_bounds,
    log_identity,
    partition_count,
    read_records,
    remove_groups,
    send_letter,
    sink_from,
    stage_group,
)
from crawlog.streams.recovery import ranges_text
from crawlog.streams.sink import Entry, RawItems, SinkState, empty, entry, forget_others, lose, state_of
from crawlog.streams.worker import CrawlApp

from .row_maker import RowMaker

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

    from .row_maker import PipelinesProcess

log = structlog.get_logger()

GATHER_S = 0.02  # Longest wait of a batch's first record for more records, seconds. It delays rows by as much.

FULL_RECORDS = 500
FULL_BYTES = 4 << 20  # A batch of this many records or bytes is folded at once; at twice that, reading pauses

AGAIN_S = 1.0  # Pause after a failed write, as on a full disk, seconds

GAP_RECORDS = 10_000  # Records read at a time from a range that Faust skipped


class Read(NamedTuple):
    """A record that was read again."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class SinkStage:
    """The sink without its event stream.

    Args:
        topics: Full names of crawl.items and crawl.dead.

    Attributes:
        note: A message for the user about the state, for example that it is being rebuilt from the log.
        cuts: See `Positions.cuts`.
    """

    def __init__(
        self, settings: "Settings", topics: tuple[str, str], results: SinkState, producer: Producer, note: str = ""
    ) -> None:
        self.results = results
        self.note = note
        self.cuts: dict[int, int] = {}
        self.records = 0
        self.bytes = 0
        self._settings = settings
        self._items, self._dead = topics
        self._producer = producer
        self._group = stage_group(settings, f"sink-{results.sink.id}")
        self._one_at_a_time = asyncio.Lock()

    async def starts(self, partitions: Iterable[int]) -> dict[int, int]:
        """The offsets where reading starts: the state's, or the log's first where the log has changed."""
        numbers = sorted(partitions)
        held = await asyncio.to_thread(log_bounds, self._settings, self._items, numbers)
        made = await asyncio.to_thread(committed_offsets, self._settings, self._group, self._items, numbers)
        async with self._one_at_a_time:
            known = self.results.meta.offsets
            past = {at: known[at] for at, (_, end) in held.items() if known.get(at, 0) > end}
            if past:
                log.warning("sink_goes_back", reason="the log ends before the state's offsets", offsets=past)
                self.cuts |= past
                self.results.move({at: held[at][0] for at in past})  # the rows stay: the log may have lost their items
            made = self._without_skips(made)
            self._obey({at: offset for at, (offset, by) in made.items() if not is_ours(by)}, held)
            known = self.results.meta.offsets
            gone = {at: first for at, (first, _) in held.items() if known.get(at, 0) < first}
            if gone:
                lost = {at: range(known.get(at, 0), first) for at, first in gone.items()}
                log.error("records_gone", topic=self._items, offsets=ranges_text(lost))
                self.note = (
                    f"{self._items} lost records before they were read, by its retention or by DeleteRecords"
                    f" ({ranges_text(lost)}): rows that lack at the end are made again from their pages"
                )
                lose(self.results, lost)
            return {at: self.results.meta.offsets.get(at, 0) for at in held}

    def _without_skips(self, made: dict[int, tuple[int, str]]) -> dict[int, tuple[int, str]]:
        """The commits but those by which another program than `crawlog replay` would have records left out."""
        known = self.results.meta.offsets
        skips = {
            at: range(known[at], offset)
            for at, (offset, by) in made.items()
            if not is_planned(by) and offset > known.get(at, offset)
        }
        if skips:
            log.warning("sink_not_moved", reason="records would be left out", offsets=ranges_text(skips))
            count, offsets = sum(map(len, skips.values())), ranges_text(skips)
            self.note = (
                f"{count:,} records of {self._items} not read, {offsets}: another program moved the group {self._group}"
                " past them; they are read now"
            )
        return {at: commit for at, commit in made.items() if at not in skips}

    def _obey(self, orders: dict[int, int], held: dict[int, tuple[int, int]]) -> None:
        """Read on at the offsets to which another program moved the group.

        If they are the log's start in every partition, all rows are made again. Our next commit ends the order; after a
        kill before that, the same records are read once more. A new or emptied state ignores orders: it is filled from
        the log's start.
        """
        known = self.results.meta.offsets
        moved = {at: offset for at, offset in orders.items() if known and offset != known.get(at, 0)}
        if not moved:
            return
        log.warning("sink_moved", reason="the group's offsets were reset", offsets=moved)
        if all(orders.get(at, known.get(at, 0)) <= first for at, (first, _) in held.items()):
            self.results.begin_again()
        else:
            self.results.move(moved)

    async def fold(self, batch: list[Record]) -> dict[int, int]:
        """Fold records, in the order of each partition; returns the offsets up to which the state is durable."""
        async with self._one_at_a_time:
            try:
                return await self._fold(batch)
            except RawItems:
                log.info("sink_of_raw_items", reason="items pass pipelines", then="crawl.items is read from its start")
                self.results.begin_again(raw=True)
                return await self._fold(batch)

    async def _fold(self, batch: list[Record]) -> dict[int, int]:
        folded: list[tuple[int, int, Entry | None]] = []
        dead: list[DeadLetter] = []
        next_offsets = dict(self.results.meta.offsets)
        for record in batch:
            at, offset = record.partition, record.offset
            if next_offsets.get(at, 0) < offset:
                await self._settle(folded, dead)
                await self._fill(at, next_offsets.get(at, 0), offset)
                next_offsets[at] = offset
            if offset == next_offsets.get(at, 0):
                folded.append((at, offset, self._entry(record, dead)))
                next_offsets[at] = offset + 1
        await self._settle(folded, dead)
        self.bytes += sum(len(record.value or b"") for record in batch)
        return {record.partition: next_offsets[record.partition] for record in batch}

    async def _settle(self, folded: list[tuple[int, int, Entry | None]], dead: list[DeadLetter]) -> None:
        """Dead letters first, then the rows and the state; both lists are empty afterwards."""
        await self.bury(dead)
        self.results.fold(folded)
        self.records += len(folded)
        dead.clear()
        folded.clear()

    async def _fill(self, partition: int, start: int, end: int) -> None:
        """Fold the records between the state's offset and a later one; offsets without a record are skipped."""
        log.warning("sink_gap", partition=partition, start=start, end=end)
        first, _ = (await asyncio.to_thread(log_bounds, self._settings, self._items, [partition]))[partition]
        if start < first:
            lose(self.results, {partition: range(start, min(first, end))})
            start = min(first, end)
        for first in range(start, end, GAP_RECORDS):
            last = min(end, first + GAP_RECORDS)
            found = await asyncio.to_thread(_read_all, self._settings, self._items, partition, first, last)
            dead: list[DeadLetter] = []
            folded = [(partition, record.offset, self._entry(record, dead)) for record in found]
            await self._settle([*folded, (partition, last - 1, None)], dead)

    def _entry(self, record: Record, dead: list[DeadLetter]) -> Entry | None:
        """The rows of a record; garbage becomes a dead letter, unless its key (`JOB URL`) names another job."""
        try:
            return entry(record.value, self.results.sink, raw=self.results.meta.raw)
        except ValueError as error:
            named, space, _ = (record.key or b"").partition(b" ")
            job = named.decode("utf-8", "replace") if space else ""  # any other key names no job: it has no other sink
            if job in ("", self.results.sink.job):
                dead.append(
                    DeadLetter(
                        topic=self._items,
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

    async def bury(self, dead: list[DeadLetter]) -> None:
        """Send dead letters, and wait for their acknowledgement."""
        for letter in dead:
            log.warning("dead_letter", partition=letter.partition, offset=letter.offset, error=letter.error)
            send_letter(self._producer.send, self._dead, letter)
        await self._acknowledged()

    async def close_job(self, reason: str) -> None:
        """Stop the job, as its spider asks, and wait for the acknowledgement."""
        command = Command("stop", job=self.results.sink.job, at=time.time(), reason=reason)
        topic = Topics(self._settings.kafka.prefix).control
        self._producer.send(topic, control.encode(command), key=control.key(command), partition=0)
        await self._acknowledged()

    async def _acknowledged(self) -> None:
        while self._producer.outstanding:
            self._producer.poll()
            await asyncio.sleep(0.002)

    async def original(self, partition: int, offset: int) -> bytes | None:
        """The value of a record of crawl.items; None if the log no longer has it."""
        found = await asyncio.to_thread(_read_all, self._settings, self._items, partition, offset, offset + 1)
        return found[0].value if found else None


class SinkWorker:
    """Gathers Faust's events into batches for a `SinkStage`.

    Args:
        rows: Makes the rows of items that pass pipelines; None where none do.
    """

    def __init__(self, app: CrawlApp, stage: SinkStage, rows: RowMaker | None = None) -> None:
        self._app = app
        self._stage = stage
        self._rows = rows
        self._making: asyncio.Task[None] | None = None
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._filled = asyncio.Event()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._folding: asyncio.Task[None] | None = None
        self.orders = StageCommands("sink")
        self._trouble = ""

    async def starts(self, assigned: set[int]) -> dict[int, int]:
        """The offsets where reading starts. Raises: Misconfigured: crawl.items has more partitions than before."""
        await asyncio.to_thread(partition_count, self._app.crawl)
        return await self._stage.starts(assigned)

    async def owned(self, partitions: set[int]) -> None:
        """Start folding with the first assignment."""
        self.orders.owned()
        if partitions and self._folding is None:
            self._folding = asyncio.create_task(self._run())
            self._making = asyncio.create_task(self._make(self._rows)) if self._rows else None
            follow(self._app, self.orders)

    async def events(self, stream: Any) -> None:
        """The agent: one record, one page's items."""
        async for message in stream.records():
            if not await self.orders.admitted(self._app.watchdog.beat):
                continue
            self._pending.append(message)
            self._pending_bytes += len(message.value or b"")
            self._filled.set()
            self._empty.clear()
            if len(self._pending) >= FULL_RECORDS or self._pending_bytes >= FULL_BYTES:
                self._full.set()
                if len(self._pending) >= 2 * FULL_RECORDS or self._pending_bytes >= 2 * FULL_BYTES:
                    self._room.clear()
                    await self._room.wait()

    async def revoking(self, _partitions: set[int]) -> None:
        """Fold the pending records. The next owner reads the rest again, and skips records that were folded."""
        self._full.set()
        await self._empty.wait()

    def reports(self) -> list[Progress]:
        """The position of each partition."""
        done = self._stage.records, self._stage.bytes
        trouble = self._trouble or (self._rows.trouble if self._rows else "")
        found = progress.positions(self._app, *done, paused=self.orders.paused, trouble=trouble, note=self._stage.note)
        for report in found:
            report.lost = bool(self._stage.results.meta.gaps)
        return found

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            if not self._full.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), GATHER_S)
            await self._fold()

    async def _make(self, rows: RowMaker) -> None:
        """Make rows for as long as the database takes them."""
        await rows.run()
        log.critical("rows_write_failed", error=rows.trouble, then="the next worker opens the database again")
        os._exit(exit_codes.EX_TEMPFAIL)

    async def _fold(self) -> None:
        """Fold the pending records. A failed write is repeated until it succeeds; then offsets are acknowledged."""
        while True:
            batch = self._pending[:]
            try:
                offsets = await self._stage.fold(batch)
            except Unusable as error:
                log.critical("sink_damaged", error=str(error), then="the next worker sets it aside and fills it again")
                os._exit(exit_codes.EX_TEMPFAIL)
            except DamagedLog as error:
                exit_codes.end(error)
            except Exception as error:
                log.exception("sink_write_failed", error=repr(error), file=str(self._stage.results.path))
                if isinstance(error, OSError | CrawlError):
                    self._app.watchdog.beat()  # a deliberate wait; after other errors the watchdog ends the worker
                self._trouble = f"{self._stage.results.path}: {getattr(error, 'strerror', None) or error}"
                await asyncio.sleep(AGAIN_S)
                continue
            break
        self._trouble = ""
        for partition, offset in offsets.items():
            self._app.positions.done(partition, offset)
        del self._pending[: len(batch)]
        self._pending_bytes = sum(len(record.value or b"") for record in self._pending)
        self._full.clear()
        self._room.set()
        if not self._pending:
            self._filled.clear()
            self._empty.set()


def _read_all(settings: "Settings", topic: str, partition: int, start: int, end: int) -> list[Record]:
    first, _ = log_bounds(settings, topic, [partition])[partition]
    records = read_records(settings, topic, partition, max(start, first), end)
    return [Read(partition, record.offset() or 0, record.key(), record.value()) for record in records]


def opened(settings: "Settings", topic: str, sink: SinkSpec) -> tuple[SinkState, str]:
    """The sink's state, and a note for the user if it begins again. Waits while another worker holds the state.

    A worker that waits here is not in the group and holds no partition.
    """
    note, told = "", False
    while True:
        try:
            results = SinkState(settings.run.data, sink, log_identity(settings, topic))
        except Unusable as error:
            note = _emptied(settings, topic, sink, str(error))
        except RetryLater as error:
            if not told:
                log.info("sink_waits", reason=str(error))
                told = True
            time.sleep(error.retry_after_s or AGAIN_S)
        else:
            if removed := forget_others(settings.run.data, sink):
                log.info("sink_states_removed", count=len(removed), reason="this one writes their file now")
                remove_groups(settings, [stage_group(settings, f"sink-{other.id}") for other in removed])
            return results, note


def _emptied(settings: "Settings", topic: str, sink: SinkSpec, why: str) -> str:
    """Set an unusable state aside, if the log can fill it again; returns a note for the user."""
    state = state_of(sink.folder(settings.run.data))
    held = log_bounds(settings, topic, list(range(partition_count(settings))))
    if lost := [f"{topic}[{at}] begins at offset {first}" for at, (first, _) in held.items() if first]:
        raise Misconfigured(
            f"the sink's state {state} is {why}. It cannot be filled again: {lost[0]}. Run the crawlog that wrote it, "
            "or remove the folder to go on with the rows that the log still has."
        )
    aside = empty(settings.run.data, sink)
    log.warning("sink_set_aside", why=why, aside=str(aside), then="filled again from the log")
    return f"the rows are read again from the log: the sink's state was {why} (the old one is kept: {aside})"


async def pipelines_process(settings: "Settings", job: str) -> "PipelinesProcess":
    """A fresh child with a job's pipelines. Raises: Misconfigured: the log does not name its spider."""
    from .pipelines_child import pipelines_of  # a sink without pipelines needs no child

    return await pipelines_of(settings, job)


def attach(app: CrawlApp) -> None:
    """Make an app the sink that the environment names."""
    results, note = opened(app.crawl, app.input_name, sink_from(os.environ))
    producer = Producer(app.crawl, app.worker_name)
    stage = SinkStage(app.crawl, (app.input_name, app.topics.dead), results, producer, note)
    start = partial(pipelines_process, app.crawl, results.sink.job)
    rows = RowMaker(results, start, stage.bury, stage.close_job, stage.original, app.input_name)
    rows.goes_on = app.crawl.pipelines.resume == "continue"
    worker = SinkWorker(app, stage, rows)
    stage.cuts = app.positions.cuts
    app.positions.start = worker.starts
    app.on_rebalance_started.append(worker.orders.rebalance_started)
    app.on_owned.append(worker.owned)
    app.on_revoking.append(worker.revoking)
    app.reports = worker.reports
    app.agent(app.input, name="sink")(worker.events)
