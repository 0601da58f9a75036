"""The fetch service: takes what the dispatcher allows, asks the web, writes pages and dones.

Writes crawl.pages (every final result, keyed by domain) and, once the log has the page, its done to crawl.urls (in
batches by partition). A URL holds its place among `fetch.concurrency` from its dispatch until its done is in the log,
so what a kill repeats is bounded by it. Nothing is decided here that the next owner could not decide again.
"""

import asyncio
import random
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from crawlog import __version__
from crawlog.streams import crash, validators
from crawlog.streams.answers import NOT_MODIFIED, Answer
from crawlog.streams.app import CrawlApp
from crawlog.streams.formpage import PAGE_BYTES
from crawlog.streams.forms import Session
from crawlog.streams.outcomes import CRASH_LOOP, Unasked, unasked
from crawlog.streams.queues import Host, RobotsTask, Task
from crawlog.streams.rendering import Rendering, Verdict, emptiness
from crawlog.streams.retrying import Retrying, may_pass
from crawlog.streams.sniff import HTML, XHTML, essence
from crawlog.streams.suspects import Suspects
from crawlog.streams.validators import Validators

from . import frontier
from .addresses import BUSY_S
from .connections import LeaseLost
from .frontier import Stage
from .hosts import Hosts
from .http import FREE_BYTES, THE_CRAWL, Asker, Client
from .logins import Logins
from .outcomes import Outcomes
from .pages import LOOK_S, PagesLog
from .record import Record
from .render import Renderer
from .resources import Resources
from .robots import Robots
from .sitemaps import Sitemaps
from .snapshots import Snapshotter
from .standby import Standby
from .trial import TOO_COMPLEX, Trial, TrialError

if TYPE_CHECKING:
    from crawlog.schemas.urls import RenderRules

log = structlog.get_logger()

DRAIN_S = 2.5
"""How long requests in flight may go on once a rebalance or a stop has begun; then they are aborted."""

DONES_S = 0.7
"""How long their pages and dones may then take to be acknowledged."""

MAY_BE_RENDERED = Asker(wants_place=True)
"""What a page in the browser may ask for depends on where the page came from."""

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
        self.client: Client | None = None

        self.places: set[Task] = set()
        self._running: dict[asyncio.Task[None], Task | RobotsTask] = {}
        self._wake = asyncio.Event()
        self._freed = asyncio.Event()
        self._stopping = False
        self._pages = PagesLog(settings, stage.names.pages)
        self._held = False
        self._asking_rules = 0
        self._outcomes = Outcomes(stage, self._pages.pressure, self._release)
        self._sitemaps = Sitemaps(stage.producer, stage.names.pages, self._pages.pressure)
        self._retrying = Retrying(settings.fetch, settings.politeness, _jitter)
        self._hosts = Hosts(settings, self.frontier, stage.place, self._retrying.rest_s)
        self.robots: Robots | None = None
        self._logins = Logins(settings.fetch)
        self._trial = Trial(settings.parse)
        self._renderer: Renderer | None = None
        self._renderings: dict[str, tuple[RenderRules, Rendering]] = {}
        self.suspects = Suspects(
            settings.run.data / "suspects" / stage.app.worker_name, slots=settings.fetch.concurrency
        )
        self._record = Record(self.suspects)
        stage.app.watchdog.on_blocked = self.suspects.blame
        stage.wake = self._wake.set
        stage.drain = self.drain
        stage.abort = self.abort

    # ------------------------------------------------------------------ dispatch

    async def run(self) -> None:
        """Dispatch until stopped."""
        user_agent = self.settings.fetch.user_agent or f"crawlog/{__version__}"
        self.client = Client(self.settings, user_agent, self.stage.may_ask)
        self.robots = Robots(self.stage, self.client, self._hosts, self._record, self._aside)
        try:
            while not self._stopping:
                self._wake.clear()
                await self._rest(has_more=not self._dispatch(self.robots))
        finally:
            self.suspects.close()
            self._trial.close()
            if self._renderer is not None:
                await self._renderer.close()
            await self.client.close()

    def _dispatch(self, robots: Robots) -> bool:
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
                self._start(task, self._page(task))
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
        while not self._stopping:
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

    # ------------------------------------------------------------------ pages

    async def _page(self, task: Task) -> None:
        """Fetch one URL; ends as a page and a done, as a done, or aborted without a trace."""
        host = task.host
        url = task.row.url
        try:
            await self._sitemaps.told(task)
        except BaseException:
            self.frontier.unsent(host)
            self.frontier.back(task)
            self._release(task)
            raise
        if host.rules is not None and host.rules.is_gone and not host.orders.blocked:
            self.frontier.unsent(host)  # others needed their room since the dispatch
            self.frontier.back(task)
            self._release(task)
            return
        if self._needs_no_request(task):
            self.frontier.unsent(host)
            return
        session = self._logins.session(task)
        if not await self._is_logged_in(task, session):
            return
        asked_at = time.monotonic()
        try:
            answer = await self._asked(task)
        except BaseException:
            self.frontier.finished(host)
            self.frontier.back(task)
            self._release(task)
            raise
        if answer is None or self._logins.is_over(session, url, answer, asked_at):
            self._asks_again(task, answer)
            return
        crash.point("fetch.answered")
        try:
            self._answered(task, answer)
        except Exception as error:  # its place would be held for ever, and the crawl never end
            log.exception("answer_broken", url=url)
            answer.held.give()
            self._outcomes.failed(task, f"answer_broken: {type(error).__name__}")

    def _asks_again(self, task: Task, answer: Answer | None, wait_s: float = 0.0) -> None:
        """The URL is its host's next one again: nobody was asked, or the answer was none to it."""
        if answer is not None:
            answer.held.give()
        self.frontier.finished(task.host, wait_s if answer is not None else BUSY_S)
        self.frontier.back(task)
        self._release(task)

    async def _is_logged_in(self, task: Task, session: Session | None) -> bool:
        """Whether the task may go on; else its turn went to the login, or it has failed with that."""
        if session is None:
            return True
        turn = session.turn(time.monotonic())
        if turn == "read" and not self._allows(task.host, session.form.url):
            self._logins.closed(session)
            turn = session.turn(time.monotonic())
        if turn == "fail":
            self.frontier.unsent(task.host)
            self._outcomes.failed(task, session.reason)
        elif turn == "wait":
            self._asks_again(task, None)
        elif turn != "ask":
            await self._log_in(task, session, turn)
        return turn == "ask"

    async def _log_in(self, task: Task, session: Session, turn: Literal["read", "send"]) -> None:
        """Spend the task's turn on reading the form's page, or on posting it."""
        assert self.client is not None
        url, job = session.posted.url if turn == "send" else session.form.url, task.job.name
        read = partial(self._form_page, task, url, job)
        post = partial(self.client.addresses.at_once, url, partial(self.client.log_in, session.posted, job))
        answer: Answer | None = None
        refusal = ""
        try:
            if turn == "send":
                answer = await self._record.keep(url, post)
            else:
                answer, refusal = await self._record.keep(url, read)
        finally:
            if answer is None:
                session.given_back()
                self._asks_again(task, None)
        if answer is None:
            return
        if turn == "send":
            self._logins.answered(session, answer, may_pass=may_pass(answer))
        else:
            self._logins.shown(session, answer, may_pass=may_pass(answer), refusal=refusal)
        self._asks_again(task, answer, self._retrying.rest_s(task.host, answer, time.time()))

    async def _form_page(self, task: Task, url: str, job: str) -> tuple[Answer | None, str]:
        """The page of a login's form, and why nobody is to look at it."""
        answer = await self._ask(url, job, THE_CRAWL, any_type=True, headers=None)
        if answer is None:
            return None, ""
        return answer, await self._refusal(task, answer, answer.body[:PAGE_BYTES])

    def _allows(self, host: Host, url: str) -> bool:
        """Whether robots.txt, as far as it is known, lets a URL of its host be asked for."""
        if not self.settings.robots.obey or host.rules is None:
            return True
        return host.rules.allowed(url, self.settings.robots.token)[0]

    async def _asked(self, task: Task) -> Answer | None:
        """The answer, rendered or pointing to an older page where it is one; None when the address is busy."""
        unless = self._validators(task)
        answer, why = await self._record.keep(task.row.url, partial(self._looked_at, task, unless))
        if answer is None:
            return None
        if unless is not None and answer.http == NOT_MODIFIED:
            answer.validators = msgspec.structs.replace(unless, epoch=task.epoch)
            answer.same_as = task.partition.fold.partition, unless.offset
        if why:
            await self._rendered(task, answer, why)
        return answer

    async def _rendered(self, task: Task, answer: Answer, why: str) -> None:
        """Have the browser make the body, which keeps its room meanwhile: what pages load has a room of its own."""
        assert self.client is not None
        sent = answer.body
        try:
            await self._browser().render(task.row.url, answer, task.job.name, why)
        except BaseException:  # also when it is cancelled: nobody else knows of the room
            answer.held.give()
            raise
        if answer.body is not sent:
            answer.held.give()
            answer.held = self.client.room.count(len(answer.body) if len(answer.body) > FREE_BYTES else 0)

    async def _looked_at(self, task: Task, unless: Validators | None) -> tuple[Answer | None, str]:
        """The answer, and why a browser is to make its body, if one is."""
        headers = unless.headers if unless is not None else None
        row = task.row
        verdict = self._rendering(task).verdict(row.url)
        asker = MAY_BE_RENDERED if verdict else THE_CRAWL
        answer = await self._ask(row.url, task.job.name, asker, any_type=row.sitemap, headers=headers)
        return answer, "" if answer is None or not verdict else await self._why_rendered(task, answer, verdict)

    async def _refusal(self, task: Task, answer: Answer, body: bytes) -> str:
        """Why nobody is to look at an answer's HTML: it might block the loop. If we are stopped, its room goes."""
        try:
            return await self._trial.refusal(body, answer.content_type, task.host.domain)
        except TrialError as error:
            log.warning("page_untried", url=task.row.url, error=str(error), then="not looked at")
            return f"{TOO_COMPLEX}: nobody knows"
        except BaseException:
            answer.held.give()
            raise

    def _needs_no_request(self, task: Task) -> bool:
        """Whether its done is known, and on its way, without asking the web."""
        url = task.row.url
        end = unasked(task.host, url, self.settings.robots)
        if end is None and self._record.gives_up(url):
            log.error("crash_loop", url=url, then="failed without another try")
            end = Unasked("failed", CRASH_LOOP)
        if end is None:
            return False
        if end.status == "failed":
            self._outcomes.failed(task, end.reason)
        else:
            self._outcomes.refused(task, end)
        return True

    def _validators(self, task: Task) -> Validators | None:
        """By which a page of an earlier epoch is asked for again, if crawl.pages has it still, as far as is known."""
        if not task.epoch or not self.settings.fetch.conditional:
            return None
        stored = task.partition.cached(validators.key(task.job.name, task.row.url))
        if stored is None:
            return None
        known = validators.read(stored)
        rendered = self._rendering(task).verdict(task.row.url)  # the body that is there was not
        if rendered and not (rendered == "auto" and known.is_whole):
            return None
        low = self._pages.lows.get(task.partition.fold.partition, 0)
        return known if known.epoch < task.epoch and known.offset >= low else None

    async def _ask(
        self, url: str, job: str, asker: Asker, *, any_type: bool, headers: dict[str, str] | None
    ) -> Answer | None:
        """The answer; None when as many requests as `politeness.per_ip` allows are under way to its address."""
        assert self.client is not None
        get = partial(self.client.get, url, any_type=any_type, job=job, headers=headers, asker=asker)
        return await self.client.addresses.at_once(url, get)

    async def _why_rendered(self, task: Task, answer: Answer, verdict: Verdict) -> str:
        """Why a browser is to make the body of a page that may be rendered; empty where none is."""
        is_page = _is_page(task, answer)
        if verdict != "auto":
            return verdict if is_page else ""
        if is_page and await self._refusal(task, answer, answer.body):
            return ""
        try:
            why = emptiness(answer.body, answer.content_type) if is_page else ""
        except Exception:  # its URL would be asked for again and again
            log.exception("look_broken", url=task.row.url, then="kept as it was sent")
            return ""
        if not why and answer.validators is not None:
            answer.validators = msgspec.structs.replace(answer.validators, is_whole=True)
        return why

    def _rendering(self, task: Task) -> Rendering:
        rules, job = task.job.spec.render, task.job.name
        known = self._renderings.get(job)
        if known is None or known[0] != rules:
            known = self._renderings[job] = rules, Rendering(rules)
        return known[1]

    def _browser(self) -> Renderer:
        if self._renderer is None:
            assert self.client is not None
            assert self.robots is not None
            rules = partial(self.robots.give, in_turn=True)
            resources = Resources(self.settings, self.client, self._hosts, rules)
            self._renderer = Renderer(self.settings, resources)
        return self._renderer

    def _answered(self, task: Task, answer: Answer) -> None:
        now = time.time()
        host = task.host
        rest_s = self._retrying.rest_s(host, answer, now)
        self.frontier.finished(host, rest_s)
        again = self._retrying.again(answer, task.row.attempt + 1, rest_s)
        if again is None:
            self._outcomes.final(task, answer, now, rest_s)
        else:
            self._outcomes.again(task, answer, again, now, rest_s)


def _is_page(task: Task, answer: Answer) -> bool:
    """Whether an answer is a page that a browser would show."""
    if task.row.sitemap or answer.error or not answer.body or answer.http is None or not 200 <= answer.http < 300:
        return False
    return (answer.sniffed or essence(answer.content_type)) in ("", HTML, XHTML)


def attach(app: CrawlApp) -> None:
    """Make an app the fetch stage: the frontier, and the service beside it. When a task fails, so does the worker."""
    stage = frontier.attach(app)
    app.task(Snapshotter(stage).run)
    app.task(Standby(stage).run)
    fetcher = Fetcher(stage)
    app.task(fetcher.run)
    app.task(fetcher.watch_pages)
