"""Sitemaps and feeds: the URLs that a site lists. Pure, streaming, bounded, and forgiving.

    bytes ─► sitemap_text ─► chunks of text ┬ markup ─► sitemap_markup ┬─► sitemap_entries ─► `Sitemap`
                                            ├ JSON Feed ───────────────┤
                                            └ lines ───────────────────┘

Formats: sitemapindex, urlset (with their extensions, which are passed over), plain text, RSS, Atom, JSON Feed; each
also gzipped, told by its first bytes. Elements are known by their local names.
"""

import codecs
import itertools
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import webencodings

from crawlog.schemas.codec import decoded
from crawlog.schemas.urls import MAX_URL_BYTES

from .sitemap_entries import Entries, SitemapEntry, permalink
from .sitemap_markup import Markup

MAX_URLS = 50_000  # Entries of one file (sitemaps.org: "no more than 50,000 URLs")

MAX_BYTES = 50 << 20  # Of one file, decompressed (sitemaps.org: 50 MB); the rest is not read

_MARKUP = re.compile(r"<(?:\w{1,20}:)?(?:urlset|sitemapindex|rss|feed|rdf)\b", re.IGNORECASE)


class Sitemap(NamedTuple):
    """What a file lists, each once, in its order.

    Attributes:
        sitemaps: Further sitemaps, of an index.
        cut: Why reading ended before the file did: `urls`, `bytes`, `tags` or `doctype`; empty when it did not.
    """

    urls: list[SitemapEntry]
    sitemaps: list[SitemapEntry]
    cut: str = ""


def parse(
    body: bytes, url: str, content_type: str = "", *, max_urls: int = MAX_URLS, max_bytes: int = MAX_BYTES
) -> Sitemap:
    """The URLs in a sitemap or feed; never raises, whatever the bytes.

    Args:
        url: The file's own, WHATWG-serialised; relative URLs are resolved against it.
        max_urls: URLs, and sitemaps, that are taken.
        max_bytes: Bytes that are read, decompressed.
    """
    found = Entries(url, max_urls)
    budget = ByteLimit(max_bytes)
    chunks = decoded_text(budget.within(unpacked(body)), content_type)
    head = next((rest for text in chunks if (rest := text.lstrip("\ufeff\x00 \t\r\n"))), "")
    cut = _read(head, chunks, found) if head else ""
    cut = cut or ("urls" if found.full else "bytes" if budget.is_spent else "")
    return Sitemap(list(found.urls.values()), list(found.sitemaps.values()), cut)


def _read(head: str, chunks: Iterator[str], found: Entries) -> str:
    """Read by what the file looks like; returns why reading ended early."""
    if head[0] == "<" or _MARKUP.search(head[:4096]):
        return Markup(found).read(head, chunks)
    if head[0] == "{":
        _read_json(head + "".join(chunks), found)
    else:
        _read_lines(head, chunks, found)
    return ""


def _read_lines(head: str, chunks: Iterator[str], found: Entries) -> None:
    rest = head
    for chunk in chunks:
        *lines, rest = re.split(r"[\r\n]+", rest[-2 * MAX_URL_BYTES :] + chunk)
        for line in lines:
            _add_line(line, found)
    for line in re.split(r"[\r\n]+", rest):
        _add_line(line, found)


def _add_line(line: str, found: Entries) -> None:
    found.add(permalink(line.strip("\ufeff\x00 \t").partition("\t")[0]))  # some write a table


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


def _read_json(text: str, found: Entries) -> None:
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
        url = item.url or item.external_url or permalink(item.id if isinstance(item.id, str) else "")
        found.add(url, lastmod=item.date_modified or item.date_published or "")


# A sitemap's bytes to its text, in chunks: unpacked, up to a limit, in the encoding that it declares.

MAX_GZIPS = 2  # Compressions one inside the other: `.xml.gz` served as it is by a server that gzips again

CHUNK = 64 * 1024

_GZIP = b"\x1f\x8b"
_GZIP_TRAILER = 8  # Bytes of a member's checksum and size (RFC 1952 2.3)
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16le"), (b"\xfe\xff", "utf-16be"))
_DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?\bencoding\s*=\s*["']([A-Za-z0-9._:-]{1,40})["']""")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s;"']{1,40})""", re.IGNORECASE)


class ByteLimit:
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


def unpacked(body: bytes) -> Iterator[bytes]:
    """A file in chunks, without its compressions; it ends, without an error, where one is damaged."""
    return _gunzipped((body[at : at + CHUNK] for at in range(0, len(body), CHUNK)), MAX_GZIPS)


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


def decoded_text(chunks: Iterator[bytes], content_type: str) -> Iterator[str]:
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
