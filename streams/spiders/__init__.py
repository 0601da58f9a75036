"""crawlog.streams.spiders."""

from . import response, spider
from .loading import Loaded, file_of, load_spider
from .response import Request, Response
from .spider import (
    NOTHING,
    SOFT_404,
    SPIDER,
    Bounds,
    Parse,
    Parsed,
    Spider,
    TooMuch,
    is_followed,
    is_html,
    is_redirect,
    parse_listing,
    parse_page,
)
from .trust import Trust, allow, trust_of

__all__ = [
    "NOTHING",
    "SOFT_404",
    "SPIDER",
    "Bounds",
    "Loaded",
    "Parse",
    "Parsed",
    "Request",
    "Response",
    "Spider",
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
    "response",
    "spider",
    "trust_of",
]
