"""Names errors: one word for each error that aiohttp, a proxy or the egress guard may raise."""

import errno
import os
import re
import ssl
from collections.abc import Iterator

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from python_socks import ProxyTimeoutError

from crawlog.streams.http import Answer
from crawlog.streams.printable import escaped

from .connections import Refused
from .request import Blame, OutgoingRequest, ProxyFailed

# The message of aiohttp's parser for each limit, and our word for it.
_HEADER_FAULTS = (("Got more than", "header_too_large"), ("Too many headers", "too_many_headers"))

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (ProxyTimeoutError, "connect_timeout"),
    (aiohttp.ClientConnectorDNSError, "dns"),
    (aiohttp.ClientConnectorCertificateError, "tls_certificate"),
    (aiohttp.ClientConnectorSSLError, "tls"),
    (aiohttp.ConnectionTimeoutError, "connect_timeout"),
    (TimeoutError, "timeout"),
    (aiohttp.ClientConnectorError, "connect"),
    (aiohttp.ServerDisconnectedError, "disconnected"),
    (aiohttp.ClientPayloadError, "bad_body"),
    (aiohttp.InvalidURL, "bad_url"),
    (aiohttp.ClientResponseError, "bad_http"),
    (aiohttp.ClientOSError, "connection_reset"),
    (ssl.SSLError, "tls"),
    (OSError, "connect"),
    (aiohttp.ClientError, "bad_http"),
    (ValueError, "bad_http"),
)


MAX_DETAIL = 150  # Longest detail of an error, characters: a done has room for 200 with the word

# A bad line that sets a cookie: its value may be a session.
_COOKIE = re.compile(r"(cookie2?\s*:).*", re.IGNORECASE | re.DOTALL)


def detail_of(error: BaseException) -> str:
    """What an exception says beside its word, on one line: of TLS, of an answer that is no HTTP, of a lost network."""
    told = next(filter(None, map(_detail, _chain(error))), "")
    return escaped(_COOKIE.sub(r"\1 …", " ".join(told.split())))[:MAX_DETAIL].rstrip(" ^:")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """What is behind an exception of aiohttp, and the exception itself."""
    behind = (getattr(error, name, None) for name in ("certificate_error", "os_error", "__cause__"))
    return iter([*(one for one in behind if isinstance(one, BaseException)), error])


def _detail(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(getattr(error, "verify_message", ""))  # aiohttp's own class has none
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "reason", "") or error.args[-1]).replace("_", " ").lower()
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return error.message
    is_lost = type(error) is OSError and error.errno not in (None, errno.ECONNREFUSED)
    return os.strerror(error.errno or 0) if is_lost and isinstance(error, OSError) else ""


def reason_of(error: BaseException) -> str:
    """One word for an exception of aiohttp; `crawlog.schemas.pages.PageMeta.error` has them all."""
    if isinstance(error, aiohttp.ClientResponseError):
        for said, word in _HEADER_FAULTS:
            if said in error.message:
                return word
    word = next((word for kind, word in _REASONS if isinstance(error, kind)), type(error).__name__)
    is_turned_off = word == "connect" and isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
    return "connection_refused" if is_turned_off else word


def failure(error: Exception, answer: Answer, outgoing: OutgoingRequest, blame: Blame) -> Answer:
    """The answer to a request that ended with an error.

    Args:
        blame: The party at fault, from `OutgoingRequest.blame`.
    """
    refusal = error if isinstance(error, Refused) else error.__cause__
    if isinstance(refusal, Refused):
        if outgoing.has_own_proxy and "proxy" in outgoing.options:  # its address, for it resolves the site's name
            return refused(f"bad_proxy: {refusal}")
        return private(str(refusal), refusal.is_closed)
    if blame in ("proxy", "broken_off"):
        return lost_proxy(str(error) if isinstance(error, ProxyFailed) else "proxy", outgoing.again_s)
    answer.error = reason_of(error)
    if isinstance(error, aiohttp.SocketTimeoutError):
        answer.error = "first_byte_timeout" if answer.http is None else "chunk_timeout"
    answer.detail = detail_of(error)
    answer.kept = False
    answer.body, answer.coding = b"", ""
    return answer


def lost_proxy(error: str = "proxy", again_s: float = 0.0) -> Answer:
    """The answer to a request that its proxy did not serve.

    Args:
        again_s: Seconds until another attempt can succeed.
    """
    answer = Answer(None, error)
    answer.by_proxy, answer.again_s = True, again_s
    return answer


def private(refusal: str, is_closed: bool) -> Answer:
    """The answer to a request whose address the guard refused.

    Args:
        is_closed: Whether `network.allow_private` would allow it.
    """
    answer = refused(f"private_address: {refusal}")
    answer.is_closed = is_closed
    return answer


def refused(error: str) -> Answer:
    """The answer to a request that the guard refused."""
    answer = Answer(None, error)
    answer.private = True
    return answer
