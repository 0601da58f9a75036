"""Names errors: one word for each error that aiohttp, a proxy or the egress guard may raise."""

import errno
import ssl

import aiohttp
from python_socks import ProxyTimeoutError

from crawlog.streams.http import Answer

from .connections import Refused
from .request import Blame, OutgoingRequest, ProxyFailed

_HEADER_FAULTS = (("Got more than", "header_too_large"), ("Too many headers", "too_many_headers"))
"""The message of aiohttp's parser for each limit, and our word for it."""

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
