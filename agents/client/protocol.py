"""Our side of a connection: checks the lease before each write, and bounds the time of the HTTP parser.

The parser is aiohttp's (llhttp, in C). It gets each head whole, mended if it must be (`streams/http/heads.py`), and
bounds heads and trailers itself (`MOST_LINE_BYTES` in `client.py`). The limits of a body are in `body.py`, beside;
those of everything around a body are here.
"""

import asyncio
import select
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from crawlog.streams.http import MOST_HEAD_BYTES, Mender

WHOLE_BYTES = 64 * 1024  # Bytes given to the parser at once. In HTTP chunks of one byte each they take it 10 to 20 ms.

SLICE_BYTES = 16 * 1024  # Bytes given at once for a connection whose last bytes took longer than `TURN_S`

JOINED_BYTES = 64  # Pieces of a body that are smaller are joined

TURN_S = 0.002  # After this time a connection goes on in the next iteration of the event loop

# Bytes of chunk sizes and extensions that any body may have. The standard sets no limit (RFC 9112 7.1.1).
FRAMING_BYTES = 256 * 1024

# Further such bytes for each byte of a body. A chunk of one byte has five; Go's client allows 16 a chunk.
FRAMING_SHARE = 16

CLOCK_S = 0.002  # Steps of the event loop's clock are of a millisecond

MOST_INTERIM = 16  # Interim responses (1xx) before an answer; Go's client takes five


class LeaseLost(Exception):
    """The worker may no longer send requests or report failures: another worker may own the domain."""


class _Gate:
    """A transport that checks the lease directly before each write.

    A check when the connection is handed out would be too early, because aiohttp prepares the request after it:
    1 checked → 2 process stopped → 3 another worker owns the domain → 4 process continued, and it writes. When `write`
    returns, the kernel has the bytes, unless earlier ones still wait (uvloop since 0.23, asyncio).
    """

    def __init__(self, transport: Any, may_ask: Callable[[], bool]) -> None:
        self._write = transport.write
        self._may_ask = may_ask
        self._transport = transport
        self.is_closing = transport.is_closing  # aiohttp calls it before each write

    def write(self, data: bytes) -> None:
        """Write if the lease is held. Raises: LeaseLost: nothing was sent."""
        if not self._may_ask():
            raise LeaseLost
        self._write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_NOTHING = memoryview(b"")


class Body(StreamReader):
    """aiohttp's reader of a body, without chunk boundaries, and with small pieces joined.

    A chunk of one byte then takes 0.75 µs instead of 1.5, and a million of them do not make a million objects.
    """

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """As aiohttp's own method, but a small piece is joined to the last one while that is unread."""
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
        """Ignored: chunk boundaries do not matter here."""

    def end_http_chunk_receiving(self) -> None:
        """Ignored: chunk boundaries do not matter here."""


class Handler(ResponseHandler):
    """aiohttp's side of a connection: writes through the gate, and parses for a bounded time per loop iteration.

    The loop hands over up to 256 KiB at once. If they are expensive to parse, the rest waits for the next iteration and
    the transport is paused: neither more bytes nor the end arrive before the rest is parsed.
    """

    def __init__(self, may_ask: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._may_ask = may_ask
        self._rest = _NOTHING
        self._slice_bytes = WHOLE_BYTES
        self._is_fresh = False
        self._next_turn: asyncio.Handle | None = None
        self._body_took = 0  # bytes received for the current body, framing included
        self._interim = 0
        self._is_asked = False
        self._mender = Mender()
        self._look: select.poll | None = None
        self._silent_at = inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """With TLS the gate is above the encryption: bytes that pass it are encrypted and written at once."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", _Gate(transport, self._may_ask))

    @property
    def should_close(self) -> bool:
        """Also True while unparsed bytes are left, which belong to no answer, and after an answer that was mended."""
        return bool(self._rest or self._mender.held) or self._mender.has_mended or super().should_close

    def set_response_params(self, **params: Any) -> None:
        """A request follows: its answer may come.

        A server that answers as soon as it accepts a connection answers no request. The first request takes that
        answer, as in browsers; the connection is not kept, because the next answer would go to the wrong request.
        """
        self._is_asked = True
        self._should_close |= bool(self._tail or self._rest or self._mender.held)
        super().set_response_params(**params)

    @property
    def _is_idle(self) -> bool:
        return not self._is_asked and self._parser is not None and (self._payload is None or self._payload.is_eof())

    def has_unread(self) -> bool:
        """Whether the kernel has bytes, or the connection's end, that the loop has not read yet."""
        of_loop = self.transport.get_extra_info("socket") if self.transport is not None else None
        if of_loop is None:
            return True
        if self._look is None:
            self._look = select.poll()
            self._look.register(of_loop.fileno(), select.POLLIN)
        return bool(self._look.poll(0))

    def data_received(self, data: bytes) -> None:
        """Bytes from the server; empty when the reader wants the bytes that the parser still has."""
        self._is_fresh = bool(data)
        if len(data) <= SLICE_BYTES and not self._rest:
            self._parse(data)
        elif data:
            self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
            if self._next_turn is None and not self._reading_paused:
                self._go_on()
        else:
            super().data_received(data)
            self._go_on_later()

    def _parse(self, data: bytes) -> None:
        """Each head on its own: an error in the body must not lose it."""
        while data and self._is_asked and self._parser is not None:
            head, data = self._mender.head(data)
            if not head:
                self._reschedule_timeout()
                if len(self._mender.held) > MOST_HEAD_BYTES:
                    why = f"Got more than {MOST_HEAD_BYTES} bytes of a head"
                    self._give_up(self, HttpProcessingError(message=why))
                return
            self._feed(head)
            if self._exception is not None or not data:
                return
        self._feed(self._mender.body(data), len(data))

    def _feed(self, data: bytes, took: int = 0) -> None:
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
            self._body_took += took
            if self._body_took > FRAMING_BYTES + (1 + FRAMING_SHARE) * body.total_bytes and not body.is_eof():
                self._give_up(body, aiohttp.ClientPayloadError("a body of little but framing"))

    def feed_data(self, data: Any, size: int = 0) -> None:
        """The head of an answer, or of an interim response: those are counted, because each restarts the timeout."""
        if self._exception is not None:
            return  # the connection has failed; these bytes came with the ones that made it fail
        if not self._is_asked:
            self._end_unasked()
            return
        super().feed_data(data, size)
        code = data[0].code
        self._is_asked = code // 100 == 1 and code != 101
        self._mender.begin(has_chunks=data[0].chunked and data[1] is not EMPTY_PAYLOAD)
        self._interim = self._interim + 1 if self._is_asked else 0
        if self._interim == MOST_INTERIM + 1:
            self._give_up(self, HttpProcessingError(message=f"more than {MOST_INTERIM} interim responses"))

    def _has_begun_another(self) -> bool:
        """Whether the parser holds the beginning of another answer: on end of input it then raises or returns it."""
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except Exception:  # noqa: BLE001  # any error means that an answer has begun
            return True

    def _end_unasked(self) -> None:
        """End the connection: the server sends bytes that answer no request. An answer before them stays whole."""
        self._forget()
        self._should_close = True
        if self.transport is not None:
            self.transport.close()

    def _give_up(self, reader: Any, error: Exception) -> None:
        """End the connection, and pass the reason to the reader of its answer or body."""
        self._forget()
        reader.set_exception(error)
        if self.transport is not None:
            self.transport.close()

    def _reschedule_timeout(self) -> None:
        """Wait for the next bytes from now on. One timer serves many answers; aiohttp makes one for each piece."""
        timeout_s = self._read_timeout
        if not timeout_s:
            self._silent_at = inf
            return
        self._silent_at = self._loop.time() + timeout_s
        timer = self._read_timeout_handle
        if timer is not None and timer.when() > self._silent_at:
            timer.cancel()
            timer = None
        if timer is None:
            self._read_timeout_handle = self._loop.call_at(self._silent_at, self._on_read_timeout)

    def _drop_timeout(self) -> None:
        """Wait for nothing. The timer of a connection that may be used again goes on."""
        self._silent_at = inf
        if self.transport is None or self._connection_lost_called:
            super()._drop_timeout()

    def _on_read_timeout(self) -> None:
        """The timer's end: the silence is too long, or began later."""
        self._read_timeout_handle = None
        if self._silent_at == inf:
            return
        if self._silent_at - self._loop.time() > CLOCK_S:
            self._read_timeout_handle = self._loop.call_at(self._silent_at, self._on_read_timeout)
            return
        super()._on_read_timeout()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Let the parser continue with bytes it holds, unless it did so since the last bytes arrived.

        The reader calls this with every chunk, paused or not; with chunks of one byte these calls took most of the
        time. After a pause two calls pass, because the first may only end the parser's own pause.
        """
        was_paused = self._reading_paused
        if was_paused or (self._is_fresh and resume_parser):
            super().resume_reading(resume_parser)
        self._is_fresh = was_paused and resume_parser

    def _go_on(self) -> None:
        """Parse for `TURN_S`, or until the reader has enough."""
        self._next_turn = None
        was_held, self._buffer_paused = self._buffer_paused, False  # aiohttp may hold it for a buffer of its own
        began = time.monotonic()
        took_s = 0.0
        while self._rest and not self._reading_paused and took_s < TURN_S:
            piece, self._rest = self._rest[: self._slice_bytes], self._rest[self._slice_bytes :]
            self._is_fresh = True
            self._parse(bytes(piece))  # may end the answer, and then checks `_rest`
            took_s = time.monotonic() - began
        self._slice_bytes = WHOLE_BYTES if took_s < TURN_S else SLICE_BYTES
        if self._rest:
            self._go_on_later()
        elif was_held and not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _go_on_later(self) -> None:
        self._pause_reading_for_buffer()
        self._drop_timeout()  # the server is not to blame for the pause
        if not self._reading_paused and self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._go_on)

    def close(self) -> None:
        self._forget()
        super().close()

    def abort(self) -> None:
        self._forget()
        super().abort()

    def set_exception(self, *args: Any) -> None:
        """Drop the unparsed bytes: after an error they are no answer.

        aiohttp's parser forgets the body in which it failed, so its reader would wait until the deadline.
        """
        self._forget()
        body = self._payload
        super().set_exception(*args)
        if isinstance(args[0], HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(f"not the coding of a body: {args[0]!r}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """A reset or a failed write: parse the bytes that came before it."""
        rest = bytes(self._mender.held) + bytes(self._rest)
        self._forget()
        if rest:
            super().data_received(rest)
        super().connection_lost(exc)

    def _forget(self) -> None:
        self._rest = _NOTHING
        self._mender.held = bytearray()
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
