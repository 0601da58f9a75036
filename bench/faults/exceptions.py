"""Code of users that fails: a spider that raises whatever it likes on one page in a hundred."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.faults.crawl import Crawl
from bench.faults.flaky_spider import CALLS, is_for_good
from bench.faults.schedule import Fault

SPIDER = Path(__file__).with_name("flaky_spider.py")
MOST_TRIES = 3
MOST, FEW = 50, 8
"""One page in so many is spoilt: 2 % of a large site, more of a small one, which would have none."""


class Exceptions(Fault):
    """Exceptions, memory errors and cancellations; the harness need not time them, they come by themselves."""

    name = "exceptions"
    says = "a spider that raises Exception, MemoryError or CancelledError on 2 % of the pages, on some of them always"

    settings: ClassVar[Mapping[str, object]] = {"spider.env": "FLAKY_PAGES,FLAKY_SHARE"}
    limits: ClassVar[Mapping[str, float]] = {"too many tries": 0.0}

    def prepare(self, crawl: Crawl) -> None:
        """The spider lies beside the crawl, and learns the size of the site."""
        crawl.spider = crawl.folder / SPIDER.name
        shutil.copy(SPIDER, crawl.spider)
        pages = crawl.size.pages
        share = MOST if crawl.size.hosts * pages >= 20 * MOST else FEW
        os.environ |= {"FLAKY_PAGES": str(pages), "FLAKY_SHARE": str(share)}
        found = (url for url, entry in crawl.graph.expected.items() if entry.kind == "page")
        crawl.spoilt = {url for url in found if is_for_good(url, pages, share)}

    def hurt(self, crawl: Crawl, dice: random.Random) -> dict[str, float]:  # noqa: ARG002  # the spider's are fixed
        """Waits for the end and counts the tries of each page."""
        crawl.until(0.05, 120)
        if crawl.spoilt:
            crawl.note("a spider that raises")
        while crawl.sleep(1.0):
            pass
        calls = crawl.folder / CALLS.name
        tries = Counter(calls.read_text().splitlines() if calls.exists() else ())
        most = max((tries[url] for url in crawl.spoilt), default=0)
        return {"spoilt for good": float(len(crawl.spoilt)), "tries at most": float(most),
                "too many tries": float(sum(count > MOST_TRIES for count in tries.values()))}  # fmt: skip

    def after(self, crawl: Crawl) -> None:  # noqa: ARG002  # the base's signature
        """The environment is everybody's."""
        for name in ("FLAKY_PAGES", "FLAKY_SHARE"):
            os.environ.pop(name, None)
