"""Parses the seed on one line: a URL, or JSON with a whole request. Says why a line has none.

Two lines are the same seed only if the job's `canonical` makes them the same URL. A URL longer than `MAX_URL_BYTES` is
refused.
"""

import time
from collections.abc import Callable, Collection
from types import MethodType
from typing import Annotated, Any

import msgspec

from crawlog.schemas.codec import decoded
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import MAX_PRIORITY, MAX_URL_BYTES, FoundUrl
from crawlog.streams.spiders import Request, Untravelled, Values, record_of, request_id
from crawlog.streams.timing import timing

COMMENT = ord("#")

BRACE = ord("{")  # First byte of a JSON line


class Seed(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A JSON line: a URL, and the arguments of a `crawlog.Request`, whose names and meanings these are.

    Attributes:
        eta, countdown, expires: Lengths of time count from when the line is sent.
        body: Text, sent in UTF-8.
        meta, cb_kwargs: JSON values.
        record, id: The whole request and its identity, of a seed that was in a log before; then no other field counts
            but URL, depth and priority.
    """

    url: str
    depth: Annotated[int, msgspec.Meta(ge=0)] = 0
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY - 1, le=MAX_PRIORITY)] = 0
    method: str = "GET"
    headers: dict[str, str | list[str]] = {}
    body: str = ""
    cookies: dict[str, str] = {}
    callback: str = ""
    errback: str = ""
    meta: dict[str, Any] = {}
    cb_kwargs: dict[str, Any] = {}
    once: bool = False
    attempts: Annotated[int, msgspec.Meta(ge=0)] = 0
    timeout: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    render: bool | None = None
    proxy: str = ""
    eta: float | str | None = None
    countdown: float | str | None = None
    expires: float | str | None = None
    age: float | str | None = None
    itag: float | str | None = None
    record: RequestRecord | None = None
    id: int = 0

    def found(self, canonical: Callable[[str], str], named: Collection[str]) -> FoundUrl:
        """The found of this seed. Raises: ValueError: the URL, or an argument of the request, is none."""
        url = canonical(self.url)
        found = FoundUrl(url, self.depth, self.priority)
        if (when := timing(self.eta, self.countdown, self.expires, self.age, self.itag)) is not None:
            found = when.on(found, time.time())
        if self.record is not None:
            return msgspec.structs.replace(found, id=self.id, request=self.record)
        given = {name: value for name in _OF_REQUEST if (value := getattr(self, name)) != getattr(_PLAIN, name)}
        if not given:
            return found
        try:
            request = record_of(Request(url, **given), _AnySpider(), _values)
        except (TypeError, Untravelled) as error:
            raise ValueError(str(error)) from None
        if request is None:
            return found
        return msgspec.structs.replace(found, id=request_id(url, request, named), request=request)


class _AnySpider:
    """Has each method: which of them there are, its job's spider says when the page comes."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return MethodType(_nothing, self)


def _nothing(*_: object) -> None:
    """Stands for a method of a spider."""


# Fields that are arguments of the request.
_OF_FOUND = ("url", "depth", "priority", "record", "id", "eta", "countdown", "expires", "age", "itag")
_OF_REQUEST = tuple(name for name in Seed.__struct_fields__ if name not in _OF_FOUND)

_PLAIN = Seed("")
_values = Values()
_seed = msgspec.json.Decoder(Seed)


def origin_on(text: bytes) -> bytes:
    """The URL on a line up to its path, not parsed; this is enough for its scope name.

    One with blanks or more slashes before its host, which the parser drops, is given whole.
    """
    url = decoded(_seed, text).url.encode() if text[0] == BRACE else text
    end = url.find(b"/", len(b"https://"))
    return url if end < 0 or url[end - 1] in b":/" else url[:end]


def found_on(text: bytes, canonical: Callable[[str], str], named: Collection[str] = ()) -> FoundUrl:
    """The seed on a line.

    Args:
        named: Names of headers that tell requests apart, in lower case.

    Raises: ValueError: the line has none.
    """
    if text[0] == BRACE:
        seed = decoded(_seed, text)
        if len(seed.url) > MAX_URL_BYTES:
            raise ValueError("too long")
        return seed.found(canonical, named)
    if len(text) > MAX_URL_BYTES:
        raise ValueError("too long")
    if b" " in text or b"\t" in text or b"\r" in text:
        raise ValueError("more than a URL on the line; depth and priority need JSON lines")
    return FoundUrl(canonical(text.decode()))


def why_not(text: bytes, error: ValueError) -> str:
    """The message for the user about a bad line."""
    shown = text[:80].decode("utf-8", "replace")
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {shown!r}"
    if isinstance(error, msgspec.MsgspecError):
        return f"{error}: {shown!r}"
    if b"://" not in text and b"." in text and text[0] != BRACE:
        return f"not a URL: {shown!r}; perhaps https://{shown}"
    return str(error) if shown[:40] in str(error) else f"{error}: {shown!r}"
