"""Requests by addresses of this machine and through exit workers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.agents.client.client import Client
from crawlog.agents.client.connections import GuardedResolver
from crawlog.agents.client.transport import Asker, HttpRequest
from crawlog.agents.exits import tunnels
from crawlog.agents.exits.tunnels import ExitServer, FleetKeys
from crawlog.schemas.progress import Progress
from crawlog.streams.exits.tickets import own_key
from crawlog.streams.exits.ways import DIRECT, Exit
from crawlog.streams.requests.request import Proxy
from crawlog.streams.settings.settings import Settings
from tests.support.proxies import server_tls
from tests.support.raw_http import served
from tests.support.sites import Site, sites


class Peers(Site):
    """A site that keeps where each connection comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.peers: list[str] = []

    async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection."""
        self.peers.append(to_client.get_extra_info("peername")[0])
        await super().serve(from_client, to_client)


class Here(GuardedResolver):
    """Each name leads to loopback."""

    async def addresses(self, _host: str) -> tuple[str, ...]:
        """The one address."""
        return ("127.0.0.1",)


@asynccontextmanager
async def lent(name: str = "m", *, private: bool = True, source: str = "") -> AsyncIterator[tuple[ExitServer, Exit]]:
    """An exit worker that knows this process, as its reports offer it."""
    base = Settings()
    settings = base.model_copy(update={"network": base.network.model_copy(update={"allow_private": private})})
    fleet, resolver = FleetKeys(), Here(private, 10, 60.0)
    fleet.take(Progress("w", "fetch", 0, 0.0, ticket_key=own_key().public))
    server = ExitServer(settings, fleet, resolver, source)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, Exit(name, "worker", Proxy(f"exit://127.0.0.1:{port}", server.nonce))
    finally:
        await server.close(0)
        await resolver.close()


async def got(client: Client, url: str, asker: Asker | None = None) -> tuple[int | None, str | None, str]:
    """Status, error and exit of an answer."""
    request = HttpRequest(url) if asker is None else HttpRequest(url, asker=asker)
    answer = await client.get(request)
    answer.held.give()
    return answer.http, answer.error, answer.exit


async def test_a_page_comes_through_an_exit_worker_by_a_kept_tunnel() -> None:
    """The site sees the exit's address; the answer names the exit; names are resolved there."""
    site = Peers()
    async with sites(site) as client, lent(source="127.0.0.3") as (server, way):
        client.use((way,))
        port = site.origin.rpartition(":")[2]
        assert await got(client, f"http://127.0.0.1:{port}/1") == (200, "", "m")
        assert await got(client, f"http://127.0.0.1:{port}/2") == (200, "", "m")
        assert server.opened == 1
    assert site.peers == ["127.0.0.3"]


async def test_addresses_of_this_machine_are_exits() -> None:
    """Each request leaves by the address of its exit."""
    site = Peers()
    async with sites(site) as client:
        for address in ("127.0.0.2", "127.0.0.3"):
            client.use((Exit(address, "address", address=address),))
            assert await got(client, f"{site.origin}/") == (200, "", address)
        client.use((DIRECT,))
        assert await got(client, f"{site.origin}/") == (200, "", "direct")
    assert site.peers == ["127.0.0.2", "127.0.0.3", "127.0.0.1"]


async def test_another_exit_takes_what_a_lost_one_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone, and one that does not know this worker: no attempt of the page is lost."""
    monkeypatch.setattr(tunnels, "NEW_KEY_S", 0.0)
    site = Peers()
    async with sites(site) as client, lent("good") as (_, good), lent("odd") as (odd_server, odd):
        odd_server._fleet._seen.clear()
        gone = Exit("gone", "worker", Proxy("exit://127.0.0.1:9", "n"))
        client.use((gone, odd, good))
        answers = {await got(client, f"{site.origin}/{number}") for number in range(3)}
        assert answers == {(200, "", "good")}


async def test_the_guard_of_the_exit_and_failures_of_the_site_are_no_failures_of_the_exit() -> None:
    """A refused address is a refusal, a site that is away is away; no other exit is asked."""
    site = Site()
    async with sites(site) as client, lent("a", private=False) as (server, way), lent("b") as (other, _):
        client.use((way,))
        http, error, name = await got(client, f"{site.origin}/")
        assert (http, error, name) == (None, "private_address: private address 127.0.0.1", "a")
        assert (server.denied, other.opened, site.requests) == (1, 0, [])
    async with sites() as client, lent("b") as (server, way):
        client.use((way,))
        assert (await got(client, "http://127.0.0.1:2/"))[1:] == ("connect", "b")
        assert server.denied == 1


async def test_what_may_ask_public_addresses_only_reaches_no_private_one_by_an_exit() -> None:
    """Nor by a tunnel that another request has opened, though the exit may ask private addresses."""
    site = Site()
    async with sites(site) as client, lent() as (_, way):
        client.use((way,))
        assert (await got(client, f"{site.origin}/"))[0] == 200
        by_name = site.origin.replace("127.0.0.1", "here.test")
        assert (await got(client, f"{by_name}/"))[0] == 200
        answer = await got(client, f"{by_name}/", Asker(is_public=True))
        assert answer[:2] == (None, "private_address: here.test resolves to private address 127.0.0.1")
        assert len(site.requests) == 2


async def test_no_request_goes_by_an_exit_that_is_held() -> None:
    """Here, because it was picked before; and at an exit worker, which another one then stands in for."""
    site = Site()
    async with sites(site) as client, lent("a") as (server, way), lent("b") as (other, second):
        client.use((way,))
        client.exits.hold("a", time.monotonic() + 60)
        answer = await client.get(HttpRequest(f"{site.origin}/", exit=way))
        assert (answer.error, answer.by_proxy, server.opened) == ("proxy", True, 0)
        assert 0 < answer.again_s <= 60
        client.exits.hold("a", 0.0)
        server.held_until = time.monotonic() + 60
        client.use((way, second))
        assert {await got(client, f"{site.origin}/{number}") for number in range(3)} == {(200, "", "b")}
        assert (server.opened, other.opened) == (0, 1)


async def test_an_exit_worker_with_a_new_nonce_has_a_new_address() -> None:
    """What hosts had against it is forgotten, and tickets are for the new nonce."""
    site = Site()
    async with sites(site) as client, lent("a") as (server, way):
        client.use((way,))
        client.exits.failed(site.origin, way, time.monotonic(), time.monotonic())
        assert client.exits.figures(time.monotonic())["a"].rests_at == 1
        server.nonce = "new"
        assert way.proxy is not None
        client.use((way._replace(proxy=way.proxy._replace(user="new")),))
        assert client.exits.figures(time.monotonic())["a"].rests_at == 0
        assert await got(client, f"{site.origin}/") == (200, "", "a")


async def test_tls_goes_through_an_exit_worker_end_to_end(tmp_path: Path) -> None:
    """The certificate is the site's, for the name that the exit resolved; the exit sees no byte of the request."""
    tls = server_tls(tmp_path)
    site = Site()
    async with served(site, tls) as port, sites(ca_file=tmp_path / "cert.pem") as client, lent() as (server, way):
        client.use((way,))
        assert await got(client, f"https://name.test:{port}/") == (200, "", "m")
        assert await got(client, f"https://other.test:{port}/") == (None, "tls_certificate", "m")
    assert len(site.requests) == 1
    assert server.bytes > len(site.answer)
