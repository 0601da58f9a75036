"""What the default spider makes of a page: one row, and its links. Pure: the same page gives the same bytes.

A row has all its keys always. Redirects give none: they are links, found by `redirect_of`; where `robots.meta` is
obeyed, neither does a page that says `noindex`.
"""

import hashlib
from typing import NamedTuple

import msgspec

from ..schemas.pages import PageMeta
from ..schemas.urls import JobSpec
from .directives import NOTHING_SAID, directives, header_links
from .links import Links, Outlink, extract
from .sniff import essence

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
    """What a page gave: a row as JSON (None for a redirect), and its outlinks that the job takes."""

    row: bytes | None
    outlinks: list[Outlink]


_encode = msgspec.json.Encoder().encode


def parse_page(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
    """The row and the outlinks of a page.

    Args:
        links: Resolves hrefs by the job's canonical rules.
        spec: Its job's: where links are taken from, and what of the page's own wishes is obeyed.
    Raises: ValueError: the parser refuses the body.
    """
    if is_redirect(meta):
        return Parsed(None, [])
    title: str | None = None
    outlinks: list[Outlink] = []
    followed = outlinks
    obeyed = NOTHING_SAID
    if body and is_html(meta):
        page = extract(
            body,
            meta.content_type,
            meta.url,
            spec.links,
            nofollow=not spec.nofollow,
            metas=spec.meta_robots,
            most=spec.max_links,
        )
        title = page.title
        outlinks = followed = links.resolve(page.base, page.hrefs)
        if page.nofollowed:
            followed = links.resolve(page.base, [href for href in page.hrefs if href not in page.nofollowed])
        if spec.meta_robots:
            obeyed = directives(meta.x_robots, page.metas, spec.token)
    elif spec.meta_robots:
        obeyed = directives(meta.x_robots, (), spec.token)
    if meta.link and "header" in spec.links:
        named = links.resolve(meta.url, header_links(meta.link))
        followed, outlinks = _together(followed, named), _together(outlinks, named)
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
    takes_links = is_followed(meta) and not obeyed.nofollow
    return Parsed(None if obeyed.noindex else _encode(row), followed if takes_links else [])


def _together(some: list[Outlink], others: list[Outlink]) -> list[Outlink]:
    return list({link.url: link for link in (*some, *others)}.values())


def is_redirect(meta: PageMeta) -> bool:
    """Whether the answer only points elsewhere."""
    return meta.http is not None and 300 <= meta.http < 400 and bool(meta.location)


def is_html(meta: PageMeta) -> bool:
    """Whether header and bytes say HTML; where both say nothing, a kept body is read as HTML, as browsers do."""
    kind = meta.sniffed or essence(meta.content_type)
    return kind in _HTML_TYPES or (not kind and meta.kept)


def is_followed(meta: PageMeta) -> bool:
    """Whether links of this answer are taken: an error page's links are the server's, not the site's."""
    return meta.http is not None and 200 <= meta.http < 300
