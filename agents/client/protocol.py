"""Our side of a connection: the last look before each write, and the parser of HTTP fed a loop's turn at a time.

The parser is aiohttp's (llhttp, in C), which takes whatever comes; what bounds it stands here. A head, and the trailers
behind a body, it bounds itself (`fetch.max_header_bytes`), and the body's own limits stand in `reading.py`.
"""

import asyncio
import select
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

WHOLE_BYTES = 64 * 1024
"""So much of what a server sends the parser gets at once: in chunks of one byte each it takes 10 to 20 ms."""

SLICE_BYTES = 16 * 1024
"""So much it gets of a connection whose last bytes took longer than a turn."""

JOINED_BYTES = 64
"""Pieces of a body that are smaller are joined."""

TURN_S = 0.002
"""A connection that has kept the loop for so long goes on in the loop's next turn."""

FRAMING_BYTES = 256 * 1024
"""What a body may come in beside its own bytes and `FRAMING_SHARE` of them: chunks' sizes, and their extensions, which
have no end of their own (RFC 9112 7.1.1)."""

FRAMING_SHARE = 16
"""Bytes about each byte of a body: a chunk of one has five. Go's client allows as much for each chunk."""

MOST_INTERIM = 16
"""Interim responses (1xx) before an answer; Go's client takes five."""


class LeaseLost(Exception):
    """The worker may no longer ask, nor say that asking failed: somebody else may own the domain."""


_HEAD_END = b"\r\n\r\n"


class _Gate:
    """A transport that looks at the lease last of all, directly before each write.

    The look must stand here, not where a connection is handed out, since aiohttp does all it does for a request in
    between: 1 looked → 2 process stopped → 3 another worker owns the domain → 4 process continued, and it writes. The
    bytes are with the kernel when `write` returns, unless earlier ones still wait there (uvloop since 0.23, asyncio).
    """

    def __init__(self, transport: Any, may_ask: Callable[[], bool]) -> None:
        self._write = transport.write
        self._may_ask = may_ask
        self._transport = transport
        self.is_closing = transport.is_closing  # asked before each write

    def write(self, data: bytes) -> None:
        """Send it now or never. Raises: LeaseLost: nothing was sent."""
        if not self._may_ask():
            raise LeaseLost
        self._write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """All parts after one look."""
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_NOTHING = memoryview(b"")


class Body(StreamReader):
    """aiohttp's reader of a body, but nobody asks it where chunks end, and small pieces are joined as they come.

    A chunk of a byte then takes 0.75 µs instead of 1.5, and a million of them are no million objects.
    """

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """As aiohttp's own, but that a small piece grows while nobody has read it."""
        buffer = self._buffer
        if self._waiter is None and buffer and len(data) < JOINED_BYTES and len(buffer[-1]) < JOINED_BYTES:
            buffer[-1] += data
            self._size += len(data)
            self.total_bytes += len(data)
            if self._size > self._high_water:
                self._protocol.pause_reading()
            return False
        return super().feed_data(data, size)

    def begin_http_chunk_receiving(self) -> None:
        """Where chunks begin is nothing to us."""

    def end_http_chunk_receiving(self) -> None:
        """Where chunks end is nothing to us."""


class Handler(ResponseHandler):
    """aiohttp's side of a connection: writes through the gate, and parses no longer than its share of a loop's turn.

    A loop hands over up to 256 KiB at once. Of what is expensive to parse the rest waits here for the next turn, and
    the transport reads no further: neither its end nor more bytes come before the rest is parsed.
    """

    def __init__(self, may_ask: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._may_ask = may_ask
        self._rest = _NOTHING
        self._slice_bytes = WHOLE_BYTES
        self._is_fresh = False
        self._next_turn: asyncio.Handle | None = None
        self._body_took = 0  # bytes of the wire
        self._interim = 0
        self._is_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of TLS it is the transport above it: what passed the gate is then encrypted and written at once."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", _Gate(transport, self._may_ask))

    @property
    def should_close(self) -> bool:
        """Also with a rest, which is no part of an answer that is complete without it."""
        return bool(self._rest) or super().should_close

    def set_response_params(self, **params: Any) -> None:
        """A request follows: its answer may come.

        A server that answers as soon as it accepts a connection answers no request. The first request takes that
        answer, as in browsers; the connection is not kept, because the next answer would go to the wrong request.
        """
        self._is_asked = True
        self._should_close |= bool(self._tail or self._rest)
        super().set_response_params(**params)

    @property
    def _is_idle(self) -> bool:
        """Whether the last answer is complete and no request waits for another one."""
        return not self._is_asked and self._parser is not None and (self._payload is None or self._payload.is_eof())

    def has_unread(self) -> bool:
        """Whether bytes, or the connection's end, wait in the kernel since the loop looked last."""
        of_loop = self.transport.get_extra_info("socket") if self.transport is not None else None
        if of_loop is None:
            return True
        look = select.poll()
        look.register(of_loop.fileno(), select.POLLIN)
        return bool(look.poll(0))

    def data_received(self, data: bytes) -> None:
        """Bytes of the server; none where the reader wants more of what the parser has."""
        self._is_fresh = bool(data)
        if len(data) <= SLICE_BYTES and not self._rest:
            if self._payload is None or self._payload.is_eof():
                body_at = data.find(_HEAD_END) + len(_HEAD_END)
                if len(_HEAD_END) <= body_at < len(data):
                    self._parse(data[:body_at])  # an error behind the body would take its answer with it
                    data = data[body_at:]
            self._parse(data)
        elif data:
            self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
            if self._next_turn is None and not self._reading_paused:
                self._go_on()
        else:
            super().data_received(data)
            self._go_on_later()

    def _parse(self, data: bytes) -> None:
        if self._is_idle:
            self._end_unasked()
            return
        super().data_received(data)
        if self._is_idle and self._has_begun_another():
            self._end_unasked()
        body = self._payload
        if type(body) is StreamReader:
            body.__class__ = Body  # the parser, compiled, makes aiohttp's own
            body._http_chunk_splits = None  # noqa: SLF001  # of the chunks that came with the head
            self._body_took = 0
        elif type(body) is Body:
            self._body_took += len(data)
            if self._body_took > FRAMING_BYTES + (1 + FRAMING_SHARE) * body.total_bytes and not body.is_eof():
                self._give_up(body, aiohttp.ClientPayloadError("a body of little but framing"))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """An answer's head, or an interim one's, each of which would put off the end of waiting for it."""
        if self._exception is not None:
            return  # of what came at once with what ended it
        if not self._is_asked:
            self._end_unasked()
            return
        super().feed_data(data, size)
        code = data[0].code
        self._is_asked = code // 100 == 1 and code != 101
        self._interim = self._interim + 1 if self._is_asked else 0
        if self._interim == MOST_INTERIM + 1:
            self._give_up(self, HttpProcessingError(message=f"more than {MOST_INTERIM} interim responses"))

    def _has_begun_another(self) -> bool:
        """Whether the parser holds the beginning of a further answer: told to end, it complains or gives that."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except Exception:  # noqa: BLE001  # whatever it cannot end has begun
            return True

    def _end_unasked(self) -> None:
        """End the connection: the server sends bytes that answer no request. An answer before them stays whole."""
        self._forget()
        self._should_close = True
        if self.transport is not None:
            self.transport.close()

    def _give_up(self, reader: Any, error: Exception) -> None:
        """End the connection; who waits for its answer, or for the rest of a body, is told why."""
        self._forget()
        reader.set_exception(error)
        if self.transport is not None:
            self.transport.close()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Let the parser look for what it has left, unless it has done so since bytes came, or was at the end.

        The reader says this with every chunk that it takes, paused or not: with chunks of a byte each these looks took
        most of the time. After a pause there are two of them, for the first one may only end the parser's own pause.
        """
        was_paused = self._reading_paused
        if was_paused or (self._is_fresh and resume_parser):
            super().resume_reading(resume_parser)
        self._is_fresh = was_paused and resume_parser

    def _go_on(self) -> None:
        """Parse for a turn's time, or until the reader has enough."""
        self._next_turn = None
        was_held, self._buffer_paused = self._buffer_paused, False  # aiohttp may hold it for a buffer of its own
        began = time.monotonic()
        took_s = 0.0
        while self._rest and not self._reading_paused and took_s < TURN_S:
            piece, self._rest = self._rest[: self._slice_bytes], self._rest[self._slice_bytes :]
            self._is_fresh = True
            self._parse(bytes(piece))  # which may end the answer, and ask whether there is a rest
            took_s = time.monotonic() - began
        self._slice_bytes = WHOLE_BYTES if took_s < TURN_S else SLICE_BYTES
        if self._rest:
            self._go_on_later()
        elif was_held and not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _go_on_later(self) -> None:
        self._pause_reading_for_buffer()
        self._drop_timeout()  # it is not the server that rests
        if not self._reading_paused and self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._go_on)

    def close(self) -> None:
        """Nobody wants the rest."""
        self._forget()
        super().close()

    def abort(self) -> None:
        """Nobody wants the rest."""
        self._forget()
        super().abort()

    def set_exception(self, *args: Any) -> None:
        """Nothing that comes after it is an answer.

        aiohttp's parser forgets the body in which it failed, so its reader would wait until the deadline.
        """
        self._forget()
        body = self._payload
        super().set_exception(*args)
        if isinstance(args[0], HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(f"not the coding of a body: {args[0]!r}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """A reset, or a write that failed: what came before it counts."""
        rest = self._rest
        self._forget()
        if rest:
            super().data_received(bytes(rest))
        super().connection_lost(exc)

    def _forget(self) -> None:
        self._rest = _NOTHING
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
