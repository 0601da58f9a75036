"""Calls the spider with a page and collects what it gives, as Scrapy's scraper and engine do.

response ─► spider middlewares ─► callback ─► spider middlewares ─┬─► items
failure ──► errback ──────────────────────────────────────────────┼─► requests ─► downloader middlewares ─► records
└─► an exception: what came before it is kept
"""

import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from scrapy import signals
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Request, Response
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import arg_to_iter
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..exchange import MOST_TIMED, TIMED_OUTPUTS, CallResult, RequestOut
from ..own_warnings import SharedState
from ..spider_request import unfiltered_id
from ..traces import user_trace
from .arrived import raised, write_line
from .counted import taken
from .crawler import StandInCrawler, reason_of
from .downloading import MAX_REPEATED, MAX_REPLACED
from .feeds import Exporter, raw_item
from .fingerprints_made import Earlier, Fingerprints, RefusedRequests
from .kinds import Kinds
from .meta_table import AGAIN
from .recorded import Recorder, Unsendable, UnsendableUrl

log = logging.getLogger(__name__)

MAX_PRIORITY = (1 << 31) - 1

MAX_WARNINGS = 100  # Warnings of one page, at most

NO_SLOTS = (
    "meta['download_slot'] has no effect: requests are limited by host; politeness.per_ip and politeness.ip_rate limit "
    "addresses, too"
)

ENDLESS = (
    f"{MAX_REPEATED:,} requests with dont_filter were answered by downloader middlewares or could not be sent, each "
    "not for the first time, and gave neither items nor requests"
)

MAX_HOPS = 255  # Rows hold no more; Scrapy's RedirectMiddleware counts redirects by itself


class Origin(msgspec.Struct, frozen=True):
    """Where requests come from, for the identity of those that are not filtered.

    Attributes:
        id: Of the page; of job and epoch for `start`.
        hops: Of the page.
        redirects_post: Whether the page answers a POST.
    """

    id: int
    attempt: int = 1
    hops: int = 0
    redirects_post: bool = False


class Scraping:
    """What a spider makes of one page, or of a part of `start`.

    Args:
        has_pipelines: Whether items pass pipelines before they are rows.
        filters: Whether requests are filtered by their fingerprints at all.

    Attributes:
        has_answered: Whether the spider got a response since the beginning.
        slot: `download_slot` of the page's request, which copies of its meta have; None for `start`.
    """

    def __init__(
        self, crawler: StandInCrawler, recorder: Recorder, kinds: Kinds, *, exporter: Exporter | None, filters: bool
    ) -> None:
        self._crawler = crawler
        self._recorder = recorder
        self._kinds = kinds
        self._exporter = exporter
        self._filters = filters
        self._shared = SharedState(crawler.spider)
        kinds.values.on_mutable = self._shared.meet
        self._earlier = Earlier()
        self._refused = RefusedRequests()
        self._fingerprints = Fingerprints(crawler.request_fingerprinter)

    def opened(self) -> None:
        """The signals of the start are sent: what their handlers set, every process has."""
        self._shared.opened()

    def begin(self, origin: Origin, *, is_whole: bool = False, gives_more: Callable[[], None] = lambda: None) -> None:
        """Begin with a page.

        Args:
            is_whole: Whether requests are recorded that earlier pages gave too.
            gives_more: See `PageCall`.
        """
        self._origin = origin
        self._is_whole = is_whole
        self._gives_more = gives_more
        self._count = 0
        self.has_answered = False
        self.slot: str | None = None
        self._new: set[int] = set()
        self._given: dict[int, int] = {}
        self._answered: set[int] = set()
        self._answered_unfiltered: set[int] = set()
        self._answers: deque[tuple[Response | Exception, Request, bool]] = deque()
        self.result = CallResult(is_raw=self._exporter is None)

    def end(self) -> CallResult:
        """What the page gave, or a part of `start`, after which the next one begins."""
        result, self.result = self.result, CallResult(is_raw=self._exporter is None)
        if not result.error:
            self._earlier.add(self._new)
        self._new = set()
        result.stats = taken(self._crawler.stats)
        result.warnings += self._shared.page_ended()
        return result

    async def response(self, response: Response, request: Request) -> None:
        """Give a response to its callback."""
        self.has_answered = True
        if response.request is None:
            response.request = request
        self._crawler.signals.send_catch_log(
            signals.response_received, response=response, request=response.request, spider=self._crawler.spider
        )
        try:
            output = await self._crawler.spidermw.scrape_response_async(self._call, response, request)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            self.failed(error, response)
        else:
            await self._collect(output, response)

    async def failure(self, failure: Failure, request: Request) -> None:
        """Give a failure to the errback, without spider middlewares, as Scrapy does."""
        try:
            output = await self._call(failure, request)
        except Exception as error:  # noqa: BLE001  # as above
            if not isinstance(failure.value, IgnoreRequest):
                write_line(self._crawler, "download_error", failure, request)
            if error is not failure.value:
                self.failed(error, failure)
        else:
            await self._collect(output, failure)

    async def arrived(self, answer: Response | Exception, request: Request, *, hops: int = 0) -> None:
        """Pass an answer or a failure through the downloader middlewares, then to the callback or the errback.

        Args:
            hops: Of a request that redirects this one.

        Raises: Unsendable: A middleware puts a request in its place that cannot travel.
        """
        try:
            result = await self._crawler.downloading.arrive(answer, request)
        except Unsendable:
            raise
        except Exception as error:  # noqa: BLE001  # Scrapy gives it to the errback
            await self.failure(failure_of(error), request)
            return
        if isinstance(result, Request):
            is_redirect = result.meta.get("redirect_times", 0) > request.meta.get("redirect_times", 0)
            await self.request(result, hops=hops if is_redirect else 0)
        else:
            await self.response(result, result.request or request)

    async def request(self, request: Request, *, hops: int = 0) -> None:
        """Record a request that was made: by a callback, by `start` or by a middleware.

        Raises: Unsendable: It cannot travel.
        """
        known: set[int] = set()
        filtered = 0  # the last fingerprint that Scrapy's filter would see; 0 if it sees none
        for _ in range(MAX_REPLACED):
            if self._is_dropped(request):
                return
            fingerprint = self._fingerprints.of(request)
            if not request.dont_filter and (fingerprint in known or self._is_refused(fingerprint)):
                return  # Scrapy's filter would know it
            known.add(fingerprint)
            filtered = filtered if request.dont_filter else fingerprint
            try:
                other = await self._crawler.downloading.leave(request)
            except Exception as error:  # as above
                if isinstance(error, Unsendable):
                    raise
                self._refuse(filtered)
                await self.failure(failure_of(error), request)
                return
            if other is None:
                self._send(request, fingerprint, filtered, hops)
                return
            if isinstance(other, Response):
                self._answer(other, request, fingerprint, filtered)
                self._warn("a downloader middleware answers requests by itself: they are filtered within one page only")
                return
            request = other
        raise Unsendable(f"{request}: process_request put {MAX_REPLACED} requests in its place, one after the other")

    def _refuse(self, filtered: int) -> None:
        """A middleware refused a request, which is not in the log: this process alone can filter it."""
        if filtered:
            self._answered.add(filtered)
            self._refused.add(filtered, self._origin.id)

    def _is_refused(self, fingerprint: int) -> bool:
        """Whether a middleware refused the same request of this page or of another one, or answered it in this page."""
        is_met = fingerprint in self._answered or self._refused.is_elsewhere(fingerprint, self._origin.id)
        return self._filters and is_met

    def _answer(self, answer: Response | Exception, request: Request, fingerprint: int, filtered: int) -> None:
        """A middleware answered a request, or it cannot be sent: the spider is told in the same call."""
        if filtered in self._answered:
            return
        is_repeated = not filtered and fingerprint in self._answered_unfiltered
        if filtered:
            self._answered.add(filtered)
        else:  # Scrapy's filter does not see it
            self._answered_unfiltered.add(fingerprint)
        self._answers.append((answer, request, is_repeated))

    def _warn(self, told: str) -> None:
        if told not in self.result.warnings and len(self.result.warnings) < MAX_WARNINGS:
            self.result.warnings.append(told)

    async def answer(self, most: int) -> bool:
        """Tell the spider of responses that middlewares made, and of requests that cannot be sent.

        An error of one is remembered, as is that there is no end of them.

        Args:
            most: Items and requests that come of them, after which it pauses.

        Returns: Whether there are more.
        """
        idle, end = 0, self._count + most
        while self._answers and self._count < end and not self.result.closes:
            answer, request, is_repeated = self._answers.popleft()
            before = self._count
            try:
                if isinstance(answer, Response):
                    await self.response(answer, request)
                else:
                    await self.arrived(answer, request)
            except Exception as error:  # noqa: BLE001  # as above
                self.failed(error, None)
            idle = idle + 1 if is_repeated and self._count == before else 0
            if idle == MAX_REPEATED:
                self._answers.clear()
                self.failed(Unsendable(ENDLESS), None)
        return bool(self._answers) and not self.result.closes

    def _gave(self) -> None:
        """An output was added to the result."""
        self._count += 1
        if self._count % TIMED_OUTPUTS == 0 and self._count <= MOST_TIMED:
            self._gives_more()

    async def item(self, item: Any, response: Response | Failure | None) -> None:
        """Keep an item. Raises: Exception: it cannot travel, JSON does not have it, or a serializer fails."""
        self.result.items.append(raw_item(item, self._kinds) if self._exporter is None else self._exporter.row(item))
        self._gave()
        if self._exporter is None:
            return
        told = {"item": item, "response": response, "spider": self._crawler.spider}
        if self._crawler.signals.has_of_project(signals.item_scraped):
            await self._crawler.signals.send_catch_log_async(signals.item_scraped, **told)
        else:  # half the cost of an item: Scrapy's own handlers never wait
            self._crawler.signals.send_catch_log(signals.item_scraped, **told)

    def failed(self, error: BaseException, response: Response | Failure | None) -> None:
        """Remember an exception; CloseSpider closes the job."""
        if isinstance(error, CloseSpider):
            self.result.closes = reason_of(error)
            return
        if not self.result.error:
            self.result.error = " ".join(f"{type(error).__name__}: {error}".split())
            self.result.is_final = True
            self.result.trace = user_trace(error)
        if isinstance(error, Unsendable):
            return
        failure = failure_of(error)
        if response is not None:
            request = response.request  # type: ignore[union-attr]  # failures have it too, see `_call`
            write_line(self._crawler, "spider_error", failure, request, response, error=error)
        stats = self._crawler.stats
        stats.inc_value("spider_exceptions/count")
        stats.inc_value(f"spider_exceptions/{type(error).__name__}")
        self._crawler.signals.send_catch_log(
            signals.spider_error, failure=failure, response=response, spider=self._crawler.spider
        )

    async def _call(self, result: Response | Failure, request: Request) -> Iterable[Any] | AsyncIterator[Any]:
        """Call the callback or the errback."""
        spider = self._crawler.spider
        assert spider is not None
        if isinstance(result, Response):
            called: Any = request.callback or spider._parse  # noqa: SLF001  # Scrapy calls it so
            output = called(result, **request.cb_kwargs)
        else:
            result.request = request  # type: ignore[attr-defined]  # errbacks read it there
            called = request.errback
            if not called:
                result.raiseException()
            output = called(result)
            if isinstance(output, Failure):
                output.raiseException()
        return await _iterated(output, called)

    async def _collect(self, output: Iterable[Any] | AsyncIterator[Any], response: Response | Failure) -> None:
        try:
            if isinstance(output, AsyncIterator):
                async for one in output:
                    await self.take(one, response)
            else:
                for one in output:
                    await self.take(one, response)
        except Exception as error:  # noqa: BLE001  # as above
            self.failed(error, response)

    async def take(self, one: Any, response: Response | Failure | None) -> None:
        """Keep a request or an item of the spider."""
        if isinstance(one, Request):
            if not self._is_earlier(one):
                await self.request(one)
        elif one is not None:
            try:
                await self.item(one, response)
            except Exception as error:  # noqa: BLE001  # a serializer of the project may raise anything
                self._lost(one, error, response)

    def _lost(self, item: Any, error: Exception, response: Response | Failure | None) -> None:
        """An item that has no row, in Scrapy neither: the page goes on. Scrapy's pipelines would have got it."""
        told = " ".join(f"an item is lost: {type(item).__name__}: {type(error).__name__}: {error}".split())
        log.error("%.1000s (%s)", told, response, exc_info=error)
        self._warn(f"{told:.300}")
        self._crawler.stats.inc_value("item_error_count")
        if self._exporter is None:
            lost = Unsendable(told)
            lost.__cause__ = error
            self.failed(lost, response)

    def _is_dropped(self, request: Request) -> bool:
        """Whether a handler of `request_scheduled`, such as the offsite filter, drops a request."""
        filters = self._crawler.signals.only_receiver(signals.request_scheduled)
        if filters is not None and type(getattr(filters, "__self__", None)) is OffsiteMiddleware:
            try:
                filters(request, self._crawler.spider)
            except IgnoreRequest:
                return True
            return False
        told = self._crawler.signals.send_catch_log(
            signals.request_scheduled, request=request, spider=self._crawler.spider, dont_log=IgnoreRequest
        )
        return any(isinstance(said, Failure) and isinstance(said.value, IgnoreRequest) for _, said in told)

    def _is_earlier(self, request: Request) -> bool:
        """Whether an earlier page gave a request, so that its identity says all. Most links of a page are such."""
        if self._is_whole or request.dont_filter or not self._filters or not AGAIN.keys().isdisjoint(request.meta):
            return False
        fingerprint = self._fingerprints.of(request)
        if fingerprint not in self._earlier:
            return False
        self._crawler.stats.inc_value("dupefilter/filtered")
        self.result.requests.append(RequestOut(request.url, fingerprint, is_known=True))
        self._gave()
        return True

    def _send(self, request: Request, fingerprint: int, filtered: int, hops: int) -> None:
        self._shared.next_request()
        is_filtered = bool(filtered) and self._filters and not (hops and self._origin.redirects_post)
        try:
            record, timing = self._recorder.recorded(request, is_filtered=is_filtered), self._recorder.timing(request)
        except UnsendableUrl as error:
            self._answer(raised(f"bad_url: {error}"), request, fingerprint, filtered)
            if request.errback is None:
                self._warn(f"{error.kind}; they are left out")
            return
        slot = request.meta.get("download_slot")
        if slot is not None and slot not in (self.slot, urlparse_cached(request).hostname):
            self._warn(NO_SLOTS)
        identity = filtered
        if is_filtered:
            self._new.add(filtered)
        else:
            count = self._given.get(fingerprint, 0)
            self._given[fingerprint] = count + 1
            identity = unfiltered_id(self._origin.id, self._origin.attempt, fingerprint, count)
        priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, request.priority))
        given = request.meta.get("depth", 0)
        depth = min(max(given, 0), MAX_PRIORITY) if isinstance(given, int) else 0  # it is the user's to write
        self.result.requests.append(
            RequestOut(request.url.partition("#")[0], identity, priority, record, min(hops, MAX_HOPS), depth, timing)
        )
        self._gave()


def failure_of(error: BaseException) -> Failure:
    return Failure(error)  # type: ignore[no-untyped-call]  # Twisted's


async def _iterated(output: Any, called: Any) -> Iterable[Any] | AsyncIterator[Any]:
    """The output of a callback, which may be async. Raises: TypeError: it is a Deferred."""
    if isinstance(output, Deferred):
        name = getattr(called, "__name__", repr(called)).removeprefix("_")
        raise TypeError(
            f"{name} returned a Deferred, which crawlog does not support: write `async def {name}` and "
            "`await maybe_deferred_to_future(deferred)`, from scrapy.utils.defer"
        )
    if inspect.isasyncgen(output):
        return output
    if inspect.isawaitable(output):
        return await _iterated(await output, called)
    several: Iterable[Any] = arg_to_iter(output)
    return several
