"""The part of Scrapy's engine that exists here: a request that the worker makes now, for a callback or a pipeline.

    download(request) ─► downloader middlewares ─► WORKER.download ─► response, or exception
          ▲                                                                  │
          └──────── another request: a redirect ◄── downloader middlewares ◄─┘

FilesPipeline and ImagesPipeline call `download_async`. Such a request is no record of the log: nothing filters it, and
one that is handled again after a kill is made again.
"""

import asyncio  # runs in the child alone
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.exceptions import NotSupported
from scrapy.http import Request, Response
from twisted.internet.defer import Deferred

from crawlog.streams.downloads import WORKER

from . import facts
from .arrived import answer_of, raised
from .downloading import MAX_REPLACED
from .recorded import UnsendableUrl

if TYPE_CHECKING:
    from .recorded import Recorder

NO_ENGINE = (
    "does not exist in crawlog: requests are records of a log. To stop the crawl, raise "
    'CloseSpider("reason"); to send a request, yield it from a callback or from start(), or in a callback or a '
    "pipeline `await self.crawler.engine.download(request)`"
)


class Awaited(Deferred[Response]):
    """A Deferred that can be awaited in a coroutine of asyncio too: older code awaits what `download` returns."""

    def __await__(self) -> Generator[Any, None, Response]:
        return self.asFuture(asyncio.get_running_loop()).__await__()


class DownloadEngine:
    """What `crawler.engine` is here.

    Args:
        crawler: The `StandInCrawler` of the spider.
    """

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler
        self._recorder: Recorder | None = None
        self._max_bytes = 0

    def __getattr__(self, name: str) -> Any:
        """Raises: NotSupported: for all that Scrapy's engine has beside downloads."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupported(f"crawler.engine.{name} {NO_ENGINE}")

    def begin(self, recorder: "Recorder") -> None:
        """Requests can be made from now on: the spider and its components are there."""
        self._recorder = recorder
        self._max_bytes = facts.max_size(self._crawler.settings, self._crawler.spider)

    def download(self, request: Request) -> Deferred[Response]:
        """As in Scrapy before 2.14."""
        answer = Awaited()
        running = asyncio.ensure_future(self.download_async(request))

        def ended(done: "asyncio.Future[Response]") -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            if error is None:
                answer.callback(done.result())
            else:
                answer.errback(error)

        running.add_done_callback(ended)
        return answer

    async def download_async(self, request: Request) -> Response:
        """The response to a request, through the downloader middlewares.

        Raises: Exception: as in Scrapy, such as IgnoreRequest, DownloadFailedError.
        """
        for _ in range(MAX_REPLACED):
            answer = await self._answer(request)
            if isinstance(answer, Response):
                return answer
            request = answer
        raise NotSupported(f"{request}: downloader middlewares put {MAX_REPLACED} requests in its place")

    async def _answer(self, request: Request) -> Response | Request:
        crawler, recorder = self._crawler, self._recorder
        if recorder is None:
            raise NotSupported("crawler.engine downloads nothing before the spider is made")
        for middleware in crawler.downloading.middlewares:
            if type(middleware) is OffsiteMiddleware:  # for other requests a signal has asked it before
                middleware.process_request(request)
        answer: Response | Request | None = await crawler.downloading.leave(request)
        if answer is None:
            answer = await crawler.downloading.arrive(await self._fetched(request, recorder), request)
        if isinstance(answer, Response):
            answer.request = answer.request or request
            crawler.signals.send_catch_log(
                signals.response_received, response=answer, request=answer.request, spider=crawler.spider
            )
        return answer

    async def _fetched(self, request: Request, recorder: "Recorder") -> Response | Exception:
        try:
            record = recorder.outgoing(request)
        except UnsendableUrl as error:
            return raised(f"bad_url: {error}")
        meta, body = await WORKER.download(request.url.partition("#")[0], record, self._max_bytes)
        request.meta["download_latency"] = meta.took_s
        return answer_of(meta, body, request)
