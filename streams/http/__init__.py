"""Requests and answers by the HTTP standards.

    request_rules (a job's rules within the worker's limits) ─► request (headers, proxies, ciphers)
          may it be asked?  robots (+ robots_patterns)   egress: private addresses and bad ports
          sent along        cookies   validators: If-None-Match …   login: the form that is posted
                                        │
                                        ▼
    answer (status, headers, body) ◄─ codings (gzip, br, zstd) ◄─ sniff (the type by header and first bytes)
          heads: what no standard knows, as Chromium reads it
          coded_pages: bodies that lie in crawl.pages as they came, plain again
          cookie_walls: redirects that lead back, and pass with the cookie that they set
          redaction: requests and pages as people are shown them, without secrets

Pure: it decides what to send and what an answer means.
"""

from . import egress, validators
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
from .coded_pages import (
    SITEMAP_HEADERS,
    OlderPage,
    coding_in,
    lacks_room,
    likely_bytes,
    older_page,
    page_of,
    page_size,
    plain_headers,
    sitemap_body,
)
from .codings import BadCoding, Head, TooLarge, UnkeptBody, coding_of, decoded, decoder
from .cookie_walls import CookieWalls
from .cookies import NO_ROOM, CookieJar, StoredCookie, cookie_refusal, default_path
from .egress import address_refusal, literal_refusal, port_refusal
from .heads import MOST_HEAD_BYTES, Mender
from .login import Form, Posted, Session, Shown, Step, Unsent, Visited, form_encoded, is_for_guests, no_login, read_form
from .redaction import for_readers, named_request, shown_found, shown_page, shown_request, shown_result
from .request import (
    REACHED_NOT,
    TUNNELLED_NOT,
    Proxies,
    Proxy,
    choose_ciphers,
    origin_of,
    read_header,
    read_login,
    read_proxy,
    read_user_agent,
    without_login,
)
from .request_rules import (
    IDEMPOTENT,
    NEEDS_LAX_TLS,
    NEEDS_PRIVATE,
    NEEDS_PROXIES,
    UNLIMITED,
    RequestPolicy,
    WorkerLimits,
    check_rules,
    header_refusal,
    headers_of,
    joined_headers,
    method_refusal,
    policy_for,
    policy_of,
    within,
)
from .robots import MAX_BYTES, MAX_TTL_S, RobotsRules, SharedRules
from .sniff import HTML, SNIFFED_BYTES, UNKNOWN, XHTML, computed, essence
from .validators import Validators, of_headers

__all__ = [
    "HTML",
    "IDEMPOTENT",
    "MAX_BYTES",
    "MAX_TTL_S",
    "MOST_HEAD_BYTES",
    "NEEDS_LAX_TLS",
    "NEEDS_PRIVATE",
    "NEEDS_PROXIES",
    "NOT_MODIFIED",
    "NO_ROOM",
    "OK",
    "PRECONDITION_FAILED",
    "REACHED_NOT",
    "REDIRECTS",
    "RETRY_STATUSES",
    "SITEMAP_HEADERS",
    "SNIFFED_BYTES",
    "TUNNELLED_NOT",
    "UNKNOWN",
    "UNLIMITED",
    "XHTML",
    "Answer",
    "BadCoding",
    "CookieJar",
    "CookieWalls",
    "Form",
    "Head",
    "HeldBytes",
    "Mender",
    "OlderPage",
    "Posted",
    "Proxies",
    "Proxy",
    "RequestPolicy",
    "RobotsRules",
    "Session",
    "SharedRules",
    "Shown",
    "Step",
    "StoredCookie",
    "TooLarge",
    "UnkeptBody",
    "Unsent",
    "Validators",
    "Visited",
    "WorkerLimits",
    "address_refusal",
    "all_headers",
    "check_rules",
    "choose_ciphers",
    "coding_in",
    "coding_of",
    "computed",
    "cookie_refusal",
    "decoded",
    "decoder",
    "default_path",
    "egress",
    "essence",
    "for_readers",
    "form_encoded",
    "header_refusal",
    "headers_of",
    "is_for_guests",
    "joined_headers",
    "lacks_room",
    "likely_bytes",
    "literal_refusal",
    "method_refusal",
    "named_request",
    "no_login",
    "note",
    "of_headers",
    "older_page",
    "origin_of",
    "page_of",
    "page_size",
    "plain_headers",
    "policy_for",
    "policy_of",
    "port_refusal",
    "read_form",
    "read_header",
    "read_login",
    "read_proxy",
    "read_user_agent",
    "shown_found",
    "shown_page",
    "shown_request",
    "shown_result",
    "sitemap_body",
    "validators",
    "within",
    "without_login",
]
