"""The base class of spiders that users write.

Pure: the same page and spider give the same bytes.
"""

import logging  # noqa: TID251  # the user's own messages; crawlog writes none here
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .response import Response
from .rules import Rule
from .spider_request import Request


class Spider:
    """Extracts items and links from pages; write a subclass with a `parse`.

    `crawlog run --spider FILE.py[:Class]` makes one object of the class in each worker. A page goes to the callback of
    its request, and to `parse` where there is none. Pages go to several workers, in no fixed order, and some come twice
    after a kill. So the attributes of one object never describe the whole crawl.

    Arguments of the command line (`-a section=books`) come to `__init__` by their names, as text. A spider without
    `__init__` has them as attributes.

    Attributes:
        name: In each item record; by default the class's name.
        version: In each item record; by default a short hash of the file.
        start_urls: Seeds, if the command line names none.
        allowed_domains: Only URLs of these hosts and their sub-domains are taken; by default what `scope` says.
        settings: By dotted name. They override environment and file; `-s` and flags override them.
        follow_links: Whether all links of a page are followed, beside the requests that a callback yields.
        handle_httpstatus_list: Further status codes, beside 2xx, whose pages go to the callback.
        rules: Which links are followed, and which method gets their pages; `parse` may then be left out.
        pipelines: Classes that items pass through before they are rows.
    """

    name: str = ""
    version: str = ""
    start_urls: Sequence[str] = ()
    allowed_domains: Collection[str] = ()
    settings: Mapping[str, object] = {}
    follow_links: bool = False
    handle_httpstatus_list: Sequence[int] = ()
    pipelines: Sequence[type] = ()
    rules: Sequence[Rule] = ()

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        if name is not None:
            self.name = name
        self.__dict__.update(arguments)

    def start(self) -> Any:
        """Yield the first requests; may be `async` and may be endless. By default those of `start_urls`."""
        return (Request(url) for url in self.start_urls)

    def parse(self, response: Response) -> Any:
        """Yield items and requests, in any order. They are sent together after the last one, or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no parse")

    @property
    def logger(self) -> logging.Logger:
        """A logger with the spider's name."""
        return logging.getLogger(self.name or type(self).__name__)
