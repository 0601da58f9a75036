"""Renders pages that need JavaScript in a Chromium of this worker, from the body that the server sent.

    plain HTML ─► browser ─► asks for scripts, data ─► Resources ─► browser ─► quiet ─► its DOM is the body

The browser (`chromium.py`) has no network: each request that a page in it (`visit.py`) makes is answered by
`resources.py`. It is started for the first page, and ended after an idle time or after many pages. If it takes too
much memory, its largest page is killed alone. A page always has a result: the rendered body, or the server's body with
the reason.
"""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.client import LeaseLost
from crawlog.streams.errors import Misconfigured
from crawlog.streams.http import Answer
from crawlog.streams.job_spec import own_policy
from crawlog.streams.settings import find_browser

from .chromium import START_S, Chromium
from .dom import Failed
from .resources import Budget, JobPage, Resources
from .visit import BrowserDied, Visit

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

BROKEN_S = 60.0  # Wait before another try to start a browser, after one failed

WATCH_S = 1.0  # Interval of checks of the browser's memory

IDLE_S = 60.0  # Idle time after which the browser is ended

TRIES = 2  # Tries of a page whose browser dies, whichever page caused it

ACTION = "action"  # Error of a page whose actions failed

_CONTENT_TYPE = "text/html; charset=utf-8"


class Renderer:
    """A browser for a few pages at a time, started on demand.

    Attributes:
        browser: None while no page needs it.
    """

    def __init__(self, settings: "Settings", resources: Resources) -> None:
        self._settings = settings
        self._usual = own_policy(settings)
        self._resources = resources
        self._free = asyncio.Semaphore(settings.render.pages)
        self._starting = asyncio.Lock()
        self.browser: Chromium | None = None
        self._watching: asyncio.Task[None] | None = None
        self._launching: asyncio.Task[Chromium] | None = None
        self._is_missing = False
        self._broken_until = 0.0

    async def render(self, url: str, answer: Answer, why: str, page: JobPage) -> None:
        """Replace the body by the rendered page, or record why not; a page that navigates away gets a location.

        A page whose actions fail is an error, without a body.

        Args:
            why: Reason for the rendering, one word.

        Raises: LeaseLost: the worker may no longer send the page's requests.
        """
        started = time.monotonic()
        rules = (page.policy or self._usual).rules
        with self._resources.visiting(url):
            async with self._free:
                for tries in range(1, 2 if page.actions else TRIES + 1):  # a form may have been sent
                    try:
                        limits = rules.render_max_requests, rules.render_max_bytes
                        budget = Budget(page, *limits, is_inside=answer.is_inside)
                        await self._rendered(url, answer, budget, why)
                        break
                    except BrowserDied:
                        answer.render_error = "render_crashed"
                        log.warning("browser_died", url=url, tries=tries)
                    except Failed as error:
                        answer.render_error = str(error)
                        break
                    except LeaseLost:
                        raise
                    except Exception as error:  # its URL would be fetched again and again
                        log.exception("render_broken", url=url)
                        answer.render_error = f"render_broken: {type(error).__name__}"
                        break
        answer.took_s += time.monotonic() - started
        if page.actions and not answer.rendered:
            answer.error, answer.detail, answer.render_error = ACTION, answer.render_error, ""
            answer.body, answer.kept = b"", False

    async def _rendered(self, url: str, answer: Answer, budget: Budget, why: str) -> None:
        browser = await self._ready()
        visit = Visit((budget.page.policy or self._usual).rules, browser, self._resources, url, answer, budget)
        browser.take()
        try:
            html = await visit.run()
        finally:
            browser.let_go()
        answer.render_error = visit.error
        answer.headers += tuple(visit.set_cookies)
        if visit.acting is not None:
            answer.results = tuple(visit.acting.results)
            answer.shown_url = visit.shown_url if visit.shown_url != url else ""
        if html:
            answer.body, answer.rendered = html.encode("utf-8", "replace"), why
            answer.content_type, answer.sniffed = _CONTENT_TYPE, ""
        if visit.location:
            answer.location, answer.rendered = visit.location, why

    async def _ready(self) -> Chromium:
        """The browser; a new one if the last is dead or has served its number of pages."""
        async with self._starting:
            browser = self.browser
            if browser is not None and browser.served >= self._settings.render.recycle_pages:
                await browser.empty.wait()  # it takes no new pages; the open ones end first
                await self._end()
            elif browser is not None and not browser.is_alive:
                await self._end()
            if self.browser is None:
                self.browser = await self._started()
                self._watching = asyncio.create_task(self._watch(self.browser))
            return self.browser

    async def _started(self) -> Chromium:
        """A new browser. If this page is cancelled meanwhile, the next page uses the browser."""
        if self._launching is None:
            self._launching = asyncio.create_task(self._start())
        launching = self._launching
        try:
            return await asyncio.shield(launching)
        finally:
            if launching.done():
                self._launching = None

    async def _start(self) -> Chromium:
        if time.monotonic() < self._broken_until:
            raise Failed("browser_broken")
        try:
            path = find_browser(self._settings)
        except Misconfigured as error:
            if not self._is_missing:
                self._is_missing = True
                log.critical("no_browser", error=str(error), then="pages are kept as they were sent")
            raise Failed("no_browser") from None
        self._is_missing = False
        try:
            async with asyncio.timeout(START_S):
                return await Chromium.start(path, self._settings)
        except Exception as error:  # noqa: BLE001  # Playwright's own, a timeout, a driver that does not run
            lines = [line for line in str(error).splitlines() if line.strip()]
            told = " | ".join(lines[:3])[:300] or type(error).__name__
            self._broken_until = time.monotonic() + BROKEN_S
            log.critical("browser_broken", path=path, error=told, then="pages are kept as they were sent")
            raise Failed("browser_broken") from None

    async def _watch(self, browser: Chromium) -> None:
        """End the largest page when the browser takes too much memory; end the browser when it is idle."""
        most = self._settings.render.memory_mb << 20
        while browser.is_alive:
            await asyncio.sleep(WATCH_S)
            if browser.pages:
                size = await asyncio.to_thread(browser.shrink, most)
                if size > most:
                    log.warning("browser_too_large", memory_mb=size >> 20, limit_mb=most >> 20, then="a page is ended")
            elif time.monotonic() - browser.used_at > IDLE_S and not self._starting.locked():
                async with self._starting:
                    if not browser.pages and self.browser is browser:
                        self.browser = None
                        await browser.close()
                return

    async def _end(self) -> None:
        browser, self.browser = self.browser, None
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
        if browser is not None:
            await asyncio.shield(browser.in_background(browser.close()))  # the page may be cancelled

    async def close(self) -> None:
        await self._end()
        if self._launching is not None:
            with contextlib.suppress(Failed):
                await (await self._launching).close()
