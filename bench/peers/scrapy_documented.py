"""Scrapy as its documentation shows it: LinkExtractor, follow_all, a dict an item, feed export, robots.txt obeyed.

`python scrapy_documented.py SEEDS OUT [REDIS]`: with the third argument, the URL of a Redis, it runs on scrapy-redis'
scheduler and duplicates filter as that project's README shows.
"""

import sys
from collections.abc import Iterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from spiders import HOSTS, OUT, SEEDS, SETTINGS, without_tracking


class Documented(scrapy.Spider):
    """Follows every link of the seeds' hosts."""

    name = "documented"
    allowed_domains = HOSTS
    start_urls = SEEDS
    links = LinkExtractor(process_value=without_tracking)

    def parse(self, response: Response, **_: Any) -> Iterator[Any]:
        links = self.links.extract_links(response)
        yield {"url": response.url, "status": response.status, "title": response.css("title::text").get(), "links": len(links)}
        yield from response.follow_all(links, callback=self.parse)


def main() -> None:
    """One crawl, to its end."""
    settings = {**SETTINGS, "ROBOTSTXT_OBEY": True, "FEEDS": {OUT: {"format": "jsonlines"}}}
    if len(sys.argv) > 3:
        settings |= {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
            "REDIS_URL": sys.argv[3],
        }
    process = CrawlerProcess(settings)
    process.crawl(Documented)
    process.start()


if __name__ == "__main__":
    main()
