"""The parse worker: brings events to the parse stage, and commits offsets in an order that loses nothing.

    crawl.pages ─► take ─► (hold until the job's revision is known) ─► spider ─┬─► crawl.items, one record a page
                                                                            ├─► crawl.urls, founds batched across pages
                                                                            └─► crawl.control, a host that joins a scope
    every output of a page acknowledged ─► its offset is done ─► committed in offset order

Before the first page, pages that the log lost before they were parsed are asked for again, and a group that another
program moved forward goes back (`streams/recovery/parse_places.py`).

A page is parsed inside its event: this takes 0.2 ms, and no queue can be lost. Only its founds wait for others of their
partition, at most `GATHER_S` or `GATHER_PAGES` pages. A page gives all its outputs or none: they are sent once all are
decided (`outputs.py`). A page goes to crawl.dead if every try fails, if it takes too long, or if it kills its worker
(`guard.py`). A page that may be too complex for the HTML parser waits until a child process has tried it. A page for
a user's spider waits for that spider's process (`spider_pages.py`). A large page
waits until smaller ones are parsed (`turns.py`). `stage.py` handles one page; this module handles the events.
"""

import asyncio
import time
from functools import partial
from itertools import islice
from typing import Any

import structlog

from crawlog.agents import progress
from crawlog.agents.control import StageCommands, beating, follow
from crawlog.agents.downloads import Downloads
from crawlog.agents.sandbox import BackgroundChild, ChildRules
from crawlog.schemas import control, dead
from crawlog.schemas.control import Control, ParsedAgain
from crawlog.schemas.progress import MAX_PARSED_TOLD, Progress
from crawlog.streams.errors import RetryLater
from crawlog.streams.fleet import BadRecord
from crawlog.streams.kernel import usable_cores
from crawlog.streams.log import Producer, Topics, partition_count, send_letter
from crawlog.streams.parse import Job, TakenPage
from crawlog.streams.recovery import ParsePlace, fetch_unread, parse_places, ranges_text
from crawlog.streams.spiders import Parsed
from crawlog.streams.url import Places
from crawlog.streams.worker import COMMIT_S, CrawlApp, finish_within

from .guard import guard_of
from .lending import Lender, helper_count, starter
from .remarks import MissingKeys
from .spider_pages import SpiderPages
from .stage import ParseStage
from .stored_pages import StoredPages
from .turns import GATHER_S, PageTurns

log = structlog.get_logger()

FOUND_LINGER_MS = 10
# Time that a record waits for others of its partition. Each partition's batch is a request of its own, which costs the
# broker some 250 µs.
ITEM_LINGER_MS = 300

HURRY_S = 0.005  # Length of one flush when partitions are revoked; it blocks the loop, and no record lingers

# Time between two polls for acknowledgements. Only the commit waits for them, and it is written once a second.
HEARD_S = 0.020


class ParseWorker:
    """Runs a `ParseStage` on Faust's events."""

    def __init__(self, app: CrawlApp) -> None:
        self._app = app
        self._orders = StageCommands("parse")
        self._stage: ParseStage | None = None
        self._stored: StoredPages | None = None
        self._waits: PageTurns | None = None
        self._founds: Producer | None = None
        self._items: Producer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._places: dict[int, ParsePlace] = {}
        self._note = ""
        self._keys = MissingKeys(app.crawl)
        app.lacks = lambda: self._keys.trouble

    def serve(self, stage: ParseStage) -> PageTurns:
        """Send events to this stage from now on; returns the turns of its waiting pages."""
        self._stage = stage
        self._waits = PageTurns(self._app, stage, self._orders, self._flush_soon)
        return self._waits

    async def starts(self, partitions: set[int]) -> dict[int, int]:
        """The offsets where reading starts; pages that are gone were asked for again by then.

        Raises: EngineError: the log cannot be read or written.
        """
        settings = self._app.crawl
        names = Topics(settings.kafka.prefix)
        self._places = await asyncio.to_thread(parse_places, settings, names, partitions)
        if gone := {at: place.gone for at, place in self._places.items() if place.gone}:
            work = asyncio.to_thread(fetch_unread, settings, gone)
            count = await beating(self._app.watchdog.beat, work)
            self._note = (
                f"{names.pages} lost {ranges_text(gone)} before they were parsed, by its retention or by DeleteRecords;"
                f" pages fetched again: {count}"
            )
            log.error("pages_gone", topic=names.pages, offsets=ranges_text(gone), fetched_again=count)
        if passed := {at: place.passed_over for at, place in self._places.items() if place.passed_over}:
            log.warning("pages_passed_over", topic=names.pages, offsets=ranges_text(passed), then="they are parsed")
        return {at: place.start for at, place in self._places.items()}

    def _begin(self, partitions: set[int]) -> None:
        """Have the commit pass pages that were asked for again.

        Raises: RetryLater: the log has lost more since `starts`; the next worker asks for that too.
        """
        positions = self._app.positions
        for at in partitions & self._places.keys():
            place, start = self._places[at], positions.next(at) or 0
            if start > place.start:
                raise RetryLater(f"partition {at} lost its pages up to {start} just now")
            if place.gone:
                positions.done(at, place.start)

    async def owned(self, partitions: set[int]) -> None:
        """Let pages in after an assignment; the first one builds the stage."""
        self._begin(partitions)
        self._orders.owned()
        settings = self._app.crawl
        count = await asyncio.to_thread(partition_count, settings)
        if self._stage is not None:
            return
        self._founds = Producer(settings, self._app.worker_name, linger_ms=FOUND_LINGER_MS)
        self._items = Producer(settings, f"{self._app.worker_name}-items", linger_ms=ITEM_LINGER_MS)
        names = Topics(settings.kafka.prefix)
        positions = self._app.positions
        guard = guard_of(settings, self._app.worker_name)
        assert guard.trial is not None
        self._app.watchdog.on_blocked = guard.notes.blame
        stage = ParseStage(names, Places(count), self._founds, self._items, positions.done, time.time, guard)
        stage.passes_over = positions.passes_over
        stage.lacks_flush = partial(self._flush_soon, is_needed=True)
        rules = ChildRules.of(settings, guard.trust, guard.bounds)
        loop, downloads = asyncio.get_running_loop(), Downloads(settings)
        stage.spiders = SpiderPages(
            lambda ref: BackgroundChild(ref, rules, loop=loop, downloads=downloads),
            stage,
            settings.spider.children,
            may_go=lambda: self._orders.works,
        )
        if most := helper_count(settings.parse.helpers, usable_cores()):
            start = starter(self._app.worker_name, count, guard.bounds.size_bytes)
            stage.lender = Lender(most, start, self._came_back)
            for helper in stage.lender.tasks():
                self._app.add_future(helper)
        positions.taken = stage.taken
        positions.written = stage.written
        for producer in (self._founds, self._items):
            self._app.add_future(producer.run(asyncio.Event(), HEARD_S))
        waits = self.serve(stage)
        stored = StoredPages(self._app, stage, self._orders, waits.is_behind, self._note_again, self._flush_soon)
        self._stored = stored
        for task in (*waits.tasks(guard.trial), self._keys.run(), downloads.run(), stored.run()):
            self._app.add_future(task)

        def heard(record: Control) -> None:
            downloads.heard(record)
            stage.learn(record)
            stored.learn(record)

        follow(self._app, self._orders, heard, self._found_garbage)

    def _came_back(self, job: Job, lent: TakenPage, parsed: Parsed | None) -> None:
        assert self._stage is not None
        self._stage.came_back(job, lent, parsed)
        self._flush_soon()

    def _note_again(self, note: ParsedAgain) -> None:
        assert self._founds is not None
        topic = Topics(self._app.crawl.kafka.prefix).control
        self._founds.send(topic, control.encode(note), key=control.key(note), partition=0)

    def _found_garbage(self, garbage: BadRecord) -> None:
        """Send a bad record of a side topic to crawl.dead. Every worker sees it; the owner of partition 0 sends it."""
        if self._founds is None or 0 not in self._app.positions.owned:
            return
        letter = dead.DeadLetter(garbage.topic, 0, garbage.offset, "control", garbage.error, garbage.key, garbage.value)
        send_letter(self._founds.send, Topics(self._app.crawl.kafka.prefix).dead, letter)

    async def events(self, stream: Any) -> None:
        """The Faust agent; each record is a page."""
        async for message in stream.records():
            stage, waits = self._stage, self._waits
            assert stage is not None, "the first record comes after the first assignment"
            assert waits is not None
            if not await self._orders.admitted(self._app.watchdog.beat):
                continue
            is_alone = stage.is_suspect(message)
            if is_alone:
                await self._drain(stage)
                if not self._app.reader.is_ours(message):
                    continue
            waits.take(message, alone=is_alone)
            await waits.breathe()
            await waits.parse_asides()
            self._flush_soon()
            while stage.is_full and not self._orders.is_rebalancing:
                self._app.watchdog.beat()
                await asyncio.sleep(GATHER_S)
                await waits.parse_asides()
                self._flush_soon()

    def _flush_soon(self, *, is_needed: bool = False) -> None:
        if self._timer is None and self._stage is not None and (is_needed or self._stage.gathered):
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._stage is not None:
            self._stage.flush()

    async def _drain(self, stage: ParseStage) -> None:
        """Wait until the log has all outputs and the offset is committed: a crash then loses no other page's work."""
        stage.flush()
        while stage.undone and not self._orders.is_rebalancing:
            self._app.watchdog.beat()
            await asyncio.sleep(GATHER_S)
        await finish_within(COMMIT_S, self._app.positions.flush(), "commit")

    def rebalance_started(self) -> None:
        """End all waits for a pause or for room."""
        self._orders.rebalance_started()
        if self._stored is not None:
            self._stored.moved()

    async def revoking(self, _partitions: set[int]) -> None:
        """Send the gathered founds, wait until the log has all outputs, then forget the remaining pages."""
        stage, founds, items = self._stage, self._founds, self._items
        if stage is None or founds is None or items is None:
            return
        try:
            if stage.lender is not None:
                await stage.lender.take_back()
            stage.flush()
            while stage.undone:
                for producer in (founds, items):
                    producer.flush(HURRY_S)
                await asyncio.sleep(0.002)
        finally:  # also when the time is up: pages that are not done are read again
            stage.give_up()

    def reports(self) -> list[Progress]:
        """One progress report for each partition."""
        stage = self._stage
        if stage is None:
            return []
        reports = progress.positions(self._app, stage.pages, stage.bytes, paused=self._orders.paused)
        for report in reports:
            report.parsed = dict(islice(reversed(stage.parsed.items()), MAX_PARSED_TOLD))
            report.remarks = {job: one for job, one in stage.remarks.by_job.items() if job in report.parsed}
            report.note = self._note
        return reports


def attach(app: CrawlApp) -> None:
    """Make an app the parse stage."""
    worker = ParseWorker(app)
    app.run_stage("parse", worker, worker.starts)
