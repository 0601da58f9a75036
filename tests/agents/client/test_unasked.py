"""Bytes that answer no request end their connection and are no page, however they come."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from crawlog.agents.browser.resources import Resources
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.frontier.host_turns import Hosts
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.url.place import Places
from tests.agents.browser.test_resources import Owner, _no_rules, budget, script
from tests.agents.client.test_protocol import connected
from tests.streams.http.test_request import Socks, _certify, _pump
from tests.support.sites import Site

UNASKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\nnobody"
HTML = "Content-Type: text/html\r\n"

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


def large(body: bytes) -> bytes:
    """An answer that comes in several packets."""
    return sized(body + b" " * 200_000)


def bodiless(status: str, headers: str = "") -> Formed:
    """An answer that has no body by its status (RFC 9110 6.4.1)."""
    return lambda _: f"HTTP/1.1 {status}\r\n{headers}\r\n".encode()


ANSWERS = {
    "sized": sized,
    "chunked": chunked,
    "large": large,
    "empty": lambda _: sized(b""),
    "204": bodiless("204 No Content"),
    "304": bodiless("304 Not Modified", "Content-Length: 6\r\n"),
}


class Pages(Site):
    """Answers a request for /NAME with the body NAME, the first one in a form of its own.

    Args:
        first: The form of the first answer.
        behind: Bytes that come in the same packet behind it.
    """

    def __init__(self, first: Formed = sized, behind: bytes = b"") -> None:
        super().__init__()
        self.first, self.behind = first, behind
        self.lines: list[asyncio.StreamWriter] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        self.lines.append(to_client)
        try:
            while True:
                asked = (await from_client.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(asked)
                name = asked.split()[1].rpartition("/")[2].encode()
                to_client.write(self.first(name) + self.behind if len(self.requests) == 1 else sized(name))
        except (asyncio.IncompleteReadError, OSError):
            to_client.close()

    def says(self, unasked: bytes) -> None:
        """Send bytes on the newest connection."""
        self.lines[-1].write(unasked)


class Tunnel(Site):
    """A proxy that makes tunnels (RFC 9110 9.3.6), all to one port.

    Args:
        behind: Bytes that come in the same packet behind its answer.
    """

    def __init__(self, port: int, behind: bytes = b"") -> None:
        super().__init__()
        self.port, self.behind = port, behind

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One tunnel."""
        self.requests.append((await from_client.readuntil(b"\r\n\r\n")).decode())
        to_client.write(b"HTTP/1.1 200 OK\r\n\r\n" + self.behind)
        from_site, to_site = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await asyncio.gather(_pump(from_client, to_site), _pump(from_site, to_client))
        finally:
            to_site.transport.abort()


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
    fetch = base.fetch.model_copy(update={"proxies": proxies})
    client = Client(base.model_copy(update={"network": network, "fetch": fetch}), "tester", lambda: True)
    try:
        yield client
    finally:
        await client.close()


async def turns() -> None:
    """So many turns of the loop that what was sent is read."""
    for _ in range(20):
        await asyncio.sleep(0)


async def body_of(client: Client, url: str) -> bytes:
    """The body of a page."""
    answer = await client.get(HttpRequest(url))
    assert answer.error == ""
    return answer.body.strip()


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("is_read", [True, False])
async def test_an_unsolicited_answer_on_an_idle_connection_is_dropped(kind: str, is_read: bool) -> None:
    """The next requests get their own answers, whether the loop has read the bytes or they wait in the kernel."""
    site = Pages(ANSWERS[kind])
    async with served(site) as port, client_by() as client:
        await client.get(HttpRequest(f"http://127.0.0.1:{port}/one"))
        site.says(UNASKED)
        if is_read:
            await turns()
        bodies = [await body_of(client, f"http://127.0.0.1:{port}/{name}") for name in ("two", "three")]
    assert bodies == [b"two", b"three"]
    assert len(site.lines) == 2


BEHIND = {
    "whole": UNASKED,
    "two": UNASKED * 2,
    "half": UNASKED[:30],
    "byte": b"H",
    "interim": b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "nonsense": b"nobody",
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("behind", BEHIND)
async def test_bytes_behind_an_answer_in_its_packet_end_the_connection(kind: str, behind: str) -> None:
    """The answer before them is whole, and the next requests get their own answers on another connection."""
    site = Pages(ANSWERS[kind], BEHIND[behind])
    async with served(site) as port, client_by() as client:
        first = await client.get(HttpRequest(f"http://127.0.0.1:{port}/one"))
        bodies = [await body_of(client, f"http://127.0.0.1:{port}/{name}") for name in ("two", "three")]
    assert (first.error, first.body.strip()) == ("", b"one" if ANSWERS[kind](b"one").count(b"one") else b"")
    assert bodies == [b"two", b"three"]
    assert len(site.lines) == 2


@pytest.mark.parametrize("behind", BEHIND)
async def test_the_connection_ends_with_the_packet_and_keeps_one_answer(behind: str) -> None:
    """Nothing of the bytes behind it waits in memory for the next request."""
    handler, wire = await connected()
    handler.data_received(sized(b"one") + BEHIND[behind])
    assert wire.is_closed
    assert (await handler.read())[0].code == 200
    assert not handler._buffer


@pytest.mark.parametrize("way", ["plain", "tls", "forward", "connect", "socks5h"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_unsolicited_answer_is_dropped_on_every_way_of_a_request(
    way: str, run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    """Plain, over TLS, by a forward proxy, through a CONNECT tunnel and by SOCKS, on both event loops."""
    tls = _server_tls(tmp_path) if way in ("tls", "connect") else None

    async def ask() -> None:
        site = Pages()
        async with served(site, tls) as port:
            proxy = {"connect": Tunnel(port), "socks5h": Socks(site)}.get(way)
            async with served(proxy or Site()) as by:
                pool = {"forward": f"http://127.0.0.1:{port}", "connect": f"http://127.0.0.1:{by}"}
                pool["socks5h"] = f"socks5h://127.0.0.1:{by}"
                base = {"plain": f"http://127.0.0.1:{port}", "tls": f"https://127.0.0.1:{port}"}
                at = base.get(way, "https://name.test" if way == "connect" else "http://name.test")
                async with client_by(*filter(None, [pool.get(way)])) as client:
                    bodies = []
                    for name in ("one", "two", "three"):
                        bodies.append(await body_of(client, f"{at}/{name}"))
                        site.says(UNASKED)
                        await turns()
        assert bodies == [b"one", b"two", b"three"]
        assert len(site.lines) == 3

    run(ask())


async def test_bytes_behind_a_tunnels_answer_are_not_the_sites(tmp_path: Path) -> None:
    """The proxy sends them before the TLS handshake; no page gets them."""
    site = Pages()
    async with served(site, _server_tls(tmp_path)) as port:
        proxy = Tunnel(port, UNASKED)
        async with served(proxy) as by, client_by(f"http://127.0.0.1:{by}") as client:
            bodies = [await body_of(client, f"https://name.test/{name}") for name in ("one", "two")]
    assert bodies == [b"one", b"two"]
    assert len(proxy.requests) == 1


async def test_requests_of_a_page_in_the_browser_get_their_own_answers() -> None:
    """They share connections with the crawl's."""
    site, owner = Pages(), Owner()
    async with served(site) as port, client_by() as client:
        hosts = Hosts(owner.frontier, Places(1).of, lambda *_: 0.0)
        resources = Resources(load({"network.allow_private": True}, NO_FILE, {}), client, hosts, _no_rules(owner))
        await client.get(HttpRequest(f"http://127.0.0.1:{port}/page"))
        site.says(UNASKED)
        await turns()
        answer = await resources.get(script(f"http://127.0.0.1:{port}/app.js"), {}, budget())
    assert (answer.http, answer.body) == (200, b"app.js")


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_is_kept_while_it_is_silent(is_tls: bool, tmp_path: Path) -> None:
    """No look closes it without need. A connection that its server has closed gets no request."""
    site = Pages()
    async with served(site, _server_tls(tmp_path) if is_tls else None) as port, client_by() as client:
        at = f"{'https' if is_tls else 'http'}://127.0.0.1:{port}"
        for name in ("one", "two", "three"):
            assert await body_of(client, f"{at}/{name}") == name.encode()
        assert len(site.lines) == 1
        site.lines[0].transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # at once, before the loop turns
        assert await body_of(client, f"{at}/four") == b"four"
    assert (len(site.requests), len(site.lines)) == (4, 2)


def _server_tls(folder: Path) -> ssl.SSLContext:
    """A server's, for name.test."""
    _certify(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
