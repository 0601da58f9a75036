"""`Response`, which a callback receives; much like Scrapy's. The selectors of `css` and `xpath` are parsel's."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import msgspec
from parsel import Selector, SelectorList
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import base_of, charset, in_page, parsed
from crawlog.streams.http import essence
from crawlog.streams.url import InvalidUrl, serialise

from . import scrapy_names
from .forms import FormData, filled_form
from .headers import Headers
from .spider_request import Callback, Request, RequestOptions


class HasUrl(Protocol):
    """An object with a URL, such as a link of Scrapy's extractors."""

    url: str


_BASE = re.compile(rb"<base[\t\n\f\r /]", re.IGNORECASE)
# Paths from the root that a URL parser leaves as they are.
_ROOTED = re.compile(r"/(?![/.])(?:[A-Za-z0-9_~=&?+,;:@!$()*-]|[/.](?![/.]))*")
_OF_ASCII = frozenset({"utf-8", "windows-1252"})  # Encodings in which a tag has no other bytes than in ASCII

# A URL as written, an element with `href` or `src`, the selector of an attribute, or a link.
Followable = str | Selector | LexborNode | HasUrl


class Response:
    """The page of one request. It is decoded and parsed at the first use only.

    Attributes:
        url: Canonical, as fetched; of a page whose actions led elsewhere, the URL that the browser showed at last.
        status: Status code. A page that was not modified has the stored page's, 200; 0 for none.
        headers: Of the response: names in any case; `getlist` has several values of one name.
        body: Bytes, content-encoding removed.
        depth: Links between a seed and this page.
        rendered: Whether the body is from a browser that rendered the page, not from the server.
        results: What the request's actions returned, one each: JSON values, bytes of screenshots, None.
        flags: Those of the request.
    """

    def __init__(self, page: PageMeta, body: bytes, request: Request | None = None) -> None:
        self.url = page.shown_url or page.url
        self.status = 200 if page.same_as is not None else page.http or 0  # RFC 9111 4.3.4: a cache answers 200 too
        self.headers = Headers(page.headers or _kept_headers(page))
        self.body = body
        self.depth = page.depth
        self.rendered = bool(page.rendered)
        self.results = [one.value for one in page.results]
        self.flags = list(request.flags) if request is not None else []
        self._content_type = page.content_type
        self._kind = page.sniffed or essence(page.content_type)
        self._took_s = page.took_s
        self._request = request

    def __repr__(self) -> str:
        return f"<{self.status} {self.url}>"

    # The request.

    @cached_property
    def request(self) -> Request:
        """The request that this page answers."""
        request = self._request if self._request is not None else Request(self.url)
        request.meta["depth"] = self.depth
        request.meta.setdefault("download_latency", self._took_s)
        return request

    @property
    def meta(self) -> dict[str, Any]:
        """The request's `meta`, with `depth`."""
        return self.request.meta

    @property
    def cb_kwargs(self) -> dict[str, Any]:
        """The request's `cb_kwargs`."""
        return self.request.cb_kwargs

    # The body.

    @cached_property
    def encoding(self) -> str:
        """The encoding of the body, as browsers decide."""
        return charset.decide(self.body, self._content_type)

    @cached_property
    def text(self) -> str:
        """The body as text, decoded as browsers do; invalid bytes become U+FFFD."""
        return charset.text_in(self.body, self.encoding)

    def json(self) -> Any:
        """The body as JSON. Raises: ValueError: it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return json.loads(self.text)  # another encoding, or NaN

    @cached_property
    def selector(self) -> Selector:
        """The body as parsel reads it: as HTML, or by its content type as XML or JSON."""
        kind = "html"
        if self._kind.endswith(("/xml", "+xml")) and self._kind != "application/xhtml+xml":
            kind = "xml"
        elif self._kind.endswith(("/json", "+json")):
            kind = "json"
        return Selector(text=self.text, type=kind, base_url=self.url)

    def css(self, query: str) -> SelectorList[Selector]:
        """What a CSS selector matches, with Scrapy's `::text` and `::attr(name)`.

        Raises: ValueError: the selector is wrong.
        """
        try:
            return self.selector.css(query)
        except (SyntaxError, RuntimeError) as error:  # cssselect's classes
            raise ValueError(f"the selector {query!r} cannot be read: {error}") from error

    def xpath(self, query: str, namespaces: dict[str, str] | None = None, **variables: Any) -> SelectorList[Selector]:
        """What an XPath expression matches; `$name` in it is a variable.

        Raises: ValueError: the expression is wrong.
        """
        return self.selector.xpath(query, namespaces, **variables)

    def jmespath(self, query: str) -> SelectorList[Selector]:
        """What a JMESPath expression finds in a page of JSON."""
        return self.selector.jmespath(query)

    @cached_property
    def tree(self) -> LexborHTMLParser:
        """The body parsed as HTML by selectolax, whatever its type: several times faster than `css`."""
        return parsed(self.body, self._content_type)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Names the replacement for an attribute that there is not."""
            if name in scrapy_names.OF_RESPONSE:
                raise AttributeError(f"there is no response.{name}: {scrapy_names.OF_RESPONSE[name]}")
            return object.__getattribute__(self, name)  # raises Python's usual AttributeError

    # Its links.

    def urljoin(self, href: str) -> str:
        """The absolute URL of a link on this page, by its `base`; returns `href` unchanged if it is no http(s) URL."""
        if _ROOTED.fullmatch(href) and self._base_of_root:  # most links: joined and serialised, it is this
            return self._base_of_root + href
        try:
            return serialise(in_page(href, self.encoding), self._base)
        except InvalidUrl:
            return href

    def follow(self, url: Followable, callback: Callback | None = None, **options: Unpack[RequestOptions]) -> Request:
        """A request for a link on this page; the other arguments are `Request`'s.

        Raises: TypeError: there is no URL in it, for example None, because a selector matched nothing.
        ValueError: an element without `href`.
        """
        return Request(self.urljoin(_href(url)), callback, **options)

    def follow_all(
        self,
        urls: Iterable[Followable] | None = None,
        callback: Callback | None = None,
        *,
        css: str = "",
        xpath: str = "",
        **options: Unpack[RequestOptions],
    ) -> Iterator[Request]:
        """Requests for several links: given ones, or what one selector matches; elements without a link are left out.

        Raises: TypeError: it takes one of urls, css and xpath.
        """
        if (urls is not None) + bool(css) + bool(xpath) != 1:
            raise TypeError("follow_all takes one of urls, css and xpath")
        found: Iterable[Followable] = urls if urls is not None else self.css(css) if css else self.xpath(xpath)
        return (self.follow(url, callback, **options) for url in found if _has_link(url))

    def submit(
        self,
        data: FormData | None = None,
        callback: Callback | None = None,
        *,
        css: str = "form",
        click: str = "",
        **options: Unpack[RequestOptions],
    ) -> Request:
        """A request that submits a form of this page, with its hidden fields (CSRF tokens) and other values.

        Args:
            data: Values by name; they replace those of the page; a list is several, None leaves the field out.
            css: CSS selector; the first form that it matches.
            click: CSS selector of the button that is clicked; by default the first one.

        Raises: ValueError: there is no such form or button.
        """
        filled = filled_form(self.selector, css, data or {}, click)
        url = self.urljoin(filled.action) if filled.action else self.url
        if filled.method == "GET":
            url = url.partition("#")[0].partition("?")[0]
        options.setdefault("method", filled.method)
        options.setdefault("encoding", charset.of_form(filled.accept_charset, self.encoding))
        options["form"] = filled.fields
        return Request(url, callback, **options)

    @cached_property
    def _base_of_root(self) -> str:
        """The origin of this page's base, which is put before a path from the root; empty where that is not all."""
        scheme, slashes, rest = self._base.partition("://")
        return f"{scheme}{slashes}{rest.partition('/')[0]}" if scheme in {"http", "https"} and "/" in rest else ""

    @cached_property
    def _base(self) -> str:
        if self.encoding in _OF_ASCII and _BASE.search(self.body) is None:  # most pages need no second tree
            return self.url
        return base_of(self.tree, self.url)


def _kept_headers(page: PageMeta) -> list[tuple[str, str]]:
    """The headers that every page keeps."""
    kept = [("content-type", page.content_type)] if page.content_type else []
    return [*kept, *(("link", one) for one in page.link), *(("x-robots-tag", one) for one in page.x_robots)]


def _href(url: object) -> str:
    if isinstance(url, str):
        return url.strip("\t\n\r\f ")
    if isinstance(url, Selector):
        return _selected(url)
    if isinstance(url, LexborNode):
        return url.attributes.get("href") or ""
    if isinstance(url, list):
        raise TypeError("follow wants one link, got a list; follow_all takes several")
    written = getattr(url, "url", None)
    if not isinstance(written, str):
        none = ": does the selector find what it looks for?" if url is None else ""
        raise TypeError(f"follow wants a URL, a selector or a link, got {type(url).__name__}{none}")
    return written


def _selected(selector: Selector) -> str:
    """The link of a selector: of an attribute or a text the text itself."""
    if isinstance(selector.root, str):
        return selector.root.strip("\t\n\r\f ")
    href = selector.attrib.get("href")
    if href is None:
        tag = getattr(selector.root, "tag", type(selector.root).__name__)
        raise ValueError(f"<{tag}> has no href; follow takes a, area and link elements, and ::attr(…)")
    return href.strip("\t\n\r\f ")


def _has_link(url: Followable) -> bool:
    """False for an element without a link; what is no URL at all is an error of `follow`."""
    if isinstance(url, LexborNode):
        return "href" in url.attributes
    return not isinstance(url, Selector) or isinstance(url.root, str) or "href" in url.attrib
