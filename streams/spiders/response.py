"""`Response`, which a spider receives, and `Request`, which it yields; much like Scrapy's."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import base_of, charset, parsed, queries
from crawlog.streams.url import InvalidUrl, serialise

from . import scrapy_names


@dataclass(frozen=True, slots=True)
class Request:
    """A URL to fetch. It is made canonical, and fetched once if it is in the job's scope.

    A URL that is not http(s) is ignored.

    Attributes:
        url: Absolute, or relative to the page's own URL.
        priority: -128 to 127; within a host, higher is fetched first.
    """

    url: str
    priority: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise TypeError(f"Request wants a URL as str, got {type(self.url).__name__}")
        if callable(self.priority):
            raise TypeError(f"Request wants a priority as its second argument: {scrapy_names.CALLBACKS}")
        if not isinstance(self.priority, int):
            raise TypeError(f"Request wants a priority as int, got {type(self.priority).__name__}")


class Nodes(list[LexborNode]):
    """The nodes that a selector matches, in document order: a list that keeps its selector for error messages."""

    def __init__(self, nodes: Iterable[LexborNode], selector: str) -> None:
        super().__init__(nodes)
        self._selector = selector

    if not TYPE_CHECKING:  # a type checker reports missing attributes itself

        def __getattr__(self, name: str) -> Any:
            """Names the replacement for a method of Scrapy's lists.

            Raises: AttributeError: always; Python calls this only for missing attributes.
            """
            raise AttributeError(scrapy_names.of_list(self._selector, name))


class Response:
    """One page. It is decoded and parsed at the first use only.

    Attributes:
        url: Canonical, as fetched.
        status: Status code. A page that was not modified has the stored page's, 200; a soft 404 has 404.
        headers: The headers that are stored with a page, names in lower case.
        body: Bytes, content-encoding removed.
        depth: Links between a seed and this page.
        rendered: Whether the body is from a browser that rendered the page, not from the server.
    """

    def __init__(self, meta: PageMeta, body: bytes) -> None:
        self.url = meta.url
        self.status = 200 if meta.same_as is not None else meta.http  # RFC 9111 4.3.4: a cache answers 200 too
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
        """The body as text, decoded as browsers do; invalid bytes become U+FFFD."""
        return charset.text_in(self.body, self._encoding)

    @cached_property
    def tree(self) -> LexborHTMLParser:
        """The body parsed as HTML by selectolax, whatever its type."""
        return parsed(self.body, self._content_type)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Names the replacement for an attribute of Scrapy's responses."""
            if name in scrapy_names.OF_RESPONSE:
                raise AttributeError(f"there is no response.{name}: {scrapy_names.OF_RESPONSE[name]}")
            return object.__getattribute__(self, name)  # raises Python's usual AttributeError

    def css(self, selector: str) -> list[LexborNode]:
        """Nodes that a CSS selector matches, in document order; `.text()` and `.attributes` are a node's content.

        Raises: ValueError: the selector is wrong.
        """
        try:
            return Nodes(self.tree.css(selector), selector)
        except SelectolaxError:
            raise _unreadable(selector) from None

    def css_first(self, selector: str) -> LexborNode | None:
        """The first node that a CSS selector matches; None without a match. Raises: ValueError: as `css`."""
        try:
            return self.tree.css_first(selector)
        except SelectolaxError:
            raise _unreadable(selector) from None

    def json(self) -> Any:
        """The body as JSON. Raises: ValueError: it is not JSON."""
        return msgspec.json.decode(self.body)

    def urljoin(self, href: str) -> str:
        """The absolute URL of a link on this page, by its `base`; returns `href` unchanged if it is no http(s) URL."""
        try:
            return serialise(queries.in_page(href, self._encoding), self._base)
        except InvalidUrl:
            return href

    def follow(self, href: "str | LexborNode", priority: int = 0) -> Request:
        """A request for a link on this page.

        Args:
            href: The `href` as written, or the `a` element.

        Raises: TypeError: `href` is None, because `css_first` matched nothing.
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


def _unreadable(selector: str) -> ValueError:
    return ValueError(f"the selector {selector!r} cannot be read: {scrapy_names.of_selector(selector)}")
