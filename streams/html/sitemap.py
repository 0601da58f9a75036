"""Sitemaps and feeds: the URLs that a site says it has. Pure, streaming, bounded, and forgiving.

Own code instead of an XML parser: what is served as a sitemap often is no XML (a bare `&`, a missing end tag, a wrong
namespace), and a parser that knows no entities but the five of XML, no DTD and no external name cannot be made to
expand, fetch or open any. A document type that declares something ends the reading. Every character is looked at a
bounded number of times, so a hostile file costs what its bytes cost.

Formats: sitemapindex, urlset (with their extensions, which are passed over), plain text, RSS, Atom, JSON Feed; each
also gzipped, told by its first bytes. Elements are known by their local names.
"""

import codecs
import itertools
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import msgspec
import webencodings

from crawlog.schemas.codec import decoded
from crawlog.schemas.urls import MAX_URL_BYTES
from crawlog.streams.url import InvalidUrl, joined_base, serialise

MAX_URLS = 50_000
"""Entries of one file (sitemaps.org: "no more than 50,000 URLs")."""

MAX_BYTES = 50 << 20
"""Of one file, decompressed (sitemaps.org: 50 MB); what lies beyond is not read."""

MAX_TAG = 16 * 1024
"""Characters of one tag; what is longer is none."""

MAX_DEPTH = 64
"""Elements whose names are kept; a sitemap needs three, a feed with markup in it some more. Deeper ones are text."""

MAX_TAGS = 2_000_000
"""Tags read of one file: 50,000 entries with 40 each; a bomb of nothing else would take a minute."""

MAX_GZIPS = 2
"""Compressions one inside the other: `.xml.gz` served as it is by a server that gzips again."""

CHUNK = 64 * 1024

MAX_BARE = 16
"""Pieces of an entry's own text that are kept: comments, sections and chunks part it."""

_GZIP = b"\x1f\x8b"
_GZIP_TRAILER = 8
"""Bytes of a member's checksum and size (RFC 1952 2.3)."""
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be"))
_DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?\bencoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s;"']{1,40})""", re.IGNORECASE)
_MARKUP = re.compile(r"<(?:\w{1,20}:)?(?:urlset|sitemapindex|rss|feed|rdf)\b", re.IGNORECASE)
_NAME = re.compile(r"/?\s*([^\s/>=\"']+)")
_ATTRIBUTE = re.compile(
    r"(?<![\w:.-])(href|rel|type|ispermalink|xml:base)\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>]+))", re.IGNORECASE
)
_QUOTED_TAG = re.compile(r"<[^<>\"']*+(?:(?:\"[^\"<]*+\"|'[^'<]*+')[^<>\"']*+)*+>")
"""A tag whose attributes' values may hold what else would end it."""
_REFERENCE = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_DECLARES = re.compile(r"<!(?:doctype[^>]*\[|entity\b)", re.IGNORECASE)
_SPECIAL = ("!", "?", "")
"""What stands behind the `<` of what is no element; the empty one is the end of a chunk."""

_WWW = re.compile(r"www(?:\.[\w-]+){2,}(?::\d+)?(?![^/?#\s])", re.IGNORECASE)
"""The host of a URL whose scheme was left out; `www.html` is a relative one."""

_SPACE = re.compile(r"[\t\n\r]+ *")

_ENTRIES = frozenset({"url", "sitemap", "item", "entry"})
_DATES = ("lastmod", "updated", "modified", "pubdate", "date", "published", "issued")
"""Elements that say when an entry changed, the better ones first."""

_EXTENSIONS = frozenset({"image", "video", "news", "xhtml", "mobile", "media", "atom", "pagemap", "geo"})
"""Prefixes whose `loc` is that of another thing."""

_LEAVES = frozenset({"loc", "link", "guid", "id", "priority", *_DATES})
_LINKS = frozenset({"link", "guid", "id"})
_PARENTS = {"urlset": "url", "sitemapindex": "sitemap"}
"""Where a `loc` stands without an element of its own around it."""


class Entry(NamedTuple):
    """One URL of a sitemap.

    Attributes:
        loc: Absolute, WHATWG-serialised, http(s), no fragment.
        lastmod: As written; empty when it says none. `changed_at` reads it.
        priority: 0.0 to 1.0; None when it says none.
    """

    loc: str
    lastmod: str = ""
    priority: float | None = None


class Sitemap(NamedTuple):
    """What a file lists, each once, in its order.

    Attributes:
        sitemaps: Further sitemaps, of an index.
        cut: Why reading ended before the file did: `urls`, `bytes`, `tags` or `doctype`; empty when it did not.
    """

    urls: list[Entry]
    sitemaps: list[Entry]
    cut: str = ""


def parse(
    body: bytes, url: str, content_type: str = "", *, max_urls: int = MAX_URLS, max_bytes: int = MAX_BYTES
) -> Sitemap:
    """The URLs in a sitemap or feed; never raises for what is in it.

    Args:
        url: Where it was found, WHATWG-serialised: what is relative is resolved against it.
        max_urls: URLs, and sitemaps, that are taken.
        max_bytes: Bytes that are read, decompressed.
    """
    found = _Found(url, max_urls)
    budget = _Budget(max_bytes)
    chunks = _decoded(budget.within(_gunzipped(_chunks(body), MAX_GZIPS)), content_type)
    head = next((rest for text in chunks if (rest := text.lstrip("\ufeff\x00 \t\r\n"))), "")
    cut = _read(head, chunks, found) if head else ""
    cut = cut or ("urls" if found.full else "bytes" if budget.is_spent else "")
    return Sitemap(list(found.urls.values()), list(found.sitemaps.values()), cut)


def changed_at(lastmod: str) -> float | None:
    """UTC epoch seconds of a W3C date (sitemaps, Atom) or an RFC 822 one (RSS); None when it is neither.

    A date without a time is its first instant, one without a zone is UTC.
    """
    text = lastmod.strip()
    if re.fullmatch(r"\d{4}(?:-\d{2})?", text):
        text = f"{text}-01-01"[:10]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def found_priority(entry: Entry) -> int:
    """A frontier priority from a sitemap's: 0.5, its default, is 0; 0.0 and 1.0 are -10 and 10."""
    return 0 if entry.priority is None else round((entry.priority - 0.5) * 20)


def newest_first(entries: list[Entry]) -> list[Entry]:
    """Entries by the date of their last change, those without one last, otherwise in their order."""
    return sorted(entries, key=lambda entry: -(changed_at(entry.lastmod) or 0.0) if entry.lastmod else 0.0)


# ---------------------------------------------------------------------- bytes to text


class _Budget:
    """Lets so many bytes through, and knows whether there were more."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.is_spent = False

    def within(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """The chunks, cut."""
        for chunk in chunks:
            self.is_spent = len(chunk) > self._left
            yield chunk[: self._left]
            self._left -= len(chunk)
            if self.is_spent:
                return


def _chunks(body: bytes) -> Iterator[bytes]:
    return (body[at : at + CHUNK] for at in range(0, len(body), CHUNK))


def _gunzipped(chunks: Iterator[bytes], times: int) -> Iterator[bytes]:
    head = next(chunks, b"")
    if not times or not head.startswith(_GZIP):
        yield head
        yield from chunks
        return
    yield from _gunzipped(_inflated(head, chunks), times - 1)


def _inflated(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Members of a gzip file, one after the other; ends, without an error, where it is damaged.

    Fed in small pieces: what is left behind a member's end is copied, and a file may have a member every 20 bytes.
    """
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    pieces = _trailing(itertools.chain((head,), chunks))
    try:
        while True:
            piece = next(pieces)
            for at in range(0, len(piece), 4096):
                rest = piece[at : at + 4096]
                while rest:
                    yield stream.decompress(rest, CHUNK)
                    rest = stream.unconsumed_tail
                    if stream.eof:
                        rest = stream.unused_data.lstrip(b"\x00")
                        stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    except (zlib.error, StopIteration):
        return


def _trailing(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, the last few apart: a wrong checksum there costs what was given with it."""
    held = b""
    for chunk in chunks:
        held += chunk
        yield held[:-_GZIP_TRAILER]
        held = held[-_GZIP_TRAILER:]
    yield held


def _decoded(chunks: Iterator[bytes], content_type: str) -> Iterator[str]:
    """Text by: byte order mark ▸ header ▸ XML declaration ▸ UTF-8; what does not decode is replaced."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 1024:
            break
    decoder = _decoder(head, content_type)
    yield decoder.decode(head)
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _decoder(head: bytes, content_type: str) -> codecs.IncrementalDecoder:
    name = next((name for mark, name in _BOMS if head.startswith(mark)), "")
    if not name and head[:2] in (b"<\x00", b"\x00<"):
        name = "utf-16le" if head[0] == ord("<") else "utf-16be"
    charset = _CHARSET.search(content_type)
    declared = _DECLARED.search(head)
    for label in (name, charset[1] if charset else "", declared[1].decode("ascii") if declared else ""):
        encoding = webencodings.lookup(label) if label else None
        # A declaration that can be read at all is not in UTF-16, whatever it says.
        if encoding is not None and (label == name or not encoding.name.startswith("utf-16")):
            decoder: codecs.IncrementalDecoder = encoding.codec_info.incrementaldecoder("replace")
            return decoder
    return codecs.getincrementaldecoder("utf-8")("replace")


# ---------------------------------------------------------------------- text to entries


class _Found:
    """Entries as they are found, each URL once."""

    def __init__(self, base: str, most: int) -> None:
        self.base = base
        self._most = most
        self.urls: dict[str, Entry] = {}
        self.sitemaps: dict[str, Entry] = {}
        self.full = False

    def add(self, href: str, *, is_sitemap: bool = False, lastmod: str = "", priority: str = "") -> None:
        """Take an entry if its URL is one."""
        href = with_scheme(_SPACE.sub("", href.strip()), self.base)
        if not href or len(href) > MAX_URL_BYTES:
            return
        try:
            loc = serialise(href, None if href.startswith(("http://", "https://")) else self.base)
        except InvalidUrl:
            return
        taken = self.sitemaps if is_sitemap else self.urls
        if loc in taken:
            return
        if len(taken) >= self._most:
            self.full = True
            return
        taken[loc] = Entry(loc, " ".join(lastmod.split())[:100], _number(priority))


def _number(text: str) -> float | None:
    try:
        number = float(text.strip()[:20])
    except ValueError:
        return None
    return min(max(number, 0.0), 1.0) if number == number else None  # noqa: PLR0124  # NaN is not itself


def _read(head: str, chunks: Iterator[str], found: _Found) -> str:
    """Read by what the file looks like; returns why reading ended early."""
    if head[0] == "<" or _MARKUP.search(head[:4096]):
        return _Markup(found).read(head, chunks)
    if head[0] == "{":
        _read_json(head + "".join(chunks), found)
    else:
        _read_lines(head, chunks, found)
    return ""


def _read_lines(head: str, chunks: Iterator[str], found: _Found) -> None:
    rest = head
    for chunk in chunks:
        *lines, rest = re.split(r"[\r\n]+", rest[-2 * MAX_URL_BYTES :] + chunk)
        for line in lines:
            _add_line(line, found)
    for line in re.split(r"[\r\n]+", rest):
        _add_line(line, found)


def _add_line(line: str, found: _Found) -> None:
    found.add(_permalink(line.strip("\ufeff\x00 \t").partition("\t")[0]))  # some write a table


class _FeedItem(msgspec.Struct):
    id: object = None
    url: str | None = None
    external_url: str | None = None
    date_modified: str | None = None
    date_published: str | None = None


class _Feed(msgspec.Struct):
    items: list[msgspec.Raw] = []


_feed = msgspec.json.Decoder(_Feed)
_item = msgspec.json.Decoder(_FeedItem, strict=False)


def _read_json(text: str, found: _Found) -> None:
    """JSON Feed; anything else in JSON lists nothing."""
    try:
        feed = decoded(_feed, text)
    except ValueError:
        return
    for raw in feed.items:
        try:
            item = decoded(_item, raw)
        except ValueError:  # the others are read
            continue
        url = item.url or item.external_url or _permalink(item.id if isinstance(item.id, str) else "")
        found.add(url, lastmod=item.date_modified or item.date_published or "")


class _Tag(NamedTuple):
    """A tag without its attributes, in lower case."""

    name: str
    prefix: str
    local: str
    ends: bool
    empty: bool


_TAGS: dict[str, _Tag] = {}
"""Tags by their text: a sitemap has the same few over and over."""

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


class _Markup:
    """Reads tags and text as they come; knows no entity but XML's five, and no document type.

    Invariant: of what was read only the open tag (≤ `MAX_TAG`), the open leaf's text (≤ a URL) and the names of the
    open elements are kept.
    """

    def __init__(self, found: _Found) -> None:
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
        if not self._bases or _WWW.match(href):
            return href
        try:
            return serialise(href, self._base())
        except InvalidUrl:
            return href

    def _opened(self) -> _Tag | None:
        """The entry that is open."""
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
        href = href or _permalink("".join(_unescaped("".join(bare)).split()[:1]))
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
        fields.get("href")
        or fields.get("link")
        or _permalink(fields.get("guid", ""))
        or _permalink(fields.get("id", ""))
    )


def _permalink(name: str) -> str:
    """What an entry without a link is known by, if it can be asked for: it may be a `tag:`, a `urn:` or a number."""
    return name if name[:8].lower().startswith(("http://", "https://")) or _WWW.match(name) else ""


def with_scheme(href: str, base: str) -> str:
    """A link without a scheme, as people write hosts, with that of its file."""
    return f"{base.partition(':')[0]}://{href}" if _WWW.match(href) else href


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
