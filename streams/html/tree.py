"""A page's bytes to its tree: decoded, made harmless, parsed.

    body ─► encoding (`charset`) ─► UTF-8 ─► without excess attributes, not too deep ─► LexborHTMLParser
                                                a page with templates, or a `base` in a noscript: once more, with the
                                                templates opened, and without that `base`

A hostile page may take the parser minutes, by nesting or by the attributes of one tag; both are cut before.
"""

import codecs
import re
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from math import isqrt
from typing import NamedTuple

import re2
from selectolax.lexbor import LexborHTMLParser

from . import charset

# Elements open at once; Chrome flattens deeper ones too. The parser looks through all of them at each new block.
MAX_NESTING = 512

HARMLESS = 10_000_000  # Open elements times start tags, below which parsing costs at most 0.1 s (7 ns each, measured)

_FEW = isqrt(HARMLESS)  # With so few tags, elements times tags cannot exceed `HARMLESS`

_SMALL = 32 * 1024  # A page of fewer bytes cannot nest deeply enough to matter: 0.15 s at worst

# Attributes of one tag. The parser compares each with all before it: half a million would take minutes.
MAX_ATTRIBUTES = 4096

_NOT_LARGE = 128 * 1024  # A page of fewer bytes has no room for attributes that matter: 1.2 s at worst

_LONG_TAG = 16 * 1024
_LOOKS = 8  # Ends of tags, from the last one on, that are looked at for one that is in no value

_MOST_SPACE = 64  # White space before a quote that is looked at; behind more of it the quote may be anything

_BASE_TAG = re.compile(rb"<base(?=[\t\n\f\r />])", re.IGNORECASE)
# A `noscript` as its second group, and what may only look like one. Linear.
_NOSCRIPT = re.compile(
    rb"<!--.*?(?:-->|\Z)|<(script|style|textarea|title)[\t\n\f\r />].*?(?:</\1|\Z)"
    rb"|(<noscript[\t\n\f\r />].*?(?:</noscript|\Z))",
    re.IGNORECASE | re.DOTALL,
)

# A tag up to its end; quoted values may hold `>`. Linear, 80 MB a second.
_ANY_TAG = re.compile(rb"<[A-Za-z](?>[^>=]+|=[\t\n\f\r ]*(?>\"[^\"]*\"|'[^']*'|))*+")

_ATTRIBUTE = re.compile(
    rb"[\t\n\f\r /]+(?>[^\t\n\f\r />=]+)(?:[\t\n\f\r ]*=[\t\n\f\r ]*(?>\"[^\"]*\"|'[^']*'|[^\t\n\f\r >]*))?"
)

_TEMPLATE_TAG = re.compile(rb"(</?)template(?=[\t\n\f\r />])", re.IGNORECASE)
TEMPLATE = "templat-"  # The name of a template element in a page that is `opened`

_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\x0c\r />]*)[^>]*(?:>|\Z)")
# Elements that hold no others, close themselves, or are links; all but in drawings and formulas.
NOT_NESTING = frozenset(
    b"a area base basefont bgsound body br col colgroup dd dt embed head hr html img input keygen li link meta option p"
    b" param source tbody td tfoot th thead title tr track wbr".split()
)


def starts_of(names: bytes, behind: bytes = b"") -> "re2._Regexp[bytes]":
    """Matches start tags, in upper or lower case; without `(?i)`, so that RE2 skips to each `<` in half the time.

    Args:
        names: Names and `|`.
        behind: What matches behind the name.
    """
    any_case = re.sub(rb"[a-z]", lambda letter: b"[" + letter[0] + letter[0].upper() + b"]", names)
    return re2.compile(b"<(?:" + any_case + b")" + behind)


_RARE = starts_of(b"area|base|template")
_RARE_OR_BESIDE = starts_of(b"area|base|template|i?frame|meta[^<]*refresh")
_BASE_BEHIND_NOSCRIPT = starts_of(b"noscript", rb"[\t\n\f\r />](?s:.*)<[bB][aA][sS][eE][\t\n\f\r />]")


class Tree(NamedTuple):
    """A parsed page.

    Attributes:
        encoding: By its WHATWG name.
        has_rare: Whether there may be an `area`, a `base` or a `template`. To ask the tree for each takes three times
            as long as one search of the bytes.
        has_beside: Whether there may be one of these, or a `frame`, `iframe` or a refresh in a `meta`; half of all
            pages have an `iframe`.
    """

    page: LexborHTMLParser
    encoding: str
    has_rare: bool
    has_beside: bool


def parsed(body: bytes, content_type: str) -> LexborHTMLParser:
    """The tree of a page.

    Raises: ValueError: larger than the parser takes.
    """
    return tree_of(body, content_type).page


def tree_of(body: bytes, content_type: str) -> Tree:
    """The tree of a page, and its encoding. Raises: ValueError: larger than the parser takes."""
    encoding = charset.decide(body, content_type)
    html = _in_utf_8(body, encoding)
    safe = _safe(html)
    has_beside = _RARE_OR_BESIDE.search(safe) is not None  # on half the pages soon found: both cost as one
    has_rare = has_beside and _RARE.search(safe) is not None
    page = LexborHTMLParser(safe)  # it replaces what is not UTF-8 itself
    again = html
    if has_rare and page.tags("base"):
        again = based(html)
    if has_rare and page.tags("template"):
        again = opened(again)
    if again is not html:
        del page  # each may take 20 times the bytes
        page = LexborHTMLParser(flattened(thinned(again)))
    return Tree(page, encoding, has_rare, has_beside)


def readings(body: bytes, content_type: str) -> Iterator[bytes]:
    """The inputs that `parsed` may give to the parser for this page. As a rule it is parsed next."""
    html = _in_utf_8(body, charset.decide(body, content_type))
    safe = flattened(thinned(html))
    if len(html) > _NOT_LARGE:
        _safe_already.append((html, safe))
    yield safe
    if _TEMPLATE_TAG.search(html):
        yield flattened(thinned(opened(html)))


# The last large page that was tried, and its harmless form: computing that takes a second for the worst page.
_safe_already: deque[tuple[bytes, bytes]] = deque(maxlen=1)


def _safe(html: bytes) -> bytes:
    """The form of a page that is harmless to the parser."""
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
    """A page whose templates are renamed to normal elements: a script or a shadow root may show their links."""
    return _TEMPLATE_TAG.sub(rb"\1templat-", html)


def based(html: bytes) -> bytes:
    """A page without the `base` elements in a `noscript`: to browsers, which run scripts, these are text.

    The parser puts them behind the `noscript` in the head, so its tree cannot tell. In the page they become `meta`.
    """
    if _BASE_BEHIND_NOSCRIPT.search(html) is None or not any(
        block[2] and _BASE_TAG.search(block[2]) for block in _NOSCRIPT.finditer(html)
    ):
        return html
    return _NOSCRIPT.sub(lambda block: _BASE_TAG.sub(b"<meta", block[0]) if block[2] else block[0], html)


def thinned(html: bytes) -> bytes:
    """A page without the attributes of a tag beyond `MAX_ATTRIBUTES`; nearly every page as it is."""
    if len(html) <= _NOT_LARGE or not _may_have_long_tag(html):
        return html
    kept, done = bytearray(), 0
    for tag in _ANY_TAG.finditer(html):  # `sub` would hold a million pieces
        if tag.end() - tag.start() > _LONG_TAG:
            last = next(islice(_ATTRIBUTE.finditer(tag[0]), MAX_ATTRIBUTES - 1, None), None)
            if last is not None:
                kept += html[done : tag.start() + last.end()]
                done = tag.end()
    return bytes(kept + html[done:]) if done else html


def _may_have_long_tag(html: bytes) -> bool:
    """Whether `_ANY_TAG` may match more than `_LONG_TAG` bytes; nearly every page is settled by a few looks.

    A `>` ends any tag unless it is in a quoted value, and then the last quote of its kind before it opened the value:
    this quote follows a `=`. So two such ends that lie near each other have no long tag between them.
    """
    at = html.find(b"<")
    while at >= 0 and len(html) - at > _LONG_TAG:
        end = at + _LONG_TAG
        for _ in range(_LOOKS):
            end = html.rfind(b">", at, end)
            if end < 0:
                return True
            if not (_is_opened(html, html.rfind(b'"', 0, end)) or _is_opened(html, html.rfind(b"'", 0, end))):
                break
        else:
            return True
        at = html.find(b"<", end)
    return False


def _is_opened(html: bytes, quote: int) -> bool:
    """Whether a quote may open an attribute's value: behind a `=` and white space."""
    if quote < 0:
        return False
    before = html[max(0, quote - _MOST_SPACE) : quote].rstrip(b"\t\n\f\r ")
    return not before or before.endswith(b"=")


# The last counts: as a rule a page's tags, and its end tags, are asked for before a trial and before parsing.
_counts: deque[tuple[bytes, bytes, int]] = deque(maxlen=2)


def tags_of(html: bytes) -> int:
    """How many `<` a page has: not fewer than tags."""
    return _count(html, b"<")


def ends_of(html: bytes) -> int:
    """How many `</` a page has: not fewer than end tags."""
    return _count(html, b"</")


def _count(html: bytes, sign: bytes) -> int:
    for counted, counted_sign, count in tuple(_counts):  # a trial's thread may put others there at any time
        if counted is html and counted_sign == sign:
            return count
    count = html.count(sign)
    _counts.append((html, sign, count))
    return count


def flattened(html: bytes) -> bytes:
    """A page without the tags of elements nested too deeply; nearly every page as it is.

    Parsing costs depth times blocks: 5 MB of `<div>` would take an hour.
    """
    if len(html) <= _SMALL:
        return html
    tags = tags_of(html)
    if tags <= _FEW:  # so few that end tags need not be counted
        return html
    ends = ends_of(html)
    starts = tags - ends
    if starts - ends <= MAX_NESTING or starts * (starts - ends) <= HARMLESS:
        return html
    kept, done, depth = bytearray(), 0, 0
    for tag in _TAG.finditer(html):  # `sub` would hold a million pieces
        if tag[2].lower() in NOT_NESTING:
            continue
        depth = max(0, depth - 1) if tag[1] else depth + 1
        if depth >= MAX_NESTING + (not tag[1]):
            kept += html[done : tag.start()]
            done = tag.end()
    return bytes(kept + html[done:])
