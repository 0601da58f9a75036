"""A CONNECT proxy (RFC 9110 9.3.6) behind the egress guard, for the fetch workers of one fleet.

The guard judges host and port of the target, then every address that its name resolves to; the connection is made to
one of these addresses, so a second answer of DNS changes nothing. What goes through a tunnel is not looked at.
"""

import asyncio
import contextlib
import ipaddress
import secrets
import time
from base64 import b64decode
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from crawlog.agents.client import GuardedResolver, Refused
from crawlog.schemas.progress import ExitFigures, Progress
from crawlog.streams.exits import Ticket
from crawlog.streams.requests import address_refusal, literal_refusal, port_refusal
from crawlog.streams.settings import Settings

log = structlog.get_logger()

HEAD_BYTES, HEAD_S = 8 * 1024, 10.0  # Of a request, before its ticket is known to be good

KNOWN_S = 60.0  # A fetch worker reports at least every 2 s; without a report for this time its key opens nothing

NEW_KEY_S = 5.0  # A fetch worker may ask before its first report is read here; its request waits so long for that

MOST_WAITING = 100  # Connections without a good ticket, at a time; further ones are closed

MOST_TUNNELS = 1_000  # A fetch worker has at most `fetch.concurrency` requests under way, 256 by default

SILENT_S = 600.0  # A tunnel without a byte for so long is closed

TUNNEL_S, TUNNEL_BYTES = 3600.0, 4 << 30  # The longest life of a tunnel, and the most bytes through it

PIECE_BYTES = 64 * 1024

ANSWERED_S = 1.0  # So long after its last byte from the site a tunnel may be in the middle of an answer


def new_nonce() -> str:
    return secrets.token_urlsafe(16)


class Denied(Exception):
    """A request gets no tunnel.

    Attributes:
        status: Of the response.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class FleetKeys:
    """The keys of the fetch workers that live, by their reports. Reports come from another thread."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._exits: dict[str, dict[str, ExitFigures]] = {}
        self._swept_at = 0.0

    def take(self, report: Progress) -> None:
        """Take a report of crawl.progress."""
        if report.ticket_key:
            if report.exits:  # the first one of a worker's partitions has them
                self._exits[report.ticket_key] = report.exits
            now = self._seen[report.ticket_key] = time.monotonic()
            if now - self._swept_at > KNOWN_S:
                self._swept_at = now
                for key in [key for key, at in self._seen.items() if now - at > KNOWN_S]:
                    del self._seen[key]
                    self._exits.pop(key, None)

    def bans(self, name: str) -> int:
        """How often hosts banned an exit; 0 if it rests for none."""
        figures = [exits[name] for exits in list(self._exits.values()) if name in exits]
        return sum(one.bans for one in figures) if any(one.rests_at for one in figures) else 0

    def has(self, key: str) -> bool:
        return time.monotonic() - self._seen.get(key, -KNOWN_S) < KNOWN_S

    async def knows(self, key: str) -> bool:
        """Whether a fetch worker has the key; waits for its first report."""
        until = time.monotonic() + NEW_KEY_S
        while not self.has(key) and time.monotonic() < until:  # noqa: ASYNC110  # another thread reads the reports
            await asyncio.sleep(0.1)
        return self.has(key)


class Asked(NamedTuple):
    """The head of a request; its target is `HOST:PORT` as it was sent."""

    target: str
    host: str
    port: int
    ticket: Ticket | None


def read_head(head: bytes) -> Asked:
    """Target and ticket of a CONNECT request. Raises: Denied: it is another request, or none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    if method != "CONNECT":
        raise Denied(405, "only CONNECT is served")
    target = rest.partition(" ")[0]
    host, _, port = target.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16 and host):
        raise Denied(400, "a target is HOST:PORT")
    logins = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.lower() == _LOGIN]
    ticket = None
    with contextlib.suppress(ValueError):
        scheme, _, coded = logins[0].partition(" ") if len(logins) == 1 else ("", "", "")
        user, colon, password = b64decode(coded, validate=True).decode("ascii").partition(":")
        ticket = Ticket(user, password) if scheme.lower() == "basic" and colon else None
    return Asked(target, host.strip("[]"), int(port), ticket)


_LOGIN = "proxy-authorization"


class Tunnel:
    """One tunnel's state.

    Attributes:
        awaits: Whether the last byte came from the client, so that an answer is due.
    """

    def __init__(self) -> None:
        self.awaits = False
        self.moved_at = time.monotonic()
        self.bytes = 0

    def is_busy(self, now: float) -> bool:
        """Whether a request may be under way, as far as its bytes tell."""
        return self.awaits or now - self.moved_at < ANSWERED_S


class ExitServer:
    """Serves tunnels that leave by one address of this machine.

    Args:
        source: The address; empty for the one that the system chooses.

    Attributes:
        nonce: What tickets must sign; a new one tells fetch workers that the exit has another address.
        opened, denied, bytes: Totals since the start.
        tunnels: Those that are open.
        held_until: Until then it takes no further ones: it is redialed.
    """

    def __init__(self, settings: Settings, fleet: FleetKeys, resolver: GuardedResolver, source: str = "") -> None:
        self.nonce = new_nonce()
        self.opened = self.denied = self.bytes = 0
        self.tunnels: set[Tunnel] = set()
        self.held_until = 0.0
        self._allow_private = settings.network.allow_private
        self._connect_s = settings.fetch.connect_timeout_s
        self._fleet = fleet
        self._resolver = resolver
        self._source = source
        self._waiting = 0
        self._denied_at = 0.0
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Serve from now on; returns the port. Raises: OSError: the address cannot be listened on."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=HEAD_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, within_s: float) -> None:
        """Take no further tunnels, and close each one once no request is under way in it."""
        if self._server is not None:
            self._server.close()
        until = time.monotonic() + within_s
        while self.is_busy and time.monotonic() < until:  # noqa: ASYNC110  # their state depends on the time
            await asyncio.sleep(0.1)
        await self.drop()

    @property
    def is_held(self) -> bool:
        return time.monotonic() < self.held_until

    @property
    def is_busy(self) -> bool:
        """Whether a request may be under way."""
        return any(tunnel.is_busy(time.monotonic()) for tunnel in self.tunnels)

    async def drop(self) -> None:
        """Close all tunnels."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._run(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            pass  # the client or the site went away, or is no client of ours
        except Exception as error:
            log.exception("tunnel_failed", error=repr(error))
        finally:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked, allows_private = await self._admitted(reader)
            site = await self._connected(asked, allows_private)
        except Denied as error:
            self._note_denied(error, writer)
            writer.write(f"HTTP/1.1 {error.status} {error}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await _flushed(writer)
            return
        from_site, to_site = site
        tunnel = Tunnel()
        self.opened += 1
        self.tunnels.add(tunnel)
        try:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            async with asyncio.timeout(TUNNEL_S):
                await self._relay(tunnel, (reader, to_site), (from_site, writer))
        finally:
            self.tunnels.discard(tunnel)
            to_site.transport.abort()

    def _note_denied(self, error: Denied, writer: asyncio.StreamWriter) -> None:
        """One line a second at most: strangers may knock as often as they like."""
        self.denied += 1
        if time.monotonic() - self._denied_at > 1.0:
            self._denied_at = time.monotonic()
            peer = (writer.get_extra_info("peername") or ("?",))[0]
            log.warning("tunnel_denied", reason=str(error), status=error.status, peer=peer, denied=self.denied)

    async def _admitted(self, reader: asyncio.StreamReader) -> tuple[Asked, bool]:
        """What a client with a good ticket asks for, and whether it may reach private addresses. Raises: Denied."""
        if self._waiting >= MOST_WAITING:
            raise Denied(503, "too many connections without a ticket")
        self._waiting += 1
        try:
            async with asyncio.timeout(HEAD_S):
                asked = read_head(await reader.readuntil(b"\r\n\r\n"))
                ticket = asked.ticket
                is_ours = ticket is not None and await self._fleet.knows(ticket.key)
        finally:
            self._waiting -= 1
        if ticket is None or not is_ours or not ticket.opens(self.nonce, asked.target):
            raise Denied(407, "a ticket of this fleet is needed")
        return asked, self._allow_private and ticket.allows_private

    async def _connected(self, asked: Asked, allow_private: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the target. Raises: Denied."""
        if self.is_held or len(self.tunnels) >= MOST_TUNNELS:
            raise Denied(503, "no further tunnel now")
        last = "no address of this exit's family"
        for address in await self._addresses(asked, allow_private):
            try:
                async with asyncio.timeout(self._connect_s):
                    local = (self._source, 0) if self._source else None
                    return await asyncio.open_connection(address, asked.port, limit=PIECE_BYTES, local_addr=local)
            except TimeoutError:
                last = "the site does not answer"
            except OSError as error:
                last = error.strerror or "no connection to the site"
        raise Denied(502, last.splitlines()[0])

    async def _addresses(self, asked: Asked, allow_private: bool) -> Iterable[str]:
        """The addresses of the target that may be connected to, of the source's family. Raises: Denied."""
        if refusal := port_refusal(f"http://{asked.target}") or literal_refusal(asked.host, allow_private):
            raise Denied(403, refusal)
        found: tuple[str, ...] = (asked.host,)
        if _address(asked.host) is None:
            try:
                async with asyncio.timeout(self._connect_s):
                    found = await self._resolver.addresses(asked.host)
            except Refused as error:
                raise Denied(403, str(error)) from None
            except (OSError, TimeoutError):
                raise Denied(502, "the name is not found") from None
        refusals = {address: address_refusal(address, allow_private) for address in found}
        if found and all(refusals.values()):
            raise Denied(403, f"{asked.host} resolves to {refusals[found[0]]}")
        source = _address(self._source)
        return [
            address
            for address, refused in refusals.items()
            if not refused and (source is None or source.version == getattr(_address(address), "version", 0))
        ]

    async def _relay(
        self,
        tunnel: Tunnel,
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Both directions, until one ends: an HTTP client that closes its side wants no answer."""
        async with asyncio.timeout(SILENT_S) as silence:

            async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, is_up: bool) -> None:
                while (data := await source.read(PIECE_BYTES)) and tunnel.bytes < TUNNEL_BYTES:
                    tunnel.awaits, tunnel.moved_at = is_up, time.monotonic()
                    tunnel.bytes += len(data)
                    self.bytes += len(data)
                    silence.reschedule(asyncio.get_running_loop().time() + SILENT_S)
                    to.write(data)
                    await to.drain()

            pumps = {asyncio.ensure_future(pump(*up, True)), asyncio.ensure_future(pump(*down, False))}
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                await _flushed(down[1])
            finally:
                for one in pumps:
                    one.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Close a connection once its last bytes are sent."""
    async with asyncio.timeout(HEAD_S):
        writer.close()
        await writer.wait_closed()


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text)
    return None
