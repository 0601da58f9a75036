"""crawlog.streams.html."""

from . import charset, queries, sitemap
from .cost import Allowances, Limits, Outcome, is_costly, is_simple
from .directives import NOTHING_SAID, directives_of, header_links, refresh_target
from .links import Links, Outlink, base_of, extract, parsed, readings
from .login_form import PAGE_BYTES, filled_in
from .simhash import HOSTS, NEAR_BITS, Twins, simhash_of

__all__ = [
    "HOSTS",
    "NEAR_BITS",
    "NOTHING_SAID",
    "PAGE_BYTES",
    "Allowances",
    "Limits",
    "Links",
    "Outcome",
    "Outlink",
    "Twins",
    "base_of",
    "charset",
    "directives_of",
    "extract",
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
