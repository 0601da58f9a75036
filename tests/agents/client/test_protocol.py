"""How long a connection keeps the loop, and that nothing of an answer is lost by its turns."""

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from crawlog.agents.client import protocol
from crawlog.agents.client.protocol import FRAMING_BYTES, MOST_INTERIM, SLICE_BYTES
from crawlog.agents.client.transport import HttpRequest
from tests.support.raw_http import HTML, connected, response, talk, until

HEAD = f"HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n".encode()
CHUNK = b"1\r\nx\r\n"
END = b"0\r\n\r\n"
MANY = 16_000
"""Chunks: three turns' work, and few enough that aiohttp waits for no reader."""


@pytest.fixture
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is parsed takes a second."""
    clock = SimpleNamespace(monotonic=map(float, itertools.count()).__next__)
    monkeypatch.setattr(protocol, "time", clock)


async def body_of(handler: ResponseHandler) -> StreamReader:
    """The answer's body, to be read."""
    _, body = await handler.read()
    return body


async def turn() -> None:
    """One turn of the loop."""
    await asyncio.sleep(0)


@pytest.mark.usefixtures("_slow")
async def test_expensive_bytes_leave_the_loop_to_others() -> None:
    """A piece in each turn, the server held meanwhile, and the connection may be used again."""
    handler, wire = await connected()
    handler.data_received(HEAD + CHUNK * MANY + END)
    body = await body_of(handler)
    turns = 0
    while not body.is_eof():
        assert not wire.is_read
        assert handler.should_close
        turns += 1
        await turn()
    assert turns >= 2
    assert await body.read() == b"x" * MANY
    assert wire.is_read
    assert not handler.should_close


async def test_cheap_bytes_are_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many came."""
    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: 0.0))
    handler, wire = await connected()
    handler.data_received(response(b"x" * 300_000))
    body = await body_of(handler)
    assert body.is_eof()
    assert wire.is_read
    assert not handler.should_close


@pytest.mark.usefixtures("_slow")
async def test_a_reader_that_has_enough_gets_no_more() -> None:
    """The rest waits for it, not for the loop; and goes on when it reads."""
    handler, wire = await connected()
    handler.data_received(HEAD + CHUNK * MANY)
    body = await body_of(handler)
    handler.pause_reading()
    for _ in range(20):
        await turn()
    assert not wire.is_read
    assert body.total_bytes < MANY
    handler.data_received(END)  # what TLS had decrypted
    handler.resume_reading()
    async with asyncio.timeout(60):
        assert await body.read() == b"x" * MANY


async def test_small_chunks_are_joined_as_they_come() -> None:
    """An object for each of a million took half of what they cost; and nothing is lost between large ones."""
    handler, _ = await connected()
    sizes = [1] * 500 + [63, 64, 65, 1, 1000, 1, 1, 300_000, 2] * 3
    parts = [bytes((number % 251,)) * size for number, size in enumerate(sizes)]
    handler.data_received(HEAD)
    body = await body_of(handler)
    for part in parts[:500]:
        handler.data_received(b"%x\r\n%s\r\n" % (len(part), part))
    assert len(body._buffer) < 20
    got = b""
    for part in [*parts[500:], b""]:
        got += await body.readany() if body._buffer else b""
        handler.data_received(b"%x\r\n%s\r\n" % (len(part), part))
    async with asyncio.timeout(60):
        got += await body.read()
    assert got == b"".join(parts)
    assert body.total_bytes == len(got)


async def test_a_pause_between_two_pieces_delays_nothing() -> None:
    """The parser heeds it only with the next one, when nobody is paused any more, and keeps what came with that."""
    handler, _ = await connected()
    handler.data_received(HEAD + CHUNK)
    body = await body_of(handler)
    assert await body.readany() == b"x"
    handler.pause_reading()
    handler.resume_reading()
    handler.data_received(CHUNK * 3 + END)
    async with asyncio.timeout(60):
        assert await body.read() == b"xxx"


@pytest.mark.usefixtures("_slow")
async def test_a_rest_that_waits_is_no_silence_of_the_server() -> None:
    """The clock of the next byte stands still."""
    handler, _ = await connected(read_timeout_s=0.001)
    handler.data_received(HEAD + CHUNK * MANY)
    body = await body_of(handler)
    time.sleep(0.01)  # noqa: ASYNC251  # the loop is kept by others
    await turn()
    assert body.exception() is None
    await until(lambda: body.exception() is not None)
    assert body.total_bytes == MANY


@pytest.mark.usefixtures("_slow")
async def test_what_came_before_a_reset_counts() -> None:
    """All that the kernel had handed over."""
    handler, wire = await connected()
    handler.data_received(HEAD + CHUNK * MANY + END)
    body = await body_of(handler)
    assert not body.is_eof()
    wire.close()
    handler.connection_lost(ConnectionResetError())
    assert await body.read() == b"x" * MANY


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("how", ["close", "abort", "nonsense"])
async def test_nobody_parses_the_rest_of_a_connection_that_is_given_up(how: str, monkeypatch: Any) -> None:
    """Closed by its reader, or by what the parser could not read."""
    handler, wire = await connected()
    handler.data_received(HEAD + CHUNK * MANY + b"nonsense" * SLICE_BYTES)
    body = await body_of(handler)
    if how == "nonsense":
        while not wire.is_closed:
            await turn()
        assert handler.exception() is not None
    else:
        wire.abort = wire.close  # type: ignore[method-assign]  # one end is like the other here
        getattr(handler, how)()
    monkeypatch.setattr(ResponseHandler, "data_received", None)  # whoever calls it now fails
    before = body.total_bytes
    for _ in range(20):
        await turn()
    assert body.total_bytes == before


@pytest.mark.usefixtures("_slow")
async def test_an_upgrade_that_nobody_asked_for_ends_the_connection() -> None:
    """The bytes behind it would fill a buffer for as long as the server sends. The answer itself is told."""
    handler, wire = await connected()
    handler.data_received(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + bytes(1 << 20))
    assert wire.is_closed
    assert handler.should_close
    assert (await handler.read())[0].code == 101
    assert not handler._tail


async def test_an_answer_before_the_first_request_is_the_last_one_of_its_connection() -> None:
    """A busy server may answer as it accepts; its next answer would go to the wrong request."""
    handler, _ = await connected(is_asked=False)
    handler.data_received(response(b"too busy", status="503 Service Unavailable"))
    handler.set_response_params()
    assert (await handler.read())[0].code == 503
    assert handler.should_close


@pytest.mark.usefixtures("_slow")
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_answer_in_turns_is_whole(is_chunked: bool) -> None:
    """From a socket: up to its last chunk, after which the connection is used again, or to the connection's end."""
    size = 100_000
    parts = [HEAD, *[CHUNK] * size, END] if is_chunked else [f"HTTP/1.0 200 OK\r\n{HTML}\r\n".encode(), b"x" * size]

    async def speak(out: asyncio.StreamWriter) -> None:
        out.write(b"".join(parts))
        await out.drain()
        if not is_chunked:
            out.close()

    async with talk(speak, max_body_bytes=size, timeout_s=60.0) as (client, web, url):
        for _ in range(2):
            answer = await client.get(HttpRequest(url))
            assert (answer.error, answer.body) == ("", b"x" * size)
    assert web.connections == (1 if is_chunked else 2)


async def test_a_body_of_little_but_framing_ends() -> None:
    """An extension of a chunk has no end of its own, and took all of the loop for as long as the server sent it."""
    handler, wire = await connected()
    handler.data_received(HEAD + CHUNK + b"1;")
    body = await body_of(handler)
    sent = 0
    while not wire.is_closed:
        assert sent <= FRAMING_BYTES + SLICE_BYTES
        handler.data_received(b"x" * SLICE_BYTES)
        sent += SLICE_BYTES
    assert sent >= FRAMING_BYTES
    with pytest.raises(aiohttp.ClientPayloadError):
        await body.readany()


async def test_framing_in_proportion_is_no_excess() -> None:
    """Small chunks, each with an extension, as many as may be."""
    handler, wire = await connected()
    handler.data_received(HEAD)
    body = await body_of(handler)
    got = b""
    for _ in range(100):
        handler.data_received(b"1;name=value\r\nx\r\n" * 900)
        got += await body.readany()
    handler.data_received(END)
    assert got + await body.read() == b"x" * 90_000
    assert not wire.is_closed


@pytest.mark.parametrize(("count", "error"), [(MOST_INTERIM, ""), (MOST_INTERIM + 1, "bad_http")])
async def test_interim_responses_end(count: int, error: str) -> None:
    """Each of them put off the end of waiting for an answer, and a server can send 10,000 a second."""

    async def speak(out: asyncio.StreamWriter) -> None:
        out.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * count + response(b"<p>x"))
        await out.drain()

    async with talk(speak) as (client, web, url):
        for _ in range(2):
            answer = await client.get(HttpRequest(url))
            assert (answer.error, answer.body) == (error, b"" if error else b"<p>x")
    assert web.connections == (2 if error else 1)
