"""Pages that need JavaScript, in a Chromium of this worker: what it makes of a body that is already here.

    plain HTML ─► browser ─► asks for scripts, data ─► Resources ─► browser ─► quiet ─► its DOM is the body

The browser has no network: its proxy is an address that nothing can listen on, no name resolves, service workers,
pop-ups and WebRTC are off, and each request that it makes is answered here. It is started when a page needs it, and
ended when none has needed it for a while, or after many pages; a page that takes too much memory is ended alone.
Whatever becomes of it, the page goes on: as rendered, or as the server sent it, with the reason.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

import psutil
import structlog

from crawlog.streams.answers import Answer
from crawlog.streams.browsers import find_browser, may_sandbox
from crawlog.streams.canonical import InvalidUrl, serialise
from crawlog.streams.errors import Misconfigured
from crawlog.streams.outbound import origin_of
from crawlog.streams.rendering import Wish

from .connections import LeaseLost
from .resources import Budget, Resources

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, CDPSession, Page, Playwright, Request, Route

    from crawlog.streams.settings import Settings

log = structlog.get_logger()

ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--block-new-web-contents",
    "--dns-prefetch-disable",
    "--proxy-server=http://127.0.0.1:0",  # port 0: no process can ever listen there
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)
"""Beside Playwright's own, which turn off updates, sync, extensions and first-run pages."""

START_S = 30.0
"""Time for the browser to start, its first time on a machine included."""

BROKEN_S = 60.0
"""A browser that did not start is not tried again for so long."""

TAKE_S, TAKE_ENDLESS_S = 10.0, 3.0
"""Time in which a page must show its DOM, and one that has not loaded in its time: a script that never ends cannot."""

CLOSE_S = 3.0
"""Time in which a page must close, and the browser; then they are killed."""

LOOK_S = 0.05
"""Between two looks whether a page is ready."""

WATCH_S = 1.0
"""Between two looks at the browser's memory."""

UNWANTED = ["--disable-ipc-flooding-protection", "--disable-popup-blocking", "--enable-unsafe-swiftshader"]
"""Of Playwright's arguments, which are for tests: pages of strangers are better off without."""

IDLE_S = 60.0
"""Without a page for so long, the browser is ended."""

FLOOD = 10
"""Times `render.max_requests` that a page may ask, refused or not, before it is taken as it is."""

TRIES = 2
"""Times that a page is rendered whose browser dies of it, or of another one."""

_CONTENT_TYPE = "text/html; charset=utf-8"

_DOM = """(most => {
  const open = [];
  const walk = at => {
    for (const one of at.querySelectorAll('*'))
      if (one.shadowRoot) { open.push(one.shadowRoot); walk(one.shadowRoot); }
  };
  walk(document);
  const html = document.documentElement.getHTML({shadowRoots: open});
  const root = document.documentElement.cloneNode(false).outerHTML.replace(/<\\/html>$/i, '');
  const all = '<!DOCTYPE html>' + root + html + '</html>';
  return all.length > most ? null : all;
})(%d)"""
"""In a world of its own, so that no script of the page has changed what these words mean. Shadow roots are shown as the
templates that declare them."""


class _Gone(Exception):
    """The browser died, or was ended; who was not at fault may try again."""


class _Failed(Exception):
    """A page that cannot be rendered: the reason, in a word."""


class Renderer:
    """A browser for a few pages at a time; it is there when it is needed.

    Attributes:
        browser: None while no page needs it.
    """

    def __init__(self, settings: "Settings", resources: Resources) -> None:
        self._settings = settings
        self._resources = resources
        self._free = asyncio.Semaphore(settings.render.pages)
        self._starting = asyncio.Lock()
        self.browser: Chromium | None = None
        self._watching: asyncio.Task[None] | None = None
        self._launching: asyncio.Task[Chromium] | None = None
        self._is_missing = False
        self._broken_until = 0.0

    async def render(self, url: str, answer: Answer, job: str, why: str) -> None:
        """Make the body what a browser shows, or note why it could not; a page that goes elsewhere gets a location.

        Args:
            why: Why it is rendered, in a word.

        Raises: LeaseLost: the worker may not ask for what the page needs.
        """
        started = time.monotonic()
        with self._resources.visiting(url):
            async with self._free:
                for tries in range(1, TRIES + 1):
                    try:
                        await self._rendered(url, answer, job, why)
                        break
                    except _Gone:
                        answer.render_error = "render_crashed"
                        log.warning("browser_died", url=url, tries=tries)
                    except _Failed as error:
                        answer.render_error = str(error)
                        break
                    except LeaseLost:
                        raise
                    except Exception as error:  # its URL would be asked for again and again
                        log.exception("render_broken", url=url)
                        answer.render_error = f"render_broken: {type(error).__name__}"
                        break
        answer.took_s += time.monotonic() - started

    async def _rendered(self, url: str, answer: Answer, job: str, why: str) -> None:
        browser = await self._ready()
        rules = self._settings.render
        budget = Budget(job, rules.max_requests, rules.max_bytes, is_inside=answer.is_inside)
        visit = _Visit(self._settings, browser, self._resources, url, answer, budget)
        browser.take()
        try:
            html = await visit.run()
        finally:
            browser.let_go()
        answer.render_error = visit.error
        if html:
            answer.body, answer.rendered = html.encode("utf-8", "replace"), why
            answer.content_type, answer.sniffed = _CONTENT_TYPE, ""
        if visit.location:
            answer.location, answer.rendered = visit.location, why

    async def _ready(self) -> "Chromium":
        """The browser, another one where the last is dead or has had its pages."""
        async with self._starting:
            browser = self.browser
            if browser is not None and browser.served >= self._settings.render.recycle_pages:
                await browser.empty.wait()  # it gets no more pages, and those it has end
                await self._end()
            elif browser is not None and not browser.is_alive:
                await self._end()
            if self.browser is None:
                self.browser = await self._started()
                self._watching = asyncio.create_task(self._watch(self.browser))
            return self.browser

    async def _started(self) -> "Chromium":
        """A new browser. Who is given up while it starts leaves it to the next one."""
        if self._launching is None:
            self._launching = asyncio.create_task(self._start())
        launching = self._launching
        try:
            return await asyncio.shield(launching)
        finally:
            if launching.done():
                self._launching = None

    async def _start(self) -> "Chromium":
        if time.monotonic() < self._broken_until:
            raise _Failed("browser_broken")
        try:
            path = find_browser(self._settings)
        except Misconfigured as error:
            if not self._is_missing:
                self._is_missing = True
                log.critical("no_browser", error=str(error), then="pages are kept as they were sent")
            raise _Failed("no_browser") from None
        self._is_missing = False
        try:
            async with asyncio.timeout(START_S):
                return await Chromium.start(path, self._settings)
        except Exception as error:  # noqa: BLE001  # Playwright's own, a timeout, a driver that does not run
            lines = [line for line in str(error).splitlines() if line.strip()]
            told = " | ".join(lines[:3])[:300] or type(error).__name__
            self._broken_until = time.monotonic() + BROKEN_S
            log.critical("browser_broken", path=path, error=told, then="pages are kept as they were sent")
            raise _Failed("browser_broken") from None

    async def _watch(self, browser: "Chromium") -> None:
        """End the largest page when the browser is too large, and the browser when nobody needs it."""
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
            await browser.close()

    async def close(self) -> None:
        """End the browser."""
        await self._end()
        if self._launching is not None:
            with contextlib.suppress(_Failed):
                await (await self._launching).close()


class Chromium:
    """Chromium and what drives it, with all their processes.

    Attributes:
        drivers: The processes that drive it: Playwright's, one.
        pages: In it now.
        served: It has had.
        empty: Set while no page is in it.
        used_at: When the last of them ended.
        cut_at: When one was ended for its memory.
    """

    def __init__(self, driver: "Playwright", browser: "Browser", processes: list[psutil.Process]) -> None:
        self._driver = driver
        self.drivers = processes
        self.browser = browser
        self.pages = self.served = 0
        self._behind: set[asyncio.Task[None]] = set()
        self.empty = asyncio.Event()
        self.empty.set()
        self.used_at = time.monotonic()
        self.cut_at = 0.0

    @classmethod
    async def start(cls, path: str, settings: "Settings") -> "Chromium":
        """Start both."""
        from playwright.async_api import async_playwright  # an extra

        before = set(psutil.Process().children())
        driver = await async_playwright().start()
        heap_mb = settings.render.memory_mb // (settings.render.pages + 1)
        try:
            browser = await driver.chromium.launch(
                executable_path=path,
                ignore_default_args=UNWANTED,
                args=[*ARGUMENTS, f"--js-flags=--max-old-space-size={heap_mb}"],
                chromium_sandbox=may_sandbox(settings),
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
            )
        except BaseException:
            await driver.stop()
            raise
        if settings.render.sandbox and os.geteuid() == 0:
            log.warning("browser_without_sandbox", why="root's Chromium has none", then="run crawlog as another user")
        started = cls(driver, browser, [one for one in psutil.Process().children() if one not in before])
        log.info("browser_started", version=browser.version, path=path)
        return started

    @property
    def is_alive(self) -> bool:
        """Whether it answers."""
        return self.browser.is_connected()

    def take(self) -> None:
        """One page more."""
        self.pages += 1
        self.empty.clear()

    def let_go(self) -> None:
        """One page less."""
        self.pages -= 1
        self.served += 1
        self.used_at = time.monotonic()
        if not self.pages:
            self.empty.set()

    def processes(self) -> list[psutil.Process]:
        """Chromium's, as they are now."""
        found = []
        for driver in self.drivers:
            with contextlib.suppress(psutil.Error):
                found += [one for one in driver.children(recursive=True) if _is_chromium(one)]
        return found

    def in_background(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Have something done, whoever waits for it or does not."""
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    def kill(self) -> None:
        """End it at once: it does not answer."""
        for one in self.processes():
            _kill(one)

    def shrink(self, most_bytes: int) -> int:
        """How large it is, bytes; where that is too much the largest page has been ended."""
        sizes = size_bytes(self.processes())
        size = sum(sizes.values())
        if size > most_bytes:
            self.cut_at = time.monotonic()
            pages = [one for one in sizes if _is_page(one)]
            for one in [max(pages, key=sizes.__getitem__)] if pages else list(sizes):
                _kill(one)
        return size

    async def close(self) -> None:
        """End all its processes."""
        processes = self.processes()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.browser.close()
        except Exception:  # noqa: BLE001  # it may be dead, or hang
            for one in processes:
                _kill(one)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._driver.stop()
        for one in (*processes, *self.drivers):
            _kill(one)


def size_bytes(processes: Iterable[psutil.Process]) -> dict[psutil.Process, int]:
    """What each process has of its own, and the first one also what they share: together a little more than their PSS.

    The kernel's own PSS costs it some 10 ms a process, and stops the process for as long.
    """
    sizes: dict[psutil.Process, int] = {}
    shared = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            sizes[process] = memory.rss - memory.shared
            shared = max(shared, memory.shared)
    for first in list(sizes)[:1]:
        sizes[first] += shared
    return sizes


def _is_chromium(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "node" not in process.name()
    return False


def _is_page(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "--type=renderer" in process.cmdline()
    return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGKILL)


class _Visit:
    """One page in the browser.

    Attributes:
        location: Where it went by itself; empty if it stayed.
        error: Why it ended before it was ready.
    """

    def __init__(
        self,
        settings: "Settings",
        browser: Chromium,
        resources: Resources,
        url: str,
        answer: Answer,
        budget: Budget,
    ) -> None:
        self.location = ""
        self.error = ""
        self._settings = settings
        self._browser = browser
        self._resources = resources
        self._url = url
        self._answer = answer
        self._budget = budget
        self._started = time.monotonic()
        self._page: Page | None = None
        self._shown_at = 0.0
        self._is_shown = self._is_loaded = self._is_crashed = False
        self._lost: LeaseLost | None = None
        self._asked_for = 0
        self._most = FLOOD * max(budget.requests, 10)
        self._serving: set[asyncio.Task[None]] = set()
        self._quiet_since = 0.0

    async def run(self) -> str:
        """The page's DOM, empty where there is none to be had.

        Raises:
            LeaseLost: The worker may not ask.
            _Gone: The browser died.
            _Failed: It takes no such page.
        """
        from playwright.async_api import Error  # an extra

        context: BrowserContext | None = None
        is_given_up = False
        try:
            async with asyncio.timeout(START_S):
                context = await self._browser.browser.new_context(service_workers="block", accept_downloads=False)
            return await self._shown(context)
        except (Error, TimeoutError) as error:
            if self._lost is not None:
                raise self._lost from None
            if isinstance(error, TimeoutError):
                self._browser.kill()
            raise self._what_failed(error) from None
        except asyncio.CancelledError:
            is_given_up = True
            raise
        finally:
            for serving in self._serving:
                serving.cancel()
            if context is not None:
                closing = self._browser.in_background(self._close(context))
                if not is_given_up:  # a rebalance waits for nobody
                    await closing

    def _what_failed(self, error: Exception) -> Exception:
        if self._browser.cut_at > self._started:
            return _Failed("render_memory")
        if isinstance(error, TimeoutError) or self._is_crashed or not self._browser.is_alive or "closed" in str(error):
            return _Gone()
        log.debug("render_failed", url=self._url, error=str(error)[:300])
        return _Failed("render_failed")

    async def _close(self, context: "BrowserContext") -> None:
        """A page whose script never ends closes all the same: its process is ended. If not, the browser is."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(CLOSE_S):
                await context.close()
        except TimeoutError:
            log.warning("browser_stuck", url=self._url, then="it is ended")
            self._browser.kill()
        except Error:
            return

    async def _shown(self, context: "BrowserContext") -> str:
        async with asyncio.timeout(START_S):
            await context.route("**/*", self._asked)
            page = self._page = await context.new_page()
            session = await context.new_cdp_session(page)
        page.on("load", lambda _: self._loaded())
        page.on("crash", lambda _: self._crashed())
        limit_s = self._settings.render.timeout_s
        self._shown_at = time.monotonic() + START_S  # at the latest
        going = asyncio.create_task(page.goto(self._url, wait_until="commit", timeout=(limit_s + START_S) * 1000))
        try:
            if not await self._is_ready(going, limit_s):
                self.error = "render_timeout"
            elif self._asked_for > self._most:
                self.error = "render_requests"
        finally:
            if not going.done():
                going.cancel()
            with contextlib.suppress(BaseException):
                await going
        if self._lost is not None:
            raise self._lost
        if self.location:
            return ""
        if self._is_crashed or not self._browser.is_alive:
            raise self._what_failed(RuntimeError("crashed"))
        if not self._is_shown:
            raise _Failed("render_timeout")  # what there is to see is the browser's own blank page
        return await self._dom(session)

    async def _is_ready(self, going: "asyncio.Task[Any]", limit_s: float) -> bool:
        """Whether the page became ready, or ended otherwise, in time."""
        settle_s = self._settings.render.settle_s
        while (now := time.monotonic()) < self._shown_at + limit_s:
            if self.location or self._is_crashed or self._lost is not None or not self._browser.is_alive:
                return True
            if self._asked_for > self._most:
                return True
            if going.done() and going.exception() is not None and not self._is_loaded:
                going.result()
            if self._is_loaded and not self._serving and now - self._quiet_since >= settle_s:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _dom(self, session: "CDPSession") -> str:
        try:
            async with asyncio.timeout(TAKE_S if self._is_loaded else TAKE_ENDLESS_S):
                if self.error:
                    await session.send("Emulation.setScriptExecutionDisabled", {"value": True})
                tree = await session.send("Page.getFrameTree")
                frame = tree["frameTree"]["frame"]["id"]
                world = await session.send("Page.createIsolatedWorld", {"frameId": frame})
                script = _DOM % self._settings.fetch.max_body_bytes
                where = {"contextId": world["executionContextId"], "returnByValue": True}
                found = await session.send("Runtime.evaluate", {"expression": script, **where})
        except TimeoutError:
            raise _Failed("render_timeout") from None
        html = found["result"].get("value")
        if not isinstance(html, str) or len(html.encode("utf-8", "replace")) > self._settings.fetch.max_body_bytes:
            raise _Failed("render_too_large" if html is None or html else "render_failed")
        return html

    # ------------------------------------------------------------------ what the browser tells

    def _loaded(self) -> None:
        self._is_loaded = True
        self._quiet_since = time.monotonic()

    def _crashed(self) -> None:
        self._is_crashed = True

    def _asked(self, route: "Route", request: "Request") -> None:
        """The page asks for something: answered in a task of its own, so that it can be given up with the page."""
        self._asked_for += 1
        if self._asked_for > self._most:
            return  # no answer is the cheapest one, and the page is at its end
        serving = asyncio.create_task(self._answer_to(route, request))
        self._serving.add(serving)
        serving.add_done_callback(self._served)

    def _served(self, serving: "asyncio.Task[None]") -> None:
        self._serving.discard(serving)
        self._quiet_since = time.monotonic()
        if not serving.cancelled() and isinstance(serving.exception(), LeaseLost):
            self._lost = LeaseLost()

    async def _answer_to(self, route: "Route", request: "Request") -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # the page has gone meanwhile
            if self._is_own(request):
                await self._navigated(route, request)
                return
            cors = request.headers.get("origin", "")
            wish = Wish(request.method, request.url, request.resource_type, self._asker(request), cors)
            try:
                answer = await self._resources.get(wish, request.headers, self._budget)
            except LeaseLost:
                raise
            except Exception as error:  # the page would wait for its answer as long as it may
                log.exception("resource_broken", page=self._url, url=request.url[:200])
                answer = Answer(None, type(error).__name__)
            if answer.http is None or not answer.kept:
                log.debug("resource_refused", page=self._url, url=request.url[:200], reason=answer.error)
                await route.abort()
                return
            told = {"content-type": answer.content_type}
            if cors:  # it may be read; without a header of ours Playwright would write that credentials were allowed
                told |= {"access-control-allow-origin": cors}
                if answer.allows_credentials:
                    told["access-control-allow-credentials"] = "true"
            await route.fulfill(status=answer.http, headers=told, body=answer.body)

    def _asker(self, request: "Request") -> str:
        """Origin of the document that asks; for a frame's own document it is the one that holds the frame."""
        from playwright.async_api import Error

        assert self._page is not None
        try:
            frame = request.frame
        except Error:  # what no frame asks for has no origin that is known
            return ""
        if request.is_navigation_request():
            frame = frame.parent_frame or frame
        return origin_of(self._url if frame == self._page.main_frame else frame.url)

    def _is_own(self, request: "Request") -> bool:
        """Whether it is the page itself that is asked for, not something in it."""
        if not request.is_navigation_request():
            return False
        assert self._page is not None
        return request.frame == self._page.main_frame

    async def _navigated(self, route: "Route", request: "Request") -> None:
        """The page's document is already here; where it goes from there is for the frontier to decide."""
        if not self._is_shown:
            self._is_shown = True
            self._shown_at = time.monotonic()
            headers = {"content-type": self._answer.content_type or "text/html"}
            await route.fulfill(status=self._answer.http or 200, headers=headers, body=self._answer.body)
            return
        if request.method == "GET" and not self.location:
            with contextlib.suppress(InvalidUrl):
                to = serialise(request.url).partition("#")[0]
                self.location = "" if to == self._url.partition("#")[0] else to
                self._loaded()  # the `load` of a page that wants to be another one may never come
        await route.abort("aborted")  # any other word would replace the page by an error page
