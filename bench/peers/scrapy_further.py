"""The tuned Scrapy, with everything else left out that can be while it is Scrapy: extensions and statistics off, uvloop,
first in first out, rows written without the item pipeline.

`python scrapy_further.py SEEDS OUT [stripped]`: with the third argument it also leaves Twisted for Scrapy's experimental
aiohttp handler and asks lxml instead of Scrapy's selectors: what can be stripped before it is another program.
"""

import json
import sys
from pathlib import Path
from typing import Any

import scrapy
from byhand import MIDDLEWARES_OFF, ByHand
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from spiders import OUT, SETTINGS

OFF: dict[str, Any] = {
    **MIDDLEWARES_OFF,
    "EXTENSIONS_BASE": {},
    "DOWNLOADER_STATS": False,
    "CONCURRENT_ITEMS": 1,  # a task is made for each of them, for every page
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "STATS_CLASS": "scrapy.statscollectors.DummyStatsCollector",
}


STRIPPED = len(sys.argv) > 3


class Further(ByHand):
    """Follows every new link of the seeds' hosts."""

    name = "further"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.out = Path(OUT).open("w")

    def parse(self, response: Response, **_: Any) -> list[scrapy.Request]:
        root = response.selector.root  # lxml's own: a Selector for each of 60 links costs more than all else in here
        links = self.joined(response.url, root.xpath("//a/@href") if STRIPPED else response.xpath("//a/@href").getall())
        row = {"url": response.url, "status": response.status, "title": root.findtext(".//title"), "links": len(links)}
        self.out.write(json.dumps(row) + "\n")
        return self.unseen(links)

    def closed(self, _reason: str) -> None:
        self.out.close()


def main() -> None:
    """One crawl, to its end."""
    process = AsyncCrawlerProcess({**SETTINGS, **OFF, "TWISTED_REACTOR_ENABLED": not STRIPPED})
    process.crawl(Further)
    process.start()


if __name__ == "__main__":
    main()
