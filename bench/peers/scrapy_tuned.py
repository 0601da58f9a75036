"""Scrapy tuned by an expert: middlewares off, one XPath for the links, a set before the scheduler.

Everything else is Scrapy's own: its reactor, extensions, item pipeline and feed export. `scrapy_further.py` goes on.
`python scrapy_tuned.py SEEDS OUT`
"""

from typing import Any

from byhand import MIDDLEWARES_OFF, ByHand
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response
from spiders import OUT, SETTINGS


class Tuned(ByHand):
    """Follows every new link of the seeds' hosts."""

    name = "tuned"

    def parse(self, response: Response, **_: Any) -> list[Any]:
        links = self.joined(response.url, response.xpath("//a/@href").getall())
        title = response.css("title::text").get()
        row = {"url": response.url, "status": response.status, "title": title, "links": len(links)}
        return [row, *self.unseen(links)]


def main() -> None:
    """One crawl, to its end."""
    process = CrawlerProcess({**SETTINGS, **MIDDLEWARES_OFF, "FEEDS": {OUT: {"format": "jsonlines"}}})
    process.crawl(Tuned)
    process.start()


if __name__ == "__main__":
    main()
