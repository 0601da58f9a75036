"""Scrapy tuned by somebody who knows it: middlewares and extensions off, one XPath, a set before the scheduler, uvloop,
first in first out, rows written without the item pipeline. Robots.txt is obeyed by prefix, as the bare loop does.

`python scrapy_tuned.py SEEDS OUT [stripped]`: with the third argument it also leaves Twisted for Scrapy's experimental
aiohttp handler and asks lxml instead of Scrapy's selectors: what can be stripped before it is another program.
"""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from spiders import OUT, SEEDS, SETTINGS, without_tracking

MIDDLEWARES = "scrapy.downloadermiddlewares."
SPIDER_MIDDLEWARES = "scrapy.spidermiddlewares."
EXTENSIONS = "scrapy.extensions."
OFF: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES_BASE": {},
    "SPIDER_MIDDLEWARES_BASE": {},
    "EXTENSIONS_BASE": {},
    "DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter",
    "COOKIES_ENABLED": False,
    "RETRY_ENABLED": False,
    "REDIRECT_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "DOWNLOADER_STATS": False,
    "CONCURRENT_ITEMS": 1,  # a task is made for each of them, for every page
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "STATS_CLASS": "scrapy.statscollectors.DummyStatsCollector",
}


STRIPPED = len(sys.argv) > 3


class Tuned(scrapy.Spider):
    """Follows every new link of the seeds' hosts."""

    name = "tuned"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen = set(SEEDS)
        self.hosts = {seed.split("/")[2] for seed in SEEDS}
        self.disallowed: dict[str, tuple[str, ...]] = {}
        self.out = Path(OUT).open("w")

    async def start(self) -> AsyncIterator[Any]:
        for host in self.hosts:
            yield scrapy.Request(f"http://{host}/robots.txt", self.robots)

    def robots(self, response: Response) -> Iterator[Any]:
        host = response.url.split("/")[2]
        lines = response.text.splitlines() if response.status == 200 else []
        self.disallowed[host] = tuple(line[9:].strip() for line in lines if line.startswith("Disallow:") and line[9:].strip())
        if len(self.disallowed) == len(self.hosts):
            for seed in SEEDS:
                yield scrapy.Request(seed, self.parse)

    def parse(self, response: Response, **_: Any) -> list[scrapy.Request]:
        url = response.url
        links = set()
        origin = url[: url.index("/", 8)]
        root = response.selector.root  # lxml's own: a Selector for each of 60 links costs more than all else in here
        for href in root.xpath("//a/@href") if STRIPPED else response.xpath("//a/@href").getall():
            short = without_tracking(href.partition("#")[0])
            if short.startswith("http://"):
                links.add(short)
            elif short.startswith("/") and not short.startswith("//"):
                links.add(origin + short)
            elif short and not short.startswith(("mailto:", "javascript:")):
                links.add(urljoin(url, short))
        new = []
        for link in links - self.seen:
            host, slash, path = link[7:].partition("/")
            if host in self.hosts and not (slash + path).startswith(self.disallowed[host]):
                self.seen.add(link)
                new.append(scrapy.Request(link, self.parse))
        row = {"url": url, "status": response.status, "title": root.findtext(".//title"), "links": len(links)}
        self.out.write(json.dumps(row) + "\n")
        return new

    def closed(self, _reason: str) -> None:
        self.out.close()


def main() -> None:
    """One crawl, to its end."""
    process = AsyncCrawlerProcess({**SETTINGS, **OFF, "TWISTED_REACTOR_ENABLED": not STRIPPED})
    process.crawl(Tuned)
    process.start()


if __name__ == "__main__":
    main()
