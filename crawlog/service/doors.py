"""Who may hold a connection, and how often an address may ask: limits of one address, and in all.

a connection ─► room? ─► aiohttp's handler ─► the middlewares, `under_way` first
                  │ no
                  └─► the oldest one that waits for a request is closed; where all are at work, the new one
"""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from .routing import Handler

ADDRESSES = 10_000  # Addresses that are remembered; beyond it full buckets are forgotten


class Rates:
    """How often each address may do something.

    Args:
        per_s: Times a second.
        at_once: Times at once after a pause.
    """

    def __init__(self, per_s: float, at_once: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, address: str) -> bool:
        """Counts it; False if it may not now."""
        level = self._level(address)
        if level < 1:
            return False
        if len(self._buckets) >= ADDRESSES:
            self._buckets = {one: kept for one, kept in self._buckets.items() if self._level(one) < self._at_once}
            if len(self._buckets) >= ADDRESSES:
                self._buckets.clear()
        self._buckets[address] = self._clock(), level - 1
        return True

    def give_back(self, address: str) -> None:
        """Takes back what `take` counted."""
        self._buckets[address] = self._clock(), min(self._at_once, self._level(address) + 1)

    def _level(self, address: str) -> float:
        at, level = self._buckets.get(address, (0.0, self._at_once))
        return min(self._at_once, level + (self._clock() - at) * self._per_s)


# Connections of one address, and of all. Each may hold a first line of `LINE_BYTES` and 1 MB of headers.
PER_ADDRESS, IN_ALL = 128, 256

FILES = IN_ALL + 1_024  # Open files that the service wants: connections, the clients of Kafka, files of commands

HEADERS_S = 15.0  # How long a connection may be without a whole request: from its begin, or from the answer before

LINGER_S = 1.0  # How long the rest of a body that nobody wanted is read, so that the client sees the answer

LINE_BYTES = 1 << 19  # Longest first line of a request: it holds the longest URL and cursor of a query, escaped

STOP_S = 1.0  # How long requests under way may take at the end, seconds

AT_WORK: web.AppKey[set[object]] = web.AppKey("at_work", set)  # Connections whose request is being answered


@web.middleware
async def under_way(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes that the connection is at work, so that it makes room for no other one."""
    at_work = request.app[AT_WORK]
    at_work.add(request.protocol)
    try:
        return await handler(request)
    finally:
        at_work.discard(request.protocol)


@contextlib.asynccontextmanager
async def serving(app: web.Application, listening: socket.socket) -> AsyncIterator[None]:
    """Serves on the socket, as long as the block lasts.

    Bodies are left in their coding: aiohttp would unpack one before it is known who sent it, even to throw it away.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=STOP_S,
        max_line_size=LINE_BYTES,
        auto_decompress=False,
        keepalive_timeout=HEADERS_S,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    assert runner.server is not None
    server = runner.server
    door = await asyncio.get_running_loop().create_server(lambda: _Door(server, app[AT_WORK]), sock=listening)
    try:
        yield
    finally:
        door.close()
        await runner.cleanup()


class _Door(asyncio.Protocol):
    """A connection until there is room for it."""

    def __init__(self, server: web.Server, at_work: set[object]) -> None:
        self._server = server
        self._at_work = at_work

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._make_room(_address(transport)):
            transport.abort()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)

    def _make_room(self, address: str) -> bool:
        there = [(one, _address(one.transport)) for one in self._server.connections if one.transport is not None]
        held = Counter(one for _, one in there)
        if held[address] >= PER_ADDRESS:
            crowd = address
        elif len(there) >= IN_ALL:
            crowd = held.most_common(1)[0][0]
        else:
            return True
        oldest = next((one for one, its in there if its == crowd and one not in self._at_work), None)
        if oldest is None:
            return False
        oldest.force_close()
        return True


def _address(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else ""
