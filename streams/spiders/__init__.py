"""Spiders: turn a page into items and links.

    file ─► trust: may it be run? ─► loading: its class, checked (`scrapy_names`) ─► Spider (`spider.py`)
                                                                                       │ parser_of
    page, body ─┬─► Response (`response.py`) ─► its `parse` ─► items, Requests (`yielded.py`) ─┐
                ├─► without a spider: parse_page: one row, all links (`default.py`) ───────────┼─► Parsed (`page.py`)
                └─► a sitemap, a robots.txt: parse_listing (`default.py`) ─────────────────────┘

All modules are pure, except `loading` and `trust`, which read files.
"""

from .default import SPIDER, parse_listing, parse_page
from .exchange import CallResult, PageCall, RequestOut, Runner, SpiderFacts, SpiderRef, ref_of
from .identity import request_id, unfiltered_id
from .loading import Loaded, file_of, load_spider
from .page import NOTHING, SOFT_404, Parse, Parsed, is_followed, is_html, is_redirect
from .pipelines import DropItem, MadeItem, MadeItems, Pipelines
from .response import Request, Response
from .spider import Spider
from .trust import Trust, allow, trust_of
from .yielded import Bounds, TooMuch

__all__ = [
    "NOTHING",
    "SOFT_404",
    "SPIDER",
    "Bounds",
    "CallResult",
    "DropItem",
    "Loaded",
    "MadeItem",
    "MadeItems",
    "PageCall",
    "Parse",
    "Parsed",
    "Pipelines",
    "Request",
    "RequestOut",
    "Response",
    "Runner",
    "Spider",
    "SpiderFacts",
    "SpiderRef",
    "TooMuch",
    "Trust",
    "allow",
    "file_of",
    "is_followed",
    "is_html",
    "is_redirect",
    "load_spider",
    "parse_listing",
    "parse_page",
    "ref_of",
    "request_id",
    "trust_of",
    "unfiltered_id",
]
