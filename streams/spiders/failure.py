"""`Failure`: what an errback gets; `.value` is an exception whose class says what went wrong."""

from typing import TYPE_CHECKING

from crawlog.schemas.pages import PageMeta

if TYPE_CHECKING:
    from .response import Response
    from .spider_request import Request


class FetchError(Exception):
    """A request without a page for its callback.

    Attributes:
        reason: One word or short phrase, as in the results.
        response: The answer; None where there was none.
    """

    def __init__(self, reason: str, response: "Response | None" = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.response = response


class HttpError(FetchError):
    """The answer's status is none for the callback."""


class ConnectionFailed(FetchError):
    """There was no connection, or it was cut."""


class DnsFailed(ConnectionFailed):
    """The host's name has no address."""


class TimedOut(ConnectionFailed):
    """It took too long."""


class TlsFailed(ConnectionFailed):
    """There was no secure connection."""


class BadAnswer(FetchError):
    """The answer is no HTTP, larger than allowed, or a redirect that canonical rules undo."""


class NotSent(FetchError):
    """The request was not sent: robots.txt, the egress guard or the scope refused it, or a kill came before."""


_KINDS: dict[str, type[FetchError]] = {
    "dns": DnsFailed,
    "timeout": TimedOut,
    "connect_timeout": TimedOut,
    "first_byte_timeout": TimedOut,
    "chunk_timeout": TimedOut,
    "tls": TlsFailed,
    "tls_certificate": TlsFailed,
    "connect": ConnectionFailed,
    "connection_refused": ConnectionFailed,
    "disconnected": ConnectionFailed,
    "connection_reset": ConnectionFailed,
    "bad_body": ConnectionFailed,
    "proxy": ConnectionFailed,
    "proxy_login": ConnectionFailed,
    "bad_http": BadAnswer,
    "header_too_large": BadAnswer,
    "too_many_headers": BadAnswer,
    "too_large": BadAnswer,
    "bad_encoding": BadAnswer,
    "answer_broken": BadAnswer,
    "redirect_undone": BadAnswer,
    "redirect_circle": BadAnswer,
    "robots": NotSent,
    "robots_unreachable": NotSent,
    "scope": NotSent,
    "private_address": NotSent,
    "bad_proxy": NotSent,
    "bad_port": NotSent,
    "bad_method": NotSent,
    "bad_url": NotSent,
    "login_failed": NotSent,
    "crash_loop": NotSent,
    "interrupted": NotSent,
}


def failure_kind(error: str) -> type[FetchError]:
    """The class for the error of a page, by its first word; of an unreachable robots.txt by the failure behind it."""
    first, _, rest = error.partition(": ")
    kind = _KINDS.get(first.partition(" ")[0], FetchError)
    return _KINDS.get(rest.partition(":")[0], kind) if first == "robots_unreachable" else kind


class Failure:
    """Why a request has no page for its callback.

    Attributes:
        request: As it was yielded.
        value: The exception.
        response: The answer; None where there was none.
    """

    def __init__(self, request: "Request", value: FetchError) -> None:
        self.request = request
        self.value = value
        self.response = value.response

    def __repr__(self) -> str:
        return f"<Failure {type(self.value).__name__}: {self.value.reason} {self.request}>"

    def check(self, *kinds: type[BaseException]) -> type[BaseException] | None:
        """The first of these classes that the exception is of; None if it is of none."""
        return next((kind for kind in kinds if isinstance(self.value, kind)), None)


def failure_of(page: PageMeta, request: "Request", response: "Response") -> Failure:
    """The failure of a page that is none for the callback."""
    if page.http is None:
        return Failure(request, failure_kind(page.error)(page.error or "no answer"))
    if not page.kept and page.error:
        return Failure(request, failure_kind(page.error)(page.error, response))
    return Failure(request, HttpError(f"status {page.http}", response))
