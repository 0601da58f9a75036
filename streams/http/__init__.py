"""crawlog.streams.http."""

from . import egress, validators
from .answer import NOT_MODIFIED, OK, PRECONDITION_FAILED, REDIRECTS, Answer, Held, note
from .codings import BadCoding, TooLarge, decoder
from .cookie_walls import Detours
from .cookies import Jar
from .egress import address_refusal, literal_refusal, port_refusal
from .login import Form, Session, leads_to, read_form
from .request import (
    REACHED_NOT,
    TUNNELLED_NOT,
    Bandwidth,
    Bandwidths,
    Proxies,
    Proxy,
    origin_of,
    read_header,
    read_login,
    read_proxy,
    read_user_agent,
    without_login,
)
from .request_rules import (
    NEEDS_LAX_TLS,
    NEEDS_PRIVATE,
    NEEDS_PROXIES,
    UNLIMITED,
    Limits,
    Manner,
    check_rules,
    headers_of,
    manner_of,
    within,
)
from .robots import MAX_BYTES, MAX_TTL_S, RobotsRules, Shared
from .sniff import HTML, SNIFFED_BYTES, UNKNOWN, XHTML, computed, essence
from .validators import Validators, of_headers

__all__ = [
    "HTML",
    "MAX_BYTES",
    "MAX_TTL_S",
    "NEEDS_LAX_TLS",
    "NEEDS_PRIVATE",
    "NEEDS_PROXIES",
    "NOT_MODIFIED",
    "OK",
    "PRECONDITION_FAILED",
    "REACHED_NOT",
    "REDIRECTS",
    "SNIFFED_BYTES",
    "TUNNELLED_NOT",
    "UNKNOWN",
    "UNLIMITED",
    "XHTML",
    "Answer",
    "BadCoding",
    "Bandwidth",
    "Bandwidths",
    "Detours",
    "Form",
    "Held",
    "Jar",
    "Limits",
    "Manner",
    "Proxies",
    "Proxy",
    "RobotsRules",
    "Session",
    "Shared",
    "TooLarge",
    "Validators",
    "address_refusal",
    "check_rules",
    "computed",
    "decoder",
    "egress",
    "essence",
    "headers_of",
    "leads_to",
    "literal_refusal",
    "manner_of",
    "note",
    "of_headers",
    "origin_of",
    "port_refusal",
    "read_form",
    "read_header",
    "read_login",
    "read_proxy",
    "read_user_agent",
    "validators",
    "within",
    "without_login",
]
