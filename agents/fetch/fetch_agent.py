"""The fetch service: takes tasks from the dispatcher, runs them, and gives their places back.

    dispatcher ─┬─► an unknown name: resolved, outside the places
                └─► places ─┬─► an unknown robots.txt: fetched (`robots.py`); its place is soon free
                            └─► a URL: its task (`task.py`) ─► page, then done (`outcome.py`) ─► place free

A URL holds one of `fetch.concurrency` places from its dispatch until its done is in the log. So a kill repeats at most
that many requests. `streams/frontier/unmet_hosts.py` decides how many places go to hosts that may never answer. The
next owner can make every decision of this module again.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

import structlog

from crawlog import __version__
from crawlog.agents.browser import Browsing
from crawlog.agents.client import Client, CookieJars, LeaseLost, Transport
from crawlog.agents.coordinator import coordinator
from crawlog.agents.frontier import HostReports, Hosts, OwnedFrontier, Snapshotter, Standby, frontier_agent
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured
from crawlog.streams.fetch import Retrying, Unfolded
from crawlog.streams.frontier import MET, NameTask, Patience, RobotsTask, Shares, Task, by_partition
from crawlog.streams.settings import find_browser, wants_browser
from crawlog.streams.worker import CrawlApp, Suspects

from .backlog import LOOK_S, PagesLog
from .dones import JarsOfJobs
from .exit_lines import ExitLines
from .logins import Logins
from .outcome import Outcomes
from .robots import Robots, Sitemaps
from .suspects import Caution
from .task import Means, Tasks

log = structlog.get_logger()

DRAIN_S = 2.5  # Time that requests in flight have after a rebalance or a stop begins; then they are aborted

DONES_S = 0.7  # Time that their pages and dones then have to be acknowledged

IDLE_S = 0.5  # Longest sleep of the dispatch loop. Events wake it earlier; this is only the safety net.

NAMES = 512  # Names being resolved at a time, at most 256 of them of strangers; late ones (`LATE_NAMES`) come on top

LATE_NAMES = 4096  # Late names being resolved; each is a few bytes in the resolver

LATE_EACH = 20  # Late requests for robots.txt per place of `fetch.concurrency`; each is a connection

# A late https request counts as this many: a waiting handshake takes 63 kB of memory, an http request 14 kB.
LATE_TLS = 3

# Requests to strangers started in one iteration of the loop (about 2 ms), so that other requests continue between.
AT_ONCE = 4

FILES_BESIDE = 1024  # File descriptors reserved for everything except connections

_jitter = random.random  # spreads retries, no secret; the one generator that a fork seeds anew


class Fetcher:
    """Keeps `fetch.concurrency` places busy with tasks of the dispatcher.

    Args:
        wrap: Turns the client into the transport of all requests.
    """

    def __init__(self, stage: OwnedFrontier, wrap: Callable[[Transport], Transport] = lambda client: client) -> None:
        self._wrap = wrap
        settings = stage.settings
        self.stage = stage
        self.settings = settings
        self.frontier = stage.frontier
        self.places: set[Task] = set()
        self._running: dict[asyncio.Task[None], Task | RobotsTask | NameTask] = {}
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._pages = PagesLog(settings, stage.names.pages)
        self._unfolded = Unfolded()
        self._held = False
        most_late = late_connections(settings.fetch.concurrency)
        self._shares = Shares(most_late)
        self._allowed = settings.fetch.concurrency
        self._names = Shares(LATE_NAMES)
        self._jars = CookieJars(JarsOfJobs(stage))
        self._outcomes = Outcomes(stage, self._pages.pressure, self._release, self._jars)
        self.robots: Robots | None = None
        self.tasks: Tasks | None = None
        self.suspects = Suspects(
            settings.run.data / "suspects" / stage.app.worker_name, slots=settings.fetch.concurrency + most_late
        )
        stage.app.watchdog.on_blocked = self.suspects.blame
        stage.serve(wake=self._wake.set, waits=self.waits, drain=self.drain, abort=self.abort)

    async def run(self) -> None:
        """Dispatch until stopped."""
        settings, stage = self.settings, self.stage
        client = Client(settings, f"crawlog/{__version__}", stage.may_ask, self._jars)
        transport, addresses = self._wrap(client), client.addresses
        self.frontier.schedule.use(client.exits)
        caution = Caution(self.suspects)
        retrying = Retrying(_jitter)
        hosts = Hosts(self.frontier, stage.place, retrying.rest_s)
        patience = Patience(client.known, self._part)
        robots = self.robots = Robots(stage, transport, addresses, hosts, caution, patience)
        browsing = Browsing(settings, client, hosts, partial(robots.give, in_turn=True), transport)
        logins = Logins(settings, transport, addresses, caution, browsing.refusal)
        sitemaps = Sitemaps(stage.producer, stage.names.pages, self._pages.pressure)
        means = Means(sitemaps, logins, caution, transport, addresses, browsing, retrying, patience, self._outcomes)
        tasks = self.tasks = Tasks(stage, means, self._pages.lows, self._release)
        lines = ExitLines(settings, client)
        stage.on_report = lines.take
        keeping = asyncio.create_task(lines.run())
        self.frontier.is_named = lambda host: bool(client.known(host))
        try:
            while True:
                self._wake.clear()
                await self._rest(has_more=not self._dispatch(tasks, robots, client))
        finally:
            keeping.cancel()
            self.suspects.close()
            await browsing.close()
            await client.close()

    def _dispatch(self, tasks: Tasks, robots: Robots, client: Client) -> bool:
        """Start tasks; True if the dispatcher has no more, so that only time or a wake-up brings new ones."""
        if not self.stage.orders.works or not self.stage.may_ask():
            return False
        concurrency = self.settings.fetch.concurrency
        allowed = self._allowed = self._pages.pressure.allowed(concurrency)
        if allowed < concurrency:
            self._hold(allowed)
        unfolded = self.frontier.unfolded - len(self.places)
        room = max(self._unfolded.room(unfolded, self.stage.folding_s), 0)
        now, count, strangers = time.monotonic(), 0, 0
        self._shares.age(now)
        self._names.age(now)
        while count < room and any(admitted := self._admitted(allowed)):
            if strangers >= AT_ONCE:
                self._wake.set()  # the next iteration follows at once
                admitted = admitted[MET], False, False
            task = self.frontier.next(admitted)
            if task is None:
                self._unfolded.handed_out(count, unfolded)
                return True
            if isinstance(task, Task):
                self.places.add(task)
                self._shares.take(task, task.host.standing)
                self._start(task, tasks.run(task))
            elif isinstance(task, RobotsTask):
                when_late = LATE_TLS if task.host.key.startswith("https:") else 1
                self._shares.take(task, task.host.standing, now, when_late)
                self._start(task, robots.give(task.host, task.policy))
            else:
                self._names.take(task, task.host.standing, now)
                self._start(task, self._named(task, client))
            count += 1
            strangers += task.host.standing != MET
        self._unfolded.handed_out(count, unfolded)
        return False

    def _admitted(self, allowed: int) -> tuple[bool, bool, bool]:
        """By standing, whether a host may have a place; a stranger also needs room to have its name resolved."""
        met, new, silent = self._shares.left(allowed)
        _, new_names, silent_names = self._names.left(NAMES)
        return met > 0, min(new, new_names) > 0, min(silent, silent_names) > 0

    def _part(self) -> float:
        return self._shares.part(self._allowed)

    async def _named(self, task: NameTask, client: Client) -> None:
        """Resolve a host's name. A host without addresses is requested all the same, and that request fails."""
        try:
            await client.addresses_of(f"{task.host.key}/")
        finally:
            self.frontier.named(task.host)

    def waits(self) -> tuple[Counter[int], Counter[int]]:
        """By partition: hosts that wait for DNS, and requests in flight to strangers (new and silent hosts)."""
        return by_partition(iter(self._names)), by_partition(self._shares.strangers())

    def _hold(self, allowed: int) -> None:
        """Log the back-pressure, and tell the watchdog that a worker waiting for parse is not stuck."""
        self.stage.app.watchdog.beat()
        if (allowed == 0) != self._held:
            self._held = allowed == 0
            unparsed_mb = self._pages.pressure.unparsed_bytes >> 20
            limit_mb = self.settings.log.max_unparsed_mb
            log.info("held" if self._held else "goes_on", unparsed_mb=unparsed_mb, limit_mb=limit_mb)

    async def watch_pages(self) -> None:
        """Measure how far parse is behind, until stopped."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._pages.look(self.stage.live)
            self._wake.set()

    def _start(self, task: Task | RobotsTask | NameTask, work: Coroutine[Any, Any, None]) -> None:
        running = asyncio.create_task(work)
        self._running[running] = task
        running.add_done_callback(self._ended)

    def _ended(self, running: "asyncio.Task[None]") -> None:
        task = self._running.pop(running, None)
        if isinstance(task, RobotsTask):
            self._shares.free(task)
        elif isinstance(task, NameTask):
            self._names.free(task)
        elif task is not None and running.cancelled():
            self._release(task)  # 1 dispatched → 2 aborted before its first step, so its `finally` never ran
        error = None if running.cancelled() else running.exception()
        if error is not None and not isinstance(error, LeaseLost):  # a lost lease left no trace: the next owner fetches
            log.error("fetch_broken", exc_info=error)
        self._wake.set()

    async def _rest(self, *, has_more: bool) -> None:
        """Sleep until woken, or until the next host is ready.

        Args:
            has_more: Whether the dispatcher may have tasks that must wait; the next host's time is then ignored.
        """
        if self._wake.is_set():
            await asyncio.sleep(0)  # waiting for a set event would not yield to the loop
            return
        next_at = None if has_more else self.frontier.next_at()
        next_at = min(inf if next_at is None else next_at, self._shares.ages_at, self._names.ages_at)
        wait = min(max(next_at - time.monotonic(), 0.0), IDLE_S)
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            return

    def _release(self, task: Task) -> None:
        if not self.suspects.is_calm:
            self.suspects.forget(task.row.url)  # it was given up, and its done is in the log
        self.places.discard(task)
        self._shares.free(task)
        self._wake.set()
        self._freed.set()

    def abort(self, partition: int) -> None:
        """Abort the requests of a partition; they leave no trace."""
        for running, task in self._running.items():
            if task.host.partition.fold.partition == partition:
                running.cancel()

    async def drain(self) -> None:
        """Wait for requests in flight, abort those that take too long, and wait until the log has the results."""
        in_flight = list(self._running)
        try:
            if in_flight:
                await asyncio.wait(in_flight, timeout=DRAIN_S)
        finally:  # also when the caller's time limit cancels this
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
        for task in list(self.places):
            self._shares.free(task)
        self.places.clear()


def late_connections(concurrency: int) -> int:
    """Late connections that the limit of open files leaves room for; raises the soft limit where allowed."""
    may_open = files.want_open((2 + LATE_EACH) * concurrency + FILES_BESIDE)
    return max(min(LATE_EACH * concurrency, may_open - FILES_BESIDE - 2 * concurrency), 0)


def missing_browser(stage: OwnedFrontier) -> str:
    """Why pages that want a browser will be kept as they were sent; empty if none wants one, or one is there."""
    specs = (job.spec for partition in stage.live.values() for job in partition.fold.jobs.values())
    rendering = (spec.render for spec in specs if spec.state == "running")
    if wants_browser(stage.settings) or any(rules.mode != "off" or rules.include for rules in rendering):
        try:
            find_browser(stage.settings)
        except Misconfigured as error:
            return str(error).partition("\n")[0]
    return ""


def attach(app: CrawlApp) -> None:
    """Make an app the fetch stage: the frontier, and the service beside it. A failed task ends the worker."""
    stage = frontier_agent.attach(app)
    app.lacks = partial(missing_browser, stage)
    coordinator.attach(app, stage)
    app.task(Snapshotter(stage).run)
    app.task(Standby(stage).run)
    app.task(HostReports(stage).run)
    fetcher = Fetcher(stage)
    app.task(fetcher.run)
    app.task(fetcher.watch_pages)
