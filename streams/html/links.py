"""The hot path of parse: a page's bytes in, its title and outlinks out.

`extract` gives hrefs as the page wrote them; `Links` resolves them, and remembers what it resolved, because a site's
pages repeat their links: a remembered link costs a look-up, a new one a URL parse, a fingerprint and a place.

Links are those of the HTML standard's tree without scripting, as it is now: elements in a `select` stay and their links
count, where parsers of the older standard (html5lib, parse5 8) drop them. Beyond it, those in a `template` count.
"""

import codecs
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import isqrt
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawlog.streams.url import Canonicaliser, InvalidUrl, Place, Places, fingerprint, joined_base

from . import charset, queries
from .directives import refresh_target, srcset_urls

_SELECTORS = {
    "a": "a[href]",
    "area": "area[href]",
    "frame": "frame[src],iframe[src]",
    "link": "link[href]",
    "canonical": "link[href][rel]",
    "hreflang": "link[href][hreflang]",
    "img": "img[src]",
    "srcset": "img[srcset],source[srcset],link[imagesrcset]",
    "refresh": "meta[http-equiv][content]",
}
_PLAIN_SOURCES = frozenset({"a", "area"})
_NOFOLLOW = frozenset({"nofollow", "ugc", "sponsored"})
_SPACE = re.compile(r"[\t\n\x0c\r ]+")
_HTTP = ("http://", "https://")
_ROOTED = ("/", *_HTTP)
"""What needs no directory."""

_AUTHORITY = ("//", "/\\")
"""What an href begins with that names a host; a path whose first segment is empty looks like one."""

_NO_LINKS = ("javascript:", "mailto:", "tel:", "data:")
"""Schemes that many hrefs have, spelled as they mostly are."""

MAX_NESTING = 512
"""Elements open at once; Chrome flattens deeper ones too. The parser looks through all of them at each new block."""

HARMLESS = 10_000_000
"""Open elements times start tags, below which parsing costs at most 0.1 s (7 ns each, measured)."""

_FEW = isqrt(HARMLESS)
"""Of tags, that cannot be more elements times tags than that."""

_SMALL = 32 * 1024
"""A page of fewer bytes cannot nest deeply enough to matter: 0.15 s at worst."""

MAX_ATTRIBUTES = 4096
"""Attributes of one tag. The parser compares each with all before it: half a million would take minutes."""

_NOT_LARGE = 128 * 1024
"""A page of fewer bytes has no room for attributes that matter: 1.2 s at worst."""

_LONG_TAG = 16 * 1024
_ANY_TAG = re.compile(rb"<[A-Za-z](?>[^>=]+|=[\t\n\f\r ]*(?>\"[^\"]*\"|'[^']*'|))*+")
"""Up to its end, which no quoted value hides; linear, 80 MB a second."""

_ATTRIBUTE = re.compile(
    rb"[\t\n\f\r /]+(?>[^\t\n\f\r />=]+)(?:[\t\n\f\r ]*=[\t\n\f\r ]*(?>\"[^\"]*\"|'[^']*'|[^\t\n\f\r >]*))?"
)

MEMORABLE_CHARS = 256
"""A longer href is resolved anew each time: a page of 8 MiB may be one link, and 100,000 are remembered."""

_TEMPLATE_TAG = re.compile(rb"(</?)template(?=[\t\n\f\r />])", re.IGNORECASE)
_TEMPLATE = "templat-"
"""What a template is called in a page that is `opened`."""

MAX_BASES = 100
"""A page has one `base`; of a million others the place of each would be looked up."""

_FOREIGN = frozenset({"svg", "math"})
_HTML_AGAIN = frozenset({"foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"})
"""Elements of these two in which HTML stands again (HTML 13.2.6, integration points)."""

_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\x0c\r />]*)[^>]*(?:>|\Z)")
_NOT_NESTING = frozenset(
    b"a area base basefont bgsound body br col colgroup dd dt embed head hr html img input keygen li link meta optgroup"
    b" option p param rp rt source tbody td tfoot th thead title tr track wbr".split()
)
"""Elements that hold no others, close themselves, or are links."""


class Extracted(NamedTuple):
    """What a page says, before any rule.

    Attributes:
        title: White space collapsed; None when there is none, or nothing in it.
        base: The URL that hrefs resolve against.
        hrefs: As written, in document order, each once; their queries as the page's encoding has them.
        nofollowed: Those of them that stand in elements with rel=nofollow only; empty unless asked for.
        metas: Name and content of each `meta` element that has both; empty unless asked for.
    """

    title: str | None
    base: str
    hrefs: list[str]
    nofollowed: frozenset[str] = frozenset()
    metas: tuple[tuple[str, str], ...] = ()


class Outlink(msgspec.Struct, frozen=True, gc=False):
    """A link with all that is asked of it later; a hundred thousand are remembered, and none is part of a cycle."""

    url: str
    fingerprint: int
    place: Place


def extract(
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
        nofollow: Whether to tell which of them are marked rel=nofollow.
        metas: Whether to tell what `meta` elements say.
        most: Links looked at, None for all.
    Raises: ValueError: larger than the parser takes.
    """
    page, encoding = _parsed(body, content_type)
    if _PLAIN_SOURCES.issuperset(sources) and "a" in sources and not ("area" in sources and page.tags("area")):
        nodes = page.tags("a")  # half the cost of a selector
        hrefs = [href["href"] or "" for node in nodes if "href" in (href := node.attributes)][:most]
    else:
        selector = ",".join(_SELECTORS[source] for source in sources if source in _SELECTORS)
        nodes = page.css(selector) if selector else []
        wanted = frozenset(sources)
        hrefs = [target for node in nodes[:most] for target in _targets(node, wanted)]
    marked = _nofollowed(nodes) if nofollow else frozenset()
    if encoding not in queries.UNICODE:
        hrefs = [queries.in_page(href, encoding) for href in hrefs]
        marked = frozenset(queries.in_page(href, encoding) for href in marked)
    return Extracted(
        _title(page),
        base_of(page, url),
        list(dict.fromkeys(hrefs))[:most],
        marked,
        tuple(_named_metas(page)) if metas else (),
    )


def _targets(node: LexborNode, wanted: frozenset[str]) -> Iterator[str]:
    """What an element refers to, of the sources wanted."""
    attributes = node.attributes
    tag = node.tag
    if "href" in attributes and (tag in ("a", "area") or (tag == "link" and _is_wanted(attributes, wanted))):
        yield attributes["href"] or ""  # the selector takes a drawing's `xlink:href` for one
    elif tag in ("frame", "iframe"):
        yield attributes.get("src") or ""
    elif tag == "img" and "img" in wanted and attributes.get("src"):
        yield attributes["src"] or ""
    elif tag == "meta" and (attributes.get("http-equiv") or "").strip().lower() == "refresh":
        target = refresh_target(attributes.get("content") or "")
        if target is not None:
            yield target
    if "srcset" in wanted and tag in ("img", "source", "link"):
        yield from srcset_urls(attributes.get("imagesrcset" if tag == "link" else "srcset") or "")


def _is_wanted(attributes: dict[str, str | None], wanted: frozenset[str]) -> bool:
    """Whether a `link` element is one of the sources."""
    if "link" in wanted:
        return True
    rels = (attributes.get("rel") or "").lower().split()
    if "canonical" in wanted and "canonical" in rels:
        return True
    return "hreflang" in wanted and "alternate" in rels and bool(attributes.get("hreflang"))


def _nofollowed(nodes: list[LexborNode]) -> frozenset[str]:
    marked: dict[str, bool] = {}
    for node in nodes:
        href = node.attributes.get("href")
        if href is not None:
            is_marked = not _NOFOLLOW.isdisjoint((node.attributes.get("rel") or "").lower().split())
            marked[href] = is_marked and marked.get(href, True)
    return frozenset(href for href, is_marked in marked.items() if is_marked)


def _named_metas(page: LexborHTMLParser) -> Iterator[tuple[str, str]]:
    for node in page.css("meta[name][content]"):
        attributes = node.attributes
        yield attributes.get("name") or "", attributes.get("content") or ""


def parsed(body: bytes, content_type: str) -> LexborHTMLParser:
    """The tree of a page.

    Raises: ValueError: larger than the parser takes.
    """
    return _parsed(body, content_type)[0]


def _parsed(body: bytes, content_type: str) -> tuple[LexborHTMLParser, str]:
    """The tree of a page, and its encoding."""
    encoding = charset.decide(body, content_type)
    html = _in_utf_8(body, encoding)
    page = LexborHTMLParser(_safe(html))  # it replaces what is not UTF-8 itself
    if page.tags("template"):  # to ask the tree costs a fifth of searching all bytes
        del page  # each may take 20 times the bytes
        page = LexborHTMLParser(flattened(thinned(opened(html))))
    return page, encoding


def readings(body: bytes, content_type: str) -> Iterator[bytes]:
    """Whatever `parsed` may give to the parser for this page, which is parsed next as a rule."""
    html = _in_utf_8(body, charset.decide(body, content_type))
    safe = flattened(thinned(html))
    if len(html) > _NOT_LARGE:
        _safe_already.append((html, safe))
    yield safe
    if _TEMPLATE_TAG.search(html):
        yield flattened(thinned(opened(html)))


_safe_already: deque[tuple[bytes, bytes]] = deque(maxlen=1)
"""The large page whose trial was the last one, and what the parser is to get of it: a second's work for the worst."""


def _safe(html: bytes) -> bytes:
    """What the parser is to get of a page."""
    if len(html) > _NOT_LARGE:
        with suppress(IndexError):
            known = _safe_already[0]  # a trial's thread may put another one there at any time
            if known[0] == html:
                _safe_already.clear()
                return known[1]
    return flattened(thinned(html))


def _in_utf_8(body: bytes, encoding: str) -> bytes:
    if encoding == "utf-8" or (encoding == charset.FALLBACK and body.isascii()):
        return body.removeprefix(codecs.BOM_UTF8)  # to the parser it is text, and ends the head
    return charset.text_in(body, encoding).encode()


def opened(html: bytes) -> bytes:
    """A page whose templates are elements like others: a script or a shadow root will show their links."""
    return _TEMPLATE_TAG.sub(rb"\1templat-", html)


def thinned(html: bytes) -> bytes:
    """A page without the attributes of a tag beyond `MAX_ATTRIBUTES`; nearly every page as it is."""
    if len(html) <= _NOT_LARGE:
        return html
    kept, done = bytearray(), 0
    for tag in _ANY_TAG.finditer(html):  # `sub` would hold a million pieces
        if tag.end() - tag.start() > _LONG_TAG:
            last = next(islice(_ATTRIBUTE.finditer(tag[0]), MAX_ATTRIBUTES - 1, None), None)
            if last is not None:
                kept += html[done : tag.start() + last.end()]
                done = tag.end()
    return bytes(kept + html[done:]) if done else html


def less_than_signs(html: bytes, most: int) -> int:
    """How many `<` a page has, counted up to one more than `most`: `replace` looks for them faster than `count`."""
    return len(html) - len(html.replace(b"<", b"", most + 1))


def flattened(html: bytes) -> bytes:
    """A page without the tags of elements nested too deeply; nearly every page as it is.

    Parsing costs depth times blocks: 5 MB of `<div>` would take an hour.
    """
    if len(html) <= _SMALL:
        return html
    if less_than_signs(html, _FEW) <= _FEW:  # so few that it does not matter how many of them end elements
        return html
    tags = html.count(b"<")
    ends = html.count(b"</")
    starts = tags - ends
    if starts - ends <= MAX_NESTING or starts * (starts - ends) <= HARMLESS:
        return html
    kept, done, depth = bytearray(), 0, 0
    for tag in _TAG.finditer(html):  # `sub` would hold a million pieces
        if tag[2].lower() in _NOT_NESTING:
            continue
        depth = max(0, depth - 1) if tag[1] else depth + 1
        if depth >= MAX_NESTING + (not tag[1]):
            kept += html[done : tag.start()]
            done = tag.end()
    return bytes(kept + html[done:])


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
        if tag == _TEMPLATE or (tag in _FOREIGN and not is_certain):
            return False
        is_certain = is_certain or tag in _HTML_AGAIN
        parent = parent.parent
    return True


def is_plain(href: str) -> bool:
    """Whether an href joined to its base is the base's origin or directory with the href behind it, parsed as one URL.

    Parsing one URL costs a third of a join. Not plain are an empty href, one with a scheme or a host of its own, one
    that is only a query or fragment, and what white space and control characters might turn into one.
    """
    first = href[:1]
    if first <= " " or first in "?#\\" or not href.isprintable():
        return False
    if first == "/":
        return href[1:2] not in ("/", "\\")
    if first == ".":  # of no scheme
        return True
    colon = href.find(":")
    return colon < 0 or 0 <= href.find("/") < colon


def climbed(directory: str, href: str) -> str:
    """A plain href that begins with dots, behind the directory it means: spelled so, most links are known unparsed.

    Args:
        directory: The path of one, from its first slash to its last, as a serialised URL has it: without dots.
    """
    while True:
        if href.startswith("../"):  # above the root is the root
            directory = directory[: directory.rfind("/", 0, -1) + 1] or "/"
            href = href[3:]
        elif href.startswith("./"):
            href = href[2:]
        else:
            return directory + href


_Written = dict[str, dict[str, Outlink | Literal[False]]]
"""Links by the origin of the page, then by href. False is no link."""

_fingerprint = attrgetter("fingerprint")


class Links:
    """Resolves hrefs to outlinks by one job's rules.

    Two memories, each in two generations, the older one let go when the newer one is full: of hrefs as pages of an
    origin write them, from the root or absolute; and of canonical URLs, which spare most spellings their parsing.

    Args:
        cached: Entries of each memory, at most, but for the last page's.
    """

    def __init__(self, canonicaliser: Canonicaliser, places: Places, cached: int = 100_000) -> None:
        self._canonical = canonicaliser.canonical
        self._dropped = canonicaliser.dropped
        self._place = places.of
        self._half = max(1, cached // 2)
        self._new: _Written = {}
        self._count = 0
        self._old: _Written = {}
        self._known: dict[str, Outlink] = {}
        self._known_before: dict[str, Outlink] = {}

    def resolve(self, base: str, hrefs: list[str]) -> list[Outlink]:
        """The http(s) links among the hrefs of one page, in order, each canonical URL once."""
        if not base.startswith(_HTTP):
            return list({one.url: one for href in hrefs if (one := self._outlink(href, base))}.values())
        origin = base[: base.find("/", 8)]
        directory = base[len(origin) : base.rfind("/", 0, _path_end(base)) + 1]
        written = self._written(origin)
        found = list(map(written.get, hrefs))  # no Python call for a link that is known
        for at, known in enumerate(found):
            if known is None:
                href = hrefs[at]
                found[at] = self._known.get(href) or self._resolve(written, origin, directory, base, href)
        links = list(filter(None, found))
        return list(dict(zip(map(_fingerprint, links), links, strict=True)).values())  # asked for later on anyway

    def _written(self, origin: str) -> dict[str, Outlink | Literal[False]]:
        """The newer memory of an origin; there is room in it for a page."""
        if self._count >= self._half:
            self._old, self._new, self._count = self._new, {}, 0
        written = self._new.get(origin)
        if written is None:
            written = self._new[origin] = {}
            self._count += 1
        return written

    def _resolve(  # an href, and what its page gives it
        self, written: dict[str, Outlink | Literal[False]], origin: str, directory: str, base: str, href: str
    ) -> Outlink | Literal[False]:
        """The link of an href that is not remembered as it is written; False where it is none.

        Remembered without its fragment, and from the root on; not where it needs the base's last part.
        """
        if len(href) > MEMORABLE_CHARS:
            return self._outlink(href, base) or False
        fragment = href.find("#")
        if fragment > 0 and href[fragment - 1] > " ":  # before a `#` white space counts, at the end it does not
            href = href[:fragment]
        if href.startswith(_ROOTED):
            return self._from_root(written, origin, base, href)
        if href.startswith(_NO_LINKS):
            return False
        if not is_plain(href):
            return self._outlink(href, base) or False
        href = climbed(directory, href) if href[0] == "." else directory + href
        if href.startswith(_AUTHORITY) or len(href) > MEMORABLE_CHARS:
            return self._absolute(origin + href) or False
        return self._from_root(written, origin, base, href)

    def _from_root(
        self, written: dict[str, Outlink | Literal[False]], origin: str, base: str, href: str
    ) -> Outlink | Literal[False]:
        """The link of an href that is absolute, or goes from the root; from now on it is remembered."""
        link = written.get(href)
        if link is None:
            link = self._old.get(origin, written).get(href)
            link = written[href] = self._first(origin, base, href) or False if link is None else link
            self._count += 1
        return link

    def _first(self, origin: str, base: str, href: str) -> Outlink | None:
        """The same of one that is not remembered."""
        if href.startswith(_HTTP):
            return self._absolute(href)
        if is_plain(href):
            return self._absolute(origin + href)
        if href.startswith("//") and href.isascii() and href.isprintable():
            return self._absolute(origin[: origin.index("/")] + href)
        return self._outlink(href, base)

    def _absolute(self, url: str) -> Outlink | None:
        """The link of a URL; one spelled as its canonical form, but for a fragment, is known without being parsed."""
        spelled = url[: url.index("#")] if "#" in url else url
        outlink = self._known.get(spelled)
        if outlink is None and "?" in spelled:  # without what is dropped from every URL it may be known too
            outlink = self._known.get(self._dropped(spelled))
        if outlink is None:
            outlink = self._known_before.get(spelled) or self._outlink(url, None)
            if outlink is None:
                return None
            if len(self._known) >= self._half:
                self._known_before, self._known = self._known, {}
            outlink = self._known.setdefault(outlink.url, outlink)
        return outlink

    def _outlink(self, href: str, base: str | None) -> Outlink | None:
        try:
            url = self._canonical(href, base)
        except InvalidUrl:
            return None
        return Outlink(url, fingerprint(url), self._place(url))


def _path_end(base: str) -> int:
    question = base.find("?")
    return question if question >= 0 else len(base)
