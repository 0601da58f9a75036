"""Kinds of pages, and the result of parsing one (`Parsed`).

A redirect becomes a link of the same depth, unless the spider asks for it, or is one of Scrapy's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import (
    Links,
    Outlink,
)
from crawlog.streams.http import REDIRECTS, essence

from .exchange import RequestOut

"""The error of a page that its host sends for any missing URL; such a page counts as a 404."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")


class Parsed(NamedTuple):
    """The result of parsing a page.

    Attributes:
        items: JSON objects.
        outlinks: In the order of the page, each once.
        priorities, lastmods: Of the outlinks that have one, by URL; UTC epoch seconds.
        sitemaps: URLs of sitemaps.
        reached: The setting whose limit cut the result; empty for none.
        requests: Of a user's spider, in the order in which it gave them.
        label: `NAME@VERSION` of a spider in a child process; empty for the job's.
        takes_redirects: Whether the spider got the page's redirect, and decides about it.
        closes: Reason for which the spider stops the job; empty for none.
        is_raw: Whether the items are as scraped, for pipelines.
        stats: Stats that the page changed, as `ItemsRecord` has them.
        foreign: Links that lead out of the job's scope, as canonical URLs; they are counted, not sent.
        unread: Why no callback of the spider got the page; empty if one did, or there is no spider.
    """

    items: list[msgspec.Raw]
    outlinks: list[Outlink]
    priorities: Mapping[str, int] = {}
    sitemaps: Sequence[Outlink] = ()
    reached: str = ""
    requests: Sequence[RequestOut] = ()
    label: str = ""
    takes_redirects: bool = False
    closes: str = ""
    is_raw: bool = False
    stats: Mapping[str, float] = {}
    foreign: Sequence[str] = ()
    unread: str = ""
    lastmods: Mapping[str, float] = {}


# A parser: takes the page's metadata and body, the job's resolver of links, and the job's record.
Parse = Callable[[PageMeta, bytes, Links, JobSpec], Parsed]

NOTHING = Parsed([], [])


def is_redirect(meta: PageMeta) -> bool:
    """Whether the answer only points elsewhere."""
    return meta.http is not None and bool(meta.location)


def is_html(meta: PageMeta) -> bool:
    """Whether header and bytes say HTML. If neither says anything, a kept body counts as HTML, as in browsers."""
    kind = meta.sniffed or essence(meta.content_type)
    return kind in _HTML_TYPES or (not kind and meta.kept)


def is_followed(meta: PageMeta) -> bool:
    """Whether links of this answer are followed: links on an error page are the server's, not the site's."""
    return meta.same_as is not None or (meta.http is not None and 200 <= meta.http < 300)


def is_answer(meta: PageMeta, request: RequestRecord) -> bool:
    """Whether a request says that an answer of this status goes to its callback: a redirect is then not followed."""
    if meta.http is None:
        return False
    if is_redirect(meta) and not request.follows:
        return True
    return request.all_answers or (request.answers is not None and meta.http in request.answers)


def unread(meta: PageMeta) -> str:
    """Why a page that is no redirect goes to no callback, in words."""
    if meta.http is None or (meta.error and not meta.kept):
        return meta.error or "no answer"
    if 200 <= meta.http < 300:
        kind = meta.sniffed or essence(meta.content_type)
        return f"type {kind}, which fetch.content_types does not list"
    return f"status {meta.http}"


def receiver(meta: PageMeta, statuses: Collection[int]) -> Literal["callback", "errback", "nobody"]:
    """Who gets a page in a spider of crawlog's own; an errback only where the request has one.

    Args:
        statuses: Status codes beside 2xx that the spider takes (`handle_httpstatus_list`).
    """
    record = meta.request
    if meta.kind != "page":
        return "nobody"
    is_asked = record is not None and is_answer(meta, record)
    if is_redirect(meta):
        return "callback" if is_asked or (meta.http in REDIRECTS and meta.http in statuses) else "nobody"
    if meta.http is not None and meta.kept and (is_asked or is_followed(meta) or meta.http in statuses):
        return "callback"
    return "errback" if record is not None and record.errback else "nobody"
