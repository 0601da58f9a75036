"""Parses the seed on one line: a URL, or JSON with depth and priority. Says why a line has none.

Two lines are the same seed only if the job's `canonical` makes them the same URL. A URL longer than `MAX_URL_BYTES` is
refused.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from crawlog.schemas.codec import decoded
from crawlog.schemas.urls import MAX_URL_BYTES, FoundUrl

COMMENT = ord("#")

BRACE = ord("{")
"""First byte of a JSON line."""


class Seed(msgspec.Struct, frozen=True):
    """A JSON line; other fields are ignored."""

    url: str
    depth: Annotated[int, msgspec.Meta(ge=0)] = 0
    priority: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)] = 0


_seed = msgspec.json.Decoder(Seed)


def origin_on(text: bytes) -> bytes:
    """The URL on a line up to its path, not parsed; this is enough for its scope name."""
    url = decoded(_seed, text).url.encode() if text[0] == BRACE else text
    end = url.find(b"/", len(b"https://"))
    return url if end < 0 else url[:end]


def found_on(text: bytes, canonical: Callable[[str], str]) -> FoundUrl:
    """The seed on a line. Raises: ValueError: the line has none."""
    if text[0] == BRACE:
        seed = decoded(_seed, text)
        if len(seed.url) > MAX_URL_BYTES:
            raise ValueError("too long")
        return FoundUrl(canonical(seed.url), seed.depth, seed.priority)
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
