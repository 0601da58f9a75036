"""What an answer tells of its response's headers: cut to what may be kept with a page, and escaped as browsers do."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .answer import REDIRECTS

if TYPE_CHECKING:
    from multidict import MultiMapping

    from .answer import Answer

HEADER_CHARS = 2000
"""Of Link, of X-Robots-Tag and of Refresh, so much is kept with a page."""


def note(answer: "Answer", headers: "MultiMapping[str]") -> None:
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
