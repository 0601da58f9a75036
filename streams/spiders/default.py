"""The default spider: one row and all links of each page. Also the parser of sitemaps and robots.txt.

If `robots.meta` is on, a page with `noindex` gives no row.
"""

import hashlib
from typing import Any

import msgspec
from blake3 import blake3

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import (
    NOTHING_SAID,
    Links,
    Resolved,
    changed_by,
    directives_of,
    extracted,
    found_priority,
    newest_first,
    refresh_target,
    sitemap,
    with_scheme,
)
from crawlog.streams.printable import iso_text

from .page import NOTHING, Parsed, is_followed, is_html, is_redirect

# Name and version in each record of crawl.items. A change that gives another row for the same page raises it.
SPIDER = "default@1"


class Row(msgspec.Struct, frozen=True):
    """The result row of one URL.

    Attributes:
        url: Canonical.
        status: None for a network failure; `error` then says which.
        title: None if the page has none, or is not HTML.
        depth: Links between a seed and this page.
        links: Distinct http(s) outlinks, before the scope; 0 if the page is not HTML.
        fetched_at: UTC epoch seconds, or ISO 8601 if the job asks for it.
        sha256: Of the body, hex; None without a body. Only if the job asks for this digest, as it does by default.
        blake3: The same by the other digest.
        rendered: Only for a page given to a browser: why it was rendered, or `failed:` and the error.
    """

    url: str
    status: int | None
    error: str | None
    title: str | None
    depth: int
    links: int
    fetched_at: float | str
    sha256: str | msgspec.UnsetType | None = msgspec.UNSET
    blake3: str | msgspec.UnsetType | None = msgspec.UNSET
    rendered: str | msgspec.UnsetType = msgspec.UNSET


_NO_LINKS = Resolved([], [])

_encode = msgspec.json.Encoder().encode


def parse_page(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
    """The default spider: one row a page, and its links.

    Args:
        links: Resolves hrefs by the job's canonical rules.
        spec: Of the page's job: where links are taken from, and which directives of the page are obeyed.
    Raises: ValueError: the parser refuses the body.
    """
    if is_redirect(meta):
        return NOTHING
    title: str | None = None
    found = followed = _NO_LINKS
    hrefs: list[str] = []
    obeyed = NOTHING_SAID
    if body and is_html(meta):
        page = extracted(
            body,
            meta.content_type,
            meta.url,
            spec.links,
            nofollow=not spec.nofollow,
            metas=spec.meta_robots,
            most=spec.max_links,
        )
        title, hrefs = page.title, page.hrefs
        found = followed = links.split(page.base, hrefs)
        if page.nofollowed:
            followed = links.split(page.base, [href for href in page.hrefs if href not in page.nofollowed])
        if spec.meta_robots:
            obeyed = directives_of(meta.x_robots, page.metas, spec.token)
    elif spec.meta_robots:
        obeyed = directives_of(meta.x_robots, (), spec.token)
    target = refresh_target(meta.refresh) if meta.refresh and "refresh" in spec.links else None
    if target:
        named = links.split(meta.url, [target])
        followed, found = _together(followed, named), _together(found, named)
    row = Row(
        url=meta.url,
        status=meta.http,
        error=meta.error or None,
        title=title,
        depth=meta.depth,
        links=len(found.links) + len(found.foreign),
        fetched_at=meta.fetched_at if spec.times == "epoch" else iso_text(meta.fetched_at),
        **_digest(body, spec),
        rendered=meta.rendered or (f"failed: {meta.render_error}" if meta.render_error else msgspec.UNSET),
    )
    if not is_followed(meta) or obeyed.nofollow:
        followed = _NO_LINKS
    return Parsed(
        [] if obeyed.noindex else [msgspec.Raw(_encode(row))],
        followed.links,
        reached="links.max_per_page" if len(hrefs) >= spec.max_links else "",
        foreign=followed.foreign,
    )


def _digest(body: bytes, spec: JobSpec) -> dict[str, Any]:
    """The field of a row with the digest that a job asks for."""
    if spec.digest == "none":
        return {}
    digest = blake3 if spec.digest == "blake3" else hashlib.sha256
    return {spec.digest: digest(body).hexdigest() if body else None}


def _together(some: Resolved, others: Resolved) -> Resolved:
    links = {link.url: link for link in (*some.links, *others.links)}
    return Resolved(list(links.values()), list(dict.fromkeys((*some.foreign, *others.foreign))))


def parse_listing(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
    """The URLs of a sitemap, newest first, or the sitemaps that a robots.txt names; no rows."""
    if meta.kind == "robots":
        named = [with_scheme(line, meta.url) for line in body.decode("utf-8", "replace").split("\n")]
        return Parsed([], [], sitemaps=links.resolve(meta.url, named))
    if is_redirect(meta) or not is_followed(meta):
        return NOTHING
    listed = sitemap.parse(body, meta.url, meta.content_type, max_bytes=spec.max_sitemap_bytes)
    entries = newest_first(listed.urls)
    priorities, lastmods = {}, {}
    for entry in entries:
        priority, lastmod = found_priority(entry), changed_by(entry.lastmod) if spec.recrawl.age is not None else 0.0
        for link in links.resolve(meta.url, [entry.loc]) if priority or lastmod else ():
            priorities[link.url], lastmods[link.url] = priority, lastmod
    outlinks = links.resolve(meta.url, [entry.loc for entry in entries])
    sitemaps = links.resolve(meta.url, [entry.loc for entry in listed.sitemaps])
    return Parsed([], outlinks, priorities, sitemaps, lastmods=lastmods)
