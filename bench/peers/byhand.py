"""Shared by the tuned Scrapys: links by one XPath, joined by hand, and a set of seen URLs before the scheduler."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any
from urllib.parse import urljoin

import scrapy
from scrapy.http import Response
from spiders import SEEDS, without_tracking

MIDDLEWARES_OFF: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES_BASE": {},
    "SPIDER_MIDDLEWARES_BASE": {},
    "ROBOTSTXT_OBEY": False,  # it is a middleware; robots.txt is obeyed by prefix, as the bare loop does
}


class ByHand(scrapy.Spider):
    """Follows every new link of the seeds' hosts, once all their robots.txt are read."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seen = set(SEEDS)
        self.hosts = {seed.split("/")[2] for seed in SEEDS}
        self.disallowed: dict[str, tuple[str, ...]] = {}

    async def start(self) -> AsyncIterator[Any]:
        for host in self.hosts:
            yield self.request(f"http://{host}/robots.txt", self.robots)

    def robots(self, response: Response) -> Iterator[Any]:
        host = response.url.split("/")[2]
        lines = response.text.splitlines() if response.status == 200 else []
        self.disallowed[host] = tuple(line[9:].strip() for line in lines if line.startswith("Disallow:") and line[9:].strip())
        if len(self.disallowed) == len(self.hosts):
            for seed in SEEDS:
                yield self.request(seed, self.parse)

    @staticmethod
    def request(url: str, callback: Any) -> scrapy.Request:
        """A request that the set has judged already."""
        return scrapy.Request(url, callback, dont_filter=True)

    @staticmethod
    def joined(url: str, hrefs: Iterable[str]) -> set[str]:
        """A page's links."""
        links = set()
        origin = url[: url.index("/", 8)]
        for href in hrefs:
            short = without_tracking(href.partition("#")[0])
            if short.startswith("http://"):
                links.add(short)
            elif short.startswith("/") and not short.startswith("//"):
                links.add(origin + short)
            elif short and not short.startswith(("mailto:", "javascript:")):
                links.add(urljoin(url, short))
        return links

    def unseen(self, links: set[str]) -> list[scrapy.Request]:
        """Those never met before, as requests."""
        new = []
        for link in links - self.seen:
            host, slash, path = link[7:].partition("/")
            if host in self.hosts and not (slash + path).startswith(self.disallowed[host]):
                self.seen.add(link)
                new.append(self.request(link, self.parse))
        return new
