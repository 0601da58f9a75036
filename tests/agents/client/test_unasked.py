"""Bytes that answer no request end their connection and are no page, however they come."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from crawlog.agents.browser.resources import Resources
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.agents.frontier.host_turns import Hosts
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.url.place import Places
from tests.support.browsing import Owner, budget, no_rules, script
from tests.support.proxies import Socks, Tunnel, server_tls
from tests.support.raw_http import Formed, Pages, chunked, client_by, connected, served, sized, turns
from tests.support.sites import Site

UNASKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\nnobody"


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
    tls = server_tls(tmp_path) if way in ("tls", "connect") else None

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
    async with served(site, server_tls(tmp_path)) as port:
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
        resources = Resources(load({"network.allow_private": True}, NO_FILE, {}), client, hosts, no_rules(owner))
        await client.get(HttpRequest(f"http://127.0.0.1:{port}/page"))
        site.says(UNASKED)
        await turns()
        answer = await resources.get(script(f"http://127.0.0.1:{port}/app.js"), {}, budget())
    assert (answer.http, answer.body) == (200, b"app.js")


@pytest.mark.parametrize("is_tls", [False, True])
async def test_a_connection_is_kept_while_it_is_silent(is_tls: bool, tmp_path: Path) -> None:
    """No look closes it without need. A connection that its server has closed gets no request."""
    site = Pages()
    async with served(site, server_tls(tmp_path) if is_tls else None) as port, client_by() as client:
        at = f"{'https' if is_tls else 'http'}://127.0.0.1:{port}"
        for name in ("one", "two", "three"):
            assert await body_of(client, f"{at}/{name}") == name.encode()
        assert len(site.lines) == 1
        site.lines[0].transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # at once, before the loop turns
        assert await body_of(client, f"{at}/four") == b"four"
    assert (len(site.requests), len(site.lines)) == (4, 2)
