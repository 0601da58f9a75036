"""What a spider is given, and how it says where to go: `Response` and `Request`, as users of Scrapy know them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from ..schemas.pages import PageMeta
from . import charset, queries
from .canonical import InvalidUrl, serialise
from .links import base_of, parsed


@dataclass(frozen=True, slots=True)
class Request:
    """A URL to fetch: made canonical, and fetched once if the job's scope takes it. What is no http(s) URL is left out.

    Attributes:
        url: Relative to the page's own URL, if not absolute.
        priority: -128 to 127; within a host, higher is fetched first.
    """

    url: str
    priority: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise TypeError(f"Request wants a URL as str, got {type(self.url).__name__}")
        if not isinstance(self.priority, int):
            raise TypeError(f"Request wants a priority as int, got {type(self.priority).__name__}")


class Response:
    """One page. Nothing is decoded or parsed before it is asked for.

    Attributes:
        url: Canonical, as fetched.
        status: Status code; of a page that was not modified that of the stored one, 200; of a soft 404, 404.
        headers: Those that are kept with a page, names in lower case.
        body: Bytes, content-encoding removed.
        depth: Links between a seed and this page.
        rendered: Whether the body is what a browser made of the page, and no longer what the server sent.
    """

    def __init__(self, meta: PageMeta, body: bytes) -> None:
        self.url = meta.url
        self.status = 200 if meta.same_as is not None else meta.http  # RFC 9111 4.3.4: as a cache gives it on
        self.body = body
        self.depth = meta.depth
        self.rendered = bool(meta.rendered)
        self._content_type = meta.content_type
        kept = {
            "content-type": meta.content_type,
            "link": ", ".join(meta.link),
            "x-robots-tag": ", ".join(meta.x_robots),
        }
        self.headers = {name: value for name, value in kept.items() if value}

    def __repr__(self) -> str:
        return f"<{self.status} {self.url}>"

    @cached_property
    def text(self) -> str:
        """The body as text, in the encoding that a browser would take; wrong bytes are U+FFFD."""
        return charset.text_in(self.body, self._encoding)

    @cached_property
    def tree(self) -> LexborHTMLParser:
        """The body as selectolax parses it, whatever type the server says it has."""
        return parsed(self.body, self._content_type)

    def css(self, selector: str) -> list[LexborNode]:
        """Nodes that a CSS selector matches, in document order; `.text()` and `.attributes` are a node's content.

        Raises: selectolax's SelectolaxError, a ValueError: the selector is wrong.
        """
        return self.tree.css(selector)

    def css_first(self, selector: str) -> LexborNode | None:
        """The first of them."""
        return self.tree.css_first(selector)

    def json(self) -> Any:
        """The body as JSON. Raises: ValueError: it is none."""
        return msgspec.json.decode(self.body)

    def urljoin(self, href: str) -> str:
        """The absolute URL of a link on this page, by its `base`; what makes no http(s) URL comes back as it is."""
        try:
            return serialise(queries.in_page(href, self._encoding), self._base)
        except InvalidUrl:
            return href

    def follow(self, href: "str | LexborNode", priority: int = 0) -> Request:
        """A request of a link on this page: its `href` as written, or the `a` element itself.

        Raises: TypeError: it is None, as `css_first` gives where nothing matches.
        """
        if href is None:
            raise TypeError("follow wants an href or an element, got None: does css_first find what it looks for?")
        written = href if isinstance(href, str) else href.attributes.get("href") or ""
        return Request(self.urljoin(written), priority)

    @cached_property
    def _encoding(self) -> str:
        return charset.decide(self.body, self._content_type)

    @cached_property
    def _base(self) -> str:
        return base_of(self.tree, self.url)
