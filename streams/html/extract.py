"""Extracts from a page's tree its title, its base, and its links as the page wrote them.

Links are those of the HTML standard's tree without scripting, as it is now: elements in a `select` stay and their links
count, where parsers of the older standard (html5lib, parse5 8) drop them. Beyond it, those in a `template` count.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import endec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlog.streams.url import joined_base

from .directives import refresh_target
from .tree import TEMPLATE, tree_of

_SELECTORS = {
    "a": "a[href]",
    "area": "area[href]",
    "frame": "frame[src],iframe[src]",
    "refresh": "meta[http-equiv][content]",
}
_FRAMES = ("frame", "iframe")

_NOFOLLOW = frozenset({"nofollow", "ugc", "sponsored"})
_SPACE = re.compile(r"[\t\n\x0c\r ]+")
MAX_BASES = 100  # A page has one `base`; of a million others the place of each would be looked up

_FOREIGN = frozenset({"svg", "math"})
# Elements of these two in which HTML stands again (HTML 13.2.6, integration points).
_HTML_AGAIN = frozenset({"foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"})


class Extracted(NamedTuple):
    """The content of a page, before any rule is applied.

    Attributes:
        title: White space collapsed; None when there is none, or nothing in it.
        base: The URL that hrefs resolve against.
        hrefs: As written, each once, in document order (frames and refreshes may stand last); their queries as the
            page's encoding has them.
        nofollowed: Hrefs that only elements with rel=nofollow have; empty unless asked for.
        metas: Name and content of each `meta` element that has both; empty unless asked for.
    """

    title: str | None
    base: str
    hrefs: list[str]
    nofollowed: frozenset[str] = frozenset()
    metas: tuple[tuple[str, str], ...] = ()


def extracted(
    body: bytes,
    content_type: str,
    url: str,
    sources: Sequence[str],
    *,
    nofollow: bool = False,
    metas: bool = False,
    most: int | None = None,
) -> Extracted:
    """The title and links of an HTML page.

    Args:
        url: The page's own, WHATWG-serialised.
        sources: Where to take links from; see the setting `links.sources`.
        nofollow: Whether to fill in `nofollowed`.
        metas: Whether to fill in `metas`.
        most: Links looked at, None for all.
    Raises: ValueError: larger than the parser takes.
    """
    page, encoding, has_rare, has_beside = tree_of(body, content_type)
    has_area = has_rare and "area" in sources and bool(page.tags("area"))
    if "a" in sources and not has_area:
        nodes = page.tags("a")  # half the cost of a selector
        written = [node.attrs.sget("href", None) for node in nodes]
        if None in written:
            lacking = (node for node, href in zip(nodes, written, strict=True) if href is None)
            if any(node.attrs.sget("xlink:href", None) for node in lacking):
                nodes = page.css(_SELECTORS["a"])
                written = [_href(node) for node in nodes]
            written = [href for href in written if href is not None]
        hrefs = cast("list[str]", written[:most])
        if has_beside:
            hrefs += _beside_links(page, sources)
    else:
        selector = ",".join(_SELECTORS[source] for source in sources if source in _SELECTORS)
        nodes = page.css(selector) if selector else []
        hrefs = [target for node in nodes[:most] for target in _targets(node)]
    marked = _nofollowed(nodes) if nofollow else frozenset()
    if encoding not in _UNICODE:
        hrefs = [in_page(href, encoding) for href in hrefs]
        marked = frozenset(in_page(href, encoding) for href in marked)
    return Extracted(
        _title(page),
        base_of(page, url) if has_rare else url,
        list(dict.fromkeys(hrefs))[:most],
        marked,
        tuple(_named_metas(page)) if metas else (),
    )


def _beside_links(page: LexborHTMLParser, sources: Sequence[str]) -> Iterator[str]:
    selector = ",".join(_SELECTORS[source] for source in ("frame", "refresh") if source in sources)
    for node in page.css(selector) if selector else ():
        yield from _targets(node)


def _href(node: LexborNode) -> str | None:
    """The href of a node that a selector found: to it the `xlink:href` of a drawing's `a` is one, too."""
    href = node.attrs.sget("href", None)
    return node.attrs.sget("xlink:href", None) if href is None else href


def _targets(node: LexborNode) -> Iterator[str]:
    """The target of an element that a selector found; none for a `meta` that is no refresh, or only reloads."""
    attributes = node.attributes
    if node.tag in _FRAMES:
        yield attributes.get("src") or ""
    elif node.tag == "meta":
        is_refresh = (attributes.get("http-equiv") or "").strip().lower() == "refresh"
        target = refresh_target(attributes.get("content") or "") if is_refresh else None
        if target is not None:
            yield target
    elif (href := _href(node)) is not None:
        yield href


def _nofollowed(nodes: list[LexborNode]) -> frozenset[str]:
    marked: dict[str, bool] = {}
    for node in nodes:
        href = _href(node)
        if href is not None:
            is_marked = not _NOFOLLOW.isdisjoint((node.attributes.get("rel") or "").lower().split())
            marked[href] = is_marked and marked.get(href, True)
    return frozenset(href for href, is_marked in marked.items() if is_marked)


def _named_metas(page: LexborHTMLParser) -> Iterator[tuple[str, str]]:
    for node in page.css("meta[name][content]"):
        attributes = node.attributes
        yield attributes.get("name") or "", attributes.get("content") or ""


def _title(page: LexborHTMLParser) -> str | None:
    node = page.head.first_child if page.head is not None else None
    while node is not None and node.tag != "title":  # nearly always among the first children of the head
        node = node.next
    if node is None:
        node = next((found for found in page.tags("title") if not _is_in_svg(found)), None)
    return None if node is None else _SPACE.sub(" ", node.text()).strip() or None


def _is_in_svg(node: LexborNode) -> bool:
    return node.parent is not None and node.parent.tag == "svg"


def base_of(page: LexborHTMLParser, url: str) -> str:
    """The first HTML `base` with an href, of whatever scheme but data and javascript; else the page's URL."""
    for node in page.tags("base")[:MAX_BASES]:
        attributes = node.attributes
        if "href" in attributes and _is_html(node):
            return joined_base(attributes["href"] or "", url)
    return url


def _is_html(node: LexborNode) -> bool:
    """Whether an element is one of the page's own HTML elements: none in a drawing, a formula or a template."""
    parent = node.parent
    is_certain = False
    while parent is not None:
        tag = (parent.tag or "").lower()
        if tag == TEMPLATE or (tag in _FOREIGN and not is_certain):
            return False
        is_certain = is_certain or tag in _HTML_AGAIN
        parent = parent.parent
    return True


# A link's query in the encoding of its page, as browsers send it (WHATWG URL, query state; Encoding, encoders).

# Encodings of a page whose links' queries are in UTF-8.
_UNICODE = frozenset({"utf-8", "utf-16le", "utf-16be", "replacement"})

# Bytes that stand in a query as they are, those of ISO-2022-JP's characters too.
_KEPT = frozenset(range(0x21, 0x7F)).difference(b"\"#'<>")

_NOT_WRITTEN = (b"&#", b"\x1b(")  # How a reference begins, and a character of the Roman set


def in_page(href: str, encoding: str) -> str:
    """An href whose query is as the page's encoding has it; nearly every href as it is.

    Args:
        encoding: By its WHATWG name.
    """
    if encoding in _UNICODE or href.isascii():
        return href
    rest, mark, fragment = href.partition("#")
    path, question, query = rest.partition("?")
    if query.isascii():
        return href
    return f"{path}{question}{_escaped(query, encoding)}{mark}{fragment}"


def _escaped(query: str, encoding: str) -> str:
    escaped = "".join(char if char.isascii() else _escape(char, encoding) for char in query)
    return escaped.replace("%1B(B%1B$B", "")  # ISO-2022-JP's characters side by side


@lru_cache(4096)
def _escape(char: str, encoding: str) -> str:
    is_surrogate = "\ud800" <= char <= "\udfff"
    written = b"" if is_surrogate else endec.encode(char, encoding, "xmlcharrefreplace")
    if is_surrogate or written.startswith(_NOT_WRITTEN):
        return f"%26%23{ord(char)}%3B"
    return "".join(chr(byte) if byte in _KEPT else f"%{byte:02X}" for byte in written)
