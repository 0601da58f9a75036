"""What the default spider makes of a page: one row, and its links. Pure: the same page gives the same bytes.

A row has all its keys always. Redirects give none: they are links, found by `redirect_of`.
"""

import hashlib
from typing import NamedTuple

import msgspec

from ..schemas.pages import PageMeta
from .links import Links, Outlink, extract

SPIDER = "default@1"
"""Name and version in each record of crawl.items; counted up when the same page gives another row."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")


class Row(msgspec.Struct, frozen=True):
    """One URL answered, as users read it.

    Attributes:
        url: Canonical.
        status: None for a network failure, with `error`.
        title: None when the page has none, or is not HTML.
        depth: Links between a seed and this page.
        links: Distinct http(s) outlinks, before any scope; 0 when the page is not HTML.
        fetched_at: UTC epoch seconds.
        sha256: Of the body, hex; None when there is no body.
    """

    url: str
    status: int | None
    error: str | None
    title: str | None
    depth: int
    links: int
    fetched_at: float
    sha256: str | None


class Parsed(NamedTuple):
    """What a page gave: a row as JSON (None for a redirect) and its outlinks."""

    row: bytes | None
    outlinks: list[Outlink]


_encode = msgspec.json.Encoder().encode


def parse_page(meta: PageMeta, body: bytes, links: Links, sources: tuple[str, ...]) -> Parsed:
    """The row and the outlinks of a page.

    Args:
        links: Resolves hrefs by the job's canonical rules.
        sources: Elements that links are taken from.
    Raises: ValueError: the parser refuses the body.
    """
    if is_redirect(meta):
        return Parsed(None, [])
    title: str | None = None
    outlinks: list[Outlink] = []
    if body and is_html(meta):
        page = extract(body, meta.content_type, meta.url, sources)
        title = page.title
        outlinks = links.resolve(page.base, page.hrefs)
    row = Row(
        url=meta.url,
        status=meta.http,
        error=meta.error or None,
        title=title,
        depth=meta.depth,
        links=len(outlinks),
        fetched_at=meta.fetched_at,
        sha256=hashlib.sha256(body).hexdigest() if body else None,
    )
    return Parsed(_encode(row), outlinks if is_followed(meta) else [])


def is_redirect(meta: PageMeta) -> bool:
    """Whether the answer only points elsewhere."""
    return meta.http is not None and 300 <= meta.http < 400 and bool(meta.location)


def is_html(meta: PageMeta) -> bool:
    """Whether the header says HTML; without one, a kept body is read as HTML, as browsers do."""
    kind = meta.content_type.partition(";")[0].strip().lower()
    return kind in _HTML_TYPES or (not kind and meta.kept)


def is_followed(meta: PageMeta) -> bool:
    """Whether links of this answer are taken: an error page's links are the server's, not the site's."""
    return meta.http is not None and 200 <= meta.http < 300
