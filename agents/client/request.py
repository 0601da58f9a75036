"""Builds requests for aiohttp: headers, cookies and proxy, as `streams/requests/request.py` decides them."""

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import structlog
from python_socks import ProxyTimeoutError
from yarl import URL

from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import RequestRules
from crawlog.streams.exits import Exit, Exits, ExitWish, session_name
from crawlog.streams.http import REDIRECTS
from crawlog.streams.requests import TUNNELLED_NOT, Proxy, joined_headers, origin_of, read_login
from crawlog.streams.session import CookieJar, read_form
from crawlog.streams.settings import Fetch
from crawlog.streams.url import registrable_domain

from .cookie_jars import CookieJars, CookieWalls

log = structlog.get_logger()

PROXY_AUTHENTICATION = 407

MOST_EXITS = 3  # Exits tried for one request while none lets it through to the site


Headers = Mapping[str, str] | list[tuple[str, str]]  # Headers of a request; a list where a name may come several times


class ProxyFailed(Exception):
    """The answer came from the proxy, which did not serve."""


class OutgoingRequest:
    """One request as it is sent, beyond its URL.

    Attributes:
        method: As it is sent.
        options: For aiohttp.
        headers: Beside those of its job.
        exit: The exit it goes by, if any.
        proxy: The proxy it goes through, if any.
        waits_s: Seconds until an exit serves its host, if none does now: it is not sent.
        has_own_proxy: Whether the request names its proxy.
        own_address: Where that is connected to, if it speaks SOCKS.
        has_new_cookies: Whether the answer changed the cookies that the same request would carry.
    """

    def __init__(self, url: str = "") -> None:
        self.method = "GET"
        self.options: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self._url = url
        self.exit: Exit | None = None
        self.proxy: Proxy | None = None
        self.waits_s = 0.0
        self.has_own_proxy = False
        self.own_address = ""
        self._exits: Exits | None = None
        self._rules: RequestRules | None = None
        self._session = ""
        self._may_change = False
        self._chosen_at = 0.0
        self._failed: set[str] = set()
        self._job = ""
        self._jar: CookieJar | None = None
        self._walls: CookieWalls | None = None
        self._cookies = ""
        self.has_new_cookies = False

    def send(self, headers: Mapping[str, str]) -> None:
        self.headers.update(headers)

    def post(self, form: str) -> None:
        """Send the fields of a form."""
        self.method = "POST"
        self.options["data"] = form.encode()
        self.send({"Content-Type": "application/x-www-form-urlencoded"})

    def send_record(self, record: RequestRecord, usual: Mapping[str, str]) -> list[tuple[str, str]]:
        """Send a request as its record says; returns all its headers.

        Args:
            usual: Those that it has without its own.
        """
        self.method = record.method.upper()
        self.options["skip_auto_headers"] = ("Content-Type", *record.without)  # the request says the type of its body
        if record.body:
            self.options["data"] = record.body
        if record.without:
            gone = {name.lower() for name in record.without}
            usual = {name: value for name, value in usual.items() if name.lower() not in gone}
        headers, refused = joined_headers(usual.items(), record.headers)
        for reason in refused:
            log.warning("header_dropped", url=self._url, reason=reason)
        return headers

    def take_jar(self, job: str, jar: CookieJar, walls: CookieWalls) -> None:
        """Send a job's cookies, keep those of the answer, and remember the target of a redirect."""
        self._job, self._jar, self._walls = job, jar, walls
        self._cookies = jar.header(self._url, time.time())
        if self._cookies:
            self.send({"Cookie": self._cookies})

    def send_cookies(self, jar: CookieJar) -> None:
        """Send the cookies that a request brings along; they are not kept."""
        if header := jar.header(self._url, time.time()):
            self.send({"Cookie": header})

    def go_out(self, exits: Exits, rules: RequestRules, session: str, given: Exit | None) -> None:
        """Go by an exit.

        Args:
            session: As `Exits.pick` has it.
            given: That of the caller, by which alone it goes; None to pick one, and the next one if that fails.
        """
        self._exits, self._rules, self._session, self._may_change = exits, rules, session, given is None
        self._chosen_at = time.monotonic()
        if given is not None:
            self._go_by(given)
        else:
            self._pick_exit()

    def _pick_exit(self) -> bool:
        """Whether an exit serves the host now."""
        assert self._exits is not None
        assert self._rules is not None
        now = self._chosen_at = time.monotonic()
        wish = ExitWish(self._session, self._failed)
        picked = self._exits.pick(origin_of(self._url), self._rules, now, wish)
        if isinstance(picked, float):
            self.waits_s = max(picked - now, 0.0)
            return False
        self._go_by(picked)
        return True

    def _go_by(self, way: Exit) -> None:
        self.exit, self.proxy = way, way.proxy
        self._send_to_proxy()

    def _send_to_proxy(self) -> None:
        if self.proxy is not None and not self.proxy.is_socks:
            self.options["proxy"] = _address(self.proxy)
        else:
            self.options.pop("proxy", None)

    def go_by(self, proxy: Proxy, address: str) -> None:
        """Use the proxy that the request names.

        Args:
            address: Where a SOCKS proxy is connected to.
        """
        self.proxy, self.has_own_proxy, self.own_address = proxy, True, address
        self.exit = self._exits = None
        self._send_to_proxy()

    def goes_again(self) -> bool:
        """Pick another exit after one did not let the request through; False if none is left."""
        return self._may_change and self._exits is not None and len(self._failed) < MOST_EXITS and self._pick_exit()

    @property
    def again_s(self) -> float:
        """Seconds until an exit serves its host."""
        if self._exits is None or self._rules is None:
            return 0.0
        return self._exits.wakes_in_s(origin_of(self._url), self._rules, time.monotonic())

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """Keep a response's cookies; count it for its exit. Raises: ProxyFailed: the proxy itself responded."""
        proxy = self.proxy
        if proxy is not None and response.status == PROXY_AUTHENTICATION and not self._is_tunnelled(proxy):
            raise ProxyFailed("proxy_login")
        if self._exits is not None and self.exit is not None:
            self._exits.worked(self.exit)
        if self._jar is not None and "Set-Cookie" in response.headers:
            now = time.time()
            self._jar.keep(self._url, response.headers.getall("Set-Cookie"), now)
            self.has_new_cookies = self._jar.header(self._url, now) != self._cookies
        if self._walls is not None and response.status not in REDIRECTS:
            self._walls.forget(self._job, self._url)

    def _is_tunnelled(self, proxy: Proxy) -> bool:
        """Whether every response is the site's: a proxy of SOCKS gives none, one of HTTP only to the CONNECT."""
        return proxy.is_socks or self._url.startswith("https:")

    @property
    def has_cookies(self) -> bool:
        return bool(self._cookies)

    @property
    def keeps_cookies(self) -> bool:
        return self._jar is not None

    def leads_back(self, target: str) -> bool:
        """Record a redirect. True if its target redirected here before, and would get other cookies now."""
        if self._jar is None or self._walls is None or target == self._url:
            return False
        jar, now = self._jar, time.time()
        leads_back = self._walls.leads_back(self._job, self._url, target, lambda url: jar.header(url, now))
        self._walls.note(self._job, self._url, target, self._cookies)
        return leads_back

    def blame(self, error: BaseException) -> "Blame":
        """The party at fault for an error; a fault of the proxy is counted."""
        blame = _blame(self.proxy, urlsplit(self._url).scheme, error)
        if blame == "site" or self.exit is None or self._exits is None:
            return blame
        self._failed.add(self.exit.name)
        now, is_sure = time.monotonic(), blame != "silence"
        if self._exits.failed(origin_of(self._url), self.exit, self._chosen_at, now, is_sure=is_sure):
            log.warning("exit_rests", exit=self.exit.name, then="its hosts go by the others")
        return blame


# The party at fault. `unknown`: the proxy or the site did not respond, and nothing was sent yet. `broken_off`: the
# proxy failed after it received the request, so the site may have received it too. `silence`: neither responded to a
# request that was sent. It is the site's failure, for it may have been asked, and counts for the proxy as well.
Blame = Literal["site", "silence", "proxy", "unknown", "broken_off"]


def _blame(proxy: Proxy | None, scheme: str, error: BaseException) -> Blame:
    if isinstance(error, ProxyFailed):
        return "proxy"
    if isinstance(error, ProxyTimeoutError):
        return "unknown"
    if proxy is not None and not proxy.is_socks:
        blame = _blame_http(urlsplit(proxy.url).hostname, scheme, error)
        if blame != "site":
            return blame
    return "silence" if isinstance(error, TimeoutError) else "site"


def _blame_http(proxy: str | None, scheme: str, error: BaseException) -> Blame:
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ConnectionTimeoutError):
        return "proxy"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return "site" if error.status in TUNNELLED_NOT else "proxy"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "proxy" if error.host == proxy else "site"
    if scheme != "http" or isinstance(error, TimeoutError):  # the proxy has made a tunnel, or nobody answered
        return "site"
    return "broken_off" if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError) else "site"


@lru_cache(1024)
def _address(proxy: Proxy) -> URL:
    """The proxy's URL with user and password; aiohttp makes the login header from it, for requests and tunnels.

    It writes their characters in Latin-1: these are the bytes of their UTF-8, in which all logins are sent.
    """
    address = URL(proxy.url)
    user, password = (part.encode().decode("latin-1") for part in (proxy.user, proxy.password))
    return address.with_user(user).with_password(password) if user else address


BARE = OutgoingRequest()  # A request without login, cookies and proxy


class RequestBuilder:
    """Builds the requests of one worker: logins, cookies, exits.

    Args:
        jars: The cookies of its jobs.
        exits: Those of the worker.

    Attributes:
        is_any: Whether any login or form is configured; without one only cookies and exits differ.
    """

    def __init__(self, settings: Fetch, jars: CookieJars, exits: Exits) -> None:
        self._jars = jars
        self._logins = dict(read_login(text) for text in settings.logins)
        self._exits = exits
        self._keeps = frozenset(read_form(text).origin for text in settings.forms)
        self._walls = CookieWalls()
        self.is_any = bool(self._logins or self._keeps)
        exits.logged_in = frozenset(self._logins) | self._keeps

    def of(
        self,
        url: str,
        rules: RequestRules,
        job: str = "",
        record: RequestRecord | None = None,
        given: Exit | None = None,
        *,
        anonymous: bool = False,
    ) -> OutgoingRequest:
        """The request for a URL; an anonymous one has neither login nor cookies.

        Args:
            job: Whose cookies it has; empty for none.
            record: Names its jar and its own cookies.
            given: The exit that its caller has chosen for it.
        """
        origin = origin_of(url)
        outgoing = OutgoingRequest(url)
        if anonymous:
            job = ""
        elif origin in self._logins:
            outgoing.send({"Authorization": self._logins[origin]})
        has_jar = rules.cookies or origin in self._keeps
        if job and (record is None or record.keeps_cookies):
            self._add_cookies(outgoing, url, job, record, has_jar=has_jar, is_stored=rules.cookies)
        if self._exits and not (record is not None and record.proxy):
            session = ""
            if job and (has_jar or origin in self._exits.logged_in):
                jar = record.jar if record is not None else ""
                session = session_name(job, registrable_domain(urlsplit(url).hostname or ""), jar)
            outgoing.go_out(self._exits, rules, session, given)
        return outgoing

    def _add_cookies(
        self,
        outgoing: OutgoingRequest,
        url: str,
        job: str,
        record: RequestRecord | None,
        *,
        has_jar: bool,
        is_stored: bool,
    ) -> None:
        """The cookies of the jar, and those that the request brings along: they join the jar if there is one."""
        if has_jar:
            jar = self._jars.of(job, url, record.jar if record is not None else "", is_stored=is_stored)
            if record is not None:
                self._jars.give(jar, job, url, record.cookies)
            outgoing.take_jar(job, jar, self._walls)
        elif record is not None and record.cookies:
            jar = CookieJar()
            self._jars.give(jar, job, url, record.cookies)
            outgoing.send_cookies(jar)
