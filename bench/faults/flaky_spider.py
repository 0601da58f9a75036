"""The spider of the fault `exceptions`: on one page in a hundred it raises, on some always and on others once.

It is copied beside the crawl and notes its calls there, so that tries are not counted by crawlog itself.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from crawlog import Response, Spider

ERRORS: tuple[type[BaseException], ...] = (RuntimeError, MemoryError, asyncio.CancelledError)
CALLS = Path(__file__).with_name("calls.txt")


def fate(url: str, share: int) -> int | None:
    """Which error a URL meets; None, except for one URL in `share`."""
    number = int(hashlib.sha256(url.encode()).hexdigest()[:8], 16)
    return None if number % share else number // share


def is_for_good(url: str, pages: int, share: int) -> bool:
    """Whether each try fails: only where no other page is found through this one alone."""
    number = fate(url, share)
    last = url.partition("?")[0].removesuffix(".html").rpartition("-")[2]
    return number is not None and number % 2 == 0 and last.isdigit() and int(last) > pages // 2


class Flaky(Spider):
    """One row a page, as the default spider gives it, unless it raises."""

    follow_links = True
    handle_httpstatus_list = (404, 500)

    def __init__(self) -> None:
        self._pages, self._share = int(os.environ["FLAKY_PAGES"]), int(os.environ["FLAKY_SHARE"])
        self._met: set[str] = set()

    def parse(self, response: Response) -> Iterator[object]:
        """Raises, or gives the row."""
        number = fate(response.url, self._share)
        if number is not None and response.status == 200:
            with CALLS.open("a") as calls:
                calls.write(f"{response.url}\n")
            if is_for_good(response.url, self._pages, self._share) or response.url not in self._met:
                self._met.add(response.url)
                raise ERRORS[number // 2 % len(ERRORS)](f"spoilt {response.url}")
        title = response.tree.css_first("title")
        yield {
            "url": response.url,
            "status": response.status,
            "title": title.text() if title else None,
            "sha256": hashlib.sha256(response.body).hexdigest(),
        }
