"""Makes connections: names resolved and checked by the guard, SOCKS proxies, kept connections checked before reuse."""

import asyncio
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.resolver import AsyncResolver
from python_socks import ProxyConnectionError, ProxyError, ProxyTimeoutError, ProxyType
from python_socks.async_.asyncio import Proxy as SocksProxy
from yarl import URL

from crawlog.schemas.urls import RequestRules
from crawlog.streams.errors import Misconfigured
from crawlog.streams.exits import Exits, TicketKey
from crawlog.streams.requests import REACHED_NOT, Proxy, address_refusal, choose_ciphers
from crawlog.streams.settings import Settings

from .protocol import Handler
from .request import ProxyFailed


def tls_kind(rules: RequestRules) -> tuple[bool, str, str]:
    """The part of a job's rules that its TLS context depends on."""
    return rules.verify_tls, rules.min_tls, rules.tls


def tls_of(settings: Settings, verify: bool, least: str, tls: str) -> ssl.SSLContext:
    """A TLS context by a job's rules.

    Raises:
        Misconfigured: the file of authorities cannot be read.
        ssl.SSLError: its ciphers are unknown here.
    """
    network = settings.network
    try:
        context = ssl.create_default_context()
        if network.ca_file is not None:
            context.load_verify_locations(network.ca_file)
    except OSError as error:
        raise Misconfigured(f"network.ca_file={network.ca_file} cannot be read: {error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if least == "1.3" else ssl.TLSVersion.TLSv1_2
    choose_ciphers(context, tls)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Refused(Exception):
    """The egress guard's answer.

    Attributes:
        is_closed: Whether `network.allow_private` would allow it.
    """

    def __init__(self, refusal: str, *addresses: str) -> None:
        super().__init__(refusal)
        self.is_closed = any(address_refusal(one, allow_private=True) is None for one in addresses)


# Most addresses used of one name, the first ones. Each may cost a connection attempt, and a turn at the address.
MOST_ADDRESSES = 16

# Time that a failed look-up is remembered; a request that fails by it removes it. A name is resolved twice: for the
# turn at its address, then to connect. Also the age at which addresses that nobody answered at are asked for again.
FAILED_S = 30.0

NO_EXITS = Exits()


class _Found(NamedTuple):
    """The result of resolving a name.

    Attributes:
        asked_at, until: When it was asked for, and its expiry, on the monotonic clock.
        addresses: The addresses of `results`.
        error: Why there are none.
    """

    asked_at: float
    until: float
    results: list[ResolveResult]
    addresses: tuple[str, ...] = ()
    error: Exception | None = None


class GuardedResolver(AbstractResolver):
    """Resolves names to addresses that the guard allows, with a cache.

    Args:
        cached: Most names remembered; the oldest entry is dropped first.
        ttl_s: How long a name's addresses are used.
        servers: DNS servers; none for the system's.
        exits: Names of their proxies may have private addresses.
    """

    def __init__(
        self,
        allow_private: bool,
        cached: int,
        ttl_s: float,
        servers: Sequence[str] = (),
        exits: Exits = NO_EXITS,
    ) -> None:
        self._ttl_s = ttl_s
        self._resolver = AsyncResolver(nameservers=servers) if servers else AsyncResolver()
        self._allow_private = allow_private
        self._exits = exits
        self._cached = cached
        self._known: OrderedDict[tuple[str, int], _Found] = OrderedDict()
        self._asking: dict[tuple[str, int], asyncio.Future[_Found]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name.

        Raises:
            Refused: All of them are private.
            OSError: There are none.
        """
        try:
            found = await self._found(host, family)
        except (OSError, Refused):
            self._known.pop((host, int(family)), None)  # the next attempt asks again
            raise
        return [{**one, "port": port} for one in self._for_route(host, found.results)]

    def _for_route(self, host: str, found: list[ResolveResult]) -> list[ResolveResult]:
        """The addresses that this task's request may reach. Raises: Refused: there are none."""
        route = ROUTE.get()
        if route is None or not route.is_public or host in self._exits.names:
            return found
        return _allowed(host, found, allow_private=False)

    async def addresses(self, host: str) -> tuple[str, ...]:
        """The addresses of a name, of any family. Raises: as `resolve`."""
        return (await self._found(host, socket.AF_UNSPEC)).addresses

    def known(self, host: str) -> tuple[str, ...]:
        """The remembered addresses of a name; empty without any."""
        found = self._known.get((host, int(socket.AF_UNSPEC)))
        return found.addresses if found is not None and found.until >= time.monotonic() else ()

    def doubt(self, host: str) -> None:
        """Ask for a name again soon, because its addresses could not be connected to: it may have moved.

        Not before `FAILED_S` have passed since it was asked for, so a mute host costs no look-up for each attempt.
        """
        for family in (socket.AF_UNSPEC, socket.AF_INET):
            key = (host, int(family))
            found = self._known.get(key)
            if found is not None and found.error is None:
                self._known[key] = found._replace(until=min(found.until, found.asked_at + FAILED_S))

    async def _found(self, host: str, family: socket.AddressFamily) -> _Found:
        key = (host, int(family))
        found = self._known.get(key)
        if found is None or found.until < time.monotonic():
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = asyncio.ensure_future(self._ask(host, family))
                asking.add_done_callback(lambda _: self._asking.pop(key, None))
            found = self._known[key] = await asyncio.shield(asking)
            while len(self._known) > self._cached:
                self._known.popitem(last=False)
        if found.error is not None:
            raise found.error.with_traceback(None)
        return found

    async def _ask(self, host: str, family: socket.AddressFamily) -> _Found:
        try:
            results = await self._resolver.resolve(host, 0, family)
            allowed = results if host in self._exits.names else _allowed(host, results, self._allow_private)
        except (OSError, Refused) as error:
            now = time.monotonic()
            return _Found(now, now + FAILED_S, [], error=error)
        allowed, now = allowed[:MOST_ADDRESSES], time.monotonic()
        return _Found(now, now + self._ttl_s, allowed, tuple(one["host"] for one in allowed))

    async def close(self) -> None:
        await self._resolver.close()


def _allowed(host: str, found: list[ResolveResult], allow_private: bool) -> list[ResolveResult]:
    """The addresses of a name that may be connected to. Raises: Refused: there are none."""
    allowed = [one for one in found if address_refusal(one["host"], allow_private) is None]
    if found and not allowed:
        refusal = address_refusal(found[0]["host"], allow_private)
        raise Refused(f"{host} resolves to {refusal}", *(one["host"] for one in found))
    return allowed


class Route:
    """The permission and the peer of one request; used only if private addresses are allowed.

    Attributes:
        is_public: Whether the request may reach public addresses only.
        peer: The address that it was sent to; empty behind a proxy.
    """

    __slots__ = ("is_public", "peer")

    def __init__(self, *, is_public: bool) -> None:
        self.is_public = is_public
        self.peer = ""


ROUTE: ContextVar[Route | None] = ContextVar("route", default=None)  # The route of the request that this task makes


class Connector(aiohttp.TCPConnector):
    """Checks the lease before each write, and the peer's address once connected.

    Args:
        exits: Their proxies may have private addresses.
    """

    _is_proxied = False

    def __init__(
        self, may_ask: Callable[[], bool], allow_private: bool, exits: Exits = NO_EXITS, **options: Any
    ) -> None:
        super().__init__(**options)
        self._exits = exits
        self._factory = cast("partial[ResponseHandler]", partial(Handler, may_ask, self._loop))
        self._allow_private = allow_private

    async def _get(self, *args: Any) -> Any:
        """A kept connection without unread bytes: such bytes answer no request, so that connection is closed."""
        while (kept := await super()._get(*args)) is not None:
            protocol = cast("Handler", kept.protocol)
            if not protocol.should_close and not protocol.has_unread():
                return kept
            kept.close()
        return None

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **kwargs: Any) -> Any:
        """A connection whose peer the guard allows."""
        try:
            connection = await super().connect(req, *args, **kwargs)
        except (aiohttp.ClientConnectorError, TimeoutError, asyncio.CancelledError):
            if isinstance(self._resolver, GuardedResolver):
                self._resolver.doubt((req.proxy or req.url).raw_host or "")
            raise
        route = ROUTE.get()
        is_watched = not self._allow_private or (route is not None and not self._is_proxied)
        is_direct = req.proxy is None
        if is_watched and connection.transport is not None and (is_direct or not self._is_named(req.proxy)):
            peer = connection.transport.get_extra_info("peername")
            refusal = peer_refusal(peer[0]) if peer else None
            if route is not None and peer and is_direct:
                route.peer = peer[0]
            if refusal is not None and (route is None or route.is_public):
                connection.close()
                raise Refused(refusal, peer[0])
        return connection

    async def _create_proxy_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's signature
    ) -> Any:
        """As aiohttp's own method, which waits without a limit for the answer to CONNECT.

        A tunnel has the time to connect twice: to the proxy, and to the site behind it. Raises: ProxyTimeoutError.
        """
        within_s = 2 * timeout.sock_connect if timeout.sock_connect else None
        deadline = asyncio.timeout(within_s)
        try:
            async with deadline:
                return await super()._create_proxy_connection(req, traces, timeout)
        except TimeoutError as error:
            if deadline.expired():
                raise ProxyTimeoutError(f"no tunnel within {within_s} s") from error
            raise

    def _is_named(self, proxy: URL | None) -> bool:
        return proxy is not None and (proxy.host, proxy.port) in self._exits.places


class UnresolvedNames(AbstractResolver):
    """Passes names on, for a proxy that resolves them."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The name itself."""
        return [{"hostname": host, "host": host, "port": port, "family": family, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        """Nothing to release."""


class SocksConnector(Connector):
    """Connects through a SOCKS proxy, to an address of the guarded resolver or to a name.

    Args:
        address: Of the proxy, if its name was resolved already.
    """

    _is_proxied = True
    _not_reached = REACHED_NOT
    _refused = frozenset[int]()
    _waits = 1

    def __init__(self, proxy: Proxy, may_ask: Callable[[], bool], address: str = "", **options: Any) -> None:
        kind = ProxyType.SOCKS5 if proxy.url.startswith("socks5") else ProxyType.SOCKS4
        family = socket.AF_UNSPEC if kind is ProxyType.SOCKS5 else socket.AF_INET  # SOCKS 4 knows no other
        super().__init__(may_ask, allow_private=True, family=family, **options)  # the peer is the proxy
        parts = urlsplit(proxy.url)
        user = (proxy.user or None, proxy.password or None)
        self._proxy = SocksProxy(kind, address or parts.hostname or "", parts.port or 0, *user, rdns=True)

    def _proxy_to(self, _target: str) -> SocksProxy:
        """The proxy, with the login for HOST:PORT."""
        return self._proxy

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: list[Any],
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's signature
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """As aiohttp's own method, with a socket that the proxy connected."""
        host, port = addr_infos[0][4][:2]
        within_s = self._waits * timeout.sock_connect if timeout.sock_connect else None
        try:
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            connected = await self._proxy_to(target).connect(host, port, timeout=within_s)
        except ProxyConnectionError:
            raise ProxyFailed("proxy") from None
        except ProxyError as error:
            if error.error_code in self._refused:
                raise Refused(str(error).partition(" ")[2]) from None
            if error.error_code not in self._not_reached:
                raise ProxyFailed("proxy") from None
            raise client_error(req.connection_key, OSError(0, str(error))) from None
        try:
            return await self._wrap_existing_connection(
                *args, req=req, timeout=timeout, client_error=client_error, sock=connected, **kwargs
            )
        except BaseException:
            connected.close()
            raise


class ExitConnector(SocksConnector):
    """Connects through a worker of the stage `exit`, which resolves names and asks its own guard (`agents/exits/`).

    Args:
        key: Signs a ticket for each target.
        for_private: Whether its tunnels may reach private addresses, if the exit allows them too. Connections are kept,
            so tunnels of the two kinds need a connector each.
    """

    _not_reached = frozenset({502})
    _refused = frozenset({403})
    _waits = 2  # the exit connects for as long as this worker would, to the site behind it

    def __init__(
        self, proxy: Proxy, may_ask: Callable[[], bool], key: TicketKey, *, for_private: bool, **options: Any
    ) -> None:
        super().__init__(proxy, may_ask, **options)
        parts = urlsplit(proxy.url)
        self._at = parts.hostname or "", parts.port or 0
        self._nonce = proxy.user
        self._key = key
        self._for_private = for_private

    def _proxy_to(self, target: str) -> SocksProxy:
        ticket = self._key.ticket(self._nonce, target, allows_private=self._for_private)
        return SocksProxy(ProxyType.HTTP, *self._at, *ticket, rdns=True)


@lru_cache(4096)
def peer_refusal(address: str) -> str | None:
    """Why an address is private or invalid; None for a public one."""
    return address_refusal(address, allow_private=False)
