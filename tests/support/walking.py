"""A spider by crawlog without a log: its real child process, and a small loop in place of frontier, fetch and parse.

    start ─► requests ─► those that are not known ─► HTTP ─► a page ─► the child ─► items, requests ─► …

It is quick, so it runs every spider; tests/e2e has whole crawls for some of them.
"""

import gzip
import http.client
import json
import socket
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urljoin, urlsplit

from crawlog.agents.sandbox import SpiderChild
from crawlog.agents.sandbox.spider_child import LOADER
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.parse.requested import redirected, wants_spider
from crawlog.streams.spiders import CallResult, PageCall, RequestOut, SpiderRef, is_redirect
from crawlog.streams.url import fingerprint as of_url
from crawlog.streams.url.place import Places

LIMIT = 2_000
"""Requests of one crawl, at most: a spider that has no end fails."""

_ERRORS = {
    ConnectionRefusedError: "connection_refused",
    socket.gaierror: "dns",
    TimeoutError: "first_byte_timeout",
}


class Walk:
    """One crawl.

    Attributes:
        items: Of all pages, as rows where the spider has no pipelines.
        errors: Of pages whose callback raised.
        closed: The reason of a CloseSpider.
    """

    def __init__(self, ref: SpiderRef, loader: str = LOADER) -> None:
        self.child = SpiderChild(ref, loader=loader)
        self.items: list[Any] = []
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.closed = ""
        self._seen: set[int] = set()
        self._queue: deque[tuple[RequestOut, PageMeta | None]] = deque()
        self._jars: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        self._sent = 0

    def run(self) -> "Walk":
        """From the first request to the last page."""
        with self.child:
            self.facts = self.child.facts()
            for url in self.facts.start_urls if not self.facts.starts else ():
                self._add(RequestOut(url), None)
            for part in self.child.parts() if self.facts.starts else ():
                self._take(part, None)
            while self._queue and not self.closed:
                self._fetch(*self._queue.popleft())
        return self

    def _take(self, result: CallResult, page: PageMeta | None) -> None:
        self.items += [json.loads(bytes(item)) for item in result.items]
        self.errors += [result.error] if result.error else []
        self.warnings += result.warnings
        self.closed = self.closed or result.closes
        for request in result.requests:
            self._add(request, page)

    def _add(self, out: RequestOut, page: PageMeta | None) -> None:
        identity = out.id or of_url(out.url)
        if identity not in self._seen:
            self._seen.add(identity)
            self._queue.append((out, page))

    # One page.

    def _fetch(self, out: RequestOut, parent: PageMeta | None) -> None:
        record = out.request
        attempts = (record.attempts if record else 0) or int(str(self.facts.settings.get("fetch.attempts", 3)))
        statuses = self.facts.settings.get("fetch.retry_statuses") or ("408", "429", "500", "502", "503", "504")
        assert isinstance(statuses, list | tuple)
        for attempt in range(1, attempts + 1):
            meta, body = self._asked(out, parent, attempt)
            if meta.http is not None and str(meta.http) not in statuses:
                break
        if wants_spider(meta, self.facts):
            self._take(self.child.page(PageCall(meta, body)), meta)
        elif is_redirect(meta):
            url = urljoin(out.url, meta.location)
            identity, request = redirected(meta, url, Places(8).of(url))
            self._add(RequestOut(url, identity, request=request, hops=out.hops + 1, depth=meta.depth), meta)

    def _asked(self, out: RequestOut, parent: PageMeta | None, attempt: int) -> tuple[PageMeta, bytes]:
        self._sent += 1
        assert self._sent <= LIMIT, f"a crawl without end: {out.url}"
        depth = out.depth if out.depth >= 0 else parent.depth + 1 if parent else 0
        record = out.request
        about: dict[str, Any] = {
            "url": out.url,
            "job": self.child.ref.job,
            "depth": depth,
            "hops": out.hops,
            "fetched_at": time.time(),
            "id": out.id,
            "request": record,
            "attempt": attempt,
        }
        try:
            status, headers, body = self._answered(out.url, record or RequestRecord())
        except OSError as error:
            return PageMeta(**about, error=_ERRORS.get(type(error), "connect"), kept=False), b""
        first = dict(reversed([(name.lower(), value) for name, value in headers]))
        location = first.get("location", "") if 300 <= status < 400 else ""
        content_type = first.get("content-type", "")
        meta = PageMeta(**about, http=status, location=location, content_type=content_type, headers=tuple(headers))
        return meta, body

    def _answered(self, url: str, record: RequestRecord) -> tuple[int, list[tuple[str, str]], bytes]:
        at = urlsplit(url)
        jar = self._jars[record.jar, at.hostname or ""]
        if record.keeps_cookies:
            jar |= {cookie.name: cookie.value for cookie in record.cookies}
        settings = self.facts.settings
        timeout_s = record.timeout_s or float(str(settings.get("fetch.timeout_s", 20)))
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=timeout_s)
        try:
            connection.putrequest(record.method, url[url.index(at.netloc) + len(at.netloc) :] or "/")
            for name, value in _headers(settings, record, jar):
                connection.putheader(name, value)
            if record.body or record.method in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(record.body)))
            connection.endheaders(record.body or None)
            answer = connection.getresponse()
            headers = answer.getheaders()
            if record.keeps_cookies and settings.get("fetch.cookies", False):
                for name, value in headers:
                    if name.lower() == "set-cookie":
                        jar |= {one.key: one.value for one in SimpleCookie(value).values()}
            return answer.status, headers, _unpacked(answer.read(), answer.headers["Content-Encoding"])
        finally:
            connection.close()


def _headers(settings: Mapping[str, Any], record: RequestRecord, jar: Mapping[str, str]) -> list[tuple[str, str]]:
    own = {name.lower() for name, _ in record.headers}
    headers = [(name, value) for name, value in record.headers if value]
    defaults = [("User-Agent", str(settings.get("fetch.user_agent") or "crawlog-test"))]
    defaults += [tuple(line.split(": ", 1)) for line in settings.get("fetch.headers") or ()]
    headers += [(name, value) for name, value in defaults if name.lower() not in own]
    if record.keeps_cookies and jar and "cookie" not in own:
        headers.append(("Cookie", "; ".join(f"{name}={value}" for name, value in jar.items())))
    return headers


def _unpacked(body: bytes, coding: str | None) -> bytes:
    return gzip.decompress(body) if coding == "gzip" else body


def walk(path: str, arguments: Mapping[str, str], loader: str = LOADER) -> Walk:
    """A crawl by the reference of a spider, as `--spider` and `-a` name it."""
    return Walk(SpiderRef(path, tuple(arguments.items()), job="walked"), loader).run()
