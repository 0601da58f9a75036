"""A spider for the bookshop of the demo site: one item for each book; shelves are fetched before other pages.

python examples/demo_site.py &
crawlog run --spider examples/books.py -o books.csv
"""

import re
from collections.abc import Iterator
from typing import Any

from crawlog import Request, Response, Spider


class Books(Spider):
    """Finds every book of the shop by its shelves and genres."""

    version = "1"
    start_urls = ("http://127.0.10.1:8800/",)
    settings = {"scope": "host", "network.allow_private": True, "politeness.delay_s": 0.05}  # noqa: RUF012  # read only

    def parse(self, response: Response) -> Iterator[dict[str, Any] | Request]:
        """A book's page is an item; shelves and genres lead to books."""
        if re.search(r"/books/\d+$", response.url):
            pages = response.css("p::text").re_first(r"(\d+) pages")
            yield {
                "url": response.url,
                "title": response.css("h1::text").get(),
                "pages": int(pages) if pages else None,
            }
        yield from response.follow_all(css="a[href*='page='], a[href^='/genre/'], a[href='/books/']", priority=10)
        yield from response.follow_all(css="a[href^='/books/'], a[href^='../books/']")
