"""Gives waiting pages their turn, while other pages are parsed.

    large pages (`aside`)      one at a time; while the log holds more, others then get as much CPU time as it took
    `untried` pages            one at a time, in a child process (`agents/sandbox/trial.py`)
    pages without a body       read again from crawl.pages, in batches (`stored_bodies.py`)
    pages for a user's spider  when its process has room (`spider_pages.py`)
    pages of an unknown job    checked every `LOOK_AFTER_S`, until their job is known or they waited too long

This module decides when a page is due, by the clock and the log's end. `ParseStage` then handles it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

import structlog
from confluent_kafka import KafkaException

from crawlog.agents.control import StageCommands, beating
from crawlog.agents.sandbox import Trial
from crawlog.streams.coded_pages import likely_bytes
from crawlog.streams.errors import DamagedLog, EngineError, TrialError
from crawlog.streams.parse import Message, Waiting
from crawlog.streams.worker import LARGE_BYTES, CrawlApp

from .stage import ParseStage
from .stored_bodies import BATCH, Bodies

log = structlog.get_logger()

GATHER_S = 0.010  # Longest time that a found waits for others, and time between two checks of a wait, seconds

# Time between two checks of pages of unknown jobs, and pause after a failure to read a body, seconds.
LOOK_AFTER_S = 5.0

# Pages in the log from which helpers get some, and with which they go on getting some: to start takes a CPU second.
LENDS_FROM, LENDS_ON = 1000, 64

LENDING_LOOKS = 32  # Pages between two looks at how many wait

TEND_S = 0.5  # Time between two looks at pages that wait for users' spiders, seconds


class PageTurns:
    """Gives the waiting pages of one stage their turn.

    Args:
        orders: Says whether a page may be parsed now, and whether a rebalance has begun.
        flush_soon: Called after each trial.
    """

    def __init__(self, app: CrawlApp, stage: ParseStage, orders: StageCommands, flush_soon: Callable[[], None]) -> None:
        self._app = app
        self._stage = stage
        self._orders = orders
        self._flush_soon = flush_soon
        self._bodies: Bodies | None = None
        self._reading = asyncio.Lock()
        self._owed_s = 0.0  # CPU time that other pages get before the next large one
        self._lends = False
        self._looks_in = 0  # pages until the next look at the length of the partitions

    def tasks(self, trial: Trial) -> list[Coroutine[Any, Any, None]]:
        """The background tasks, which run until the worker stops."""
        return [self._look_after_held(), self._read_bodies(), self._try_pages(trial), self._tend_spiders()]

    def take(self, message: Message, *, alone: bool) -> None:
        """Give a page to the stage. A large page lets others go first, unless it must be parsed alone."""
        began_s = time.thread_time() if self._owed_s > 0 else 0.0  # skipped when not needed: it is a system call
        aside = not alone and self._lets_others_go(message)
        self._stage.take(message, aside=aside, lends=not alone and self._may_lend(message))
        if self._owed_s > 0:
            self._owed_s -= time.thread_time() - began_s

    async def breathe(self) -> None:
        """Yield after a slow page: several in a row must not look like a blocked loop."""
        if self._stage.guard.clock.is_slow:
            self._app.watchdog.beat()
            await asyncio.sleep(0)

    def _may_lend(self, message: Message) -> bool:
        """Whether a helper may parse a page: many wait behind it, and it is not large."""
        if self._stage.lender is None:
            return False
        self._looks_in -= 1
        if self._looks_in < 0:
            self._looks_in = LENDING_LOOKS
            self._lends = self._behind() >= (LENDS_ON if self._lends else LENDS_FROM)
        return self._lends and likely_bytes(message.value, message.headers) < LARGE_BYTES

    # Large pages.

    def _behind(self) -> int:
        """Pages that wait in the log."""
        held, taken = self._app.positions, self._stage.taken
        return self._app.reader.behind({p: taken.get(p) or held.next(p) or 0 for p in held.owned})

    def is_behind(self) -> bool:
        """Whether pages wait in the log."""
        return self._behind() > 0

    def _lets_others_go(self, message: Message) -> bool:
        """Whether a page is large and others wait behind it: each of these may be a host's only source of URLs."""
        is_large = likely_bytes(message.value, message.headers) >= LARGE_BYTES
        return is_large and (bool(self._stage.aside) or self.is_behind())

    async def parse_asides(self) -> None:
        """Parse pages that were put aside while one is due; a large page that waits for a trial goes first."""
        stage = self._stage
        while stage.aside and (self._owed_s <= 0 or stage.is_far or not self.is_behind()):
            if stage.untried.size_bytes >= LARGE_BYTES:
                if self.is_behind() or self._orders.is_rebalancing:
                    return
                await asyncio.sleep(GATHER_S)
                continue
            if not await self._orders.admitted(self._app.watchdog.beat) or not await self.parse_aside():
                return

    async def parse_aside(self) -> bool:
        """Parse one page that was put aside, and owe others its CPU time; False if a rebalance took it away."""
        stage = self._stage
        first = stage.aside.first
        assert first is not None
        body = first.body
        if body is None:
            try:
                body = await self._body_of(first)
            except (EngineError, KafkaException) as error:
                await self._bodies_unread(error)
                return not self._orders.is_rebalancing
            if stage.aside.first is not first:
                return False
        began_s = time.thread_time()
        stage.parse_aside(body)
        self._owed_s = time.thread_time() - began_s
        await self.breathe()
        return not self._orders.is_rebalancing

    # Trials.

    async def _try_pages(self, trial: Trial) -> None:
        """Try pages that may be too complex for the parser, one after the other, until stopped."""
        lacking = asyncio.Event()
        self._stage.lacks_trial = lacking.set
        try:
            while not self._app.should_stop:
                await lacking.wait()
                lacking.clear()
                while self._stage.untried and not self._app.should_stop:
                    if self._orders.is_rebalancing:
                        await asyncio.sleep(GATHER_S)
                    elif await self._orders.admitted(self._app.watchdog.beat):
                        await self.try_page(trial)
        finally:
            trial.close()

    async def try_page(self, trial: Trial) -> None:
        """Try the first page; the result is dropped if a rebalance took the page away meanwhile."""
        stage, refusal = self._stage, ""
        first = stage.untried.first
        assert first is not None
        try:
            body = await self._body_of(first) if first.body is None else first.body
        except (EngineError, KafkaException) as error:
            await self._bodies_unread(error)
            return
        try:
            domain, waiting = stage.domain(first.meta.url), len(stage.untried) - 1
            verdict = trial.verdict(body, first.meta.content_type, domain, waiting)
            refusal = await beating(self._app.watchdog.beat, verdict)
        except TrialError as error:
            log.warning(
                "page_untried", url=first.meta.url, error=str(error), then="parsed under the worker's own timer"
            )
        if self._orders.is_rebalancing or stage.untried.first is not first:
            return
        stage.tried(body, refusal)
        self._flush_soon()
        await self.breathe()
        self._app.watchdog.beat()

    # Users' spiders.

    async def _tend_spiders(self) -> None:
        """Let waiting pages go on after a pause, until stopped. A process that hangs is ended by its own deadline."""
        spiders = self._stage.spiders
        if spiders is None:
            return
        spiders.gave = self._flush_soon
        try:
            while not self._app.should_stop:
                await asyncio.sleep(TEND_S)
                if spiders.count:
                    self._app.watchdog.beat()
                    spiders.tend()
        finally:
            for child in spiders.close():  # the files that a spider writes are whole when a run has ended
                await asyncio.to_thread(child.wait_ended)

    # Bodies.

    async def _read_bodies(self) -> None:
        """Read the bodies of pages that were not modified from the log, in batches, until stopped."""
        stage, bodies, lacking = self._stage, self._new_bodies(), asyncio.Event()
        stage.lacks_bodies = lacking.set
        while not self._app.should_stop:
            await lacking.wait()
            lacking.clear()
            await asyncio.sleep(GATHER_S)  # let more pages gather: a batch costs one request per partition
            while stage.bodiless and not self._app.should_stop:
                wanted = {at: held.meta for at, held in islice(stage.bodiless.items(), BATCH)}
                try:
                    found = await beating(self._app.watchdog.beat, asyncio.to_thread(bodies.read, wanted))
                except (EngineError, KafkaException) as error:
                    await self._bodies_unread(error)
                    continue
                for at, (old, body) in found.items():
                    stage.body_came(at, old, body)
                    await asyncio.sleep(0)
                stage.flush()

    async def _body_of(self, waiting: Waiting) -> bytes:
        """A dropped body, read again; empty if crawl.pages has lost it. Raises: EngineError, KafkaException."""
        self._bodies = self._bodies or self._new_bodies()
        at = waiting.message.partition, waiting.message.offset
        async with self._reading:
            found = await beating(self._app.watchdog.beat, asyncio.to_thread(self._bodies.read, {at: waiting.of_log}))
        return found[at][1]

    def _new_bodies(self) -> Bodies:
        return Bodies(self._app.crawl, self._app.input_name)

    async def _bodies_unread(self, error: Exception) -> None:
        if isinstance(error, DamagedLog):
            self._app.watchdog.end("bodies_unread", error)
        log.warning("bodies_unread", error=str(error), again_in_s=LOOK_AFTER_S)
        self._app.watchdog.beat()
        await asyncio.sleep(LOOK_AFTER_S)

    # Unknown jobs.

    async def _look_after_held(self) -> None:
        while not self._app.should_stop:
            await asyncio.sleep(LOOK_AFTER_S)
            if self._stage.look_after_held():
                self._app.watchdog.beat()
