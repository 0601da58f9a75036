"""crawlog.streams.url."""

from .canonical import Canonicaliser, InvalidUrl, fingerprint, joined_base, plain, serialise, sessionless
from .place import Place, Places, hashed, hashed_to, partition_of, registrable_domain
from .scope import RULES, Names, Scope, any_of, scope_name

__all__ = [
    "RULES",
    "Canonicaliser",
    "InvalidUrl",
    "Names",
    "Place",
    "Places",
    "Scope",
    "any_of",
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
