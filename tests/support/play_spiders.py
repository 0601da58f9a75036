"""Runs spiders of a Scrapy project by the adapter, in a small loop that plays fetch: `play_spiders.py PROJECT OUT`.

No log, no workers: each request goes to the site as its record says, and its page back to the runner. What the loop
does by itself (jars, retries, compression) is what crawlog's fetch does.
"""

import asyncio
import gzip
import http.client
import http.cookiejar
import json
import socket
import sys
import urllib.request
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from scrapy.exceptions import DropItem
from scrapy.pipelines import ItemPipelineManager

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord, packed, unpacked
from crawlog.streams.spiders.exchange import CallResult, PageCall, RequestOut, SpiderRef
from crawlog.streams.spiders.scrapy import Exporter, ScrapyRunner, item_of, of_project

MAX_REQUESTS = 1500
"""Of one spider: more is a loop without end."""


class Playing:
    """A crawl of one spider."""

    def __init__(self, runner: ScrapyRunner, out: Path) -> None:
        self.runner = runner
        self.job = runner.facts.settings
        self.errors: list[str] = []
        self._queue: deque[RequestOut] = deque()
        self._seen: set[int] = set()
        self._jars: dict[str, http.cookiejar.CookieJar] = {}
        self._out = out
        self._pipelines = ItemPipelineManager.from_crawler(runner.crawler) if runner.has_pipelines else None
        self._exporter = Exporter(runner.crawler.settings)
        self._closed = False

    async def run(self) -> None:
        """Until nothing is left."""
        await self.runner.open()
        if self._pipelines:
            await self._pipelines.open_spider_async()
        with self._out.open("wb") as file:
            async for result in self.runner.start():
                await self._take(result, file)
            asked = 0
            while self._queue and not self._closed:
                asked += 1
                if asked > MAX_REQUESTS:
                    raise RuntimeError(f"more than {MAX_REQUESTS} requests, such as {self._queue[0]}")
                out = self._queue.popleft()
                meta, body = await asyncio.get_running_loop().run_in_executor(None, self._fetched, out)
                await self._take(await self.runner.page(PageCall(meta, body)), file)

    async def _take(self, result: CallResult, file: object) -> None:
        result = msgspec.json.decode(msgspec.json.encode(result), type=CallResult)  # as it comes from a child
        if result.error:
            self.errors.append(result.trace or result.error)
        self._closed = self._closed or bool(result.closes)
        for raw in result.items:
            row = await self._row(bytes(raw))
            if row:
                file.write(row + b"\n")  # type: ignore[attr-defined]  # a file
        for out in result.requests:
            if out.id not in self._seen:
                self._seen.add(out.id)
                carried = unpacked(packed(out.request))
                self._queue.append(msgspec.structs.replace(out, request=carried))

    async def _row(self, raw: bytes) -> bytes:
        if self._pipelines is None:
            return raw
        try:
            item = await self._pipelines.process_item_async(item_of(raw, self.runner.kinds))
        except DropItem:
            return b""
        return bytes(self._exporter.row(item))

    def _fetched(self, out: RequestOut) -> tuple[PageMeta, bytes]:
        record = out.request or RequestRecord()
        most = record.attempts or int(str(self.job["fetch.attempts"]))
        statuses = {int(code) for code in self.job["fetch.retry_statuses"]}  # type: ignore[union-attr]  # a list
        for attempt in range(1, most + 1):
            meta, body = self._sent(out, record, attempt)
            if meta.http is not None and meta.http not in statuses:
                break
        return meta, body

    def _sent(self, out: RequestOut, record: RequestRecord, attempt: int) -> tuple[PageMeta, bytes]:
        meta = PageMeta(
            out.url, "job", depth=out.depth, hops=out.hops, id=out.id, request=out.request, attempt=attempt, took_s=0.1
        )
        timeout_s = record.timeout_s or float(str(self.job["fetch.timeout_s"]))
        try:
            status, headers, body = self._asked(out.url, record, timeout_s)
        except TimeoutError:
            return msgspec.structs.replace(meta, error="timeout"), b""
        except socket.gaierror:
            return msgspec.structs.replace(meta, error="dns"), b""
        except ConnectionRefusedError:
            return msgspec.structs.replace(meta, error="connection_refused"), b""
        location = next((value for name, value in headers if name.lower() == "location"), "")
        location = location if status in {301, 302, 303, 307, 308} else ""
        return msgspec.structs.replace(meta, http=status, headers=tuple(headers), location=location), body

    def _asked(self, url: str, record: RequestRecord, timeout_s: float) -> tuple[int, list[tuple[str, str]], bytes]:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
        try:
            names = {name.lower() for name, _ in record.headers} | {name.lower() for name in record.without}
            headers = [one for one in self._defaults() if one[0].lower() not in names] + list(record.headers)
            jar = self._jars.setdefault(record.jar, http.cookiejar.CookieJar(_policy()))
            asking = urllib.request.Request(url)
            if record.keeps_cookies:
                _add(record, jar, asking)
                jar.add_cookie_header(asking)
                if cookie := asking.get_header("Cookie"):
                    headers.append(("Cookie", cookie))
            connection.putrequest(
                record.method, parts.path + (f"?{parts.query}" if parts.query else ""), skip_accept_encoding=True
            )
            for name, value in [*headers, ("Accept-Encoding", "gzip")]:
                connection.putheader(name, value)
            if record.body or record.method in {"POST", "PUT"}:
                connection.putheader("Content-Length", str(len(record.body)))
            connection.endheaders(record.body or None)
            response = connection.getresponse()
            body = response.read()
            if record.keeps_cookies:
                jar.extract_cookies(response, asking)
            if response.getheader("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            return response.status, response.getheaders(), body
        finally:
            connection.close()

    def _defaults(self) -> Iterable[tuple[str, str]]:
        yield "User-Agent", str(self.job["fetch.user_agent"])
        for line in self.job["fetch.headers"]:  # type: ignore[union-attr]  # a list
            name, _, value = line.partition(": ")
            yield name, value


def _policy() -> http.cookiejar.DefaultCookiePolicy:
    return http.cookiejar.DefaultCookiePolicy(rfc2965=False, netscape=True)


def _add(record: RequestRecord, jar: http.cookiejar.CookieJar, asking: urllib.request.Request) -> None:
    for given in record.cookies:
        host = urlsplit(asking.full_url).hostname or ""
        domain = given.domain or host
        jar.set_cookie(
            http.cookiejar.Cookie(
                0, given.name, given.value, None, False, domain, bool(given.domain), domain.startswith("."),
                given.path or "/", bool(given.path), given.secure, None, True, None, None, {},
            )
        )  # fmt: skip


async def _main() -> None:
    project, out = Path(sys.argv[1]), Path(sys.argv[2])
    told: dict[str, list[str]] = {}
    for name, arguments in json.load(sys.stdin).items():
        runner = of_project(project, name, SpiderRef(f"{project}:{name}", args=tuple(arguments.items()), job="job"))
        playing = Playing(runner, out / f"{name}.jsonl")
        try:
            await playing.run()
        except Exception as error:  # the next spider is run anyway
            playing.errors.append(repr(error))
            raise
        finally:
            told[name] = playing.errors
    (out / "errors.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    asyncio.run(_main())
