"""The bodies of crawl.pages, plain again: unpacked once, within the limit that they were fetched under.

    record: metadata, value, header `content-encoding` ─► page_of ─┬─► metadata and plain body
                                                                   └─► too large or broken: why, and no body
    a reader with less room than that limit       ─► lacks_room: too large for this reader alone
    a sitemap that unpacks to more stays gzipped: `html/sitemap.py` reads such files, up to a limit of its own

A record without the header has a plain body. Each reader of bodies comes through here, so that all see the same page.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from msgspec import structs

from crawlog.schemas import pages
from crawlog.schemas.pages import CODING, PageMeta
from crawlog.streams.http import GZIP_MAGIC, TooLarge, UnkeptBody, decoded, decoded_pieces

PACKS = 5  # Bytes that a packed one becomes, about: of 154 real pages in gzip, 4.7 on the average

# Of requests for sitemaps: no other coding is read beyond the limit of pages.
SITEMAP_HEADERS = {"Accept-Encoding": "gzip"}

T = TypeVar("T")

Headers = Iterable[tuple[str, Any]] | None  # Of a record, as either client gives them

# The older page, or None, and its plain body; a page without a body has one that its reader has no room for.
OlderPage = tuple[PageMeta | None, bytes]


def coding_in(headers: Headers) -> str:
    """The coding of a record's body; empty for a plain one."""
    for name, value in headers or ():
        if name == CODING and isinstance(value, bytes):
            return value.decode("latin-1")
    return ""


def page_of(meta: PageMeta, value: bytes | None, headers: Headers, most: int) -> tuple[PageMeta, bytes]:
    """A page and its plain body. If the body must not be kept, the metadata say why, as fetch says it.

    Args:
        most: Limit of decoded bytes whatever the metadata say: any client may have written them.
    """
    return _page(meta, value, headers, most, b"".join)


def page_size(meta: PageMeta, value: bytes | None, headers: Headers, most: int) -> tuple[PageMeta, int]:
    """A page and the bytes of its plain body, which is never in memory as a whole. Args: as `page_of`."""
    return _page(meta, value, headers, most, lambda pieces: sum(map(len, pieces)))


def _page(
    meta: PageMeta, value: bytes | None, headers: Headers, most: int, taken: Callable[[Iterable[bytes]], T]
) -> tuple[PageMeta, T]:
    body, coding = value or b"", coding_in(headers)
    if not (coding and body):
        return meta, taken((body,))
    try:
        return meta, taken(decoded_pieces(body, coding, min(meta.limit or most, most)))
    except UnkeptBody as error:
        if meta.kind == "sitemap" and _stays_packed(body, coding, error):
            return meta, taken((body,))
        return structs.replace(meta, error=error.word, kept=False), taken(())


def lacks_room(meta: PageMeta, found: PageMeta, most: int) -> bool:
    """Whether a body was refused by the limit of its reader, `most`, although its page may have more.

    Args:
        meta, found: The metadata before `page_of`, and behind it.
    """
    return found is not meta and found.error == TooLarge.word and meta.limit > most


def older_page(headers: Headers, value: bytes | None, new: PageMeta, most: int) -> OlderPage:
    """The page whose body `new` repeats; None if the record is another page, because offsets were given out again.

    Its body is empty if this reader has no room for it.

    Args:
        headers, value: Of the record that `new.same_as` names.
        most: Limit of a body, unpacked.
    """
    try:
        old = pages.meta_in(headers)
    except ValueError:
        return None, b""
    if (old.job, old.url) != (new.job, new.url) or old.same_as is not None:
        return None, b""
    found, body = page_of(old, value, headers, most)
    if lacks_room(old, found, most):
        return old, b""
    return (found, body) if found.kept and body else (None, b"")


def sitemap_body(body: bytes, coding: str, limit: int) -> bytes:
    """The body of a sitemap as `sitemap.parse` takes it: plain, or gzipped where it unpacks to more than the limit.

    Raises: TooLarge, BadCoding
    """
    try:
        return decoded(body, coding, limit)
    except UnkeptBody as error:
        if _stays_packed(body, coding, error):
            return body
        raise


def _stays_packed(body: bytes, coding: str, error: UnkeptBody) -> bool:
    """Whether a sitemap that could not be unpacked is read gzipped."""
    return isinstance(error, TooLarge) and coding in ("gzip", "x-gzip") and body.startswith(GZIP_MAGIC)


def plain_headers(headers: Headers) -> list[tuple[str, Any]]:
    """The headers of a record whose body was unpacked."""
    return [header for header in headers or () if header[0] != CODING]


def likely_bytes(value: bytes | None, headers: Headers) -> int:
    """Bytes of a record's body, unpacked, about: to decide on turns, not on memory."""
    size = len(value or b"")
    return size * PACKS if size and coding_in(headers) else size
