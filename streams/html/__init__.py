"""Pages by the HTML standard.

    body ─► charset (its encoding) ─► tree (harmless, parsed) ─► extract (title, base, hrefs, metas)
                                                                    │ directives: robots, refresh
                                                                    ▼
                                                                  links: canonical, with fingerprint and place

    cost        before parsing: which pages a child process tries first, and what they may take
    login_form  the form on a login page, filled in
    sitemap     sitemaps and feeds: unpacked ─► sitemap_markup ─► sitemap_entries

Pure: bytes in, facts out.
"""

from . import charset, sitemap
from .cost import Allowances, TrialLimits, TrialOutcome, is_costly, is_simple
from .directives import NOTHING_SAID, directives_of, refresh_target
from .extract import base_of, extracted, in_page
from .links import Links, Outlink, Resolved
from .login_form import PAGE_BYTES, filled_in
from .sitemap_entries import SitemapEntry, changed_by, found_priority, newest_first, with_scheme
from .tree import parsed, readings

__all__ = [
    "NOTHING_SAID",
    "PAGE_BYTES",
    "Allowances",
    "Links",
    "Outlink",
    "Resolved",
    "SitemapEntry",
    "TrialLimits",
    "TrialOutcome",
    "base_of",
    "changed_by",
    "charset",
    "directives_of",
    "extracted",
    "filled_in",
    "found_priority",
    "in_page",
    "is_costly",
    "is_simple",
    "newest_first",
    "parsed",
    "readings",
    "refresh_target",
    "sitemap",
    "with_scheme",
]
