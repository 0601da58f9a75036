"""One request, its answer, its limits: aiohttp behind the egress guard. Nothing here knows of crawling.

The guard speaks three times: of the URL's host before anything is sent, of every address that a name resolves to, and
of the address of the connected peer. Redirects are never followed here: each hop is a URL of its own.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
from python_socks import ProxyTimeoutError
from yarl import URL

from crawlog.streams.answers import OK, REDIRECTS, Answer
from crawlog.streams.canonical import InvalidUrl, serialise
from crawlog.streams.codings import BadCoding, TooLarge, decoder
from crawlog.streams.egress import literal_refusal
from crawlog.streams.errors import Misconfigured
from crawlog.streams.forms import Form
from crawlog.streams.sections import Fetch
from crawlog.streams.settings import Settings
from crawlog.streams.sniff import SNIFFED_BYTES, UNKNOWN, computed, essence
from crawlog.streams.validators import of_headers

from .addresses import Addresses
from .connections import (
    ROUTE,
    Connector,
    GuardedResolver,
    LeaseLost,
    Names,
    Refused,
    Route,
    SocksConnector,
    peer_refusal,
)
from .outfit import BARE, Blame, Outfit, ProxyFailed, Worn
from .room import Room

DRAINED_BYTES = 64 * 1024
"""A body that nobody wants is read up to here to keep its connection, and cut off beyond."""

KEEPALIVE_S = 30.0

FREE_BYTES = 256 * 1024
"""Of each body so much is read without room in memory: nearly every page is smaller."""

TURN_S = 0.001
"""A body that is being decoded gives the loop a turn after so long: others may come first, it is a bomb, perhaps."""

HEADER_CHARS = 2000
"""Of Link and of X-Robots-Tag, so much is kept with a page."""


class Asker(NamedTuple):
    """For whom a request is sent.

    Attributes:
        is_anonymous: Neither login nor cookies are sent, and none are kept.
        is_public: It is a page from a public address: private ones are closed to it wherever they are allowed.
        wants_place: Whether the answer is from a private address must be known.
        room: For its body, where somebody who holds some of `fetch.bodies_mb` waits for it.
    """

    is_anonymous: bool = False
    is_public: bool = False
    wants_place: bool = False
    room: Room | None = None


THE_CRAWL = Asker()


LEAST_STATUS = 100
"""What is less is no status code (RFC 9110 15), and 0 would be taken for no answer."""


class _Reading(NamedTuple):
    """How a response is read.

    Attributes:
        any_type: Keep the body whatever its type.
        limit: Bytes of a body.
        cuts: Whether a larger body is cut there; else none of it is kept.
        outfit: What the request went out with.
        deadline: Of the whole request.
        room: What a large body waits for.
    """

    any_type: bool
    limit: int
    cuts: bool
    outfit: Worn
    deadline: asyncio.Timeout
    room: Room


class Client:
    """Fetches URLs one at a time for as many callers as come.

    Args:
        user_agent: The header's value.
        may_ask: Asked last, with each write to a server: whether the request may be sent.

    Attributes:
        room: For bodies.
        addresses: By which whoever sends a request keeps `politeness.per_ip`.
    """

    def __init__(self, settings: Settings, user_agent: str, may_ask: Callable[[], bool]) -> None:
        fetch = settings.fetch
        self._allow_private = settings.network.allow_private
        self._max_body_bytes = fetch.max_body_bytes
        self._conditional = fetch.conditional
        self._timeout_s = fetch.timeout_s
        self.room = Room(fetch.bodies_mb << 20)
        self.addresses = Addresses(settings.politeness.per_ip, self.address)
        self._accepted = frozenset(kind.lower() for kind in fetch.content_types)
        self._outfit = Outfit(fetch)
        resolver = partial(GuardedResolver, self._allow_private, fetch.dns_cache_hosts, fetch.dns_ttl_s)
        self._resolver = resolver(self._outfit.proxy_names)
        tls = _tls(settings)
        shared = {"limit": 0, "use_dns_cache": False, "keepalive_timeout": KEEPALIVE_S, "ssl": tls}  # resolvers cache
        connector = Connector(may_ask, self._allow_private, resolver=self._resolver, **shared)
        self._session = self._opened(fetch, user_agent, connector)
        self._by_socks = {
            proxy: self._opened(
                fetch,
                user_agent,
                SocksConnector(proxy, may_ask, resolver=Names() if proxy.resolves else resolver(), **shared),
            )
            for proxy in self._outfit.socks
        }
        self._chunk_timeout_s = fetch.chunk_timeout_s

    def _opened(self, fetch: Fetch, user_agent: str, connector: Connector) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None,  # `_get` has a deadline of its own, which can be put off
                sock_connect=fetch.connect_timeout_s,
                sock_read=fetch.first_byte_timeout_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # see `streams/codings.py`
            headers={
                "User-Agent": user_agent,
                "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
                "Accept-Encoding": "gzip, deflate, br, zstd",
                **self._outfit.headers,
            },
            max_line_size=fetch.max_header_bytes,
            max_field_size=fetch.max_header_bytes,
            max_headers=fetch.max_headers,
        )
        session._retry_connection = False  # noqa: SLF001  # it would ask again at once, and politeness not know
        return session

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._session, *self._by_socks.values()):
            await session.close()

    async def address(self, url: str) -> str:
        """An address that a URL will be asked at, or its host's name where that is not known here."""
        name = urlsplit(url).hostname or ""
        if self._outfit.tells_names or ":" in name or name.replace(".", "").isdigit():
            return name
        try:
            found = await self._resolver.resolve(name, family=socket.AF_UNSPEC)
        except (OSError, Refused):
            return name
        return found[0]["host"] if found else name

    async def get(
        self,
        url: str,
        *,
        any_type: bool = False,
        max_bytes: int | None = None,
        job: str = "",
        headers: Mapping[str, str] | None = None,
        asker: Asker = THE_CRAWL,
    ) -> Answer:
        """Ask for a URL; every failure is an answer.

        Args:
            any_type: Keep the body whatever its type (robots.txt).
            max_bytes: Keep so many bytes and drop the rest; None for `fetch.max_body_bytes`, above which none is kept.
            job: Whose cookies are sent; without one there are none.
            headers: Further ones, of this request; what is sent to every host and logins are stronger.
            asker: For whom.

        Returns: Whoever is done with the body gives `Answer.held` back: until then others may have to wait.
        Raises: LeaseLost: nothing was sent.
        """
        started = time.monotonic()
        outfit = self._outfit.of(url, job, anonymous=asker.is_anonymous) if self._outfit.is_any or headers else BARE
        if headers:
            outfit.options["headers"] = {**headers, **self._outfit.headers, **outfit.options.get("headers", {})}
        limit = self._max_body_bytes if max_bytes is None else max_bytes
        reading = _Reading(any_type, limit, max_bytes is not None, outfit, self._deadline(), asker.room or self.room)
        is_routed = self._allow_private and (asker.is_public or asker.wants_place)
        answer = await (self._routed(url, reading, asker.is_public) if is_routed else self._get(url, reading))
        answer.took_s = time.monotonic() - started
        return answer

    async def _routed(self, url: str, reading: _Reading, for_public: bool) -> Answer:
        """The answer, with where it came from; where every address is public, nobody needs to know."""
        inside = _host_refusal(_origin(url), allow_private=False)
        if for_public and inside is not None:
            return _private(inside)
        route = Route(is_public=for_public)
        token = ROUTE.set(route)
        try:
            answer = await self._get(url, reading)
        finally:
            ROUTE.reset(token)
        answer.is_inside = inside is not None or (bool(route.peer) and peer_refusal(route.peer) is not None)
        return answer

    async def closed_to_public(self, url: str) -> str:
        """Why a page from a public address may not have a URL, as far as can be told without asking; empty if it may.

        Where no private address is allowed, the guard will say so itself.
        """
        if not self._allow_private:
            return ""
        origin = _origin(url)
        refusal = _host_refusal(origin, allow_private=False)
        if refusal is None:
            address = await self.address(origin)
            refusal = peer_refusal(address) if address != urlsplit(origin).hostname else None
        return f"private_address: {refusal}" if refusal is not None else ""

    async def log_in(self, form: Form, job: str) -> Answer:
        """Post a form; the cookies that come are the job's. Raises: LeaseLost: nothing was sent."""
        outfit = self._outfit.of(form.url, job)
        outfit.post(form.body)
        own = str(URL(form.url, encoded=True).origin())
        outfit.send({"Origin": own, "Referer": f"{own}/"})  # Django and others take no token without one of them
        return await self._get(form.url, _Reading(True, DRAINED_BYTES, True, outfit, self._deadline(), self.room))

    def _deadline(self) -> asyncio.Timeout:
        return asyncio.timeout(self._timeout_s)

    async def _get(self, url: str, reading: _Reading) -> Answer:
        refusal = _host_refusal(_origin(url), self._allow_private)
        if refusal is not None:
            return _private(refusal)
        while True:
            answer = Answer(None)
            try:
                async with reading.deadline:
                    await self._ask(url, answer, reading)
            except (LeaseLost, asyncio.CancelledError):
                answer.held.give()  # also where the body is here: nobody gets it
                raise
            except Exception as error:  # noqa: BLE001  # a server can make aiohttp raise nearly anything
                if isinstance(error.__cause__, LeaseLost):  # aiohttp sends a form in a task of its own
                    raise error.__cause__ from None
                blame = reading.outfit.blame(error)
                if blame in ("proxy", "unknown") and reading.outfit.goes_again():
                    reading = reading._replace(deadline=self._deadline())
                    continue
                return _failure(error, answer, reading.outfit, blame)
            finally:
                answer.held.cut(len(answer.body))
            return answer

    async def _ask(self, url: str, answer: Answer, reading: _Reading) -> None:
        outfit = reading.outfit
        session = self._by_socks.get(outfit.proxy, self._session) if outfit.proxy is not None else self._session
        async with session.request(outfit.method, sent_as(url), allow_redirects=False, **outfit.options) as response:
            outfit.answered(response)
            if response.status < LEAST_STATUS:
                raise ValueError("the status line has no status code")
            answer.http = response.status
            headers = response.headers
            answer.content_type = _text(headers.get("Content-Type", ""))
            answer.retry_after = headers.get("Retry-After")
            answer.link = _cut(headers.getall("Link", ()))
            answer.x_robots = _cut(headers.getall("X-Robots-Tag", ()))
            answer.refresh = ", ".join(_cut(headers.getall("Refresh", ())))
            answer.allow_origin = ", ".join(headers.getall("Access-Control-Allow-Origin", ()))
            answer.allows_credentials = headers.get("Access-Control-Allow-Credentials") == "true"
            if response.status in REDIRECTS:
                answer.location = _escaped(headers.get("Location", ""))
                target = _target(url, answer.location)
                answer.is_cookie_check = outfit.has_new_cookies and target == url
                answer.leads_back = bool(target) and outfit.leads_back(target)
            if response.connection is not None and response.connection.protocol is not None:
                response.connection.protocol.read_timeout = self._chunk_timeout_s
            await self._body(response, answer, reading)
            if self._conditional and answer.http == OK and answer.kept and answer.body:
                answer.validators = of_headers(headers.get("ETag"), headers.get("Last-Modified"))

    async def _body(self, response: aiohttp.ClientResponse, answer: Answer, reading: _Reading) -> None:
        if reading.any_type or self._accepts(answer.content_type):
            if _is_small(response, reading):
                self._keep(answer, await response.read(), is_known=reading.any_type)
            else:
                await self._read(response, answer, reading)
        elif (response.content_length or DRAINED_BYTES + 1) <= DRAINED_BYTES:
            await response.read()
        else:
            response.close()

    def _accepts(self, content_type: str) -> bool:
        """Whether the header lets a body be read; without one, the body says what it is."""
        kind = essence(content_type)
        return kind in UNKNOWN or "/" not in kind or kind in self._accepted

    def _is_wanted(self, answer: Answer, head: bytes) -> bool:
        """Whether a body is of an accepted type, by header and first bytes together."""
        kind = computed(answer.content_type, head)
        if kind != essence(answer.content_type):
            answer.sniffed = kind
        return kind in self._accepted or not answer.sniffed

    async def _read(self, response: aiohttp.ClientResponse, answer: Answer, reading: _Reading) -> None:
        try:
            await self._read_pieces(_Pieces(response, reading), answer, reading)
        except (TooLarge, BadCoding) as error:
            response.close()
            answer.error = "too_large" if isinstance(error, TooLarge) else "bad_encoding"

    async def _read_pieces(self, pieces: "_Pieces", answer: Answer, reading: _Reading) -> None:
        response = pieces.response
        length = response.content_length if not pieces.is_coded else None
        chunks: list[bytes] = []
        size = 0
        is_known = reading.any_type
        while (piece := await pieces.next()) is not None:
            chunks.append(piece)
            size += len(piece)
            if not is_known and size >= SNIFFED_BYTES:
                is_known = True
                if not self._is_wanted(answer, b"".join(chunks)[:SNIFFED_BYTES]):
                    response.close()
                    return
            if size > reading.limit or (is_known and not reading.cuts and (length or 0) > reading.limit):
                if not reading.cuts:
                    raise TooLarge
                response.close()
                break
            if max(size, length or 0) > FREE_BYTES and not answer.held.size_bytes:
                await self._take_room(response, answer, reading, length)
        self._keep(answer, b"".join(chunks)[: reading.limit], is_known=is_known)

    async def _take_room(
        self, response: aiohttp.ClientResponse, answer: Answer, reading: _Reading, length: int | None
    ) -> None:
        """Wait for room for all that the body may be. Meanwhile no byte is taken from the server, and no time runs."""
        protocol = response.connection.protocol if response.connection is not None else None
        if protocol is not None and protocol.connected:
            protocol.pause_reading()  # which also stops the clock of `fetch.chunk_timeout_s`
        loop = asyncio.get_running_loop()
        deadline = reading.deadline
        left_s = (deadline.when() or 0.0) - loop.time()
        deadline.reschedule(None)
        try:
            answer.held = await reading.room.take(min(length or reading.limit, reading.limit))
        finally:
            deadline.reschedule(loop.time() + left_s)
            if protocol is not None:
                protocol.resume_reading()

    def _keep(self, answer: Answer, body: bytes, *, is_known: bool) -> None:
        """Keep a body if it is of a type that is wanted."""
        answer.kept = is_known or self._is_wanted(answer, body[:SNIFFED_BYTES])
        answer.body = body if answer.kept else b""


class _Pieces:
    """A body as it comes, without its codings, none of its pieces so large that it would hold up the loop.

    Attributes:
        is_coded: Whether what is sent is not what comes.
    """

    def __init__(self, response: aiohttp.ClientResponse, reading: _Reading) -> None:
        self.response = response
        self._outfit = reading.outfit
        self._limit = reading.limit
        self._decoder = decoder(", ".join(response.headers.getall("Content-Encoding", ())), reading.limit)
        self._decoded: Iterator[bytes] = iter(())
        self._sent_bytes = 0
        self._turned_at = 0.0
        self.is_coded = self._decoder is not None

    async def next(self) -> bytes | None:
        """The next piece, None at the end. Raises: TooLarge, BadCoding."""
        if self._decoder is None:
            return await self._chunk() or None
        piece = next(self._decoded, None)
        if piece is not None:
            if time.monotonic() - self._turned_at > TURN_S:
                await asyncio.sleep(0)
                self._turned_at = time.monotonic()
            return piece
        while chunk := await self._chunk():
            self._turned_at = time.monotonic()
            self._sent_bytes += len(chunk)
            if self._sent_bytes > self._limit:
                raise TooLarge  # a coded body may be endless, and nothing come of it
            self._decoded = self._decoder.pieces(chunk)
            piece = next(self._decoded, None)
            if piece is not None:
                return piece
        self._decoder.end()
        return None

    async def _chunk(self) -> bytes:
        chunk = await self.response.content.readany()
        if self._outfit.paced and chunk:
            await self._outfit.pace(len(chunk))
        return chunk


def sent_as(url: str) -> URL:
    """A canonical URL as the client wants it, to be sent byte for byte."""
    wanted = URL(url, encoded=True)
    if url.endswith("?"):  # an empty query would be left out, and the page asked for would be another one
        wanted._cache["raw_path_qs"] = url[url.index("/", 8) :]  # noqa: SLF001  # no other way to say so
    return wanted


def _is_small(response: aiohttp.ClientResponse, reading: _Reading) -> bool:
    """Whether a body can be read at once: its length is known, and nothing has to be watched meanwhile."""
    length = response.content_length
    return (
        length is not None
        and length <= min(reading.limit, FREE_BYTES)
        and "Content-Encoding" not in response.headers
        and not reading.outfit.paced
    )


def _tls(settings: Settings) -> ssl.SSLContext:
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


def _cut(values: Iterable[str]) -> tuple[str, ...]:
    """The first values of a header, as many as may be kept with a page."""
    kept: list[str] = []
    room = HEADER_CHARS
    for value in values:
        room -= len(value)
        if room < 0:
            break
        kept.append(_text(value))
    return tuple(kept)


def _text(value: str) -> str:
    """A header's value as characters: bytes that are no UTF-8 come as lone surrogates, which no record can hold."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _escaped(location: str) -> str:
    """A Location with those bytes percent-encoded, as browsers send them on."""
    if location.isascii():
        return location
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in location)


def _target(url: str, location: str) -> str:
    """Where a redirect leads; empty where that is nowhere."""
    try:
        return serialise(location, url) if location else ""
    except InvalidUrl:
        return ""


def _origin(url: str) -> str:
    """A canonical URL up to its path."""
    return url[: url.find("/", 8)]


@lru_cache(4096)
def _host_refusal(origin: str, allow_private: bool) -> str | None:
    return literal_refusal(urlsplit(origin).hostname or "", allow_private)


def _failure(error: Exception, answer: Answer, outfit: Worn, blame: Blame) -> Answer:
    """What is left of an answer."""
    refused = error if isinstance(error, Refused) else error.__cause__
    if isinstance(refused, Refused):
        return _private(str(refused))
    if blame in ("proxy", "broken_off"):
        answer = Answer(None, str(error) if isinstance(error, ProxyFailed) else "proxy")
        answer.by_proxy, answer.again_s = True, outfit.again_s
        return answer
    answer.error = reason_of(error)
    if isinstance(error, aiohttp.SocketTimeoutError):
        answer.error = "first_byte_timeout" if answer.http is None else "chunk_timeout"
    answer.kept = False
    answer.body = b""
    return answer


def _private(refusal: str) -> Answer:
    answer = Answer(None, f"private_address: {refusal}")
    answer.private = True
    return answer


_HEADER_FAULTS = (("Got more than", "header_too_large"), ("Too many headers", "too_many_headers"))
"""What aiohttp's parser says when a limit is reached, and our word for it."""

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (ProxyTimeoutError, "connect_timeout"),
    (aiohttp.ClientConnectorDNSError, "dns"),
    (aiohttp.ClientConnectorCertificateError, "tls_certificate"),
    (aiohttp.ClientConnectorSSLError, "tls"),
    (aiohttp.ConnectionTimeoutError, "connect_timeout"),
    (TimeoutError, "timeout"),
    (aiohttp.ClientConnectorError, "connect"),
    (aiohttp.ServerDisconnectedError, "disconnected"),
    (aiohttp.ClientPayloadError, "bad_body"),
    (aiohttp.InvalidURL, "bad_url"),
    (aiohttp.ClientResponseError, "bad_http"),
    (aiohttp.ClientOSError, "connection_reset"),
    (ssl.SSLError, "tls"),
    (OSError, "connect"),
    (aiohttp.ClientError, "bad_http"),
    (ValueError, "bad_http"),
)


def reason_of(error: BaseException) -> str:
    """One word for an exception of aiohttp."""
    if isinstance(error, aiohttp.ClientResponseError):
        for said, word in _HEADER_FAULTS:
            if said in error.message:
                return word
    return next((word for kind, word in _REASONS if isinstance(error, kind)), type(error).__name__)
