"""One page in the browser: it gets the fetched body, its requests are answered, and its DOM is the result.

    goto ─► its document: what the server sent ─► asks for scripts, data ─► loaded and quiet ─► its DOM
                                               └─► goes elsewhere by itself ─► a location for the frontier

A page with actions is driven: it goes elsewhere, by links and by forms, and the document that it comes to is asked for
here (`acting.py`). A redirect there is a document that goes on by itself, so the browser knows each URL.

A visit ends in time with any script: with the DOM at that moment, or with a reason and no DOM.
"""

import asyncio
import contextlib
import time
from html import escape
from typing import TYPE_CHECKING, Any

import structlog

from crawlog.agents.client import LeaseLost
from crawlog.streams.html import charset
from crawlog.streams.http import HTML, REDIRECTS, Answer, essence
from crawlog.streams.page_actions import TIMES, context_of
from crawlog.streams.rendering import Wish, told
from crawlog.streams.requests import origin_of
from crawlog.streams.url import InvalidUrl, plain, serialise

from .acting import Acting, ActionFailed
from .chromium import CLOSE_S, START_S, Chromium
from .dom import Failed, dom
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

# Words of Playwright's errors after a page or its browser died. They have spaces, so no URL in an error has them.
GONE = ("has been closed", "Target crashed", "page crashed")


class BrowserDied(Exception):
    """The browser died or was killed; a page that was not at fault may try again."""


class Visit:
    """One page in the browser.

    Args:
        budget: Has the page's request, and whether it is driven.

    Attributes:
        acting: The page's actions; None before it has loaded, and for a page without any.
        shown_url: Where a driven page came to.
        set_cookies: Headers of the answers to its navigations at its origin; a lost done has their cookies from them.
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
        self.acting: Acting | None = None
        self.shown_url = ""
        self.set_cookies: list[tuple[str, str]] = []
        self.location = ""
        self.error = ""
        self._rules = rules
        self._browser = browser
        self._resources = resources
        self._url = url
        self._answer = answer
        self._budget = budget
        self._actions = budget.page.actions
        self._started = time.monotonic()
        self._page: Page | None = None
        self._shown_at = 0.0
        self._is_shown = self._is_loaded = self._is_crashed = self._is_hopping = False
        self._refused = ""
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
                shown = context_of(self._actions)
                context = await self._browser.browser.new_context(
                    service_workers="block", accept_downloads=False, **shown
                )
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
        await self._act(page)
        return await self._dom(session)

    async def _act(self, page: "Page") -> None:
        """Do the actions, if there are any. Raises: LeaseLost, Failed, BrowserDied."""
        if not self._actions:
            return
        if self.error or not self._is_loaded:
            raise Failed(f"{self.error or 'render_timeout'}: before the first action")
        limit_s = self._rules.render_timeout_s
        page.set_default_timeout(limit_s * 1000)
        acting = self.acting = Acting(page, self._actions, self._until_loaded, self._until_quiet, limit_s)
        is_done = await self._is_acted(acting, TIMES * limit_s)
        if self._lost is not None:
            raise self._lost
        if self._is_crashed or not self._browser.is_alive:
            raise self._what_failed(RuntimeError("crashed"))
        if self._refused or not is_done:
            raise Failed(self._refused or f"{acting.at}: the actions took more than {TIMES} times render.timeout_s")
        if not await self._until_quiet():
            self.error = "render_timeout"
        self.shown_url = page.url if page.url.startswith("http") else ""

    async def _is_acted(self, acting: Acting, most_s: float) -> bool:
        """Whether the actions were done, before their time was over or the page ended."""
        until = time.monotonic() + most_s
        doing = asyncio.create_task(acting.run())
        try:
            while not doing.done() and not self._is_over() and time.monotonic() < until:
                await asyncio.wait({doing}, timeout=LOOK_S)
            if doing.done():
                doing.result()
        except ActionFailed as error:
            self._refused = self._refused or str(error)
        finally:
            doing.cancel()
        return doing.done()

    def _is_over(self) -> bool:
        is_flood = self._asked_for > self._most
        return (
            bool(self._refused) or self._is_crashed or self._lost is not None or is_flood or not self._browser.is_alive
        )

    async def _until_loaded(self) -> None:
        """Wait until no navigation is under way. Raises: TimeoutError."""
        async with asyncio.timeout(self._rules.render_timeout_s):
            while True:
                if self._is_loaded:
                    return
                await asyncio.sleep(LOOK_S)

    async def _until_quiet(self) -> bool:
        """Whether the page has sent no request for `render.settle_s` from now on, before its time is over."""
        started = self._quiet_since = time.monotonic()
        while (now := time.monotonic()) < started + self._rules.render_timeout_s and not self._is_over():
            if not self._serving and now - self._quiet_since >= self._rules.render_settle_s:
                return True
            await asyncio.sleep(LOOK_S)
        return False

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
            if self._is_loaded and (self._actions or (not self._serving and now - self._quiet_since >= settle_s)):
                return True  # actions wait for what they need
            await asyncio.sleep(LOOK_S)
        return False

    async def _dom(self, session: "CDPSession") -> str:
        try:
            async with asyncio.timeout(TAKE_S if self._is_loaded else TAKE_ENDLESS_S):
                if self.error:
                    await session.send("Emulation.setScriptExecutionDisabled", {"value": True})
                return await dom(session, self.shown_url or self._url, self._rules.max_body_bytes)
        except TimeoutError:
            raise Failed("render_timeout") from None

    # ------------------------------------------------------------------ events of the browser

    def _loaded(self) -> None:
        self._is_loaded = not self._is_hopping
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
        if is_own := self._is_own(request):
            self._is_loaded = self._is_hopping = False
        asker = "" if is_own else self._asker(request)
        serving = asyncio.create_task(self._answer_to(route, request, is_own=is_own, asker=asker))
        self._serving.add(serving)
        serving.add_done_callback(self._served)
        return serving

    def _served(self, serving: "asyncio.Task[None]") -> None:
        self._serving.discard(serving)
        self._quiet_since = time.monotonic()

    async def _answer_to(self, route: "Route", request: "Request", *, is_own: bool, asker: str) -> None:
        """Answer a request of the page. Raises: CancelledError: it has no answer."""
        from playwright.async_api import Error

        try:
            if is_own:
                await self._navigated(route, request)
            else:
                await self._load(route, request, asker)
        except LeaseLost as lost:
            self._lost = lost
            raise asyncio.CancelledError from None
        except Error:  # the page has gone meanwhile
            raise asyncio.CancelledError from None

    async def _load(self, route: "Route", request: "Request", asker: str) -> None:
        """Answer with a resource, or refuse it."""
        cors = request.headers.get("origin", "")
        wish = Wish(request.method, request.url, request.resource_type, asker, cors)
        body = (request.post_data_buffer or b"") if request.method != "GET" else b""
        try:
            answer = await self._resources.get(wish, request.headers, self._budget, body)
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
        is_main = frame == self._page.main_frame and not (self._actions and frame.url.startswith("http"))
        return origin_of(self._url if is_main else frame.url)

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
            await self._show(route, self._answer)
            return
        if self._actions:
            await self._go(route, request)
            return
        if request.method == "GET" and not self.location:
            with contextlib.suppress(InvalidUrl):
                to = plain(serialise(request.url))
                if to == self._url.partition("#")[0]:
                    self._reloads += 1
                    if self._reloads <= RELOADS:
                        self._is_loaded = False
                        await self._show(route, self._answer)
                        return
                else:
                    self.location = to
                self._loaded()  # a page that navigates away may never send `load`
        await route.abort("aborted")  # any other code would replace the page by an error page

    async def _go(self, route: "Route", request: "Request") -> None:
        """Answer a navigation of a driven page as the server does; a redirect by a document that goes on at once."""
        url, method = request.url, request.method
        if url.startswith(("http://", "https://")):
            body = request.post_data_buffer or b""
            answer = await self._resources.document(method, url, body, request.headers, self._budget)
        else:
            answer = Answer(None, "scheme")
        if origin_of(url) == origin_of(self._url):
            self.set_cookies += [pair for pair in answer.headers if pair[0].lower() == "set-cookie"]
        refused = answer.reason if answer.http is None or not answer.kept else ""
        if answer.http in REDIRECTS and not refused:
            to = answer.target(url)
            if to and (method == "GET" or answer.http not in (307, 308)):
                self._is_hopping = True
                page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(to)}">'
                await route.fulfill(status=200, content_type=HTML, body=page)
                return
            refused = f"a redirect with {answer.http}"
        if refused:
            at = self.acting.at if self.acting is not None else "before the first action"
            self._refused = self._refused or f"{at}: {method} {url} failed: {refused}"
            await route.abort("aborted")
            return
        await self._show(route, answer)

    async def _show(self, route: "Route", answer: Answer) -> None:
        """Answer with a document that was fetched, in the encoding that it has without a browser, too."""
        kind = answer.sniffed or essence(answer.content_type) or HTML
        headers = {"content-type": f"{kind}; charset={charset.decide(answer.body, answer.content_type)}"}
        await route.fulfill(status=answer.http or 200, headers=headers, body=answer.body)
