"""One page in the browser: it gets the fetched body, its requests are answered, and its DOM is the result.

    goto ─► its document: what the server sent ─► asks for scripts, data ─► loaded and quiet ─► its DOM
                                               └─► goes elsewhere by itself ─► a location for the frontier

A visit ends in time with any script: with the DOM at that moment, or with a reason and no DOM.
"""

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

import structlog

from crawlog.agents.client import LeaseLost
from crawlog.streams.html import charset
from crawlog.streams.http import HTML, Answer, essence
from crawlog.streams.rendering import Wish, told
from crawlog.streams.requests import origin_of
from crawlog.streams.url import InvalidUrl, plain, serialise

from .chromium import CLOSE_S, START_S, Chromium
from .resources import Budget, Resources

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, CDPSession, Page, Request, Route

    from crawlog.schemas.urls import RequestRules

log = structlog.get_logger()

# Time to read the DOM of a loaded page, and of one that did not load in time: an endless script blocks it.
TAKE_S, TAKE_ENDLESS_S = 10.0, 3.0

LOOK_S = 0.05  # Interval of checks whether a page is ready

# Requests of a page, refused ones too, in multiples of `render.max_requests`; then its DOM is taken as it is.
FLOOD = 10

# A page that reloads itself is shown again so often, from the bytes that are here: it has noted something in a cookie
# or in its storage by then. One that reloads itself for ever is taken as it is.
RELOADS = 2

# URLs of documents that a page may have come to; it leaves for `about:blank` without a request.
DOCUMENTS = ("http", "blob:")

# Words of Playwright's errors after a page or its browser died. They have spaces, so no URL in an error has them.
GONE = ("has been closed", "Target crashed", "page crashed")

# Runs in an isolated world, where no script of the page can have replaced these functions. Shadow roots become the
# templates that declare them. A page that changed its own URL (`history.pushState`) has its links relative to that one,
# so a `base` says it. The DOM is kept in UTF-8, so links whose queries have another encoding become absolute.
_DOM = """((most, asked) => {
  const root = document.documentElement;
  if (location.href.split('#')[0] !== asked && root.baseURI.startsWith('http')) {
    const base = document.createElement('base');
    base.href = root.baseURI;
    (document.head ?? root).prepend(base);
  }
  const open = [];
  const walk = at => {
    for (const one of at.querySelectorAll('*'))
      if (one.shadowRoot) { open.push(one.shadowRoot); walk(one.shadowRoot); }
  };
  walk(document);
  if (document.characterSet !== 'UTF-8')
    for (const at of [document, ...open])
      for (const link of at.querySelectorAll('a[href], area[href]'))
        if (/[^\\0-\\x7f]/.test(link.getAttribute('href'))) link.setAttribute('href', link.href);
  const html = root.getHTML({shadowRoots: open});
  const tag = root.cloneNode(false).outerHTML.replace(/<\\/html>$/i, '');
  const all = '<!DOCTYPE html>' + tag + html + '</html>';
  return all.length > most ? null : all;
})(%d, %s)"""


class BrowserDied(Exception):
    """The browser died or was killed; a page that was not at fault may try again."""


class Failed(Exception):
    """A page that cannot be rendered; the message is a one-word reason."""


class Visit:
    """One page in the browser.

    Attributes:
        location: The URL that it navigated to by itself; empty if it stayed.
        error: Why it ended before it was ready.
    """

    def __init__(
        self,
        rules: "RequestRules",
        browser: Chromium,
        resources: Resources,
        url: str,
        answer: Answer,
        budget: Budget,
    ) -> None:
        self.location = ""
        self.error = ""
        self._rules = rules
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
        self._asked_for = self._reloads = 0
        self._most = FLOOD * max(budget.requests, 10)
        self._serving: set[asyncio.Task[None]] = set()
        self._quiet_since = 0.0

    async def run(self) -> str:
        """The page's DOM; empty if it navigated away.

        Raises:
            LeaseLost: The worker may no longer send requests.
            BrowserDied: The browser died.
            Failed: The page cannot be rendered.
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
                if not is_given_up:  # a rebalance must not wait
                    await closing

    def _what_failed(self, error: Exception) -> Exception:
        if isinstance(error, TimeoutError):
            return BrowserDied()
        if self._is_crashed or not self._browser.is_alive or any(words in str(error) for words in GONE):
            return Failed("render_memory") if self._browser.cut_at > self._started else BrowserDied()
        log.debug("render_failed", url=self._url, error=str(error)[:300])
        return Failed("render_failed")

    async def _close(self, context: "BrowserContext") -> None:
        """Close a page. If that hangs, as with an endless script, kill the browser."""
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
        limit_s = self._rules.render_timeout_s
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
        is_there = self._is_loaded or (not going.cancelled() and going.exception() is None)
        if not (self._is_shown and is_there):
            raise Failed("render_timeout")  # only the browser's own blank page is there
        return await self._dom(session)

    async def _is_ready(self, going: "asyncio.Task[Any]", limit_s: float) -> bool:
        """Whether the page became ready, or ended otherwise, in time."""
        settle_s = self._rules.render_settle_s
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
                frame = tree["frameTree"]["frame"]
                if not frame["url"].startswith(DOCUMENTS):
                    raise Failed("render_gone")
                world = await session.send("Page.createIsolatedWorld", {"frameId": frame["id"]})
                script = _DOM % (self._rules.max_body_bytes, json.dumps(self._url.partition("#")[0]))
                where = {"contextId": world["executionContextId"], "returnByValue": True}
                found = await session.send("Runtime.evaluate", {"expression": script, **where})
        except TimeoutError:
            raise Failed("render_timeout") from None
        if "exceptionDetails" in found:
            raise Failed("render_failed")
        html = found["result"].get("value")
        if not isinstance(html, str) or len(html.encode("utf-8", "replace")) > self._rules.max_body_bytes:
            raise Failed("render_too_large")
        return html

    # ------------------------------------------------------------------ events of the browser

    def _loaded(self) -> None:
        self._is_loaded = True
        self._quiet_since = time.monotonic()

    def _crashed(self) -> None:
        self._is_crashed = True

    def _asked(self, route: "Route", request: "Request") -> "asyncio.Future[None]":
        """Answer a request of the page in a task of its own, which is cancelled with the page.

        Playwright waits for the route's answer and for this future. A request that has no answer cancels the future;
        else Playwright's task would wait for ever.
        """
        self._asked_for += 1
        if self._asked_for > self._most:  # not answered: the page is about to end
            unanswered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            unanswered.cancel()
            return unanswered
        serving = asyncio.create_task(self._answer_to(route, request))
        self._serving.add(serving)
        serving.add_done_callback(self._served)
        return serving

    def _served(self, serving: "asyncio.Task[None]") -> None:
        self._serving.discard(serving)
        self._quiet_since = time.monotonic()

    async def _answer_to(self, route: "Route", request: "Request") -> None:
        """Answer a request of the page. Raises: CancelledError: it has no answer."""
        from playwright.async_api import Error

        try:
            if self._is_own(request):
                await self._navigated(route, request)
            else:
                await self._load(route, request)
        except LeaseLost as lost:
            self._lost = lost
            raise asyncio.CancelledError from None
        except Error:  # the page has gone meanwhile
            raise asyncio.CancelledError from None

    async def _load(self, route: "Route", request: "Request") -> None:
        """Answer with a resource, or refuse it."""
        cors = request.headers.get("origin", "")
        wish = Wish(request.method, request.url, request.resource_type, self._asker(request), cors)
        try:
            answer = await self._resources.get(wish, request.headers, self._budget)
        except LeaseLost:
            raise
        except Exception as error:  # without an answer the page would wait for its whole time
            log.exception("resource_broken", page=self._url, url=request.url[:200])
            answer = Answer(None, type(error).__name__)
        if answer.http is None or not answer.kept:
            log.debug("resource_refused", page=self._url, url=request.url[:200], reason=answer.error)
            await route.abort()
            return
        headers = told(answer.headers) | {"content-type": answer.content_type}
        if cors:  # scripts may read it; without these headers Playwright would allow credentials
            headers |= {"access-control-allow-origin": cors}
            if answer.allows_credentials:
                headers["access-control-allow-credentials"] = "true"
        await route.fulfill(status=answer.http, headers=headers, body=answer.body)

    def _asker(self, request: "Request") -> str:
        """Origin of the document that sends the request; for a frame's document, that of the parent frame."""
        from playwright.async_api import Error

        assert self._page is not None
        try:
            frame = request.frame
        except Error:  # a request of no frame has no known origin
            return ""
        if request.is_navigation_request():
            frame = frame.parent_frame or frame
        return origin_of(self._url if frame == self._page.main_frame else frame.url)

    def _is_own(self, request: "Request") -> bool:
        """Whether the request is for the page's own document."""
        if not request.is_navigation_request():
            return False
        assert self._page is not None
        return request.frame == self._page.main_frame

    async def _navigated(self, route: "Route", request: "Request") -> None:
        """Answer with the document that was fetched; a later navigation becomes a location for the frontier."""
        if not self._is_shown:
            self._is_shown = True
            self._shown_at = time.monotonic()
            await self._show(route)
            return
        if request.method == "GET" and not self.location:
            with contextlib.suppress(InvalidUrl):
                to = plain(serialise(request.url))
                if to == self._url.partition("#")[0]:
                    self._reloads += 1
                    if self._reloads <= RELOADS:
                        self._is_loaded = False
                        await self._show(route)
                        return
                else:
                    self.location = to
                self._loaded()  # a page that navigates away may never send `load`
        await route.abort("aborted")  # any other code would replace the page by an error page

    async def _show(self, route: "Route") -> None:
        """Answer with the document that was fetched, in the encoding that it has without a browser, too."""
        answer = self._answer
        kind = answer.sniffed or essence(answer.content_type) or HTML
        headers = {"content-type": f"{kind}; charset={charset.decide(answer.body, answer.content_type)}"}
        await route.fulfill(status=answer.http or 200, headers=headers, body=answer.body)
