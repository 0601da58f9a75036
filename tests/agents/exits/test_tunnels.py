"""An exit's tunnels: for the fleet's own workers, to allowed addresses, within limits."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from crawlog.agents.client.connections import GuardedResolver, Refused
from crawlog.agents.exits import tunnels
from crawlog.agents.exits.tunnels import ExitServer, FleetKeys
from crawlog.schemas.progress import ExitFigures, Progress
from crawlog.streams.exits.tickets import Ticket, TicketKey
from crawlog.streams.settings.settings import Settings
from tests.support.sites import Site, sites

KEY = TicketKey()


class Names(GuardedResolver):
    """A resolver with answers of its own, one after the other, that asks the guard as ever."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        super().__init__(False, 10, 60.0)
        self.answers = list(answers)
        self.asked: list[str] = []

    async def addresses(self, host: str) -> tuple[str, ...]:
        """The next answer."""
        self.asked.append(host)
        answer = self.answers.pop(0)
        if not answer:
            raise Refused(f"{host} resolves to a private address", "10.0.0.1")
        return answer


@asynccontextmanager
async def lent(*, private: bool = True, names: GuardedResolver | None = None) -> AsyncIterator[tuple[ExitServer, int]]:
    """An exit on loopback that knows one fetch worker, and its port."""
    base = Settings()
    settings = base.model_copy(update={"network": base.network.model_copy(update={"allow_private": private})})
    fleet, resolver = FleetKeys(), names or GuardedResolver(private, 10, 60.0)
    fleet.take(Progress("w", "fetch", 0, 0.0, ticket_key=KEY.public))
    server = ExitServer(settings, fleet, resolver)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close(0)
        await resolver.close()


def login(ticket: Ticket) -> str:
    """Its header."""
    return f"Proxy-Authorization: Basic {b64encode(':'.join(ticket).encode()).decode()}\r\n"


async def answer(port: int, sent: bytes, then: bytes = b"") -> bytes:
    """All that comes back, up to the end of the connection or of what was wanted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        got = await reader.readuntil(b"\r\n\r\n")
        if then:
            writer.write(then)
            got += await reader.readuntil(b"here")
        return got
    finally:
        writer.transport.abort()


async def asked(server: ExitServer, port: int, target: str, *, private: bool = True, then: bytes = b"") -> bytes:
    """The answer to a CONNECT with a good ticket."""
    ticket = KEY.ticket(server.nonce, target, allows_private=private)
    return await answer(port, f"CONNECT {target} HTTP/1.1\r\n{login(ticket)}\r\n".encode(), then)


async def test_a_fetch_worker_of_the_fleet_gets_a_tunnel() -> None:
    """Bytes pass as they are, and are counted."""
    site = Site()
    async with sites(site), lent() as (server, port):
        target = site.origin.removeprefix("http://")
        got = await asked(server, port, target, then=b"GET /a HTTP/1.1\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK")
        assert site.requests == ["GET /a HTTP/1.1\r\n\r\n"]
        assert (server.opened, server.denied) == (1, 0)
        assert server.bytes == len(site.requests[0]) + len(site.answer)


async def test_an_exit_serves_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ticket, with one of an unknown key, of another exit, for another target: nothing leaves."""
    monkeypatch.setattr(tunnels, "NEW_KEY_S", 0.0)
    site = Site()
    async with sites(site), lent() as (server, port):
        target = site.origin.removeprefix("http://")
        head = f"CONNECT {target} HTTP/1.1\r\n"
        good = login(KEY.ticket(server.nonce, target, allows_private=True))
        bad = [
            "",
            "Proxy-Authorization: Basic !\r\n",
            "Proxy-Authorization: Bearer x\r\n",
            login(TicketKey().ticket(server.nonce, target, allows_private=True)),
            login(KEY.ticket("another", target, allows_private=True)),
            login(KEY.ticket(server.nonce, "127.0.0.1:1", allows_private=True)),
            good + good,
        ]
        got = [(await answer(port, f"{head}{line}\r\n".encode())).split()[1] for line in bad]
        assert got == [b"407"] * len(bad)
        forward = await answer(port, f"GET {site.origin}/ HTTP/1.1\r\nHost: x\r\n{good}\r\n".encode())
        assert forward.split()[1] == b"405"
        assert site.requests == []
        assert (server.opened, server.denied) == (0, len(bad) + 1)


@pytest.mark.parametrize(
    ("target", "private"),
    [
        ("10.0.0.1:80", False),
        ("127.0.0.1:80", False),
        ("[::1]:80", False),
        ("[::ffff:10.0.0.1]:80", False),
        ("0x7f.1:80", False),
        ("2130706433:80", False),
        ("localhost:80", False),
        ("db.internal:80", False),
        ("169.254.169.254:80", True),
        ("metadata.google.internal:80", True),
        ("127.0.0.1:25", True),
        ("127.0.0.1:6000", True),
    ],
)
async def test_an_exit_asks_no_closed_address(target: str, private: bool) -> None:
    """Private ones unless it allows them, metadata and other protocols' ports never, in any spelling."""
    async with lent(private=private) as (server, port):
        assert (await asked(server, port, target)).split()[1] == b"403"
        assert server.opened == 0


async def test_a_request_that_may_only_ask_public_addresses_is_kept_to_them() -> None:
    """Though the exit itself may ask private ones: its ticket does not allow them."""
    site = Site()
    async with sites(site), lent() as (server, port):
        assert (await asked(server, port, site.origin.removeprefix("http://"), private=False)).split()[1] == b"403"
        assert site.requests == []


async def test_a_name_is_resolved_once_and_its_checked_address_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: a second answer would be private; an answer with a private address is refused."""
    connected: list[str] = []

    async def connect(address: str, *_: object, **__: object) -> None:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", _only_outside(connect))
    names = Names(("93.184.216.34",), ("10.0.0.1",), ())
    async with lent(private=False, names=names) as (server, port):
        got = [(await asked(server, port, "a.test:80")).split()[1] for _ in range(3)]
        assert got == [b"502", b"403", b"403"]
        assert (connected, names.asked) == (["93.184.216.34"], ["a.test"] * 3)


def _only_outside(connect: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[object]]:
    """`asyncio.open_connection`, replaced for all but the test's own connections."""
    own = asyncio.open_connection

    async def opened(address: str, port: int, **options: object) -> object:
        return await (connect(address) if "limit" in options else own(address, port))

    return opened


async def test_heads_without_end_or_measure_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of more than 8 KiB, one that does not end, and one that is no HTTP."""
    async with lent() as (server, port):
        assert (await answer(port, b"\x00\xff\r\n\r\n")).split()[1] == b"405"
        monkeypatch.setattr(tunnels, "HEAD_S", 0.2)
        for sent in (b"CONNECT a.test:80 HTTP/1.1\r\nX: " + b"x" * 20_000, b"CONNECT a.test:80", b"\x16\x03\x01"):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await answer(port, sent)
        assert server.opened == 0


async def test_connections_and_bytes_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further tunnels are refused as the proxy's failure; a tunnel of too many bytes ends."""
    site = Site()
    async with sites(site), lent() as (server, port):
        target = site.origin.removeprefix("http://")
        monkeypatch.setattr(tunnels, "MOST_TUNNELS", 0)
        assert (await asked(server, port, target)).split()[1] == b"503"
        monkeypatch.setattr(tunnels, "MOST_TUNNELS", 1)
        monkeypatch.setattr(tunnels, "TUNNEL_BYTES", 1)
        with pytest.raises(asyncio.IncompleteReadError):
            await asked(server, port, target, then=b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")


async def test_an_exit_that_ends_lets_answers_end_first() -> None:
    """A request that waits for its answer gets it; a tunnel at rest is closed at once."""
    asked_for, may_answer = asyncio.Event(), asyncio.Event()

    class Slow(Site):
        async def serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
            await from_client.readuntil(b"\r\n\r\n")
            asked_for.set()
            await may_answer.wait()
            to_client.write(self.answer)

    site = Slow()
    async with sites(site), lent() as (server, port):
        target = site.origin.removeprefix("http://")
        asking = asyncio.create_task(asked(server, port, target, then=b"GET / HTTP/1.1\r\n\r\n"))
        await asked_for.wait()
        closing = asyncio.create_task(server.close(60))
        await asyncio.sleep(0)
        assert not closing.done()
        may_answer.set()
        assert (await asking).endswith(b"here")
        await closing
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


def test_an_exit_learns_from_fetch_workers_that_it_is_banned(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it rests for a host; a fetch worker that reports no more has no say and no ticket."""
    keys = FleetKeys()
    keys.take(Progress("v", "fetch", 0, 0.0, ticket_key="k", exits={"m": ExitFigures(requests=5, bans=2)}))
    assert keys.bans("m") == 0
    keys.take(Progress("w", "fetch", 0, 0.0, ticket_key="l", exits={"m": ExitFigures(bans=1, rests_at=1)}))
    keys.take(Progress("w", "fetch", 1, 0.0, ticket_key="l"))  # of a further partition: without figures
    assert (keys.bans("m"), keys.bans("other")) == (3, 0)
    assert keys.has("k")
    monkeypatch.setattr(tunnels, "KNOWN_S", 0.0)
    assert not keys.has("k")
    keys.take(Progress("u", "fetch", 0, 0.0, ticket_key="u"))
    assert keys.bans("m") == 0
