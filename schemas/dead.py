"""crawl.dead: records that could not be handled, unchanged; the reason is in the headers.

Key and value are the failing record's own. Headers, all UTF-8: `topic`, `partition`, `offset` (where it was), `stage`
(frontier, parse, sink, control), `job` when known, `error` (one line), `traceback` (may be empty). After these come the
record's own headers.

A letter that was handled stays in the topic: a *mark* on the same topic names it. The first header of a mark is
`handled`, and it has no header of a letter.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from .codec import decoded

VERSION = 1

HANDLED = "handled"  # Name of the header that only marks have

# Names of a letter's own headers, in their order.
FIELDS = ("topic", "partition", "offset", "stage", "job", "error", "traceback")

MAX_TRACEBACK = 8 * 1024  # Characters of a traceback kept, the last ones: the cause is at its end

MAX_FIELD = 4 * 1024  # Characters kept of a job and an error: a record of any client may name a job of megabytes

MAX_PLACE = 500  # Characters of the place of an error

_PLACE = re.compile(r"\S.*, line \d+, in .+")
_ITEM = re.compile(r" \(item \d+ of \d+ in the pipelines\)$")


class DeadLetter(msgspec.Struct, frozen=True):
    """A failing record and where, when and why it failed."""

    topic: str
    partition: int
    offset: int
    stage: str
    error: str
    key: bytes | None = None
    value: bytes | None = None
    job: str = ""
    traceback: str = ""

    def headers(self) -> list[tuple[str, bytes]]:
        """The Kafka headers of the letter; key and value are the failing record's."""
        fields = {
            "topic": self.topic,
            "partition": str(self.partition),
            "offset": str(self.offset),
            "stage": self.stage,
            "job": self.job[:MAX_FIELD],
            "error": self.error[:MAX_FIELD],
            "traceback": self.traceback[-MAX_TRACEBACK:],
        }
        return [(name, text.encode("utf-8", "replace")) for name, text in fields.items()]


class Mark(msgspec.Struct, tag_field="v", tag=VERSION, omit_defaults=True, frozen=True):
    """Names letters that were handled.

    Attributes:
        handled: Their offsets in crawl.dead.
        how: `redriven`: the records went back to their topics; `dropped`: nothing more is done.
        to: (partition, offset) of each redriven record in its own topic: a letter about that place is the next attempt.
        at: UTC epoch seconds.
    """

    handled: list[int]
    how: Literal["redriven", "dropped"]
    to: list[tuple[int, int]] = []
    at: float = 0.0

    def headers(self) -> list[tuple[str, bytes]]:
        return [(HANDLED, self.how.encode())]


def of_item(error: str, number: int, count: int) -> str:
    """The error of an item that pipelines failed; its record is a page's, and may have others."""
    return f"{error} (item {number} of {count} in the pipelines)"


def without_item(error: str) -> tuple[str, str]:
    """An error of an item without its number, and this part; empty in other errors."""
    found = _ITEM.search(error)
    return (error[: found.start()], found[0]) if found else (error, "")


def place_of(trace: str) -> str:
    """Where a user's code raised: the first line of a traceback that begins with it; empty in others."""
    first = trace.partition("\n")[0]
    return first[:MAX_PLACE] if _PLACE.fullmatch(first) else ""


def told_error(error: str, trace: str) -> dict[str, str]:
    """The fields of a log line about an error: where a user's code raised it, before the error."""
    place = place_of(trace)
    return ({"raised_in": place} if place else {}) | {"error": error}


_mark = msgspec.json.Decoder(Mark)
_encoder = msgspec.json.Encoder()


def encode_mark(mark: Mark) -> bytes:
    return _encoder.encode(mark)


def decode_mark(value: bytes | None) -> Mark:
    """The mark in a record of crawl.dead that has the header `handled`.

    Raises: ValueError: not JSON, not a mark, or of another version.
    """
    return decoded(_mark, value or b"")


def own_headers(headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The failing record's own headers: those after the letter's."""
    names = [name for name, _ in headers[: len(FIELDS)]]
    return headers[len(FIELDS) :] if names == list(FIELDS) else []


def is_mark(headers: Iterable[tuple[str, bytes | None]]) -> bool:
    """Whether a record of crawl.dead is a mark: a failed record's own headers come last, with any names."""
    return next((name == HANDLED for name, _ in headers), False)


def by_name(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """The headers of a letter for `from_headers`: of several with one name the first, which is the letter's."""
    named: dict[str, bytes] = {}
    for name, value in headers:
        named.setdefault(name, value or b"")
    return named


def from_headers(headers: dict[str, bytes], key: bytes | None, value: bytes | None) -> DeadLetter:
    """The dead letter in a record of crawl.dead; fields that are missing or invalid are empty or -1."""
    text = {name: raw.decode("utf-8", "replace") for name, raw in headers.items()}
    return DeadLetter(
        topic=text.get("topic", ""),
        partition=_number(text.get("partition", "")),
        offset=_number(text.get("offset", "")),
        stage=text.get("stage", ""),
        error=text.get("error", ""),
        key=key,
        value=value,
        job=text.get("job", ""),
        traceback=text.get("traceback", ""),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
