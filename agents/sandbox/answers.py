"""Answers of a spider's child, which its code may write: read with care, and those of more than `FRAME_BYTES` in parts.

    child: CallResult ─ frames_of ─► ITEMS, …, REQUESTS, …, DONE ─► worker: Gathered ─► result_of

Decoding millions of tiny objects would hold up the worker's event loop and fill its memory. So the worker counts what
is in a frame before it decodes it: an output is a line, and in requests each value of JSON follows one of `,[{`.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders import CallResult, RequestOut, SpiderFacts

from .frames import DONE, ITEMS, REQUESTS, SpiderFrame, TooLong

FRAME_BYTES = 1 << 20  # Longest text of a frame, and longest body of several outputs. One item may be longer.

MAX_ANSWER_BYTES = 64 << 20  # Longest answer: more fails the page

MOST_OUTPUTS = 500_000  # Items and requests of one answer, at most: a sitemap has 50,000 URLs. More fail the page.

MOST_VALUES = 2_000_000  # Values of JSON in the requests of one answer, at most: forty for each URL of a sitemap

_encode = msgspec.json.Encoder().encode
_item = msgspec.json.Decoder(msgspec.Raw).decode
_request = msgspec.json.Decoder(RequestOut).decode


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error of loading, or of a call."""

    error: str
    trace: str = ""


def error_line(error: BaseException) -> str:
    """An error on one line; its class alone if its text cannot be made."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001  # a spider's error class may raise anything
        text = type(error).__name__
    return text.partition("\n")[0][:1000]


def frames_of(result: CallResult) -> list[SpiderFrame]:
    """The answer with this result, or with an error if it is too large."""
    text, count = _encode(result), len(result.items) + len(result.requests)
    if len(text) <= FRAME_BYTES:
        return [SpiderFrame(DONE, text)]
    rest = _encode(msgspec.structs.replace(result, items=[], requests=[]))
    if len(text) > MAX_ANSWER_BYTES or count > MOST_OUTPUTS or len(rest) > FRAME_BYTES:
        why = f"TooMuch: a page's {count:,} items and requests take {len(text):,} bytes"
        why += f", more than {MOST_OUTPUTS:,} or {MAX_ANSWER_BYTES:,}, or its stats and warnings {len(rest):,}"
        return [SpiderFrame(DONE, _encode(CallResult(error=why, is_final=True)))]
    items = (bytes(item).replace(b"\n", b" ") for item in result.items)  # between values: a text has none
    frames = [SpiderFrame(ITEMS, b"", body) for body in _bodies(items)]
    frames += [SpiderFrame(REQUESTS, b"", body) for body in _bodies(map(_encode, result.requests))]
    return [*frames, SpiderFrame(DONE, rest)]


def _bodies(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, several together."""
    several: list[bytes] = []
    size = 0
    for line in lines:
        if several and size + len(line) >= FRAME_BYTES:
            yield b"\n".join(several)
            several, size = [], 0
        several.append(line)
        size += len(line) + 1
    if several:
        yield b"\n".join(several)


class Gathered:
    """The outputs of the running call that have come before its answer."""

    def __init__(self) -> None:
        self._result: CallResult | None = None
        self._size_bytes = self._count = self._values = 0

    def add(self, frame: SpiderFrame) -> None:
        """Add a frame. Raises: TooLong: it breaks the rules that `frames_of` keeps; the child is to end."""
        body, is_items = frame.body, frame.kind == ITEMS
        count = body.count(b"\n") + 1
        self._count += count
        self._size_bytes += len(body)
        self._values += 0 if is_items else sum(map(body.count, (b",", b"[", b"{")))
        if self._count > MOST_OUTPUTS:
            raise TooLong(f"an answer of more than {MOST_OUTPUTS:,} items and requests")
        if self._values > MOST_VALUES:
            raise TooLong(f"an answer whose requests have more than {MOST_VALUES:,} values")
        if self._size_bytes > MAX_ANSWER_BYTES or (count > 1 and len(body) > FRAME_BYTES):
            raise TooLong(f"an answer, or a part of one, of {len(body):,} bytes")
        result = self._result = self._result or CallResult()
        try:
            if is_items:
                result.items += map(_item, body.split(b"\n"))
            else:
                result.requests += map(_request, body.split(b"\n"))
        except (ValueError, RecursionError) as error:
            raise TooLong(f"an answer that cannot be read: {error}") from None

    @property
    def has_any(self) -> bool:
        return self._result is not None

    def taken(self) -> CallResult | None:
        """What has come; the next answer begins anew. None for a short answer, which has all in itself."""
        result, self._result = self._result, None
        self._size_bytes = self._count = self._values = 0
        return result


T = TypeVar("T")

MAX_TEXT = 2_000  # Characters kept of an error, a reason or a name: each goes into records, which have a limit

_result = msgspec.json.Decoder(CallResult)
_facts = msgspec.json.Decoder(SpiderFacts)
_urls = msgspec.json.Decoder(tuple[str, ...])
_fault = msgspec.json.Decoder(Fault)


def result_of(answer: SpiderFrame) -> CallResult:
    """The result in an answer to a page, or to a part of `start`; a result with an error if it cannot be decoded."""
    found = _read(_result, answer)
    if isinstance(found, Fault):
        return CallResult(error=found.error, is_final=True)
    if answer.outputs is not None:
        found.items, found.requests = answer.outputs.items, answer.outputs.requests
    found.error, found.closes = found.error[:MAX_TEXT], found.closes[:MAX_TEXT]
    return found


def facts_of(answer: SpiderFrame, *, with_urls: bool = False) -> tuple[SpiderFacts | None, Fault | None]:
    """The facts in an answer to LOAD, or why there are none.

    Args:
        with_urls: Whether the start URLs are read too, which may be millions.
    """
    found = _read(_facts, answer)
    if isinstance(found, Fault):
        return None, found
    urls = _read(_urls, SpiderFrame(answer.kind, answer.body if with_urls else b"[]"))
    if isinstance(urls, Fault):
        return None, urls
    short = msgspec.structs.replace(found, label=found.label[:MAX_TEXT], digest=found.digest[:MAX_TEXT])
    return msgspec.structs.replace(short, start_urls=urls), None


def fault_of(answer: SpiderFrame) -> Fault:
    """The error in an answer of the kind FAILED; another error if it cannot be decoded."""
    found = _read(_fault, answer)
    return msgspec.structs.replace(found, error=found.error[:MAX_TEXT])


def misconfigured(fault: Fault) -> Misconfigured:
    """The error of a caller whose spider cannot be loaded."""
    return Misconfigured(fault.error.removeprefix("Misconfigured: "))


def _read(decoder: "msgspec.json.Decoder[T]", answer: SpiderFrame) -> T | Fault:
    try:
        return decoder.decode(answer.text)
    except (ValueError, RecursionError) as error:
        return Fault(f"spider_answer: {error}")
