"""A page as spiders see it, and what a spider makes of it (`Parsed`).

Redirects are no spider's business: they are links of the same depth.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import (
    Links,
    Outlink,
)
from crawlog.streams.http import essence

SOFT_404 = "soft_404"
"""The error of a page that its host would send for any URL: such a page counts as a 404."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")


class Parsed(NamedTuple):
    """What a page gave.

    Attributes:
        items: Each one a JSON object.
        outlinks: In the order of the page, each once.
        priorities: Of the outlinks that have one, by URL.
        sitemaps: URLs of sitemaps.
        reached: The setting whose limit cut what the page would have given; empty where none did.
    """

    items: list[msgspec.Raw]
    outlinks: list[Outlink]
    priorities: Mapping[str, int] = {}
    sitemaps: Sequence[Outlink] = ()
    reached: str = ""


Parse = Callable[[PageMeta, bytes, Links, JobSpec], Parsed]
"""A spider at work: the page's metadata and body, the job's resolver of links, the job."""

NOTHING = Parsed([], [])


def is_redirect(meta: PageMeta) -> bool:
    """Whether the answer only points elsewhere."""
    return meta.http is not None and bool(meta.location)


def is_html(meta: PageMeta) -> bool:
    """Whether header and bytes say HTML; where both say nothing, a kept body is read as HTML, as browsers do."""
    kind = meta.sniffed or essence(meta.content_type)
    return kind in _HTML_TYPES or (not kind and meta.kept)


def is_followed(meta: PageMeta) -> bool:
    """Whether links of this answer are taken: an error page's links are the server's, not the site's."""
    if meta.error == SOFT_404:
        return False
    return meta.same_as is not None or (meta.http is not None and 200 <= meta.http < 300)
