"""Refuses what a stranger's page makes a browser send, and says by headers what a browser may do with our answers.

Host names other than ours (DNS rebinding) 421 ─► foreign Origin or Sec-Fetch-Site 403 ─► prefix 400 ─► rate 429
"""

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from .access import is_loopback
from .answers import AnswerError
from .doors import Rates
from .routing import BEGUN, BELOW, BODY_BYTES, UPLOAD_BYTES, Handler, route_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

PREFIX = re.compile(r"(/[\w.~-]+)*", re.ASCII)  # What a proxy may say of the path below which it serves us

# Of every answer; a handler may set one otherwise.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer browsers send `Origin: null` with our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

PER_S, AT_ONCE = 200.0, 1_000.0  # Requests of one address a second, and at once

REQUESTS: web.AppKey[Rates] = web.AppKey("requests", Rates)
NAMES: web.AppKey[frozenset[str]] = web.AppKey("names", frozenset)
REACHED: web.AppKey[bool] = web.AppKey("reached", bool)  # Whether other machines reach the service


def names_of(settings: "Settings") -> frozenset[str]:
    """The host names that are ours."""
    given = (*settings.service.hosts, settings.service.address, "localhost", "127.0.0.1", "::1")
    return frozenset(name.lower().strip("[]").rstrip(".") for name in given)


@web.middleware
async def guards(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses foreign requests; notes the prefix; bounds rate and body."""
    if not request.app[REQUESTS].take(request.remote or ""):
        raise AnswerError(429, "too many requests\nWait a second.")
    host = request.headers.getall("Host", [])
    if len(host) != 1 or not all(_is_ours(request, one) for one in (host[0], *_target_host(request))):
        raise AnswerError(421, "this is no name of the service\nAdd it to service.hosts.")
    if _is_foreign(request, host[0]):
        raise AnswerError(403, "a page of another site asks for this\nUse the service's own address.")
    prefix = request.headers.get("X-Forwarded-Prefix", "")
    if not PREFIX.fullmatch(prefix):
        raise AnswerError(400, "X-Forwarded-Prefix is no path such as /crawl")
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise AnswerError(415, "the body is packed\nSend it without Content-Encoding.")
    route = route_of(request)
    limit = UPLOAD_BYTES if route is not None and route.is_upload else BODY_BYTES
    if (request.content_length or 0) > limit:
        raise AnswerError(413, f"the body is larger than {limit} bytes")
    limited = request.clone(client_max_size=limit)
    limited[BELOW] = prefix
    return await handler(limited)


async def say_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers to an answer, and notes that it begins."""
    if (begun := request.get(BEGUN)) is not None:
        begun.set()
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "crawlog"


def _target_host(request: web.Request) -> list[str]:
    """The host of a target in absolute form (`GET http://host/path`): it counts before the Host header."""
    target = request.raw_path
    return [] if target.startswith(("/", "*")) else [target.partition("://")[2].partition("/")[0].partition("?")[0]]


def _is_ours(request: web.Request, host: str) -> bool:
    name = host_name(host)
    if name is None:
        return False
    if name in request.app[NAMES]:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or request.app[REACHED]  # no DNS answer leads to a page of an address


def host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None if it is no host."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_foreign(request: web.Request, host: str) -> bool:
    """Whether a page of another site has made a browser send this; links to our pages may be followed."""
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != host.lower():
        return True
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site in ("same-origin", "none"):
        return False
    is_link = request.headers.get("Sec-Fetch-Mode") == "navigate" and request.method in ("GET", "HEAD")
    return not (is_link and request.headers.get("Sec-Fetch-Dest") == "document")


def _authority(origin: str) -> str | None:
    """Host and port of an origin; None if it is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def is_reached(settings: "Settings") -> bool:
    return not is_loopback(settings.service.address)
