"""The downloader middlewares that run beside the spider, in the order of Scrapy.

    request leaves ─► process_request, ascending ─► sent as a record
    page arrives ─► process_response or process_exception, descending ─► response, another request, or an error

Those of Scrapy's own that crawlog's fetch does are left out; so a page passes the others once, with its last attempt.
"""

import inspect
from typing import Any

from scrapy.core.downloader.middleware import DownloaderMiddlewareManager
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.http import Request, Response
from scrapy.settings import BaseSettings
from scrapy.utils.conf import build_component_list
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.python import global_object_name

_ROOM = "scrapy.downloadermiddlewares."

# Scrapy's own middlewares whose work is done by crawlog's fetch, with how it is set.
OF_FETCH = {
    f"{_ROOM}robotstxt.RobotsTxtMiddleware": "robots.obey, robots.token",
    f"{_ROOM}downloadtimeout.DownloadTimeoutMiddleware": "fetch.timeout_s",
    f"{_ROOM}retry.RetryMiddleware": "fetch.attempts",
    f"{_ROOM}httpcompression.HttpCompressionMiddleware": "bodies arrive decoded",
    f"{_ROOM}cookies.CookiesMiddleware": "fetch.cookies; jars are kept in the state",
    f"{_ROOM}httpproxy.HttpProxyMiddleware": "exits.proxies, meta['proxy']",
    f"{_ROOM}httpcache.HttpCacheMiddleware": "the log keeps all pages",
}

# They set headers of the job, which are not in each record: they run only where other middlewares see the headers.
DEFAULTS = (f"{_ROOM}defaultheaders.DefaultHeadersMiddleware", f"{_ROOM}useragent.UserAgentMiddleware")

MAX_REPLACED = 50  # Requests that middlewares put in place of one request, one after the other, at most

# Requests in a row that middlewares answer by themselves, each not for the first time, without an output, at most.
MAX_REPEATED = 1000


class Downloading(DownloaderMiddlewareManager):
    """Scrapy's manager with the middlewares of the project, and those of Scrapy that crawlog does not do itself.

    The offsite filter has looked at a request before, when `request_scheduled` was sent.
    """

    _stats: DownloaderStats | None = None

    @classmethod
    def _get_mwlist_from_settings(cls, settings: BaseSettings) -> list[Any]:
        return [name for name in components(settings) if not is_of_fetch(name, settings)]

    def _add_middleware(self, mw: Any) -> None:
        super()._add_middleware(mw)
        if type(mw) in (DownloaderStats, OffsiteMiddleware):  # requests are counted when they were sent
            self.methods["process_request"].pop()
        if type(mw) is DownloaderStats:
            self._stats = mw

    async def leave(self, request: Request) -> Request | Response | None:
        """Pass a request through `process_request`.

        Returns: A request or a response that takes its place; None if it may be sent, as the middlewares left it.
        Raises: Any exception of a middleware that none of them handles.
        """
        try:
            answer = await self._asked(request)
        except Exception as error:  # noqa: BLE001  # Scrapy gives all of them to process_exception
            answer = await self._process_exception(error, request)
        return await self._process_response(answer, request) if isinstance(answer, Response) else answer

    async def _asked(self, request: Request) -> Request | Response | None:
        for method in self.methods["process_request"]:
            assert method is not None
            answer = self._handle_mw_method(method, request=request)
            if inspect.isawaitable(answer):
                answer = await ensure_awaitable(answer)
            if answer is not None and not isinstance(answer, Request | Response):
                kind = type(answer).__name__
                raise TypeError(f"{global_object_name(method)} returned a {kind}, not None, a request or a response")
            if answer is not None:
                return answer
        return None

    async def arrive(self, result: Response | Exception, request: Request) -> Response | Request:
        """Pass an answer or a failure of a request through the chain.

        Raises: The exception that no middleware handled, or one of a middleware.
        """
        if self._stats is not None:
            self._stats.process_request(request)
        answer = await self._process_exception(result, request) if isinstance(result, Exception) else result
        return await self._process_response(answer, request)


def components(settings: BaseSettings) -> list[Any]:
    return build_component_list(settings.get_component_priority_dict_with_base("DOWNLOADER_MIDDLEWARES"))


def is_of_fetch(component: Any, settings: BaseSettings) -> bool:
    """Whether crawlog's fetch does the work of this component."""
    path = component if isinstance(component, str) else global_object_name(component)
    if path in DEFAULTS:
        return not of_the_project(settings)
    return path in OF_FETCH


def of_the_project(settings: BaseSettings) -> list[Any]:
    """The downloader middlewares that are not Scrapy's own."""
    named = [(one if isinstance(one, str) else global_object_name(one), one) for one in components(settings)]
    return [one for path, one in named if not path.startswith(_ROOM)]
