"""The spider that users write: what to take from a page, and where to go from there.

Pure: the same page and spider give the same bytes.
"""

from collections.abc import Iterable, Mapping, Sequence

from .response import Response


class Spider:
    """What to take from pages and where to go from there: a subclass with a `parse`.

    `crawlog run --spider FILE.py[:Class]` makes one object of the class in each worker and calls `parse` with each page
    that was answered with 2xx and whose body was kept. Pages come to several workers, in no order, and after a kill
    some come twice: an object's own memory says nothing about the whole crawl.

    Attributes:
        name: Stands in each item record; the class's name by default.
        version: Stands beside it; a short hash of the file by default.
        start_urls: Seeds, when the command line names none.
        settings: By dotted name; stronger than environment and file, weaker than `-s` and flags.
        follow_links: Whether all links of a page are followed beside the requests that `parse` yields.
        handle_httpstatus_list: Status codes beyond 2xx that `parse` is called for.
    """

    name: str = ""
    version: str = ""
    start_urls: Sequence[str] = ()
    settings: Mapping[str, object] = {}
    follow_links: bool = False
    handle_httpstatus_list: Sequence[int] = ()

    def parse(self, response: Response) -> Iterable[object] | None:
        """Yields items and requests, in any order; they leave together once all are there, or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no parse")
