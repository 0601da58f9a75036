"""What came of a request: the facts that all decisions about it go by. Whoever asks fills them in."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from crawlog.streams.url import InvalidUrl, plain, serialise

if TYPE_CHECKING:
    from multidict import MultiMapping

    from .validators import Validators

OK = 200
NOT_MODIFIED = 304
PRECONDITION_FAILED = 412
REDIRECTS = frozenset({301, 302, 303, 307, 308})

HEADER_CHARS = 2000
"""Of Link, of X-Robots-Tag and of Refresh, so much is kept with a page."""


class HeldBytes:
    """A piece of a room; it is given back once, all of it or, before that, what turned out not to be needed.

    Args:
        give: Takes so many bytes back; None where nobody lent any.
    """

    __slots__ = ("_give", "size_bytes")

    def __init__(self, give: Callable[[int], None] | None = None, size_bytes: int = 0) -> None:
        self._give = give
        self.size_bytes = size_bytes

    def cut(self, size_bytes: int) -> None:
        """Keep so much at most."""
        if self._give is not None and size_bytes < self.size_bytes:
            given, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._give(given)

    def give(self) -> None:
        """Give it back; a second time is nothing."""
        self.cut(0)


class Answer:
    """What came of a request.

    Attributes:
        http: Status code; None when there was no response.
        error: One word for why there was none, or why its body was not kept; empty otherwise.
        kept: Whether the body is here: of an accepted type and within the limits.
        sniffed: The type that the body shows, where it is not the header's.
        link, x_robots, refresh: Values of the headers Link, X-Robots-Tag and Refresh.
        private: The guard refused the address or the port: never tried again.
        is_closed: That would not be so where `network.allow_private` is set.
        is_inside: It came from a private address; told only to who `wants_place`.
        allow_origin: Value of the header Access-Control-Allow-Origin.
        allows_credentials: Whether Access-Control-Allow-Credentials is `true`; no other word counts (Fetch 4.10).
        by_proxy: A proxy did not serve, which says nothing of the host.
        is_cookie_check: It redirects to its own URL, with a cookie that the request did not have: the page lies behind.
        leads_back: It redirects to a URL that led here, and that would now be sent cookies which it was not.
        validators: By which the page, if its body is here, can be asked for again.
        is_conditional: The page was asked for by the validators of an older one.
        same_as: (partition, offset) of the page in crawl.pages that it still is.
        again_s: Seconds before which another attempt would meet the same.
        rendered, render_error: As in a page's metadata.
        held: The body's room in memory; to be given back once the body is let go.
    """

    __slots__ = (
        "again_s",
        "allow_origin",
        "allows_credentials",
        "body",
        "by_proxy",
        "content_type",
        "error",
        "held",
        "http",
        "is_closed",
        "is_conditional",
        "is_cookie_check",
        "is_inside",
        "kept",
        "leads_back",
        "link",
        "location",
        "private",
        "refresh",
        "render_error",
        "rendered",
        "retry_after",
        "same_as",
        "sniffed",
        "took_s",
        "validators",
        "x_robots",
    )

    def __init__(self, http: int | None, error: str = "") -> None:
        self.http = http
        self.error = error
        self.body = b""
        self.kept = False
        self.content_type = ""
        self.sniffed = ""
        self.link: tuple[str, ...] = ()
        self.x_robots: tuple[str, ...] = ()
        self.refresh = ""
        self.location = ""
        self.retry_after: str | None = None
        self.took_s = 0.0
        self.private = False
        self.is_closed = False
        self.is_inside = False
        self.allow_origin = ""
        self.allows_credentials = False
        self.by_proxy = False
        self.is_conditional = False
        self.is_cookie_check = False
        self.leads_back = False
        self.again_s = 0.0
        self.rendered = ""
        self.render_error = ""
        self.validators: Validators | None = None
        self.same_as: tuple[int, int] | None = None
        self.held = HeldBytes()

    def target(self, url: str) -> str:
        """Where it redirects to, serialised and `plain`; empty where it does not, or to what is no URL of http(s).

        Args:
            url: That was asked for.
        """
        if self.http not in REDIRECTS or not self.location:
            return ""
        try:
            return plain(serialise(self.location, url))
        except InvalidUrl:
            return ""


def note(answer: Answer, headers: "MultiMapping[str]") -> None:
    """Have an answer, whose status is known, tell of its headers."""
    answer.content_type = _text(headers.get("Content-Type", ""))
    answer.retry_after = headers.get("Retry-After")
    answer.link = _cut(headers.getall("Link", ()))
    answer.x_robots = _cut(headers.getall("X-Robots-Tag", ()))
    answer.refresh = ", ".join(_cut(headers.getall("Refresh", ())))
    answer.allow_origin = ", ".join(headers.getall("Access-Control-Allow-Origin", ()))
    answer.allows_credentials = headers.get("Access-Control-Allow-Credentials") == "true"
    if answer.http in REDIRECTS:
        answer.location = _escaped(headers.get("Location", ""))


def _cut(values: Iterable[str]) -> tuple[str, ...]:
    """The first values of a header, as many as may be kept with a page."""
    kept: list[str] = []
    room = HEADER_CHARS
    for value in values:
        room -= len(value)
        if room < 0:
            break
        kept.append(_text(value))
    return tuple(kept)


def _text(value: str) -> str:
    """A header's value as characters: bytes that are no UTF-8 come as lone surrogates, which no record can hold."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _escaped(location: str) -> str:
    """A Location with those bytes percent-encoded, as browsers send them on."""
    if location.isascii():
        return location
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in location)
