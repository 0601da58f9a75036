"""The base class of spiders that users write.

Pure: the same page and spider give the same bytes.
"""

from collections.abc import Iterable, Mapping, Sequence

from .response import Response


class Spider:
    """Extracts items and links from pages; write a subclass with a `parse`.

    `crawlog run --spider FILE.py[:Class]` makes one object of the class in each worker. It calls `parse` for each page
    with status 2xx whose body was kept. Pages go to several workers, in no fixed order, and some come twice after a
    kill. So the attributes of one object never describe the whole crawl.

    Attributes:
        name: In each item record; by default the class's name.
        version: In each item record; by default a short hash of the file.
        start_urls: Seeds, if the command line names none.
        settings: By dotted name. They override environment and file; `-s` and flags override them.
        follow_links: Whether all links of a page are followed, beside the requests that `parse` yields.
        handle_httpstatus_list: Further status codes, beside 2xx, for which `parse` is called.
    """

    name: str = ""
    version: str = ""
    start_urls: Sequence[str] = ()
    settings: Mapping[str, object] = {}
    follow_links: bool = False
    handle_httpstatus_list: Sequence[int] = ()

    def parse(self, response: Response) -> Iterable[object] | None:
        """Yield items and requests, in any order. They are sent together after the last one, or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no parse")
