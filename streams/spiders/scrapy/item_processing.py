"""Scrapy's item pipelines, by its own manager, in the pipelines' process: items in, rows by the rules of its exporters.

open ─► open_spider of each ─► spider_opened        item ─► process_item of each ─► row if it has one, item_scraped
close ─► close_spider of each ─► spider_closed, closed()      └ DropItem: item_dropped; another error: item_error
"""

import logging
from functools import partial
from typing import Any

from scrapy import signals
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.misc import build_from_crawler, load_object

from ..pipelines import NO_FILE_YET, Pipelines
from .arrived import write_line
from .counted import taken, tell
from .crawler import StandInCrawler, reason_of
from .feeds import Exporter, item_of
from .kinds import Kinds
from .scraping import failure_of

log = logging.getLogger(__name__)


class ScrapyPipelines(Pipelines):
    """The pipelines of one spider of Scrapy."""

    def __init__(self, crawler: StandInCrawler, kinds: Kinds) -> None:
        super().__init__(crawler.spider, (), partial(_read, kinds), Exporter(crawler.settings).row)
        self._crawler = crawler
        self._manager = build_from_crawler(load_object(crawler.settings["ITEM_PROCESSOR"]), crawler)
        crawler.pipelines = self._manager.middlewares

    async def open(self) -> str:
        """As the engine does at its start: all is opened, whoever closes the spider."""
        closes = ""
        try:
            await self._manage("open_spider")
        except CloseSpider as error:
            closes = reason_of(error)
        if self._crawler.has_own_stats:
            tell(self._crawler.stats.open_spider, self.spider)
        opened = await self._crawler.open()
        return closes or opened

    async def process(self, item: Any) -> Any:
        return await self._manage("process_item", item)

    async def close(self, reason: str) -> None:
        """As the engine does at its end; `closed` of the spider is connected to the signal."""
        try:
            await self._manage("close_spider")
        finally:
            told = await self._tell(signals.spider_closed, reason=reason)
            if any(isinstance(getattr(result, "value", result), FileNotFoundError) for _, result in told):
                log.warning(NO_FILE_YET)
            if self._crawler.has_own_stats:
                tell(self._crawler.stats.close_spider, self.spider, reason=reason)

    def row(self, item: Any) -> bytes:
        """The row as the feed exporter makes it. Its error is logged, and the item counts as scraped."""
        try:
            return super().row(item)
        except Exception as error:  # a serializer of the project may raise anything
            told = " ".join(f"an item has no row: {type(item).__name__}: {type(error).__name__}: {error}".split())
            log.exception("%.1000s", told)
            self._crawler.stats.inc_value("item_error_count")
            return b"null"

    async def scraped(self, item: Any) -> None:
        await self._tell(signals.item_scraped, item=item, response=None)

    async def dropped(self, item: Any, error: Exception) -> None:
        """A pipeline dropped an item."""
        write_line(self._crawler, "dropped", item, error, None)
        await self._tell(signals.item_dropped, item=item, response=None, exception=error)

    async def failed(self, item: Any, error: BaseException) -> None:
        """A pipeline failed."""
        write_line(self._crawler, "item_error", item, error, None, error=error)
        await self._tell(signals.item_error, item=item, response=None, failure=failure_of(error))

    def stats(self) -> dict[str, float]:
        """Stats that changed since the last call, without the age of this process, which is not the job's."""
        return {name: value for name, value in taken(self._crawler.stats).items() if name != "elapsed_time_seconds"}

    async def _manage(self, name: str, *item: Any) -> Any:
        """Call a method of the manager; older versions of Scrapy have no async ones."""
        method = getattr(self._manager, f"{name}_async", None)
        if method is not None:
            return await method(*item)
        return await ensure_awaitable(getattr(self._manager, name)(*item, self.spider))

    async def _tell(self, signal: object, **what: Any) -> list[tuple[Any, Any]]:
        return await self._crawler.signals.send_catch_log_async(signal=signal, spider=self.spider, **what)


def _read(kinds: Kinds, raw: bytes) -> Any:
    return item_of(raw, kinds)
