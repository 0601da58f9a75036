"""Requests by the HTTP standards: whether one may be sent, and with what.

    a job's rules ─► request_rules: within the worker's limits ─► RequestPolicy
                                                                     │
    URL, record ─► egress: private addresses, bad ports ─► request: headers, proxy, login, ciphers ─► `agents/client/`

Pure: the client asks, and acts on it.
"""

from .egress import address_refusal, literal_refusal, port_refusal
from .request import (
    REACHED_NOT,
    TUNNELLED_NOT,
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
    NEEDS_GROUP,
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

__all__ = [
    "IDEMPOTENT",
    "NEEDS_GROUP",
    "NEEDS_LAX_TLS",
    "NEEDS_PRIVATE",
    "NEEDS_PROXIES",
    "REACHED_NOT",
    "TUNNELLED_NOT",
    "UNLIMITED",
    "Proxy",
    "RequestPolicy",
    "WorkerLimits",
    "address_refusal",
    "check_rules",
    "choose_ciphers",
    "header_refusal",
    "headers_of",
    "joined_headers",
    "literal_refusal",
    "method_refusal",
    "origin_of",
    "policy_for",
    "policy_of",
    "port_refusal",
    "read_header",
    "read_login",
    "read_proxy",
    "read_user_agent",
    "within",
    "without_login",
]
