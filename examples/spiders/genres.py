"""The books of the demo site by genre: data carried from a list to a page, an errback, arguments of the command line.

python examples/demo_site.py &
crawlog run --spider examples/spiders/genres.py -a genre=history -o books.csv
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from crawlog import Failure, Request, Response, Spider

GENRES = ("fiction", "history", "travel", "cooking")


class Genres(Spider):
    """One row for each book of a genre, or of all genres."""

    version = "1"
    settings = {"scope": "any", "network.allow_private": True, "politeness.delay_s": 0.05}  # noqa: RUF012  # read only

    def __init__(self, genre: str = "all", site: str = "http://127.0.10.1:8800") -> None:
        self.genres = GENRES if genre == "all" else (genre,)
        self.site = site

    async def start(self) -> AsyncIterator[Request]:
        """A list for each genre."""
        for genre in self.genres:
            yield Request(
                f"{self.site}/genre/{genre}", self.parse_genre, errback=self.failed, cb_kwargs={"genre": genre}
            )

    def parse_genre(self, response: Response, genre: str) -> Iterator[Request]:
        """The books of a genre."""
        books = response.css("a[href^='../books/']")
        for place, book in enumerate(books, 1):
            yield response.follow(book, self.parse_book, cb_kwargs={"genre": genre, "place": place})

    def parse_book(self, response: Response, genre: str, place: int) -> dict[str, Any]:
        """A book, with what its list says."""
        return {
            "url": response.url,
            "genre": genre,
            "place": place,
            "title": response.css("h1::text").get(),
            "pages": response.xpath("//p/text()").re_first(r"(\d+) pages"),
        }

    def failed(self, failure: Failure) -> dict[str, Any]:
        """A genre without a list is a row too."""
        return {"url": failure.request.url, "error": failure.value.reason}
