"""The result of a request: the facts that decisions about it need. The client fills them in."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from crawlog.streams.url import InvalidUrl, plain, serialise

from .sniff import said_type

if TYPE_CHECKING:
    from multidict import MultiMapping

    from crawlog.schemas.pages import ActionResult

    from .validators import Validators

OK = 200
NOT_MODIFIED = 304
PRECONDITION_FAILED = 412
REDIRECTS = frozenset({301, 302, 303, 307, 308})

# Statuses that may change soon: by default the URL is tried again, and only the last answer is a result.
RETRY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 522, 524})

HEADER_CHARS = 2000  # Characters kept with a page of each of Link, X-Robots-Tag and Refresh


_NO_STORE = re.compile(r"(?:^|,)[ \t]*no-store[ \t]*(?:,|$)", re.IGNORECASE)

ALL_HEADERS_BYTES = 32 * 1024  # Most bytes of all headers of a response that are kept with a page: the first lines

# User and password behind the scheme of a URL, whatever follows them.
_LOGIN = re.compile(r"^((?:[A-Za-z][A-Za-z0-9+.\t-]*:)?[\t/\\]{2,})[^/\\?#]*@")


class HeldBytes:
    """Bytes of a memory budget, given back once; before that `cut` gives back the part that is not needed.

    Args:
        give: Called with the bytes given back; None where there is no budget.
    """

    __slots__ = ("_give", "size_bytes")

    def __init__(self, give: Callable[[int], None] | None = None, size_bytes: int = 0) -> None:
        self._give = give
        self.size_bytes = size_bytes

    def cut(self, size_bytes: int) -> None:
        if self._give is not None and size_bytes < self.size_bytes:
            given, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._give(given)

    def give(self) -> None:
        """Give all back; a second call does nothing."""
        self.cut(0)


class Answer:
    """The result of a request.

    Attributes:
        http: Status code; None when there was no response.
        error: One word for why there was none, or why its body was not kept; empty otherwise.
        detail: What the library says of it, one short line: the bad header line, the fault of a certificate.
        kept: Whether the body is here: of an accepted type and within the limits.
        sniffed: The type that the body shows, where it is not the header's.
        link, x_robots, refresh: Values of the headers Link, X-Robots-Tag and Refresh.
        private: The guard refused the address or the port: never tried again.
        is_closed: `network.allow_private` would allow it.
        is_inside: It came from a private address; set only for callers with `wants_place`.
        allow_origin: Value of the header Access-Control-Allow-Origin.
        allows_credentials: Whether Access-Control-Allow-Credentials is `true`; no other word counts (Fetch 4.10).
        forbids_store: Whether Cache-Control has `no-store` (RFC 9111 5.2.2.5).
        exit: Name of the exit by which the request went; empty without exits.
        by_proxy: A proxy failed, which says nothing about the host.
        is_cookie_check: It redirects to its own URL and sets a cookie; the next request gets the page.
        leads_back: It redirects to a URL that led here, and that would now be sent cookies that it was not sent then.
        validators: ETag and date for a conditional request later; only with a body.
        is_conditional: The request had the validators of an older page.
        had_cookies: The request had cookies of its job's jar.
        same_as: (partition, offset) of the page in crawl.pages that is unchanged.
        coding: The content codings of the body, where it stays as it came; empty for a plain body.
        limit: Most bytes that such a body may have, decoded.
        headers: All headers of the response, as sent and in order; only where they were asked for.
        sent, status_line: As in a page's metadata; where `headers` are.
        again_s: Seconds until another attempt can succeed.
        rendered, render_error, shown_url, results: As in a page's metadata.
        held: The body's share of the memory budget; given back once the body is dropped.
    """

    __slots__ = (
        "again_s",
        "allow_origin",
        "allows_credentials",
        "body",
        "by_proxy",
        "coding",
        "content_type",
        "detail",
        "error",
        "exit",
        "forbids_store",
        "had_cookies",
        "headers",
        "held",
        "http",
        "is_closed",
        "is_conditional",
        "is_cookie_check",
        "is_inside",
        "kept",
        "leads_back",
        "limit",
        "link",
        "location",
        "private",
        "refresh",
        "render_error",
        "rendered",
        "results",
        "retry_after",
        "same_as",
        "sent",
        "shown_url",
        "sniffed",
        "status_line",
        "took_s",
        "validators",
        "x_robots",
    )

    def __init__(self, http: int | None, error: str = "") -> None:
        self.http = http
        self.error = error
        self.detail = ""
        self.body = b""
        self.coding = ""
        self.limit = 0
        self.kept = False
        self.content_type = ""
        self.sniffed = ""
        self.link: tuple[str, ...] = ()
        self.x_robots: tuple[str, ...] = ()
        self.refresh = ""
        self.location = ""
        self.retry_after: str | None = None
        self.headers: tuple[tuple[str, str], ...] = ()
        self.sent: tuple[tuple[str, str], ...] = ()
        self.status_line = ""
        self.took_s = 0.0
        self.private = False
        self.is_closed = False
        self.is_inside = False
        self.allow_origin = ""
        self.allows_credentials = False
        self.forbids_store = False
        self.by_proxy = False
        self.exit = ""
        self.is_conditional = False
        self.had_cookies = False
        self.is_cookie_check = False
        self.leads_back = False
        self.again_s = 0.0
        self.rendered = ""
        self.render_error = ""
        self.shown_url = ""
        self.results: tuple[ActionResult, ...] = ()
        self.validators: Validators | None = None
        self.same_as: tuple[int, int] | None = None
        self.held = HeldBytes()

    @property
    def reason(self) -> str:
        return f"{self.error}: {self.detail}" if self.detail else self.error

    def target(self, url: str) -> str:
        """The target of a redirect, serialised and `plain`; empty if there is none, or it is no URL of http(s).

        Args:
            url: The URL of the request.
        """
        if self.http not in REDIRECTS or not self.location:
            return ""
        try:
            return plain(serialise(self.location, url))
        except InvalidUrl:
            return ""

    def drop_login(self, url: str) -> None:
        """Leave user and password out of the location, also of one that is no URL of http(s): no record may hold them.

        Args:
            url: The URL of the request.
        """
        if "@" in self.location:
            self.location = self.target(url) or _LOGIN.sub(r"\1", self.location)


def note(answer: Answer, headers: "MultiMapping[str]") -> None:
    """Copy the headers that matter into an answer whose status is set."""
    answer.content_type = _text(said_type(headers.getall("Content-Type", ())))
    answer.retry_after = headers.get("Retry-After")
    answer.link = _cut(headers.getall("Link", ()))
    answer.x_robots = _cut(headers.getall("X-Robots-Tag", ()))
    answer.refresh = ", ".join(_cut(headers.getall("Refresh", ())))
    answer.allow_origin = ", ".join(headers.getall("Access-Control-Allow-Origin", ()))
    answer.forbids_store = any(map(_NO_STORE.search, headers.getall("Cache-Control", ())))
    answer.allows_credentials = headers.get("Access-Control-Allow-Credentials") == "true"
    if answer.http in REDIRECTS:
        answer.location = _escaped(headers.get("Location", ""))


def all_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Headers as a page keeps them: Latin-1, so that every byte is a character."""
    kept: list[tuple[str, str]] = []
    room = ALL_HEADERS_BYTES
    for name, value in raw:
        room -= len(name) + len(value)
        if room < 0:
            break
        kept.append((name.decode("latin-1"), value.decode("latin-1")))
    return tuple(kept)


def _cut(values: Iterable[str]) -> tuple[str, ...]:
    """The first values of a header that together are at most `HEADER_CHARS`."""
    kept: list[str] = []
    room = HEADER_CHARS
    for value in values:
        room -= len(value)
        if room < 0:
            break
        kept.append(_text(value))
    return tuple(kept)


def _text(value: str) -> str:
    """A header's value without lone surrogates, which stand for invalid UTF-8 and fit in no record."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _escaped(location: str) -> str:
    """A Location with such bytes percent-encoded, as browsers do."""
    if location.isascii():
        return location
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in location)
