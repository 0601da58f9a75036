"""The bodies of crawl.pages, plain again: unpacked once, within the limit that they were fetched under.

    record: metadata, value, header `content-encoding` ─► page_of ─┬─► metadata and plain body
                                                                   └─► too large or broken: why, and no body

A record without the header has a plain body. Each reader of bodies comes through here, so that all see the same page.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from crawlog.schemas.pages import CODING, PageMeta

from .codings import UnkeptBody, decoded

PACKS = 5
"""Bytes that a packed one becomes, about: of 154 real pages in gzip, 4.7 on the average."""

Headers = Iterable[tuple[str, Any]] | None
"""Of a record, as either client gives them."""


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
    body, coding = value or b"", coding_in(headers)
    if not (coding and body):
        return meta, body
    try:
        return meta, decoded(body, coding, min(meta.limit or most, most))
    except UnkeptBody as error:
        return structs.replace(meta, error=error.word, kept=False), b""


def plain_headers(headers: Headers) -> list[tuple[str, Any]]:
    """The headers of a record whose body was unpacked."""
    return [header for header in headers or () if header[0] != CODING]


def likely_bytes(value: bytes | None, headers: Headers) -> int:
    """Bytes of a record's body, unpacked, about: to decide on turns, not on memory."""
    size = len(value or b"")
    return size * PACKS if size and coding_in(headers) else size
