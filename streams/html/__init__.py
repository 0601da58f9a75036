"""crawlog.streams.html."""

from . import charset, queries, sitemap
from .cost import Allowances, Limits, Outcome, is_costly, is_simple
from .directives import NOTHING_SAID, directives_of, header_links, refresh_target
from .extract import base_of, extracted
from .links import Links, Outlink
from .login_form import PAGE_BYTES, filled_in
from .simhash import simhash_of
from .tree import parsed, readings

__all__ = [
    "NOTHING_SAID",
    "PAGE_BYTES",
    "Allowances",
    "Limits",
    "Links",
    "Outcome",
    "Outlink",
    "base_of",
    "charset",
    "directives_of",
    "extracted",
    "filled_in",
    "header_links",
    "is_costly",
    "is_simple",
    "parsed",
    "queries",
    "readings",
    "refresh_target",
    "simhash_of",
    "sitemap",
]
