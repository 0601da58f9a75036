"""A page of the log as Scrapy sees it: a response, or the exception that an errback gets."""

import logging
from collections.abc import Iterable
from typing import Any

from scrapy import exceptions as e
from scrapy.crawler import Crawler
from scrapy.http import Headers, Request, Response
from scrapy.responsetypes import responsetypes
from scrapy.utils.log import logformatter_adapter

from crawlog.schemas.pages import PageMeta

from ..page import is_redirect
from ..traces import users_traceback

# Headers about the connection: Twisted does not give them to Scrapy.
HIDDEN = frozenset({"connection", "keep-alive", "te", "trailers", "transfer-encoding", "upgrade", "proxy-connection"})

# Codings that are removed from the body, and from its header.
DECODED = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd"})


def response_of(meta: PageMeta, body: bytes, request: Request) -> Response:
    """The response of a page; its class is found by Scrapy's own rules."""
    headers = _headers(meta, is_decoded=request.method != "HEAD")  # it has no body, and keeps its header in Scrapy
    is_moved = bool(meta.location) and 200 <= (meta.http or 0) < 300  # a rendered page went there by itself
    if is_moved:
        headers["Location"] = meta.location
    url = meta.shown_url or request.url.partition("#")[0]
    kind = responsetypes.from_args(headers=headers, url=url, body=body)
    return kind(
        url=url,
        status=302 if is_moved else meta.http or 200,
        headers=headers,
        body=body,
        request=request,
        flags=["playwright"] if meta.rendered and request.meta.get("playwright") else None,
        protocol="HTTP/1.1",
    )


def _headers(meta: PageMeta, *, is_decoded: bool) -> Headers:
    given = meta.headers or tuple(_known(meta))
    headers = Headers()
    for name, value in given:
        lower = name.lower()
        if lower in HIDDEN:
            continue
        left = _undecoded(value) if lower == "content-encoding" and is_decoded else value
        if left or lower != "content-encoding":
            headers.appendlist(name, left.encode("latin-1", "replace"))
    if meta.rendered and not meta.location:  # its body is the browser's, in UTF-8 whatever the server said
        headers["Content-Type"] = meta.content_type
    return headers


def _undecoded(codings: str) -> str:
    return ", ".join(one for one in map(str.strip, codings.split(",")) if one.lower() not in DECODED)


def _known(meta: PageMeta) -> Iterable[tuple[str, str]]:
    """The headers of a page that was stored before its job had a spider."""
    if meta.content_type:
        yield "Content-Type", meta.content_type
    if meta.location:
        yield "Location", meta.location


# By the first word of a page's error.
RAISED: dict[str, tuple[type[Exception], str]] = {
    "dns": (e.CannotResolveHostError, "no address for the host's name"),
    "connection_refused": (e.DownloadConnectionRefusedError, "the host refused the connection"),
    "connect": (e.DownloadFailedError, "no connection"),
    "connect_timeout": (e.DownloadTimeoutError, "no connection in time"),
    "timeout": (e.DownloadTimeoutError, "no complete response in time"),
    "first_byte_timeout": (e.DownloadTimeoutError, "no first byte in time"),
    "chunk_timeout": (e.DownloadTimeoutError, "the body paused too long"),
    "tls": (e.DownloadFailedError, "the TLS connection failed"),
    "tls_certificate": (e.DownloadFailedError, "the certificate is not valid for this name"),
    "disconnected": (e.DownloadFailedError, "the connection was closed without a response"),
    "connection_reset": (e.DownloadFailedError, "the connection was reset"),
    "bad_http": (e.DownloadFailedError, "the response is no HTTP"),
    "bad_body": (e.ResponseDataLossError, "the body broke off"),
    "bad_encoding": (e.IgnoreRequest, "the body cannot be decompressed"),
    "bad_url": (e.UnsupportedURLSchemeError, "the URL cannot be requested"),
    "header_too_large": (e.DownloadFailedError, "a header is too large"),
    "too_many_headers": (e.DownloadFailedError, "too many headers"),
    "too_large": (e.DownloadCancelledError, "the body is larger than fetch.max_body_bytes, or pipelines.max_file_mb"),
    "proxy_login": (e.DownloadFailedError, "the proxy wants a login"),
    "bad_proxy": (e.IgnoreRequest, "the proxy may not be used"),
    "proxy": (e.DownloadFailedError, "the proxy failed"),
    "interrupted": (e.DownloadFailedError, "it may have been sent when its worker ended, and is never sent twice"),
    "crash_loop": (e.DownloadFailedError, "it crashed its worker several times"),
    "robots": (e.IgnoreRequest, "Forbidden by robots.txt"),
    "robots_unreachable": (e.IgnoreRequest, "robots.txt could not be read"),
    "private_address": (e.IgnoreRequest, "the address may not be requested: network.allow_private"),
    "bad_port": (e.IgnoreRequest, "the port may not be requested"),
    "bad_method": (e.IgnoreRequest, "the method may not be sent"),
    "login_failed": (e.IgnoreRequest, "the login of the job failed"),
    "answer_broken": (e.DownloadFailedError, "the answer could not be read"),
    "action": (e.DownloadFailedError, "an action in the browser failed"),
    "scope": (e.IgnoreRequest, "outside the job's scope"),
}


def answer_of(meta: PageMeta, body: bytes, request: Request) -> Response | Exception:
    """The response of a page, or the exception for its error. A redirect's body is not needed."""
    is_answered = meta.http is not None and (not meta.error or is_redirect(meta))
    return response_of(meta, body, request) if is_answered else raised(meta.error)


def raised(error: str) -> Exception:
    """The exception for a page's error, with all that it says.

    A host that does not answer for its robots.txt has the exception of that failure: Scrapy would ask for the page all
    the same, and fail in this way.
    """
    word = error.removeprefix("robots_unreachable: ").partition(":")[0].partition(" ")[0].strip()
    if word not in RAISED:
        word = error.partition(":")[0].partition(" ")[0].strip()
    kind, told = RAISED.get(word, (e.DownloadFailedError, ""))
    said = told if error == word else f"{told}: {error}" if told else error
    return kind(said or error)


log = logging.getLogger(__name__)


def write_line(crawler: Crawler, name: str, *about: Any, error: BaseException | None = None) -> None:
    """Write the line that a method of the log formatter makes; it makes None where nothing is to be written.

    Args:
        about: What the method takes before the spider.
        error: Its traceback from the project's code on follows the line; Scrapy's own 60 lines are in the dead letter.
    """
    try:
        said = getattr(crawler.logformatter, name)(*about, crawler.spider)
        if said is not None:
            log.log(*logformatter_adapter(said), exc_info=error and (type(error), error, users_traceback(error)))
    except Exception:  # a project's formatter may raise anything; the item is dropped, or the error kept, all the same
        log.exception("LOG_FORMATTER: its method %s failed", name)
