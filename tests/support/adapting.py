"""A spider of Scrapy in the adapter, in this process: its runner, and pages for it."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.settings import Settings

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord, packed, unpacked
from crawlog.streams.spiders.exchange import CallResult, PageCall, RequestOut, SpiderRef
from crawlog.streams.spiders.scrapy import ScrapyRunner
from crawlog.streams.spiders.scrapy.loaded import made
from crawlog.streams.spiders.scrapy.project import FoundSpider

SITE = "http://shop.test"

HTML = (("Content-Type", "text/html; charset=utf-8"),)


def runner_of(
    kind: type[Spider],
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, str] | None = None,
    command: Mapping[str, Any] | None = None,
) -> ScrapyRunner:
    """A runner of a class in a test's module, with a project's settings and those of a command."""
    given = Settings()
    given.setdict(dict(settings or {}), priority="project")
    given.setdict(dict(command or {}), priority="cmdline")
    module = sys.modules[kind.__module__]
    found = FoundSpider(kind, f"/project:{kind.name}", Path("/project"), given, ((module.__name__, module),), "0" * 16)
    return made(found, SpiderRef(found.path, args=tuple((args or {}).items()), job="job"))


def started(runner: ScrapyRunner) -> list[CallResult]:
    """What `start` gives, all batches."""

    async def run() -> list[CallResult]:
        return [result async for result in runner.start()]

    return asyncio.run(run())


def page_of(
    out: RequestOut, body: str | bytes = b"", http: int = 200, headers: tuple[tuple[str, str], ...] = HTML, **given: Any
) -> PageCall:
    """The page that answers a request, after its way through the log."""
    location = dict(headers).get("Location", "") if http in {301, 302, 303, 307, 308} else ""
    record = unpacked(packed(out.request))
    meta = PageMeta(
        out.url, "job", id=out.id, request=record, hops=out.hops, http=http, headers=headers, location=location, **given
    )
    return PageCall(meta, body.encode() if isinstance(body, str) else body)


def failed_page_of(out: RequestOut, error: str) -> PageCall:
    """The page of a request that failed."""
    return PageCall(PageMeta(out.url, "job", id=out.id, request=unpacked(packed(out.request)), error=error))


def given_by(runner: ScrapyRunner, call: PageCall) -> CallResult:
    """What the spider makes of a page."""
    return asyncio.run(runner.page(call))


def asking(callback: str = "", path: str = "/", **given: Any) -> RequestOut:
    """A request as the log has it."""
    return RequestOut(f"{SITE}{path}", 7, request=RequestRecord(callback=callback, **given))
