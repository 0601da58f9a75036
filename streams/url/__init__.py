"""URLs: one spelling per page, the place it belongs to, and whether a job may fetch it. Pure.

href in a page ─ canonical.serialise (WHATWG) ─ canonical.Canonicaliser (the job's rules) ─→ canonical URL
│
┌──────────────────────────────┬───────────────────────────────────┬──────────────────────┘
▼                              ▼                                   ▼
canonical.fingerprint           place.Places.of                     scope.Scope.refusal
64 bits, for the seen table     registrable domain → partition,     the rule that refuses the URL: scope, depth,
host key → politeness, host queue   length, include, exclude; None if it may come
"""

from .canonical import Canonicaliser, InvalidUrl, fingerprint, joined_base, plain, serialise, sessionless
from .place import Place, Places, hashed, hashed_to, partition_of, registrable_domain
from .scope import MAX_URL_LENGTH, RULES, Names, Scope, any_of, compiled, domains_pattern, scope_name

__all__ = [
    "MAX_URL_LENGTH",
    "RULES",
    "Canonicaliser",
    "InvalidUrl",
    "Names",
    "Place",
    "Places",
    "Scope",
    "any_of",
    "compiled",
    "domains_pattern",
    "fingerprint",
    "hashed",
    "hashed_to",
    "joined_base",
    "partition_of",
    "plain",
    "registrable_domain",
    "scope_name",
    "serialise",
    "sessionless",
]
