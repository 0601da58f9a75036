"""Servers that answer byte by byte, the answers, and clients that ask them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from aiohttp.client_proto import ResponseHandler

from crawlog.agents.client.client import Client
from crawlog.streams.settings.settings import Settings
from tests.support.sites import Site

if TYPE_CHECKING:
    from crawlog.agents.client.connections import Connector


LIMIT = 10_000


HTML = "Content-Type: text/html\r\n"


Speak = Callable[[asyncio.StreamWriter], Awaitable[None]]


def settings(**fetch: Any) -> Settings:
    """Small limits; loopback is allowed."""
    base = Settings()
    limits = {"max_body_bytes": LIMIT, "timeout_s": 60.0} | fetch
    network = base.network.model_copy(update={"allow_private": True})
    return base.model_copy(update={"fetch": base.fetch.model_copy(update=limits), "network": network})


def response(body: bytes, headers: str = HTML, status: str = "200 OK") -> bytes:
    """A whole response of known length."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Web:
    """A server with one answer, the requests it got, and how many connections it saw."""

    def __init__(self, speak: Speak) -> None:
        self.speak = speak
        self.requests: list[bytes] = []
        self.connections = 0
        self._serving: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection more."""
        self.connections += 1
        self._writers.append(to_client)
        self._serving.add(asyncio.create_task(self._serve(from_client, to_client)))

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Until the client or the answer ends it."""
        try:
            while True:
                self.requests.append(await from_client.readuntil(b"\r\n\r\n"))
                await self.speak(to_client)
        except (asyncio.IncompleteReadError, OSError):
            return
        finally:
            to_client.transport.abort()

    async def close(self) -> None:
        """End all connections."""
        for serving in self._serving:
            serving.cancel()
        await asyncio.wait(self._serving or {asyncio.create_task(asyncio.sleep(0))})
        for writer in self._writers:
            writer.transport.abort()  # also of one whose task had not begun
        await asyncio.sleep(0)


@asynccontextmanager
async def talk(
    speak: Speak, may_ask: Callable[[], bool] = lambda: True, **fetch: Any
) -> AsyncIterator[tuple[Client, Web, str]]:
    """A client, a server that speaks so, and its URL."""
    web = Web(speak)
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0)
    client = Client(settings(**fetch), "tester", may_ask)
    try:
        yield client, web, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page"
    finally:
        await client.close()
        server.close()
        await web.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # the client tells nobody
            await asyncio.sleep(0.01)


Formed = Callable[[bytes], bytes]


def sized(body: bytes) -> bytes:
    """An answer that tells its length."""
    return f"HTTP/1.1 200 OK\r\n{HTML}Content-Length: {len(body)}\r\n\r\n".encode() + body


def chunked(body: bytes) -> bytes:
    """An answer in chunks."""
    return f"HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n".encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (
        len(body),
        body,
    )


class Pages(Site):
    """Answers a request for /NAME with the body NAME, the first one in a form of its own.

    Args:
        first: The form of the first answer.
        behind: Bytes that come in the same packet behind it.

    Attributes:
        connections: How many came.
        lines: Those with a request, in its order: a client of a broker that had this port may try it once more.
    """

    def __init__(self, first: Formed = sized, behind: bytes = b"") -> None:
        super().__init__()
        self.first, self.behind = first, behind
        self.connections = 0
        self.lines: list[asyncio.StreamWriter] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while True:
                asked = (await from_client.readuntil(b"\r\n\r\n")).decode()
                if to_client not in self.lines:
                    self.lines.append(to_client)
                self.requests.append(asked)
                name = asked.split()[1].rpartition("/")[2].encode()
                to_client.write(self.first(name) + self.behind if len(self.requests) == 1 else sized(name))
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()

    def says(self, unasked: bytes) -> None:
        """Send bytes on the newest connection."""
        self.lines[-1].write(unasked)


@asynccontextmanager
async def served(site: Site, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server's port, as long as it is needed."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def accepted(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        writers.append(to_client)
        tasks.add(asyncio.ensure_future(site.serve(from_client, to_client)))

    server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await turns()


@asynccontextmanager
async def client_by(*proxies: str) -> AsyncIterator[Client]:
    """A client that may reach loopback, and knows no authority."""
    base = Settings()
    network = base.network.model_copy(update={"allow_private": True, "verify_tls": False})
    exits = base.exits.model_copy(update={"proxies": proxies})
    client = Client(base.model_copy(update={"network": network, "exits": exits}), "tester", lambda: True)
    try:
        yield client
    finally:
        await client.close()


async def turns() -> None:
    """So many turns of the loop that what was sent is read."""
    for _ in range(20):
        await asyncio.sleep(0)


class Wire(asyncio.Transport):
    """Notes whether it would be read from; nothing is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.is_read = True
        self.is_closed = False

    def pause_reading(self) -> None:
        """From now on."""
        self.is_read = False

    def resume_reading(self) -> None:
        """From now on."""
        self.is_read = True

    def is_closing(self) -> bool:
        """Whether somebody has closed it."""
        return self.is_closed

    def close(self) -> None:
        """For good."""
        self.is_closed = True


async def connected(read_timeout_s: float | None = None, *, is_asked: bool = True) -> tuple[ResponseHandler, Wire]:
    """A connection, that a request was sent on if it was asked, and the wire it reads from."""
    client = Client(settings(), "tester", lambda: True)
    handler = cast("Connector", client._session.connector)._factory()
    await client.close()
    wire = Wire()
    handler.connection_made(wire)
    if is_asked:
        handler.set_response_params(read_timeout=read_timeout_s)
    return handler, wire
