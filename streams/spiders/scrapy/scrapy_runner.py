"""Runs one spider of Scrapy in a child process: pages in, items and requests out.

PageCall ─► arrived: Request, Response or exception ─► downloader middlewares ─► scraping: callback ─► CallResult
start() ─► spider middlewares ─► scraping ─► CallResult, in batches
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, cast

import xxhash
from scrapy.http import Request
from scrapy.settings import BaseSettings
from scrapy.spiders import Spider
from scrapy.utils.httpobj import urlparse_cached

from crawlog.streams.url import fingerprint

from ..exchange import MOST_TIMED, CallResult, PageCall, SpiderFacts, SpiderRef
from . import facts, feeds, file_stores
from .arrived import answer_of
from .counted import CloseCounts
from .crawler import StandInCrawler, start_if_installed
from .feeds import Exporter
from .idle import IdleRounds
from .item_processing import ScrapyPipelines
from .kinds import Kinds
from .project import FoundSpider
from .recorded import Recorder, Unsendable
from .scraping import Origin, Scraping
from .with_playwright import has_playwright

BATCH = 50  # Outputs of `start` in one batch, at most

BATCH_S = 0.5  # Longest wait of a part of `start` for more of it, seconds


class ScrapyRunner:
    """A spider of Scrapy with all its components.

    Args:
        log_lines: Called with the settings before the first of the user's code runs but that of modules.

    Raises: Misconfigured: it needs what crawlog does not have. Exception: of the user's code, or a setting's value.
    """

    def __init__(self, found: FoundSpider, ref: SpiderRef, log_lines: Callable[[BaseSettings], None]) -> None:
        self.crawler = StandInCrawler(found.kind, found.settings)
        log_lines(self.crawler.settings)
        facts.check(self.crawler.settings, found.kind)
        self.spider = self.crawler.prepare(dict(ref.args))
        if facts.uses_start_requests(type(self.spider)):
            Spider.start_requests = _first_requests  # type: ignore[attr-defined]  # those of projects call super()'s
            self.spider.start = self._from_start_requests  # type: ignore[method-assign]  # of this object alone
        settings = self.crawler.settings
        self.kinds = Kinds(found.modules)
        self.has_pipelines = facts.has_pipelines(settings) or self.crawler.hears_end()
        self._is_open = False
        self._closed = ""  # why a component closed the spider when it was opened
        self._counts = CloseCounts(settings, time.monotonic())
        self._ref = ref
        self._retries = facts.retries_of(settings)
        self._timeout_s = facts.timeout_of(settings, self.spider)
        headers = facts.default_headers(settings, self.spider)
        self._recorder = Recorder(self.crawler, self.kinds, headers=headers, retries=self._retries)
        self.crawler.download_engine.begin(self._recorder)
        self._scraping = Scraping(
            self.crawler,
            self._recorder,
            self.kinds,
            exporter=None if self.has_pipelines else Exporter(settings),
            filters=facts.filters(settings),
        )
        self.facts = self._facts(found)

    def _facts(self, found: FoundSpider) -> SpiderFacts:
        settings = self.crawler.settings
        name = re.sub(r"[^A-Za-z0-9._+-]", "-", str(self.spider.name))[:100]
        return SpiderFacts(
            path=found.path,
            label=f"{name}@{found.digest[:8]}",
            digest=found.digest,
            starts=True,
            settings=facts.job_settings(settings, self.spider),
            is_scrapy=True,
            takes_errors=True,
            has_pipelines=self.has_pipelines,
            defaults=facts.defaults(settings),
            feeds=tuple(feeds.feed_outputs(settings, self.spider)),
            layout=feeds.layout_of(settings),
            notes=(*facts.notes(settings, self.spider), *self.crawler.in_vain()),
            dumps_stats=settings.getbool("STATS_DUMP"),
            reads_proxies=facts.reads_proxies(settings),
            is_fed=self.crawler.is_fed,
            renders=has_playwright(settings),
        )

    async def open(self) -> None:
        """Tell all components that the spider was opened; once."""
        if not self._is_open:
            self._is_open = True
            start_if_installed()
            self._closed = await self.crawler.open()
            self._scraping.opened()

    def pipelines(self) -> ScrapyPipelines:
        file_stores.install()
        return ScrapyPipelines(self.crawler, self.kinds)

    async def page(self, call: PageCall) -> CallResult:
        """What the spider makes of a page, a failure or a redirect."""
        await self.open()
        meta, scraping = call.meta, self._scraping
        is_post = meta.request is not None and meta.request.method not in ("GET", "HEAD")
        scraping.begin(
            Origin(meta.id or fingerprint(meta.url), meta.attempt, meta.hops, redirects_post=is_post),
            is_whole=call.is_whole,
            gives_more=call.gives_more,
        )
        try:
            await self._arrive(call)
            if await scraping.answer(MOST_TIMED):
                raise Unsendable(
                    f"{MOST_TIMED:,} items and requests came of requests of a page that downloader middlewares answer; "
                    "crawlog fetches such requests by itself, with -s render.mode=always in a browser"
                )
        except Exception as error:  # noqa: BLE001  # whatever it is, it is an error of this page
            scraping.failed(error, None)
        result = scraping.end()
        result.closes = (
            result.closes
            or self._closed
            or self._counts.reason(result, time.monotonic(), is_answer=scraping.has_answered)
        )
        return result

    def has_callback(self, name: str) -> bool:
        return self._recorder.is_callback(name)

    async def _arrive(self, call: PageCall) -> None:
        meta = call.meta
        request = self._recorder.restored(meta.url, meta.request, meta.results)
        self._complete(request, call)
        await self._scraping.arrived(answer_of(meta, call.body, request), request, hops=meta.hops + 1)

    def _complete(self, request: Request, call: PageCall) -> None:
        """Add what Scrapy's downloader writes into `meta`."""
        meta = request.meta
        meta.setdefault("download_timeout", self._timeout_s)
        self._scraping.slot = meta.setdefault("download_slot", urlparse_cached(request).hostname or "")
        meta["download_latency"] = call.meta.took_s
        retried = call.meta.attempt - 1
        if retried > 0 and self._retries is not None:
            meta["retry_times"] = meta.get("retry_times", 0) + retried

    async def start(self) -> AsyncGenerator[CallResult, bytes | None]:
        """The first requests, and items, in small batches; may be endless. Then what an idle job is fed with.

        It ends with an error of `start` itself, or with a request of it that cannot travel.
        """
        await self.open()
        parent = xxhash.xxh3_64_intdigest(f"{self._ref.job} {self._ref.epoch}".encode()) or 1
        scraping = self._scraping
        scraping.begin(Origin(parent))
        if self._closed:
            result = scraping.end()
            result.closes = self._closed
            yield result
            return
        rounds = IdleRounds(self.crawler, scraping, self._ref)
        try:
            async with aclosing(self._first_parts()) as first:
                async for result in first:
                    yield result
                    if result.closes:
                        return
            goes_on, wish = self.facts.is_fed, b""
            while goes_on:
                goes_on = await rounds.round(wish)
                async for result in self._parts():
                    result.waits = True
                    wish = (yield result) or b""
                    if result.closes:
                        return
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            scraping.failed(error, None)
            yield scraping.end()

    async def _first_parts(self) -> AsyncGenerator[CallResult, None]:
        """What `start` gives."""
        parts = in_batches(self._started(), lambda: self._counts.left_s(time.monotonic()))
        async with aclosing(parts) as batches:
            async for given in batches:
                for one in given:
                    await self._scraping.take(one, None)
                async for result in self._parts():
                    yield result

    async def _parts(self) -> AsyncIterator[CallResult]:
        """What was given, with what comes of requests that downloader middlewares answer."""
        has_more = True
        while has_more:
            has_more = await self._scraping.answer(BATCH)
            result = self._scraping.end()
            result.goes_on = True  # an error is that of an item, a callback or an errback
            result.closes = result.closes or self._counts.of_start(result, time.monotonic())
            yield result

    async def _started(self) -> AsyncIterator[Any]:
        """What `start` gives, through the spider middlewares."""
        given = await self.crawler.spidermw.process_start()
        if given is not None:
            async for one in given:
                yield one

    async def _from_start_requests(self) -> AsyncIterator[Any]:
        for one in self.spider.start_requests():  # type: ignore[attr-defined]  # it was found there
            yield one


def _first_requests(spider: Spider) -> Iterator[Any]:
    """What `Spider.start_requests` gave before Scrapy 2.13: `start` of the class gives it now, and never waits."""
    given = cast("AsyncGenerator[Any, None]", type(spider).start(spider))
    with suppress(StopAsyncIteration):
        while True:
            try:
                anext(given).send(None)
            except StopIteration as one:
                yield one.value


async def in_batches(given: AsyncIterator[Any], left_s: Callable[[], float | None]) -> AsyncGenerator[list[Any], None]:
    """What is given, in parts: a part waits half a second for more. What was given before an error is not lost.

    Args:
        left_s: How long to wait for anything; an empty part follows. None is without a limit.
    """
    batch: list[Any] = []
    coming: asyncio.Future[Any] | None = None
    error: Exception | None = None
    try:
        while error is None:
            coming = coming or asyncio.ensure_future(anext(given))
            done, _ = await asyncio.wait({coming}, timeout=BATCH_S if batch else left_s())
            if done:
                error, coming = coming.exception(), None  # type: ignore[assignment]  # a task has no other one
                batch += [one.result() for one in done if error is None]
            if not done or len(batch) >= BATCH or (batch and error):
                yield batch
                batch = []
    finally:
        if coming is not None:
            coming.cancel()
    if error is not None and not isinstance(error, StopAsyncIteration):
        raise error
