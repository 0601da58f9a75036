"""A service without credentials: what strangers send costs it neither time nor connections."""

import asyncio
import contextlib
import resource
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.compression_utils import ZLibDecompressor

from crawlog.service import doors
from crawlog.service.doors import FILES, IN_ALL, PER_ADDRESS
from crawlog.service.process import make_app
from crawlog.service.routing import Handler
from crawlog.streams import files
from tests.support.serving import OWN_TOKEN, service_settings, told_fleet

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
READY = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Door:
    """A service behind its doors, and those who knock.

    Attributes:
        knocking: All connections so far.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.knocking: list[Connection] = []

    async def send(self, sent: bytes, address: str = "127.0.0.1") -> asyncio.StreamReader:
        """The answer to what is sent over a connection of its own, from this address."""
        reading, writing = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self.knocking.append((reading, writing))
        writing.write(sent)
        await writing.drain()
        return reading

    async def status(self, sent: bytes, address: str = "127.0.0.1") -> int:
        """The status that is answered; 0 for a connection that is closed without one."""
        try:
            line = await (await self.send(sent, address)).readline()
        except ConnectionResetError:
            return 0
        return int(line.split()[1]) if line else 0


@contextlib.asynccontextmanager
async def opened(handler: Handler | None = None) -> AsyncIterator[Door]:
    """A service on a real socket, as its process opens it; `handler` answers /readyz."""
    app = make_app(service_settings(), told_fleet(), OWN_TOKEN)
    for route in app.router.routes():
        if handler is not None and route.resource is not None and route.resource.canonical == "/readyz":
            route._handler = handler  # type: ignore[assignment]  # an aiohttp handler is a coroutine function
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        door = Door(listening.getsockname()[1])
        async with doors.serving(app, listening):
            try:
                yield door
            finally:
                for _, writing in door.knocking:
                    writing.close()


@pytest.mark.parametrize("token", ["", OWN_TOKEN])
async def test_a_packed_body_is_never_unpacked(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of gzip unpacks to a gigabyte; while one did, nobody else was answered."""
    unpacked: list[object] = []

    class Unpacking(ZLibDecompressor):
        def __init__(self, *args: Any, **named: Any) -> None:
            unpacked.append(args)
            super().__init__(*args, **named)

    monkeypatch.setattr("aiohttp.http_parser.ZLibDecompressor", Unpacking)
    packer = zlib.compressobj(wbits=31)
    body = b"".join(packer.compress(bytes(1 << 20)) for _ in range(16)) + packer.flush()
    head = (
        "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with opened() as door:
        assert await door.status(head.encode() + body) == 415
        assert await door.status(HALF + b"\r\n") == 200
    assert not unpacked


async def test_half_requests_lock_nobody_out() -> None:
    """The newest one of a crowded address takes the place of the oldest that only waits."""
    async with opened() as door:
        waiting = [await door.send(HALF) for _ in range(PER_ADDRESS + 40)]
        assert await door.status(HALF + b"\r\n") == 200
        assert await asyncio.gather(*(one.read() for one in waiting[:40])) == [b""] * 40
        assert not waiting[-1].at_eof()


async def test_an_address_that_takes_all_connections_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address with the most connections loses its oldest, and nobody else does."""
    monkeypatch.setattr(doors, "IN_ALL", 6)
    async with opened() as door:
        first = await door.send(HALF, "127.0.0.2")
        crowd = [await door.send(HALF, "127.0.0.3") for _ in range(20)]
        assert await door.status(HALF + b"\r\n", "127.0.0.4") == 200
        assert await crowd[0].read() == b""
        assert not first.at_eof()


async def test_a_connection_at_work_makes_room_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live rows and uploads go on; the new one is refused where all are at work."""
    monkeypatch.setattr(doors, "PER_ADDRESS", 2)
    may_end, at_work = asyncio.Event(), asyncio.Semaphore(0)

    async def works(_: web.Request) -> web.Response:
        at_work.release()
        await may_end.wait()
        return web.Response()

    async with opened(works) as door:
        held = [await door.send(READY) for _ in range(2)]
        for _ in held:
            await at_work.acquire()
        assert await door.status(READY) == 0
        may_end.set()
        assert [(await one.readline())[:12] for one in held] == [b"HTTP/1.1 200"] * 2


async def test_half_a_request_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first request of a connection, and behind one."""
    monkeypatch.setattr(doors, "HEADERS_S", 0.05)
    async with opened() as door:
        assert await (await door.send(HALF)).read() == b""
        assert (await (await door.send(HALF + b"\r\n" + HALF)).read()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("hard", "may_open"), [(512, 512), (1 << 20, FILES), (resource.RLIM_INFINITY, FILES)])
def test_the_process_may_open_a_file_for_each_connection(
    hard: int, may_open: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit is raised as far as it may be."""
    limits = {"soft": 256}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(soft=new[0]))
    assert (files.want_open(FILES), limits["soft"]) == (may_open, may_open)
    assert FILES > IN_ALL
