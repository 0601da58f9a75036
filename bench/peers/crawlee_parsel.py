"""Crawlee for Python with Parsel, storage in memory, robots.txt obeyed. `python crawlee_parsel.py SEEDS OUT`."""

import asyncio
import json
import logging
import sys
from pathlib import Path

from crawlee import ConcurrencySettings, RequestOptions, RequestTransformAction
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient
from spiders import without_tracking


def cut(options: RequestOptions) -> RequestOptions | RequestTransformAction:
    """The link without the site's tracking parameters and the fragment."""
    options["url"] = without_tracking(options["url"].partition("#")[0])
    return options


async def crawl(seeds: list[str], out: Path) -> None:
    """Crawls the seeds' hosts to the end."""
    crawler = ParselCrawler(
        concurrency_settings=ConcurrencySettings(min_concurrency=256, desired_concurrency=256, max_concurrency=256),
        respect_robots_txt_file=True,
        storage_client=MemoryStorageClient(),
        configure_logging=False,
    )
    with out.open("w") as rows:

        @crawler.router.default_handler
        async def handle(context: ParselCrawlingContext) -> None:
            links = len(set(context.selector.xpath("//a/@href").getall()))
            title = context.selector.xpath("//title/text()").get()
            rows.write(json.dumps({"url": context.request.url, "status": context.http_response.status_code, "title": title, "links": links}) + "\n")
            await context.enqueue_links(strategy="same-hostname", transform_request_function=cut)

        await crawler.run(seeds)


def main() -> None:
    """Reads the seeds' file, writes the rows' file."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(crawl(Path(sys.argv[1]).read_text().split(), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
