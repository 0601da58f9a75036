"""Sends one request and reads its answer, within its limits: aiohttp behind the egress guard.

The guard checks three times: the URL's host and port before anything is sent, every address that a name resolves to,
and the address of the connected peer. Redirects are not followed here: each hop is a URL of its own.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from crawlog.schemas.urls import RequestRules
from crawlog.streams.exits import Exit, own_key
from crawlog.streams.http import OK, Answer, all_headers, note, of_headers
from crawlog.streams.job_spec import own_policy
from crawlog.streams.requests import Proxy, headers_of, literal_refusal, port_refusal
from crawlog.streams.session import Form
from crawlog.streams.settings import Settings

from .body import DRAINED_BYTES, BodyBudget, Reading, read
from .connections import (
    ROUTE,
    Connector,
    ExitConnector,
    GuardedResolver,
    Refused,
    Route,
    SocksConnector,
    UnresolvedNames,
    peer_refusal,
    tls_kind,
    tls_of,
)
from .cookie_jars import CookieJars
from .exit_sources import exits_of
from .failures import failure, lost_proxy, private, refused
from .per_address import Addresses
from .protocol import LeaseLost
from .request import BARE, Headers, OutgoingRequest, RequestBuilder
from .request_proxies import JudgedProxy, RequestProxies, unsent
from .transport import HttpRequest

KEEPALIVE_S = 30.0

# Options of all connectors; the resolvers cache.
SHARED: dict[str, Any] = {"limit": 0, "use_dns_cache": False, "keepalive_timeout": KEEPALIVE_S}

LEAST_STATUS = 100  # A smaller number is no status code (RFC 9110 15); 0 would mean that there was no answer

MOST_LINE_BYTES, MOST_HEADERS = 16_384, 256  # Of the headers of a response; browsers take 256 KiB in all

LOGINS = ("authorization", "proxy-authorization")  # Names of headers with logins

# TLS contexts that are kept. A job may bring its own ciphers, and each context holds the authorities, some 0.5 MB.
MOST_CONTEXTS = 64


class Client:
    """Makes requests, for any number of callers at a time.

    Args:
        user_agent: The User-Agent of jobs that set none.
        may_ask: Whether the worker still holds its lease. Checked before each write, and before a failure counts.
        jars: The cookies of its jobs; None for jars that end with the client.

    Attributes:
        exits: Its ways out.
        lists: The lists of proxies that it has read.
        bodies: The memory budget of bodies.
        addresses: Turns at IP addresses; callers take one before each request.
    """

    def __init__(
        self, settings: Settings, user_agent: str, may_ask: Callable[[], bool], jars: CookieJars | None = None
    ) -> None:
        fetch = settings.fetch
        self.may_ask = may_ask
        self._settings = settings
        self._own = own_policy(settings)
        self._allow_private = settings.network.allow_private
        self._timeout_s = fetch.timeout_s
        self.bodies = BodyBudget(fetch.bodies_mb << 20)
        self.addresses = Addresses(settings.politeness, self.addresses_of)
        self.exits, self.lists = exits_of(settings)
        self._builder = RequestBuilder(fetch, jars or CookieJars(), self.exits)
        self._user_agent = user_agent
        asks, servers = (fetch.dns_cache_hosts, fetch.dns_ttl_s), settings.network.dns_servers
        resolver = partial(GuardedResolver, self._allow_private, *asks, servers)
        self._resolver, self._resolver_by_socks = resolver(self.exits), resolver()
        # By kind, each created when a request needs it: to read the machine's authorities takes 30 ms.
        self._tls: dict[tuple[bool, str, str], ssl.SSLContext] = {}
        if settings.network.ca_file is not None:
            self._context(self._own.rules)  # a file that cannot be read ends the start
        connector = Connector(may_ask, self._allow_private, self.exits, resolver=self._resolver, **SHARED)
        self._session = self._opened(connector)
        self._by_exit: dict[tuple[Exit, bool], aiohttp.ClientSession] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._proxies = RequestProxies(self.exits, self._resolver, fetch.timeout_s)

    def use(self, exits: tuple[Exit, ...]) -> None:
        """These are the exits from now on. Requests by one that is gone end in their time."""
        if exits == tuple(self.exits):
            return
        before = {way.name: way for way in self.exits}
        for way in exits:
            if way.kind == "worker" and before.get(way.name) != way:
                self.exits.renew(way.name)  # it was started again, or redialed
        self.exits.change(exits)
        for key in self._by_exit.keys() - {(way, kind) for way in exits for kind in (False, True)}:
            retiring = asyncio.ensure_future(self._retire(self._by_exit.pop(key)))
            self._retired.add(retiring)
            retiring.add_done_callback(self._retired.discard)

    async def _retire(self, session: aiohttp.ClientSession) -> None:
        try:
            await asyncio.sleep(self._timeout_s)
        finally:
            await session.close()

    async def drop_connections(self, name: str) -> None:
        """Close the connections of an exit: its address is another one now."""
        for key in [key for key in self._by_exit if key[0].name == name]:
            await self._by_exit.pop(key).close()

    def _session_of(self, way: Exit) -> aiohttp.ClientSession:
        """The connections of an exit."""
        route = ROUTE.get()
        for_private = way.kind == "worker" and self._allow_private and (route is None or not route.is_public)
        key = way, for_private
        if (session := self._by_exit.get(key)) is None:
            session = self._by_exit[key] = self._opened(self._connector(way, for_private))
        return session

    def _connector(self, way: Exit, for_private: bool) -> Connector:
        proxy = way.proxy
        if proxy is not None and way.kind == "worker":
            options = SHARED | {"resolver": UnresolvedNames()}
            return ExitConnector(proxy, self.may_ask, own_key(), for_private=for_private, **options)
        if proxy is not None and proxy.is_socks:
            return self._socks(proxy)
        local = (way.address, 0) if way.address else None
        family = socket.AF_UNSPEC if local is None else socket.AF_INET6 if ":" in way.address else socket.AF_INET
        options = SHARED | {"resolver": self._resolver, "local_addr": local, "family": family}
        return Connector(self.may_ask, self._allow_private, self.exits, **options)

    def _socks(self, proxy: Proxy, address: str = "") -> SocksConnector:
        resolver = UnresolvedNames() if proxy.resolves else self._resolver_by_socks
        return SocksConnector(proxy, self.may_ask, address, resolver=resolver, **SHARED)

    def _opened(self, connector: Connector) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # see `streams/http/codings.py`
            headers={
                "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                "Accept-Encoding": "gzip, deflate, br, zstd",
            },
            max_line_size=MOST_LINE_BYTES,
            max_field_size=MOST_LINE_BYTES,
            max_headers=MOST_HEADERS,
        )
        session._retry_connection = False  # noqa: SLF001  # an immediate retry would ignore politeness
        return session

    async def close(self) -> None:
        for retiring in self._retired:
            retiring.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        for session in (self._session, *self._by_exit.values()):
            await session.close()

    async def addresses_of(self, url: str) -> tuple[str, ...]:
        """The addresses of a URL's host; its name if they cannot be resolved."""
        origin = _origin(url)
        if known := self.known(origin):
            return known
        name = _host_name(origin)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._resolver.addresses(name) or (name,)
        except (OSError, Refused, TimeoutError):
            return (name,)

    def known(self, origin: str) -> tuple[str, ...]:
        """The known addresses of an origin; empty where its name must be resolved first."""
        name = _host_name(origin)
        if self.exits.tells_names or ":" in name or name.replace(".", "").isdigit():
            return (name,)
        return self._resolver.known(name)

    async def get(self, request: HttpRequest) -> Answer:
        """The answer to one request; every failure is an answer. As `Transport.get`."""
        if request.form is not None:
            return await self._posted(request, request.form)
        if request.record is None:
            return await self._answered(request)
        rules = (request.policy or self._own).rules
        may_private = self._allow_private and rules.allow_private and not request.asker.is_public
        proxy = await self._proxies.judged(request.record, may_private)
        return unsent(request.record, proxy) or await self._answered(request, proxy)

    async def _answered(self, request: HttpRequest, proxy: JudgedProxy | None = None) -> Answer:
        started = time.monotonic()
        rules = (request.policy or self._own).rules
        url, max_bytes, asker, within_s = request.url, request.max_bytes, request.asker, request.within_s
        outgoing: OutgoingRequest = BARE
        sent: Headers = self._sent(rules)
        is_dressed = self._builder.is_any or rules.cookies or request.headers or request.record is not None
        if is_dressed or self.exits:
            outgoing, sent = self._dressed(request, rules)
            if proxy is not None:
                outgoing.go_by(proxy.proxy, proxy.address)
        limit = rules.max_body_bytes if max_bytes is None else max_bytes
        deadline = asyncio.timeout(rules.timeout_s if within_s is None else min(within_s, rules.timeout_s))
        bodies = asker.bodies or self.bodies
        is_cut = max_bytes is not None
        wants = request.all_headers, request.as_came and not is_cut
        reading = Reading(request.any_type, limit, is_cut, outgoing, sent, deadline, bodies, rules, *wants)
        is_public = asker.is_public or not rules.allow_private
        is_routed = self._allow_private and (is_public or asker.wants_place)
        answer = await (self._routed(url, reading, is_public) if is_routed else self._get(url, reading))
        answer.took_s = time.monotonic() - started
        answer.exit = outgoing.exit.name if outgoing.exit is not None else ""
        return answer

    async def _routed(self, url: str, reading: Reading, for_public: bool) -> Answer:
        """The answer, and whether it came from a private address."""
        origin = _origin(url)
        if for_public and (answer := _refused(origin, allow_private=False)) is not None:
            return answer
        inside = _host_refusal(origin, allow_private=False)
        route = Route(is_public=for_public)
        token = ROUTE.set(route)
        try:
            answer = await self._get(url, reading)
        finally:
            ROUTE.reset(token)
        answer.is_inside = inside is not None or (bool(route.peer) and peer_refusal(route.peer) is not None)
        return answer

    async def closed_to_public(self, url: str) -> str:
        """Why a page from a public address may not load a URL, as far as DNS tells; empty if it may.

        If no private addresses are allowed at all, the answer is empty: the guard then refuses the request itself.
        """
        if not self._allow_private:
            return ""
        origin = _origin(url)
        refusal = _host_refusal(origin, allow_private=False)
        if refusal is None:
            address, *_ = await self.addresses_of(url)
            refusal = peer_refusal(address) if address != _host_name(origin) else None
        return f"private_address: {refusal}" if refusal is not None else ""

    def _dressed(self, request: HttpRequest, rules: RequestRules) -> tuple[OutgoingRequest, Headers]:
        """A request with more than the headers of its job, and all its headers."""
        record, hidden = request.record, request.asker.is_anonymous
        outgoing = self._builder.of(request.url, rules, request.job, record, request.exit, anonymous=hidden)
        sent = {**(request.headers or {}), **self._sent(rules), **outgoing.headers}
        return outgoing, sent if record is None else outgoing.send_record(record, sent)

    def _sent(self, rules: RequestRules) -> Mapping[str, str]:
        """The headers of every request of a job."""
        return headers_of(rules.user_agent or self._user_agent, rules.headers)

    async def _posted(self, request: HttpRequest, form: Form) -> Answer:
        """The answer to a posted form; the job keeps its cookies."""
        url = request.url
        rules = (request.policy or self._own).rules
        outgoing = self._builder.of(url, rules, request.job)
        outgoing.post(form.body)
        own = str(URL(url, encoded=True).origin())
        outgoing.send({"Origin": own, "Referer": f"{own}/"})  # Django and others refuse a form without one of them
        sent = {**self._sent(rules), **outgoing.headers}
        deadline = asyncio.timeout(rules.timeout_s)
        reading = Reading(True, DRAINED_BYTES, True, outgoing, sent, deadline, self.bodies, rules)
        is_closed = self._allow_private and not rules.allow_private
        return await (self._routed(url, reading, True) if is_closed else self._get(url, reading))

    def _context(self, rules: RequestRules) -> ssl.SSLContext:
        """The TLS context of a job's rules; aiohttp keeps connections of different contexts apart."""
        kind = tls_kind(rules)
        context = self._tls.get(kind)
        if context is None:
            if len(self._tls) >= MOST_CONTEXTS:
                self._tls.clear()
            context = self._tls[kind] = tls_of(self._settings, *kind)
        return context

    async def _get(self, url: str, reading: Reading) -> Answer:
        origin, outgoing = _origin(url), reading.outgoing
        if (answer := _refused(origin, self._allow_private)) is not None:
            return answer
        held_s = self.exits.held_s(outgoing.exit.name, time.monotonic()) if outgoing.exit is not None else 0.0
        if waits_s := outgoing.waits_s or held_s:  # the exit may have been picked before it was held
            return lost_proxy(again_s=waits_s)
        while True:
            answer = Answer(None)
            try:
                async with reading.deadline:
                    await self._ask(url, answer, reading)
            except (LeaseLost, asyncio.CancelledError):
                answer.held.give()  # the body is discarded, even a complete one
                raise
            except Exception as error:  # a server can make aiohttp raise nearly anything
                # aiohttp sends a form in a task of its own, and wraps its LeaseLost. After the process was stopped, all
                # timers expire at once: such a timeout is no failure of the server.
                if isinstance(error.__cause__, LeaseLost) or not self.may_ask():
                    answer.held.give()
                    raise LeaseLost from error
                blame = outgoing.blame(error)
                if blame in ("proxy", "unknown") and outgoing.goes_again():
                    reading = reading._replace(deadline=asyncio.timeout(reading.rules.timeout_s))
                    continue
                return failure(error, answer, outgoing, blame)
            finally:
                answer.held.cut(len(answer.body))
            return answer

    async def _ask(self, url: str, answer: Answer, reading: Reading) -> None:
        way = reading.outgoing.exit
        if way is None:
            await self._ask_out(url, answer, reading)
            return
        began = time.monotonic()
        self.exits.sent(way)
        try:
            await self._ask_out(url, answer, reading)
        finally:
            self.exits.ended(way, len(answer.body), time.monotonic() - began)

    async def _ask_out(self, url: str, answer: Answer, reading: Reading) -> None:
        proxy, way = reading.outgoing.proxy, reading.outgoing.exit
        if way is not None:
            await self._ask_by(self._session_of(way), url, answer, reading)
        elif proxy is not None and proxy.is_socks:  # the request names its proxy
            async with self._opened(self._socks(proxy, reading.outgoing.own_address)) as session:
                await self._ask_by(session, url, answer, reading)
        else:
            await self._ask_by(self._session, url, answer, reading)

    async def _ask_by(self, session: aiohttp.ClientSession, url: str, answer: Answer, reading: Reading) -> None:
        outgoing, rules = reading.outgoing, reading.rules
        async with session.request(
            outgoing.method,
            sent_as(url),
            headers=reading.headers,
            allow_redirects=False,
            timeout=_timeout(rules.connect_timeout_s, rules.first_byte_timeout_s),
            ssl=True if url.startswith("http:") and outgoing.proxy is None else self._context(rules),
            **outgoing.options,
        ) as response:
            outgoing.answered(response)
            if response.status < LEAST_STATUS:
                raise ValueError("the status line has no status code")
            answer.http = response.status
            headers = response.headers
            note(answer, headers)
            answer.had_cookies = outgoing.has_cookies
            if reading.all_headers:
                answer.headers = all_headers(response.raw_headers)
                answer.sent = all_headers(_sent_lines(response))
                answer.status_line = _status_line(response)
            answer.drop_login(url)
            if outgoing.keeps_cookies and outgoing.method == "GET" and (target := answer.target(url)):
                answer.is_cookie_check = outgoing.has_new_cookies and target == url
                answer.leads_back = outgoing.leads_back(target)
            if response.connection is not None and response.connection.protocol is not None:
                response.connection.protocol.read_timeout = rules.chunk_timeout_s
            await read(response, answer, reading)
            if rules.conditional and answer.http == OK and answer.kept and answer.body:
                answer.validators = of_headers(headers.get("ETag"), headers.get("Last-Modified"))


def _sent_lines(response: aiohttp.ClientResponse) -> Iterator[tuple[bytes, bytes]]:
    """The headers of the request as they were sent, without logins, which no record may hold."""
    for name, value in response.request_info.headers.items():
        if name.lower() not in LOGINS:
            yield name.encode(), value.encode("utf-8", "replace")


def _status_line(response: aiohttp.ClientResponse) -> str:
    """The first line, with the bytes of the reason as Latin-1, as all headers are kept."""
    reason = (response.reason or "").encode("utf-8", "surrogateescape").decode("latin-1")
    version = response.version or aiohttp.HttpVersion11
    return f"HTTP/{version.major}.{version.minor} {response.status} {reason}"


@lru_cache(256)
def _timeout(connect_s: float, first_byte_s: float) -> aiohttp.ClientTimeout:
    """No total timeout: `_get` has its own deadline, which can be extended."""
    return aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=first_byte_s)


def sent_as(url: str) -> URL:
    """A canonical URL for aiohttp, sent byte for byte."""
    wanted = URL(url, encoded=True)
    if url.endswith("?"):  # yarl drops an empty query, which names another page
        wanted._cache["raw_path_qs"] = url[url.index("/", 8) :]  # noqa: SLF001  # yarl has no public way
    return wanted


def _origin(url: str) -> str:
    return url[: url.find("/", 8)]


@lru_cache(4096)
def _host_name(origin: str) -> str:
    return urlsplit(origin).hostname or ""


_port_refusal = lru_cache(4096)(port_refusal)


@lru_cache(4096)
def _host_refusal(origin: str, allow_private: bool) -> str | None:
    return literal_refusal(_host_name(origin), allow_private)


def _refused(origin: str, allow_private: bool) -> Answer | None:
    """The guard's answer to a URL's port and host, before DNS; None if both are allowed."""
    if (refusal := _port_refusal(origin)) is not None:
        return refused(f"bad_port: {refusal}")
    if (refusal := _host_refusal(origin, allow_private)) is not None:
        return private(refusal, is_closed=_host_refusal(origin, allow_private=True) is None)
    return None
