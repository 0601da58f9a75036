"""A sitemap's markup to its entries: tags and text as they come, whether or not they are XML.

Own code instead of an XML parser: sitemaps often are no valid XML (a bare `&`, a missing end tag, a wrong namespace).
This parser knows only the five entities of XML, no DTD and no external names, so no file can make it expand, fetch or
open anything. A document type with declarations ends the reading. Every character is read a bounded number of times,
so a hostile file costs no more than its size.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from crawlog.schemas.urls import MAX_URL_BYTES
from crawlog.streams.url import InvalidUrl, joined_base, serialise

from .sitemap_entries import WWW, Entries, permalink

MAX_TAG = 16 * 1024  # Characters of one tag; longer ones are ignored

# Elements whose names are kept; a sitemap needs three, a feed with markup in it some more. Deeper ones are text.
MAX_DEPTH = 64

MAX_TAGS = 2_000_000  # Tags read of one file: 50,000 entries with 40 each; a bomb of nothing else would take a minute

MAX_BARE = 16  # Pieces of an entry's own text that are kept: comments, sections and chunks part it

_NAME = re.compile(r"/?\s*([^\s/>=\"']+)")
_ATTRIBUTE = re.compile(
    r"(?<![\w:.-])(href|rel|type|ispermalink|xml:base)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))", re.IGNORECASE
)
# A tag whose attributes' values may hold what else would end it.
_QUOTED_TAG = re.compile(r"<[^<>\"']*+(?:(?:\"[^\"<]*+\"|'[^'<]*+')[^<>\"']*+)*+>")
_REFERENCE = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_DECLARES = re.compile(r"<!(?:doctype[^>]*\[|entity\b)", re.IGNORECASE)
_SPECIAL = ("!", "?", "")  # What stands behind the `<` of what is no element; the empty one is the end of a chunk

_ENTRIES = frozenset({"url", "sitemap", "item", "entry"})
# Elements that say when an entry changed, the better ones first.
_DATES = ("lastmod", "updated", "modified", "pubdate", "date", "published", "issued")

# Prefixes whose `loc` is that of another thing.
_EXTENSIONS = frozenset({"image", "video", "news", "xhtml", "mobile", "media", "atom", "pagemap", "geo"})

_LEAVES = frozenset({"loc", "link", "guid", "id", "priority", *_DATES})
_LINKS = frozenset({"link", "guid", "id"})
_PARENTS = {"urlset": "url", "sitemapindex": "sitemap"}  # Where a `loc` stands without an element of its own around it


class _Tag(NamedTuple):
    """A tag without its attributes, in lower case."""

    name: str
    prefix: str
    local: str
    ends: bool
    empty: bool


_TAGS: dict[str, _Tag] = {}  # Tags by their text: a sitemap has the same few over and over

_REMEMBERED = 1_000
_REMEMBERED_LENGTH = 64


def _tag(text: str) -> _Tag | None:
    """The tag between `<` and `>`; None when it has no name."""
    found = _NAME.match(text)
    if found is None:
        return None
    name = found[1].lower()
    prefix, _, local = name.rpartition(":")
    tag = _Tag(name, prefix, local, text[0] == "/", text.endswith("/"))
    if len(text) <= _REMEMBERED_LENGTH and len(_TAGS) < _REMEMBERED:
        _TAGS[text] = tag
    return tag


class Markup:
    """Reads tags and text as they come; knows no entity but XML's five, and no document type.

    Invariant: of what was read only the open tag (≤ `MAX_TAG`), the open leaf's text (≤ a URL) and the names of the
    open elements are kept.
    """

    def __init__(self, found: Entries) -> None:
        self._found = found
        self._stack: list[_Tag] = []
        self._leaf = ""
        self._parts: list[str] = []
        self._size = 0
        self._raw: list[str] = []
        self._bare: list[str] = []
        self._fields: dict[str, str] = {}
        self._bases: list[tuple[int, str]] = []
        self._until = ""
        self._cut = ""
        self._tags = 0

    def read(self, head: str, chunks: Iterator[str]) -> str:
        """Read all; returns why it ended early."""
        buffer = head
        for chunk in chunks:
            buffer = self._take(buffer, final=False) + chunk
            if self._cut or self._found.full:
                return self._cut
        self._take(buffer, final=True)
        opened = self._opened()
        if opened is not None and not self._cut:
            self._bare = []
            self._finish(opened.local)  # what is complete of it: an open leaf, and its own text, may be cut
        return self._cut

    def _take(self, buffer: str, *, final: bool) -> str:
        """Handle all that is complete; returns the rest."""
        at = 0
        while at < len(buffer) and not self._cut:
            if self._until:
                after = self._skip(buffer, at)
            elif buffer[at] == "<":
                after = self._tag(buffer, at, final=final)
            else:
                after = buffer.find("<", at)
                after = len(buffer) if after < 0 else after
                self._text(buffer[at:after])
            if after == at:
                break
            at = after
        return buffer[at:]

    def _skip(self, buffer: str, at: int) -> int:
        """Inside a comment, a CDATA section or an instruction: go to its end, which may be in a later chunk."""
        until = self._until
        end = buffer.find(until, at)
        upto = max(at, len(buffer) - len(until) + 1) if end < 0 else end
        if until == "]]>" and upto > at:
            self._flush()
            self._collect(buffer[at:upto])
        if end < 0:
            return upto
        self._until = ""
        return end + len(until)

    def _tag(self, buffer: str, at: int, *, final: bool) -> int:
        """A tag, or what begins like one."""
        if buffer[at + 1 : at + 2] in _SPECIAL and (after := self._special(buffer, at, final=final)) is not None:
            return after
        end = buffer.find(">", at)
        if end < 0:
            return self._unfinished(buffer, at, final=final)
        begin_at = buffer.rfind("<", at, end)
        if begin_at > at:
            self._text(buffer[at:begin_at])
            return begin_at
        if buffer.count('"', at, end) % 2 or buffer.count("'", at, end) % 2:
            quoted = _QUOTED_TAG.match(buffer, at)
            if quoted is not None:
                end = quoted.end() - 1
            elif not final and buffer.find("<", end) < 0 and len(buffer) - at <= MAX_TAG:
                return at  # its end may be in a later chunk
        if end - at <= MAX_TAG:
            self._element(buffer[at + 1 : end])
        return end + 1

    def _special(self, buffer: str, at: int, *, final: bool) -> int | None:
        """What is no element: a comment, CDATA, an instruction, a document type; None when it is none of them."""
        for begin, until in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")):
            if buffer.startswith(begin, at):
                self._until = until
                return at + len(begin)
            if not final and begin.startswith(buffer[at : at + len(begin)]):
                return at  # its first characters: the next chunk tells
        end = buffer.find(">", at)
        if _DECLARES.match(buffer, at, end if end >= 0 else len(buffer)):
            self._cut = "doctype"
            return len(buffer)
        return None

    def _unfinished(self, buffer: str, at: int, *, final: bool) -> int:
        """No end of the tag in sight: only what the last `<` opens may still become one."""
        last = buffer.rfind("<", at)
        if last > at:
            self._text(buffer[at:last])
            return last
        return len(buffer) if final or len(buffer) - at > MAX_TAG else at

    # Elements

    def _element(self, text: str) -> None:
        tag = _TAGS.get(text) or _tag(text)
        if tag is None:
            return
        self._tags += 1
        if self._tags > MAX_TAGS:
            self._cut = "tags"
        elif tag.ends:
            self._end(tag.name)
        else:
            self._start(tag, text)
            if tag.empty:
                self._end(tag.name)

    def _start(self, tag: _Tag, text: str) -> None:
        if self._leaf:
            self._end(self._stack[-1].name)  # leaves hold no elements: its end tag is missing
        local, stack = tag.local, self._stack
        if local in _ENTRIES and (opened := self._opened()) is not None and _same_kind(local, opened.local):
            self._end(opened.name)  # so is this one's
        if len(stack) >= MAX_DEPTH:
            return
        if local in _LEAVES and stack and (stack[-1].local in _ENTRIES or stack[-1].local in _PARENTS):
            is_other = local == "loc" and tag.prefix not in _EXTENSIONS
            if tag.prefix == stack[-1].prefix or local == "date" or is_other:
                self._start_leaf(tag, text)
        stack.append(tag)
        if "base" in text and (base := _attributes(text).get("xml:base")):
            self._bases.append((len(stack), joined_base(_unescaped(base).strip(), self._base())))
        if self._leaf == "link":
            self._link(_attributes(text))  # of which its own base counts

    def _base(self) -> str:
        """What is relative is joined with this here (XML Base 4)."""
        return self._bases[-1][1] if self._bases else self._found.base

    def _absolute(self, href: str) -> str:
        """A link where an element's `xml:base` counts, as long as that is known; one that is no URL as it is."""
        if not self._bases or WWW.match(href):
            return href
        try:
            return serialise(href, self._base())
        except InvalidUrl:
            return href

    def _opened(self) -> _Tag | None:
        return next((tag for tag in reversed(self._stack) if tag.local in _ENTRIES), None)

    def _start_leaf(self, tag: _Tag, text: str) -> None:
        local, parent = tag.local, self._stack[-1]
        if local == "loc" and "loc" in self._fields:
            if tag.prefix != parent.prefix:
                return
            self._finish(parent.local)  # the end of one entry and the start of the next are missing
        self._leaf = local
        if local == "guid" and _attributes(text).get("ispermalink", "").strip().lower() == "false":
            self._leaf = "id"  # no promise that it is a URL: it counts where nothing better is there

    def _link(self, attributes: dict[str, str]) -> None:
        """Atom's: the one that is the entry itself, not its editor, its comments or its feed."""
        rel, href = attributes.get("rel", "").lower().strip(), attributes.get("href", "")
        if not href or rel not in ("", "alternate") or attributes.get("type", "").endswith(("atom+xml", "rss+xml")):
            return
        self._fields.setdefault("href", self._absolute(_unescaped(href)))

    def _end(self, name: str) -> None:
        stack = self._stack
        if not any(tag.name == name for tag in reversed(stack)):
            return
        last = ""
        while last != name:
            tag = stack.pop()
            last = tag.name
            if self._leaf:
                self._end_leaf()  # the innermost element
            elif tag.local in _ENTRIES:
                self._finish(tag.local)
            while self._bases and self._bases[-1][0] > len(stack):
                self._bases.pop()

    def _end_leaf(self) -> None:
        self._flush()
        text = "".join(self._parts).strip()
        name, self._leaf = self._leaf, ""
        self._parts, self._size = [], 0
        parent = self._stack[-1].local if self._stack else ""
        if name == "loc" and parent in _PARENTS:
            self._found.add(text, is_sitemap=_PARENTS[parent] == "sitemap")
        elif text and parent in _ENTRIES:
            self._fields.setdefault(name, self._absolute(text) if name in _LINKS else text)

    def _finish(self, kind: str) -> None:
        """An entry ends: by its end tag, by the next one's start, or with the file."""
        fields, bare = self._fields, self._bare
        if not fields and not bare:
            return
        self._fields, self._bare = {}, []
        href = fields.get("loc", "") if kind in ("url", "sitemap") else _feed_link(fields)
        href = href or permalink("".join(_unescaped("".join(bare)).split()[:1]))
        date = next((fields[name] for name in _DATES if name in fields), "")
        self._found.add(href, is_sitemap=kind == "sitemap", lastmod=date, priority=fields.get("priority", ""))

    # Text

    def _text(self, text: str) -> None:
        if self._leaf and self._size <= MAX_URL_BYTES:
            self._raw.append(text)
            self._size += len(text)
        elif not text.isspace():
            self._take_bare(text)

    def _flush(self) -> None:
        """Text outside of CDATA, of which a reference may have been cut by the end of a chunk."""
        if self._raw:
            self._parts.append(_unescaped("".join(self._raw)))
            self._raw.clear()

    def _collect(self, text: str) -> None:
        if self._leaf and self._size <= MAX_URL_BYTES:
            self._parts.append(text)
            self._size += len(text)
        else:
            self._take_bare(text.replace("&", "&amp;"))

    def _take_bare(self, text: str) -> None:
        """Text of an entry itself, which may be its URL; the `url` of an RSS image is no entry."""
        stack = self._stack
        is_own = bool(stack) and stack[-1].local in _ENTRIES and not (len(stack) > 1 and stack[-2].local == "image")
        if is_own and len(self._bare) < MAX_BARE:
            self._bare.append(text[:MAX_URL_BYTES])


def _feed_link(fields: dict[str, str]) -> str:
    """A feed's entry: Atom's href, RSS's link, else its guid or id, where that is a URL."""
    return (
        fields.get("href") or fields.get("link") or permalink(fields.get("guid", "")) or permalink(fields.get("id", ""))
    )


def _same_kind(kind: str, other: str) -> bool:
    """Whether one entry cannot be inside the other: an RSS image may have a `url`."""
    return kind == other or {kind, other} == {"url", "sitemap"}


def _attributes(tag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(tag):
        found.setdefault(match[1].lower(), match[2] or match[3] or match[4] or "")
    return found


def _unescaped(text: str) -> str:
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(reference: re.Match[str]) -> str:
    if reference[1]:
        return _ENTITIES[reference[1]]
    code = int(reference[2]) if reference[2] else int(reference[3], 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
