"""Runs spiders of a Scrapy project by Scrapy, each with a feed of its own, in one process: `all_spiders.py OUT`.

It is run in the project's folder. To start a process for each takes longer than all of the crawls.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Reads what to run from standard input: JSON, names with their arguments."""
    from scrapy.crawler import Crawler, CrawlerProcess
    from scrapy.spiderloader import SpiderLoader
    from scrapy.utils.project import get_project_settings
    from scrapy.utils.reactor import install_reactor

    sys.path.insert(0, ".")  # as `scrapy crawl` does
    folder, wanted = Path(sys.argv[1]), json.load(sys.stdin)
    settings = get_project_settings()
    install_reactor(settings["TWISTED_REACTOR"])  # `CrawlerProcess` does it only for crawlers that it makes itself
    loader = SpiderLoader.from_settings(settings)
    process = CrawlerProcess(settings)
    for name, arguments in wanted.items():
        own = settings.copy()
        own.set("FEEDS", {str(folder / f"{name}.jsonl"): {"format": "jsonlines", "overwrite": True}}, "cmdline")
        process.crawl(Crawler(loader.load(name), own), **arguments)
    process.start()


if __name__ == "__main__":
    main()
