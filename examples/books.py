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
            title, text = response.css_first("h1"), response.css_first("p")
            pages = re.search(r"(\d+) pages", text.text()) if text else None
            yield {
                "url": response.url,
                "title": title.text() if title else None,
                "pages": int(pages[1]) if pages else None,
            }
        for link in response.css("a[href*='page='], a[href^='/genre/'], a[href='/books/']"):
            yield response.follow(link, priority=10)
        for link in response.css("a[href^='/books/'], a[href^='../books/']"):
            yield response.follow(link)
