"""Reads the sitemaps that a user names (`sitemap:URL`, or a file with one); their URLs become seeds."""

import asyncio
import tempfile
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from crawlog import __version__
from crawlog.streams.coded_pages import SITEMAP_HEADERS, sitemap_body
from crawlog.streams.errors import Misconfigured
from crawlog.streams.html import SitemapEntry, found_priority, newest_first, sitemap
from crawlog.streams.http import Answer, UnkeptBody
from crawlog.streams.requests import without_login
from crawlog.streams.url import InvalidUrl, Places, plain, serialise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crawlog.agents.client import Client
    from crawlog.streams.settings import Settings

MAX_DEPTH = 3  # Indexes that are followed one in the other

MAX_FILES = 10_000  # Most sitemaps read for one `sitemap:URL`

SPOOL_BYTES = 8 << 20  # Collected lines stay in memory up to this size, bytes; then they go to a temporary file

_NOWHERE = "http://sitemap.invalid/"  # Stands for the URL of a sitemap in a file


def lines_in(name: str, content: bytes) -> "Iterator[bytes]":
    """The URLs in the content of a sitemap, as JSON lines of seeds; the newest first.

    Raises: Misconfigured: it is an index of sitemaps, lists no URL or relative ones, or is cut or too large.
    """
    listed = sitemap.parse(content, _NOWHERE)
    if listed.sitemaps:
        raise Misconfigured(f"{name} is an index of sitemaps: `crawlog seed sitemap:URL` reads those that it names")
    if not listed.urls:
        raise Misconfigured(f"{name} begins like a sitemap, and lists no URL")
    if listed.cut:
        raise Misconfigured(f"{name} cannot be read to its end as a sitemap ({listed.cut}); write its URLs one a line")
    if any(entry.loc.startswith(_NOWHERE) for entry in listed.urls):
        raise Misconfigured(f"{name} lists URLs without a host: `crawlog seed sitemap:URL` reads it from there")
    return map(_line, newest_first(listed.urls))


def _line(entry: SitemapEntry) -> bytes:
    return msgspec.json.encode({"url": entry.loc, "priority": found_priority(entry)}) + b"\n"


def collect(settings: "Settings", url: str, report: "Callable[[str], None]") -> BinaryIO:
    """The URLs in a sitemap and in the sitemaps that it names, as JSON lines of seeds; the newest of each file first.

    The files are fetched one after the other, with a crawl's delay between requests and behind the same egress guard.
    Only URLs of the sitemap's own registrable domain are taken, so that the author of a sitemap cannot widen a scope.

    Raises: Misconfigured: `url` is no URL, cannot be fetched, or lists nothing.
    """
    try:
        given = serialise(url)
    except InvalidUrl as error:
        raise Misconfigured(f"sitemap:{url}: {error}; write it as sitemap:https://example.com/sitemap.xml") from None
    spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115  # the caller closes it
    first, (_, login) = plain(given), without_login(given)
    settings = settings.with_logins((login,)) if login else settings
    collected = _Collected(settings, spool, report)  # type: ignore[arg-type]  # a binary file in all but name
    asyncio.run(collected.collect(first))
    if not collected.count:
        spool.close()
        raise Misconfigured(f"sitemap:{first} lists no URL of {collected.domain}" + collected.failure)
    spool.seek(0)
    return spool  # type: ignore[return-value]  # a binary file in all but name


class _Collected:
    """Collects URLs from one sitemap after the other, breadth first."""

    def __init__(self, settings: "Settings", spool: BinaryIO, report: "Callable[[str], None]") -> None:
        self._settings = settings
        self._spool = spool
        self._report = report
        self._place = Places(1).of
        self.domain = ""
        self.count = 0
        self.failure = ""
        self._elsewhere = 0

    async def collect(self, first: str) -> None:
        """Read all sitemaps, beginning with this one."""
        from crawlog.agents.client import Client  # with aiohttp, which a run without such a seed does without

        self.domain = self._place(first).domain
        client = Client(self._settings, f"crawlog/{__version__}", lambda: True)
        try:
            seen, level = {first}, [first]
            for _ in range(MAX_DEPTH + 1):
                level = [url for file in level for url in await self._file(client, file, is_first=file == first)]
                level = [url for url in dict.fromkeys(level) if url not in seen][: MAX_FILES - len(seen)]
                seen.update(level)
            if level:
                self._report(f"{len(level)} sitemaps are left out: their index is more than {MAX_DEPTH} indexes deep")
        finally:
            await client.close()
        if self._elsewhere:
            self._report(f"left out, as they are not of {self.domain}: {self._elsewhere}")

    async def _file(self, client: "Client", url: str, *, is_first: bool) -> list[str]:
        """Write the URLs of one file to the spool; returns the sitemaps that it names."""
        if not is_first:
            await asyncio.sleep(self._settings.politeness.delay_s)
        answer, at = await self._answer(client, url)
        if answer.http is None or not 200 <= answer.http < 300 or not answer.kept:
            self.failure = f": {answer.error or f'HTTP {answer.http}'}"
            self._report(f"{url} cannot be read{self.failure}")
            return []
        limits = self._settings.sitemaps
        listed = sitemap.parse(answer.body, at, answer.content_type, max_bytes=limits.max_bytes)
        if listed.cut:
            self._report(f"{url} was not read to its end ({listed.cut}); see sitemaps.max_bytes")
        for entry in newest_first(listed.urls):
            if self._place(entry.loc).domain == self.domain:
                self._spool.write(_line(entry))
                self.count += 1
            else:
                self._elsewhere += 1
        return [plain(entry.loc) for entry in listed.sitemaps]

    async def _answer(self, client: "Client", url: str) -> tuple[Answer, str]:
        """The answer after redirects, and its URL."""
        answer = await self._get(client, url)
        for _ in range(self._settings.scope.max_redirects):
            target = answer.target(url)
            if not target:
                break
            url = target
            answer = await self._get(client, url)
        return answer, url

    async def _get(self, client: "Client", url: str) -> Answer:
        from crawlog.agents.client import HttpRequest

        answer = await client.get(HttpRequest(url, any_type=True, headers=SITEMAP_HEADERS, as_came=True))
        answer.held.give()  # no other request waits for this memory
        try:
            answer.body = sitemap_body(answer.body, answer.coding, answer.limit)
        except UnkeptBody as error:
            answer.error, answer.kept = error.word, False
        return answer
