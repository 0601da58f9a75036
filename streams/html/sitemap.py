"""Sitemaps and feeds: the URLs that a site lists. Pure, streaming, bounded, and forgiving.

    bytes ─► sitemap_text ─► chunks of text ┬ markup ─► sitemap_markup ┬─► sitemap_entries ─► `Sitemap`
                                            ├ JSON Feed ───────────────┤
                                            └ lines ───────────────────┘

Formats: sitemapindex, urlset (with their extensions, which are passed over), plain text, RSS, Atom, JSON Feed; each
also gzipped, told by its first bytes. Elements are known by their local names.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from crawlog.schemas.codec import decoded
from crawlog.schemas.urls import MAX_URL_BYTES

from .sitemap_entries import Entries, SitemapEntry, permalink
from .sitemap_markup import Markup
from .sitemap_text import ByteLimit, decoded_text, unpacked

MAX_URLS = 50_000
"""Entries of one file (sitemaps.org: "no more than 50,000 URLs")."""

MAX_BYTES = 50 << 20
"""Of one file, decompressed (sitemaps.org: 50 MB); the rest is not read."""

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
