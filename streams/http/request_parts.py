"""Parts of a request that a spider gives: its method, its headers, its proxy. Which of them may be sent. Pure.

A spider may give any header but those that decide where a request ends and to whom it goes: another server between
would read another request in them.
"""

import re
from collections.abc import Iterable

FRAMING_HEADERS = frozenset(
    ("host", "content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "te", "trailer", "expect")
)
"""Headers that only crawlog sends. Those that begin with `Proxy-` belong to a proxy."""

IDEMPOTENT = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
"""Methods of requests that do no more when they are received twice (RFC 9110 9.2.2)."""

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
