"""Spiders: turn a page into items and requests.

    file ─► trust: may it be run? ─► loading: its class ─► runners, by its base class ─┬─► own_loading ─► OwnRunner
                                                                                       └─► Scrapy's
    a worker ─► PageCall ─► the child: Runner.page ─► CallResult ─► the worker        (`exchange.py`)
                              │ own: request_records ─► Response ─► callback ─► OwnOutputs ─► RequestOut, items
                              │                          values: `meta`, `cb_kwargs`, raw items as tagged JSON
    without a spider: parse_page: one row, all links; a sitemap, a robots.txt: parse_listing (`default.py`) ─► Parsed

    what a callback or a pipeline downloads by itself: `streams/downloads.py` ─► the worker
    deployed code: folder in the cache, a name ─► deployed ─► the same runners, with harmless settings

All modules are pure, except `loading`, `deployed`, `trust` and `stored_page`, which read files, and `own_loading`,
which sets up Python's logging in the spider's process.
"""

from .default import SPIDER, parse_listing, parse_page
from .deployed import wire_refusal
from .exchange import (
    FEED,
    IDLE,
    MOST_TIMED,
    TIMED_OUTPUTS,
    CallResult,
    PageCall,
    RequestOut,
    Runner,
    SettingOrigin,
    SpiderFacts,
    SpiderRef,
    ref_of,
)
from .failure import (
    BadAnswer,
    ConnectionFailed,
    DnsFailed,
    Failure,
    FetchError,
    HttpError,
    NotSent,
    TimedOut,
    TlsFailed,
)
from .loading import check_crawl, file_of
from .own_outputs import Bounds, TooMuch
from .page import NOTHING, Parsed, is_answer, is_followed, is_html, is_redirect, receiver, unread
from .pipelines import DropItem, MadeItem, MadeItems, read_made
from .request_records import record_of
from .response import Response
from .runners import load_runner
from .spider import Rule, Spider, every
from .spider_request import Request, request_id, unfiltered_id
from .stored_page import StoredPage, Tried, bare_record, opened, read_page, try_page
from .traces import user_trace
from .trust import Trust, allow, code_of, trust_of
from .values import Untravelled, Values

__all__ = [
    "FEED",
    "IDLE",
    "MOST_TIMED",
    "NOTHING",
    "SPIDER",
    "TIMED_OUTPUTS",
    "BadAnswer",
    "Bounds",
    "CallResult",
    "ConnectionFailed",
    "DnsFailed",
    "DropItem",
    "Failure",
    "FetchError",
    "HttpError",
    "MadeItem",
    "MadeItems",
    "NotSent",
    "PageCall",
    "Parsed",
    "Request",
    "RequestOut",
    "Response",
    "Rule",
    "Runner",
    "SettingOrigin",
    "Spider",
    "SpiderFacts",
    "SpiderRef",
    "StoredPage",
    "TimedOut",
    "TlsFailed",
    "TooMuch",
    "Tried",
    "Trust",
    "Untravelled",
    "Values",
    "allow",
    "bare_record",
    "check_crawl",
    "code_of",
    "every",
    "file_of",
    "is_answer",
    "is_followed",
    "is_html",
    "is_redirect",
    "load_runner",
    "opened",
    "parse_listing",
    "parse_page",
    "read_made",
    "read_page",
    "receiver",
    "record_of",
    "ref_of",
    "request_id",
    "trust_of",
    "try_page",
    "unfiltered_id",
    "unread",
    "user_trace",
    "wire_refusal",
]
