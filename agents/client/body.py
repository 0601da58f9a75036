"""Reads the body of a response, if its type is wanted and within its limits.

Nearly every body is small and of known length. It is read at once if it is not coded, or if the caller takes it as it
came: then only its first bytes are unpacked, to see what it is. Any other body is read in pieces; if it has to be
decoded, each piece is so small that it does not block the event loop. Beyond its first 256 KiB it waits for memory
from the budget.
"""

import asyncio
import contextlib
import time
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

from crawlog.schemas.urls import RequestRules
from crawlog.streams.http import (
    SNIFFED_BYTES,
    UNKNOWN,
    Answer,
    Head,
    HeldBytes,
    TooLarge,
    UnkeptBody,
    coding_of,
    computed,
    decoder,
    essence,
)

from .request import Headers, OutgoingRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


# A memory budget for bodies: a request for a large body waits until enough is free, first come, first served.


class BodyBudget:
    """A number of bytes, granted in one piece: no holder ever waits for more, so there is no deadlock.

    Args:
        size_bytes: Upper bound of one grant; a larger request waits for the whole budget.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.free_bytes = size_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def take(self, size_bytes: int) -> HeldBytes:
        """Wait for this many bytes. A later request waits behind earlier ones, even if it would fit."""
        wanted = min(size_bytes, self._size_bytes)
        if not self._waiting and wanted <= self.free_bytes:
            self.free_bytes -= wanted
            return HeldBytes(self.give, wanted)
        turn = asyncio.get_running_loop().create_future()
        entry = turn, wanted
        self._waiting.append(entry)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(wanted)  # the grant came while this task was cancelled
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
                self.give(0)  # a request behind it may need less, and fit now
            raise
        return HeldBytes(self.give, wanted)

    def count(self, size_bytes: int) -> HeldBytes:
        """Charge a body that is in memory already, without waiting; the budget may go below zero."""
        self.free_bytes -= size_bytes
        return HeldBytes(self.give, size_bytes)

    def give(self, size_bytes: int) -> None:
        """Return bytes to the budget, and grant the requests that now fit."""
        self.free_bytes += size_bytes
        while self._waiting and self._waiting[0][1] <= self.free_bytes:
            turn, wanted = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.free_bytes -= wanted
            turn.set_result(None)


ANY_TYPE = "*/*"  # Accepts bodies of every type

# An unwanted body up to this size is read, to keep its connection; a larger one closes the connection.
DRAINED_BYTES = 64 * 1024

FREE_BYTES = 256 * 1024  # Each body may take this much without the budget; nearly every page is smaller

TURN_S = 0.001  # Decoding yields to the event loop after this time, because a body may be a decompression bomb


class Reading(NamedTuple):
    """How a response is read.

    Attributes:
        any_type: Keep the body whatever its type.
        limit: Bytes of a body, decoded and as it comes.
        cuts: Whether a larger body is cut there; else none of it is kept.
        outgoing: The request as it was sent.
        headers: Its headers.
        deadline: Of the whole request.
        bodies: The memory budget that a large body waits for.
        rules: Of the job that the request is for.
        all_headers: Whether the answer gets all headers of the response.
        as_came: Whether a coded body stays as it came.
    """

    any_type: bool
    limit: int
    cuts: bool
    outgoing: OutgoingRequest
    headers: Headers
    deadline: asyncio.Timeout
    bodies: BodyBudget
    rules: RequestRules
    all_headers: bool = False
    as_came: bool = False


@lru_cache(256)
def _accepted(content_types: tuple[str, ...]) -> frozenset[str]:
    return frozenset(kind.lower() for kind in content_types)


async def read(response: aiohttp.ClientResponse, answer: Answer, reading: Reading) -> None:
    """Read the body into the answer if it is wanted. The connection is kept if that costs little."""
    if reading.any_type or _accepts(answer.content_type, reading):
        await _read(response, answer, reading)
    elif (length := response.content_length) is not None and length <= DRAINED_BYTES:
        await response.read()
    else:
        response.close()


def _accepts(content_type: str, reading: Reading) -> bool:
    """Whether the Content-Type allows reading the body; an unknown type is decided by the first bytes."""
    kind = essence(content_type)
    return kind in UNKNOWN or "/" not in kind or _is_accepted(kind, reading)


def _is_wanted(answer: Answer, head: bytes, reading: Reading) -> bool:
    """Whether a body is kept: of an accepted type, by header and first bytes together, or of any."""
    kind = computed(answer.content_type, head)
    if kind != essence(answer.content_type):
        answer.sniffed = kind
    return reading.any_type or _is_accepted(kind, reading) or not answer.sniffed


def _is_accepted(kind: str, reading: Reading) -> bool:
    """Whether the job keeps bodies of a type."""
    accepted = _accepted(reading.rules.content_types)
    return kind in accepted or ANY_TYPE in accepted


async def _read(response: aiohttp.ClientResponse, answer: Answer, reading: Reading) -> None:
    try:
        coding = coding_of(_content_encoding(response)) if reading.as_came else ""
        if _is_small(response, reading):
            body = await response.read()
            head = _head_of(body, coding)
            _keep(answer, body, reading, coding, is_wanted=_is_wanted(answer, head, reading))
        else:
            await _read_pieces(_Pieces(response, reading), answer, reading, coding)
    except UnkeptBody as error:
        response.close()
        answer.error = error.word


async def _read_pieces(pieces: "_Pieces", answer: Answer, reading: Reading, coding: str) -> None:
    response = pieces.response
    length = response.content_length if not pieces.is_coded else None
    chunks: list[bytes] = []
    size = 0
    is_known = False
    head = Head(coding, SNIFFED_BYTES)
    while (piece := await pieces.next()) is not None:
        chunks.append(piece)
        size += len(piece)
        if not head.is_full:
            head.take(piece)
            if head.is_full and not is_known:
                is_known = True
                if not _is_wanted(answer, head.unpacked, reading):
                    response.close()
                    return
        if size > reading.limit or (is_known and not reading.cuts and (length or 0) > reading.limit):
            if not reading.cuts:
                raise TooLarge
            response.close()
            break
        if max(size, length or 0) > FREE_BYTES and not answer.held.size_bytes:
            await _take_room(response, answer, reading, length)
    head.end()
    is_wanted = is_known or _is_wanted(answer, head.unpacked[: reading.limit], reading)
    _keep(answer, b"".join(chunks)[: reading.limit], reading, coding, is_wanted=is_wanted)


def _keep(answer: Answer, body: bytes, reading: Reading, coding: str, *, is_wanted: bool) -> None:
    """Keep a body if it is of a type that is wanted."""
    answer.kept = is_wanted
    answer.body = body if answer.kept else b""
    if coding and answer.body:
        answer.coding, answer.limit = coding, reading.limit


def _head_of(body: bytes, coding: str) -> bytes:
    """The first bytes of a body, unpacked. Raises: BadCoding."""
    if not coding:
        return body[:SNIFFED_BYTES]
    head = Head(coding, SNIFFED_BYTES)
    head.take(body)
    head.end()
    return head.unpacked


def _content_encoding(response: aiohttp.ClientResponse) -> str:
    return ", ".join(response.headers.getall("Content-Encoding", ()))


async def _take_room(response: aiohttp.ClientResponse, answer: Answer, reading: Reading, length: int | None) -> None:
    """Wait for memory for the whole body. Meanwhile reading pauses and the deadline stands still."""
    protocol = response.connection.protocol if response.connection is not None else None
    if protocol is not None and protocol.connected:
        protocol.pause_reading()  # this also stops the clock of `fetch.chunk_timeout_s`
    try:
        with _stopped(reading.deadline):
            answer.held = await reading.bodies.take(min(length or reading.limit, reading.limit))
    finally:
        if protocol is not None:
            protocol.resume_reading()


@contextlib.contextmanager
def _stopped(deadline: asyncio.Timeout) -> "Iterator[None]":
    """A wait of our own making: the server's time stands still."""
    loop = asyncio.get_running_loop()
    left_s = (deadline.when() or 0.0) - loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(loop.time() + left_s)


def _is_small(response: aiohttp.ClientResponse, reading: Reading) -> bool:
    """Whether a body can be read at once: of known length, small, and not to be decoded."""
    length = response.content_length
    return (
        length is not None
        and length <= min(reading.limit, FREE_BYTES)
        and (reading.as_came or "Content-Encoding" not in response.headers)
    )


class _Pieces:
    """A body in decoded pieces, each small enough not to block the event loop.

    Attributes:
        is_coded: Whether the body has a Content-Encoding that is undone here.
    """

    def __init__(self, response: aiohttp.ClientResponse, reading: Reading) -> None:
        self.response, self._content = response, response.content
        self._limit = reading.limit
        self._decoder = None if reading.as_came else decoder(_content_encoding(response), reading.limit)
        self._decoded: Iterator[bytes] = iter(())
        self._sent_bytes = 0
        self._turned_at = 0.0
        self.is_coded = self._decoder is not None

    async def next(self) -> bytes | None:
        """The next piece, None at the end. Raises: TooLarge, BadCoding."""
        if self._decoder is None:
            return await self._content.readany() or None
        piece = next(self._decoded, None)
        if piece is not None:
            if time.monotonic() - self._turned_at > TURN_S:
                await asyncio.sleep(0)
                self._turned_at = time.monotonic()
            return piece
        while chunk := await self._content.readany():
            self._turned_at = time.monotonic()
            self._sent_bytes += len(chunk)
            if self._sent_bytes > self._limit:
                raise TooLarge  # a coded body may be endless and decode to nothing
            self._decoded = self._decoder.pieces(chunk)
            piece = next(self._decoded, None)
            if piece is not None:
                return piece
        self._decoder.end()
        return None
