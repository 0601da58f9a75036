"""Answers by the HTTP standards.

    head ─► heads: what no standard knows, as Chromium reads it
    body ─► codings (gzip, br, zstd) ─► sniff: the type by header and first bytes
                 │
                 ▼
    answer: status, headers, body     validators: ETag and Last-Modified, for the next epoch

Requests: `streams/requests/`. Cookies and logins: `streams/session/`. robots.txt: `streams/robots/`. Bodies of
crawl.pages, as they came: `streams/coded_pages.py`. Pure.
"""

from . import validators
from .answer import (
    NOT_MODIFIED,
    OK,
    PRECONDITION_FAILED,
    REDIRECTS,
    RETRY_STATUSES,
    Answer,
    HeldBytes,
    all_headers,
    note,
)
from .codings import GZIP_MAGIC, BadCoding, Head, TooLarge, UnkeptBody, coding_of, decoded, decoded_pieces, decoder
from .heads import MOST_HEAD_BYTES, Mender
from .sniff import HTML, SNIFFED_BYTES, UNKNOWN, XHTML, computed, essence
from .validators import Validators, of_headers

__all__ = [
    "GZIP_MAGIC",
    "HTML",
    "MOST_HEAD_BYTES",
    "NOT_MODIFIED",
    "OK",
    "PRECONDITION_FAILED",
    "REDIRECTS",
    "RETRY_STATUSES",
    "SNIFFED_BYTES",
    "UNKNOWN",
    "XHTML",
    "Answer",
    "BadCoding",
    "Head",
    "HeldBytes",
    "Mender",
    "TooLarge",
    "UnkeptBody",
    "Validators",
    "all_headers",
    "coding_of",
    "computed",
    "decoded",
    "decoded_pieces",
    "decoder",
    "essence",
    "note",
    "of_headers",
    "validators",
]
