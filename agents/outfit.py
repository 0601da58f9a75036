"""What a request is sent with, and by which way: `streams/outbound.py` decides, here it is put into aiohttp's words."""

import asyncio
import time
from collections import OrderedDict
from functools import lru_cache
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import structlog
from yarl import URL

from crawlog.streams.domain import registrable_domain
from crawlog.streams.outbound import (
    Bandwidth,
    Bandwidths,
    Proxies,
    Proxy,
    origin_of,
    read_header,
    read_login,
    read_proxy,
)
from crawlog.streams.sections import Fetch

log = structlog.get_logger()

MOST_JARS = 10_000
"""Domains whose cookies are kept, those that answered last."""

MOST_COOKIES = 100
"""Cookies of one domain; RFC 6265 6.1 asks for 50."""

PROXY_AUTHENTICATION = 407


class ProxyFailed(Exception):
    """The answer came from the proxy, which did not serve."""


class Worn:
    """What one request goes out with.

    Attributes:
        options: For aiohttp.
        paced: The buckets of its body.
    """

    def __init__(self, url: str = "", paced: tuple[Bandwidth, ...] = ()) -> None:
        self.options: dict[str, Any] = {}
        self.paced = paced
        self._url = url
        self._proxies: Proxies | None = None
        self._proxy: Proxy | None = None
        self._jar: aiohttp.CookieJar | None = None

    def log_in(self, header: str) -> None:
        """Send a login."""
        self.options.setdefault("headers", {})["Authorization"] = header

    def take_jar(self, jar: aiohttp.CookieJar) -> None:
        """Send its cookies, and keep those that come."""
        self._jar = jar
        cookies = jar.filter_cookies(URL(self._url, encoded=True))
        if cookies:
            sent = "; ".join(f"{name}={one.coded_value}" for name, one in cookies.items())
            self.options.setdefault("headers", {})["Cookie"] = sent

    def go_through(self, proxies: Proxies, host: str) -> None:
        """Go by the host's proxy."""
        self._proxies = proxies
        self._proxy = proxies.pick(host, time.monotonic())
        self.options["proxy"] = _address(self._proxy)

    def answered(self, response: aiohttp.ClientResponse) -> None:
        """Take note of a response. Raises: ProxyFailed: it is the proxy's own."""
        if self._proxy is not None and self._proxies is not None:
            if response.status == PROXY_AUTHENTICATION:
                raise ProxyFailed("proxy_login")
            self._proxies.worked(self._proxy)
        if self._jar is not None and response.cookies:
            self._keep(response)

    def _keep(self, response: aiohttp.ClientResponse) -> None:
        assert self._jar is not None
        host = urlsplit(self._url).hostname or ""
        if len(self._jar) + len(response.cookies) > MOST_COOKIES:
            return
        mine = SimpleCookie()
        for name, one in response.cookies.items():
            domain = one["domain"].lstrip(".").lower()
            if not domain or domain == host or registrable_domain(domain) == registrable_domain(host):
                mine[name] = one
        self._jar.update_cookies(mine, URL(self._url, encoded=True))

    def failed(self) -> None:
        """The proxy did not serve."""
        if (
            self._proxies is not None
            and self._proxy is not None
            and self._proxies.failed(self._proxy, time.monotonic())
        ):
            log.warning("proxy_rests", proxy=self._proxy.url, then="its hosts go by the others")

    def failed_by(self, error: BaseException) -> bool:
        """Whether an error is the proxy's, not the site's; it is noted."""
        if self._proxy is None:
            return False
        is_proxys = isinstance(error, ProxyFailed | aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError)
        at = getattr(error, "host", None)
        if is_proxys or (isinstance(error, aiohttp.ClientConnectorError) and at == urlsplit(self._proxy.url).hostname):
            self.failed()
            return True
        return False

    async def pace(self, size_bytes: int) -> None:
        """Wait after reading so much."""
        now = time.monotonic()
        wait_s = max(bucket.wait_s(size_bytes, now) for bucket in self.paced)
        if wait_s > 0:
            await asyncio.sleep(wait_s)


@lru_cache(1024)
def _address(proxy: Proxy) -> URL:
    """With the user in it, from where aiohttp takes the header, for requests and tunnels alike."""
    address = URL(proxy.url)
    return address.with_user(proxy.user).with_password(proxy.password) if proxy.user else address


BARE = Worn()
"""Nothing but the session's headers."""


class Outfit:
    """What the requests of one worker go out with.

    Attributes:
        headers: Sent to every host.
        proxy_names: Hosts of the proxies, which may be anywhere: the operator named them.
        is_any: Whether a request differs from another by its host or job at all.
    """

    def __init__(self, settings: Fetch) -> None:
        self.headers = dict(read_header(text) for text in settings.headers)
        self._logins = dict(read_login(text) for text in settings.logins)
        pool = [read_proxy(text) for text in settings.proxies]
        self._proxies = Proxies(pool)
        self.proxy_names = frozenset(urlsplit(proxy.url).hostname or "" for proxy in pool)
        self._jars: OrderedDict[tuple[str, str], aiohttp.CookieJar] | None = OrderedDict() if settings.cookies else None
        self._all = Bandwidth(settings.max_bytes_per_s) if settings.max_bytes_per_s else None
        self._each = Bandwidths(settings.max_host_bytes_per_s) if settings.max_host_bytes_per_s else None
        self.is_any = bool(
            self._logins or pool or settings.cookies or settings.max_bytes_per_s or settings.max_host_bytes_per_s
        )

    def of(self, url: str, job: str) -> Worn:
        """What a request for a URL goes out with."""
        origin = origin_of(url)
        paced = [self._all] if self._all is not None else []
        if self._each is not None:
            paced.append(self._each.of(origin))
        worn = Worn(url, tuple(paced))
        if origin in self._logins:
            worn.log_in(self._logins[origin])
        if self._jars is not None and job:
            worn.take_jar(self._jar(job, registrable_domain(urlsplit(url).hostname or "")))
        if self._proxies:
            worn.go_through(self._proxies, origin)
        return worn

    def _jar(self, job: str, domain: str) -> aiohttp.CookieJar:
        assert self._jars is not None
        jar = self._jars.get((job, domain))
        if jar is None:
            jar = self._jars[job, domain] = aiohttp.CookieJar(unsafe=True)  # of addresses too: it knows one domain only
            if len(self._jars) > MOST_JARS:
                self._jars.popitem(last=False)
        else:
            self._jars.move_to_end((job, domain))
        return jar
