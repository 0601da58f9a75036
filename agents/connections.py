"""How a connection comes about: names resolved behind the guard, SOCKS proxies, and the last look before each write."""

import asyncio
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.resolver import AsyncResolver
from aiohttp.streams import StreamReader
from python_socks import ProxyConnectionError, ProxyError, ProxyType
from python_socks.async_.asyncio import Proxy as SocksProxy

from crawlog.streams.egress import address_refusal
from crawlog.streams.errors import Misconfigured
from crawlog.streams.outbound import REACHED_NOT, Proxy
from crawlog.streams.settings import Settings

from .outfit import ProxyFailed

WHOLE_BYTES = 64 * 1024
"""So much of what a server sends the parser gets at once: in chunks of one byte each it takes 10 to 20 ms."""

SLICE_BYTES = 16 * 1024
"""So much it gets of a connection whose last bytes took longer than a turn."""

JOINED_BYTES = 64
"""Pieces of a body that are smaller are joined."""

TURN_S = 0.002
"""A connection that has kept the loop for so long goes on in the loop's next turn."""


def tls_of(settings: Settings) -> ssl.SSLContext:
    """As the settings say. Raises: Misconfigured: the file of authorities cannot be read."""
    network = settings.network
    try:
        context = ssl.create_default_context()
        if network.ca_file is not None:
            context.load_verify_locations(network.ca_file)
    except OSError as error:
        raise Misconfigured(f"network.ca_file={network.ca_file} cannot be read: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if network.min_tls == "1.3" else ssl.TLSVersion.TLSv1_2
    if not network.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Refused(Exception):
    """The egress guard's answer."""


class LeaseLost(Exception):
    """The worker may no longer ask: somebody else may own the domain."""


class GuardedResolver(AbstractResolver):
    """Names to addresses that may be connected to, remembered for a while.

    Args:
        cached: Names remembered; the one asked for longest ago goes first.
        ttl_s: How long a name's addresses are used.
        own: Names of the operator's proxies, wherever they are; of those alone that are connected to by this way.
    """

    def __init__(self, allow_private: bool, cached: int, ttl_s: float, own: frozenset[str] = frozenset()) -> None:
        self._ttl_s = ttl_s
        self._resolver = AsyncResolver()
        self._allow_private = allow_private
        self._own = own
        self._cached = cached
        self._known: OrderedDict[tuple[str, int], tuple[float, list[ResolveResult]]] = OrderedDict()
        self._asking: dict[tuple[str, int], asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            Refused: All of them are private.
            OSError: There are none.
        """
        key = (host, int(family))
        known = self._known.get(key)
        if known is None or known[0] < time.monotonic():
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = asyncio.ensure_future(self._ask(host, family))
                asking.add_done_callback(lambda _: self._asking.pop(key, None))
            found = await asyncio.shield(asking)
            self._known[key] = (time.monotonic() + self._ttl_s, found)
            while len(self._known) > self._cached:
                self._known.popitem(last=False)
        else:
            found = known[1]
        return [{**one, "port": port} for one in found]

    async def _ask(self, host: str, family: socket.AddressFamily) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, 0, family)
        if host in self._own:
            return found
        allowed = [one for one in found if address_refusal(one["host"], self._allow_private) is None]
        if found and not allowed:
            raise Refused(f"{host} resolves to {address_refusal(found[0]['host'], self._allow_private)}")
        return allowed

    async def close(self) -> None:
        """Release the resolver."""
        await self._resolver.close()


_HEAD_END = b"\r\n\r\n"


class _Gate:
    """A transport that looks at the lease last of all, directly before each write.

    The look must stand here, not where a connection is handed out, since aiohttp does all it does for a request in
    between: 1 looked → 2 process stopped → 3 another worker owns the domain → 4 process continued, and it writes. The
    bytes are with the kernel when `write` returns, unless earlier ones still wait there (uvloop since 0.23, asyncio).
    """

    def __init__(self, transport: Any, may_ask: Callable[[], bool]) -> None:
        self._write = transport.write
        self._may_ask = may_ask
        self._transport = transport
        self.is_closing = transport.is_closing  # asked before each write

    def write(self, data: bytes) -> None:
        """Send it now or never. Raises: LeaseLost: nothing was sent."""
        if not self._may_ask():
            raise LeaseLost
        self._write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """All parts after one look."""
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


_NOTHING = memoryview(b"")


class _Body(StreamReader):
    """aiohttp's reader of a body, but nobody asks it where chunks end, and small pieces are joined as they come.

    A chunk of a byte then takes 0.75 µs instead of 1.5, and a million of them are no million objects.
    """

    __slots__ = ()

    def feed_data(self, data: bytes, size: int = 0) -> bool:
        """As aiohttp's own, but that a small piece grows while nobody has read it."""
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
        """Where chunks begin is nothing to us."""

    def end_http_chunk_receiving(self) -> None:
        """Where chunks end is nothing to us."""


class _Handler(ResponseHandler):
    """aiohttp's side of a connection: writes through the gate, and parses no longer than its share of a loop's turn.

    A loop hands over up to 256 KiB at once. Of what is expensive to parse the rest waits here for the next turn, and
    the transport reads no further: neither its end nor more bytes come before the rest is parsed.
    """

    def __init__(self, may_ask: Callable[[], bool], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._may_ask = may_ask
        self._rest = _NOTHING
        self._slice_bytes = WHOLE_BYTES
        self._is_fresh = False
        self._next_turn: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of TLS it is the transport above it: what passed the gate is then encrypted and written at once."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", _Gate(transport, self._may_ask))

    @property
    def should_close(self) -> bool:
        """Also with a rest, which is no part of an answer that is complete without it."""
        return bool(self._rest) or super().should_close

    def data_received(self, data: bytes) -> None:
        """Bytes of the server; none where the reader wants more of what the parser has."""
        self._is_fresh = bool(data)
        if len(data) <= SLICE_BYTES and not self._rest:
            if self._payload is None or self._payload.is_eof():
                body_at = data.find(_HEAD_END) + len(_HEAD_END)
                if len(_HEAD_END) <= body_at < len(data):
                    self._parse(data[:body_at])  # an error behind the body would take its answer with it
                    data = data[body_at:]
            self._parse(data)
        elif data:
            self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
            if self._next_turn is None and not self._reading_paused:
                self._go_on()
        else:
            super().data_received(data)
            self._go_on_later()

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        body = self._payload
        if type(body) is StreamReader:
            body.__class__ = _Body  # the parser, compiled, makes aiohttp's own
            body._http_chunk_splits = None  # noqa: SLF001  # of the chunks that came with the head

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Let the parser look for what it has left, unless it has done so since bytes came, or was at the end.

        The reader says this with every chunk that it takes, paused or not: with chunks of a byte each these looks took
        most of the time. After a pause there are two of them, for the first one may only end the parser's own pause.
        """
        was_paused = self._reading_paused
        if was_paused or (self._is_fresh and resume_parser):
            super().resume_reading(resume_parser)
        self._is_fresh = was_paused and resume_parser

    def _go_on(self) -> None:
        """Parse for a turn's time, or until the reader has enough."""
        self._next_turn = None
        was_held, self._buffer_paused = self._buffer_paused, False  # aiohttp may hold it for a buffer of its own
        began = time.monotonic()
        took_s = 0.0
        while self._rest and not self._reading_paused and took_s < TURN_S:
            piece, self._rest = self._rest[: self._slice_bytes], self._rest[self._slice_bytes :]
            self._is_fresh = True
            self._parse(bytes(piece))  # which may end the answer, and ask whether there is a rest
            took_s = time.monotonic() - began
        self._slice_bytes = WHOLE_BYTES if took_s < TURN_S else SLICE_BYTES
        if self._rest:
            self._go_on_later()
        elif was_held and not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()

    def _go_on_later(self) -> None:
        self._pause_reading_for_buffer()
        self._drop_timeout()  # it is not the server that rests
        if not self._reading_paused and self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._go_on)

    def close(self) -> None:
        """Nobody wants the rest."""
        self._forget()
        super().close()

    def abort(self) -> None:
        """Nobody wants the rest."""
        self._forget()
        super().abort()

    def set_exception(self, *args: Any) -> None:
        """Nothing that comes after it is an answer.

        aiohttp's parser forgets the body in which it failed, so its reader would wait until the deadline.
        """
        self._forget()
        body = self._payload
        super().set_exception(*args)
        if isinstance(args[0], HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(f"not the coding of a body: {args[0]!r}"))

    def connection_lost(self, exc: BaseException | None) -> None:
        """A reset, or a write that failed: what came before it counts."""
        rest = self._rest
        self._forget()
        if rest:
            super().data_received(bytes(rest))
        super().connection_lost(exc)

    def _forget(self) -> None:
        self._rest = _NOTHING
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None


class Route:
    """Of one request, where private addresses are allowed: whom it may reach, and whom it reached.

    Attributes:
        is_public: Whether private addresses are closed to it all the same.
        peer: The address that it was sent to; empty where a proxy knows.
    """

    __slots__ = ("is_public", "peer")

    def __init__(self, *, is_public: bool) -> None:
        self.is_public = is_public
        self.peer = ""


ROUTE: ContextVar[Route | None] = ContextVar("route", default=None)
"""Of the request that this task makes."""


class Connector(aiohttp.TCPConnector):
    """Checks with each write that we may still ask, and once connected whom."""

    _is_proxied = False

    def __init__(self, may_ask: Callable[[], bool], allow_private: bool, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Handler, may_ask, self._loop))
        self._allow_private = allow_private

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **kwargs: Any) -> Any:
        """A connection that may be used now."""
        connection = await super().connect(req, *args, **kwargs)
        route = ROUTE.get()
        is_watched = not self._allow_private or (route is not None and not self._is_proxied)
        if is_watched and connection.transport is not None and req.proxy is None:
            peer = connection.transport.get_extra_info("peername")
            refusal = peer_refusal(peer[0]) if peer else None
            if route is not None and peer:
                route.peer = peer[0]
            if refusal is not None and (route is None or route.is_public):
                connection.close()
                raise Refused(refusal)
        return connection


class Names(AbstractResolver):
    """Leaves names to the proxy."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The name itself."""
        return [{"hostname": host, "host": host, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Nothing to release."""


class SocksConnector(Connector):
    """Connects by way of a SOCKS proxy, to the address that the guarded resolver found, or to the name."""

    _is_proxied = True

    def __init__(self, proxy: Proxy, may_ask: Callable[[], bool], **options: Any) -> None:
        kind = ProxyType.SOCKS5 if proxy.url.startswith("socks5") else ProxyType.SOCKS4
        family = socket.AF_UNSPEC if kind is ProxyType.SOCKS5 else socket.AF_INET  # SOCKS 4 knows no other
        super().__init__(may_ask, allow_private=True, family=family, **options)  # the peer is the proxy
        parts = urlsplit(proxy.url)
        user = (proxy.user or None, proxy.password or None)
        self._proxy = SocksProxy(kind, parts.hostname or "", parts.port or 0, *user, rdns=True)

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[Any],
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's signature
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """As aiohttp's own, but for the socket."""
        host, port = addr_infos[0][4][:2]
        try:
            connected = await self._proxy.connect(host, port, timeout=timeout.sock_connect)
        except ProxyConnectionError:
            raise ProxyFailed("proxy") from None
        except ProxyError as error:
            if error.error_code not in REACHED_NOT:
                raise ProxyFailed("proxy") from None
            raise client_error(req.connection_key, OSError(0, str(error))) from None
        try:
            return await self._wrap_existing_connection(
                *args, req=req, timeout=timeout, client_error=client_error, sock=connected, **kwargs
            )
        except BaseException:
            connected.close()
            raise


@lru_cache(4096)
def peer_refusal(address: str) -> str | None:
    """Why an address is private, or none; None for a public one."""
    return address_refusal(address, allow_private=False)
