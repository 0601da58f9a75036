"""The fetch service: takes what the dispatcher allows, has the web asked, and pages and dones written.

    dispatcher ─► places ─┬─► robots.txt unknown: asked for (`robots.py`)
                          └─► a URL: its way (`fetch_task.py`) ─► its page, then its done (`outcomes.py`) ─► place free

A URL holds its place among `fetch.concurrency` from its dispatch until its done is in the log, so what a kill repeats
is bounded by it. Nothing is decided here that the next owner could not decide again.
"""

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog

from crawlog import __version__
from crawlog.streams.app import CrawlApp
from crawlog.streams.queues import RobotsTask, Task
from crawlog.streams.retrying import Retrying
from crawlog.streams.suspects import Suspects

from . import frontier
from .browsing import Browsing
from .caution import Caution
from .fetch_task import Means, Tasks
from .frontier import Stage
from .hosts import Hosts
from .http import Client
from .logins import Logins
from .outcomes import Outcomes
from .pages import LOOK_S, PagesLog
from .protocol import LeaseLost
from .robots import Robots
from .sitemaps import Sitemaps
from .snapshots import Snapshotter
from .standby import Standby

log = structlog.get_logger()

DRAIN_S = 2.5
"""How long requests in flight may go on once a rebalance or a stop has begun; then they are aborted."""

DONES_S = 0.7
"""How long their pages and dones may then take to be acknowledged."""

UNFOLDED = 1024
"""Dones that may be in the log and not folded yet, a second's worth of a busy worker's: fetching has always something
to do, and without this limit what it finds is folded ever later, the longer the crawl."""

IDLE_S = 0.5
"""Longest sleep of the dispatch loop: what wakes it otherwise is counted, this is the safety net."""

_jitter = random.random  # spreads retries, no secret; the one generator that a fork seeds anew


class Fetcher:
    """Keeps `fetch.concurrency` places busy with what the dispatcher allows."""

    def __init__(self, stage: Stage) -> None:
        settings = stage.settings
        self.stage = stage
        self.settings = settings
        self.frontier = stage.frontier
        self.places: set[Task] = set()
        self._running: dict[asyncio.Task[None], Task | RobotsTask] = {}
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._pages = PagesLog(settings, stage.names.pages)
        self._held = False
        self._asking_rules = 0
        self._outcomes = Outcomes(stage, self._pages.pressure, self._release)
        self.robots: Robots | None = None
        self.tasks: Tasks | None = None
        self.suspects = Suspects(
            settings.run.data / "suspects" / stage.app.worker_name, slots=settings.fetch.concurrency
        )
        stage.app.watchdog.on_blocked = self.suspects.blame
        stage.wake = self._wake.set
        stage.drain = self.drain
        stage.abort = self.abort

    async def run(self) -> None:
        """Dispatch until stopped."""
        settings, stage = self.settings, self.stage
        client = Client(settings, settings.fetch.user_agent or f"crawlog/{__version__}", stage.may_ask)
        caution = Caution(self.suspects)
        retrying = Retrying(settings.fetch, settings.politeness, _jitter)
        hosts = Hosts(settings, self.frontier, stage.place, retrying.rest_s)
        robots = self.robots = Robots(stage, client, hosts, caution, self._aside)
        browsing = Browsing(settings, client, hosts, partial(robots.give, in_turn=True))
        logins = Logins(settings, client, caution, browsing.refusal)
        sitemaps = Sitemaps(stage.producer, stage.names.pages, self._pages.pressure)
        means = Means(sitemaps, logins, caution, client, browsing, retrying, self._outcomes)
        tasks = self.tasks = Tasks(stage, means, self._pages.lows, self._release)
        try:
            while True:
                self._wake.clear()
                await self._rest(has_more=not self._dispatch(tasks, robots))
        finally:
            self.suspects.close()
            await browsing.close()
            await client.close()

    def _dispatch(self, tasks: Tasks, robots: Robots) -> bool:
        """Whether only time, or what wakes the loop, can give it more to do."""
        if not self.stage.orders.works or not self.stage.may_ask():
            return False
        concurrency = self.settings.fetch.concurrency
        allowed = self._pages.pressure.allowed(concurrency)
        if allowed < concurrency:
            self._hold(allowed)
        unfolded = self.frontier.unfolded - len(self.places)
        room = min(allowed - len(self.places) - self._asking_rules, UNFOLDED - unfolded)
        while room > 0:
            task = self.frontier.next()
            if task is None:
                return True
            room -= 1
            if isinstance(task, Task):
                self.places.add(task)
                self._start(task, tasks.run(task))
            else:
                self._asking_rules += 1
                self._start(task, robots.give(task.host))
        return False

    def _hold(self, allowed: int) -> None:
        """Back-pressure is shown, never silent; a worker that waits for parse is not stuck."""
        self.stage.app.watchdog.beat()
        if (allowed == 0) != self._held:
            self._held = allowed == 0
            unparsed_mb = self._pages.pressure.unparsed_bytes >> 20
            limit_mb = self.settings.log.max_unparsed_mb
            log.info("held" if self._held else "goes_on", unparsed_mb=unparsed_mb, limit_mb=limit_mb)

    async def watch_pages(self) -> None:
        """Learn how far parse is, until stopped."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._pages.look(self.stage.live)
            self._wake.set()

    def _start(self, task: Task | RobotsTask, work: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(work)
        self._running[running] = task
        running.add_done_callback(self._ended)

    def _ended(self, running: "asyncio.Task[None]") -> None:
        if isinstance(self._running.pop(running, None), RobotsTask):
            self._asking_rules -= 1
        error = None if running.cancelled() else running.exception()
        if error is not None and not isinstance(error, LeaseLost):  # which has left no trace: the next owner asks
            log.error("fetch_broken", exc_info=error)
        self._wake.set()

    async def _rest(self, *, has_more: bool) -> None:
        """Sleep until woken, or until a host may be asked again; more may be there, but for want of leave or room."""
        next_at = None if has_more else self.frontier.next_at()
        wait = IDLE_S if next_at is None else min(max(next_at - time.monotonic(), 0.0), IDLE_S)
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            return

    def _release(self, task: Task) -> None:
        if not self.suspects.is_calm:
            self.suspects.release(task.row.url)  # one that was given up: its done is in the log
        self.places.discard(task)
        self._wake.set()
        self._freed.set()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Who asks for a robots.txt keeps no place meanwhile."""
        self._asking_rules -= 1
        self._wake.set()
        try:
            yield
        finally:
            self._asking_rules += 1

    def abort(self, partition: int) -> None:
        """Abort the requests for a partition, without a trace."""
        for running, task in self._running.items():
            if task.host.partition.fold.partition == partition:
                running.cancel()

    async def drain(self) -> None:
        """Let requests in flight end, abort the rest, and wait for what was written."""
        in_flight = list(self._running)
        try:
            if in_flight:
                await asyncio.wait(in_flight, timeout=DRAIN_S)
        finally:  # also when the time for all of it is up
            aborted = list(self._running)
            for running in aborted:
                running.cancel()
        if in_flight:
            log.info("drained", ended=len(in_flight) - len(aborted), given_back=len(aborted))
        if aborted:
            await asyncio.wait(aborted)
        self._outcomes.flush()
        until = time.monotonic() + DONES_S
        while self.places and (left := until - time.monotonic()) > 0:
            self._freed.clear()
            try:
                async with asyncio.timeout(min(left, 0.01)):
                    await self._freed.wait()
            except TimeoutError:
                self._outcomes.flush()
        self.places.clear()


def attach(app: CrawlApp) -> None:
    """Make an app the fetch stage: the frontier, and the service beside it. When a task fails, so does the worker."""
    stage = frontier.attach(app)
    app.task(Snapshotter(stage).run)
    app.task(Standby(stage).run)
    fetcher = Fetcher(stage)
    app.task(fetcher.run)
    app.task(fetcher.watch_pages)
