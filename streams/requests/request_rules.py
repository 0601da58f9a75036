"""How the URLs of a job are requested: the rules of its record, within the limits of the worker. Pure.

Only here the two meet: callers get a `RequestPolicy`, and never read a setting that a job's record has too.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import Literal, NamedTuple, TypeVar

from msgspec import structs

from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, RequestRules

from .request import COMPATIBLE, read_header, read_user_agent

N = TypeVar("N", int, float)


NEEDS_PRIVATE = "network.allow_private=true"
NEEDS_LAX_TLS = "network.verify_tls=false"
NEEDS_PROXIES = "exits.proxies"
NEEDS_GROUP = "exits.groups"  # Settings that a worker needs for a job that wants it


class WorkerLimits(NamedTuple):
    """Limits of a worker, whatever a job's record says; None is no limit."""

    delay_s: float = 0.0
    per_host: int | None = None
    robots: bool = False
    attempts: int | None = None
    timeout_s: float | None = None
    max_body_bytes: int | None = None
    allow_private: bool = True
    verify_tls: bool = False
    min_tls: Literal["1.2", "1.3"] = "1.2"
    tls: str = COMPATIBLE
    has_proxies: bool = True
    exit_groups: frozenset[str] | None = None


UNLIMITED = WorkerLimits()


class RequestPolicy(NamedTuple):
    """How one worker requests the URLs of one revision of a job.

    Attributes:
        rules: Complete: no field is None.
        token: Product token that robots.txt groups are matched with.
        lacks: Settings that the job needs and this worker does not have.
    """

    rules: RequestRules
    token: str = "crawlog"  # noqa: S105  # a robots.txt product token
    lacks: frozenset[str] = frozenset()

    @property
    def asking(self) -> bytes:
        """A digest of what a server's answer may depend on: the headers, the way to it, and the time that it has."""
        rules = self.rules
        silences = rules.connect_timeout_s, rules.first_byte_timeout_s, rules.chunk_timeout_s
        ways = rules.proxied, rules.exit_group
        return _digest(rules.user_agent, rules.headers, ways, rules.min_tls, rules.tls, rules.timeout_s, silences)

    def selecting(self, user: str) -> bytes:
        """A digest of what a server may select a page's representation by (RFC 9110 12.1).

        Args:
            user: Of the login that is sent. Its password selects nothing, and no row may tell of it.
        """
        rules = self.rules
        return _digest(rules.user_agent, rules.headers, rules.cookies, rules.proxied, rules.exit_group, user)

    def has(self, setting: str) -> bool:
        return self.rules.allow_private if setting == NEEDS_PRIVATE else not self.rules.verify_tls


def policy_of(spec: JobSpec, usual: RequestPolicy, limits: WorkerLimits) -> RequestPolicy:
    """The policy of a job's record, within the worker's limits; fields that it lacks are the worker's own."""
    if spec.requests is None:
        return usual
    said = {name: value for name, value in structs.asdict(spec.requests).items() if value is not None}
    return within(structs.replace(usual.rules, **said), spec.token, limits)


def within(rules: RequestRules, token: str, limits: WorkerLimits) -> RequestPolicy:
    """The stricter value of rules and limits, field by field."""
    lacks = (
        NEEDS_PRIVATE if rules.allow_private and not limits.allow_private else "",
        NEEDS_LAX_TLS if limits.verify_tls and not rules.verify_tls else "",
        NEEDS_PROXIES if rules.proxied and not limits.has_proxies else "",
        NEEDS_GROUP if limits.exit_groups is not None and rules.exit_group not in limits.exit_groups else "",
    )
    kept = structs.replace(
        rules,
        delay_s=max(rules.delay_s, limits.delay_s),
        per_host=_least(rules.per_host, limits.per_host),
        robots=rules.robots or limits.robots,
        attempts=_least(rules.attempts, limits.attempts),
        timeout_s=_least(rules.timeout_s, limits.timeout_s),
        max_body_bytes=_least(rules.max_body_bytes, limits.max_body_bytes),
        allow_private=rules.allow_private and limits.allow_private,
        verify_tls=rules.verify_tls or limits.verify_tls,
        min_tls=max(rules.min_tls, limits.min_tls),
        tls=rules.tls if limits.tls == COMPATIBLE else limits.tls,
    )
    return RequestPolicy(kept, token, frozenset(filter(None, lacks)))


def policy_for(request: RequestRecord, policy: RequestPolicy, limits: WorkerLimits) -> RequestPolicy:
    """The policy of one request: its own attempts and time instead of the job's, within the worker's limits.

    Its own time is for the silences within it, too: else the request would end by the job's before that.
    """
    rules = policy.rules
    if not (request.attempts or request.timeout_s):
        return policy
    whole_s = _least(request.timeout_s or rules.timeout_s, limits.timeout_s)
    least_s = whole_s if request.timeout_s else 0.0
    own = structs.replace(
        rules,
        attempts=_least(request.attempts or rules.attempts, limits.attempts),
        timeout_s=whole_s,
        connect_timeout_s=max(rules.connect_timeout_s, least_s),
        first_byte_timeout_s=max(rules.first_byte_timeout_s, least_s),
        chunk_timeout_s=max(rules.chunk_timeout_s, least_s),
    )
    return policy._replace(rules=own)


@lru_cache(1024)
def _digest(*told: object) -> bytes:
    return blake2b(repr(told).encode(), digest_size=8).digest()


def _least(wanted: N, most: N | None) -> N:
    return wanted if most is None else min(wanted, most)


def check_rules(rules: RequestRules) -> None:
    """Check the rules of a record, which any client may have written.

    Raises: ValueError: They cannot be used.
    """
    for name, value in structs.asdict(rules).items():
        if isinstance(value, float) and not value < inf:
            raise ValueError(f"requests.{name} is {value}, not a number of seconds")
    read_user_agent(rules.user_agent or "")
    for header in rules.headers or ():
        read_header(header)


@lru_cache(1024)
def headers_of(user_agent: str, headers: tuple[str, ...]) -> dict[str, str]:
    """The headers of every request of a job; shared, so callers must not change them."""
    return {"User-Agent": user_agent, **dict(map(read_header, headers))}


# Parts of a request that a spider gives: its method, its headers, its proxy.

# Headers that only crawlog sends. Those that begin with `Proxy-` belong to a proxy.
FRAMING_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect")
)

# Methods of requests that do no more when they are received twice (RFC 9110 9.2.2).
IDEMPOTENT = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))

_token = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_value = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")


def method_refusal(method: str) -> str:
    """Why a request may not have this method; empty if it may."""
    if not _token.fullmatch(method):
        return f"{method[:40]!r} is not a method"
    return f"{method} is a method for proxies" if method.upper() == "CONNECT" else ""


def header_refusal(name: str, value: str) -> str:
    """Why a request may not have this header; empty if it may. The value is not repeated.

    Args:
        value: Sent in UTF-8.
    """
    if not _token.fullmatch(name):
        return f"{name[:40]!r} is not the name of a header"
    if name.lower() in FRAMING_HEADERS or name.lower().startswith("proxy-"):
        return f"{name} is set by crawlog"
    return "" if _value.fullmatch(value) else f"the value of {name} has a line end or a control character"


def joined_headers(
    usual: Iterable[tuple[str, str]], own: Iterable[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """The headers of a request, and why some of its own are left out.

    Args:
        usual: Of its job.
        own: Of the request; they replace those of the job that have the same name. A name may come several times.
    """
    kept, refused = [], []
    for name, value in own:
        if reason := header_refusal(name, value):
            refused.append(reason)
        else:
            kept.append((name, value))
    names = {name.lower() for name, _ in kept}
    return [*((name, value) for name, value in usual if name.lower() not in names), *kept], refused
