"""Requests and pages as people are shown them: without bodies, values of cookies, logins and passwords of proxies.

The log has them, because a replay needs them. Whoever may read the log may read them.
"""

import re
from typing import Any

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import FoundUrl, Result
from crawlog.streams.page_actions import SHOWN
from crawlog.streams.printable import HIDDEN

# Headers of requests and responses whose values are not shown.
SECRET_HEADERS = frozenset(
    ("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token", "x-csrf-token")
)

# Headers that a user who may only look is shown; any other one may be a site's own kind of login.
_plain_header = re.compile(
    r"accept(-charset|-encoding|-language|-ranges)?|age|allow|cache-control|connection|content-"
    r"(disposition|encoding|language|length|location|range|type)|date|etag|expires|host|if-modified-since|if-none-match"
    r"|last-modified|link|location|pragma|range|referer|refresh|retry-after|server|transfer-encoding|user-agent|vary|via"
    r"|x-robots-tag",
    re.IGNORECASE,
)

_login = re.compile(r"(?<=://)[^/?#@\s\"']+@")  # User and password in a URL, wherever one stands in a text


def shown_request(record: RequestRecord) -> dict[str, Any]:
    """A request without its secrets."""
    told: dict[str, Any] = _without_logins(msgspec.to_builtins(msgspec.structs.replace(record, body=b"")))
    if record.headers:
        told["headers"] = shown_headers(record.headers)
    if record.body:
        told["body"] = f"{HIDDEN} ({len(record.body):,} bytes)"
    if record.cookies:
        told["cookies"] = [{**msgspec.to_builtins(one), "value": HIDDEN} for one in record.cookies]
    if record.actions:
        told["actions"] = [
            [do, *({name: value if name in SHOWN else HIDDEN for name, value in given.items()} for given in args)]
            for do, *args in told["actions"]
        ]
    return told


def shown_headers(headers: tuple[tuple[str, str], ...]) -> list[list[str]]:
    return [
        [name, HIDDEN if name.lower() in SECRET_HEADERS else str(_without_logins(value))] for name, value in headers
    ]


def shown_found(found: FoundUrl) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(found, request=None))
    return told if found.request is None else {**told, "request": shown_request(found.request)}


def shown_result(result: Result) -> dict[str, Any]:
    """A done without the values of cookies."""
    told: dict[str, Any] = msgspec.to_builtins(result)
    if result.cookies:
        told["cookies"] = [{**msgspec.to_builtins(one), "value": HIDDEN} for one in result.cookies]
    return told


def shown_page(meta: PageMeta) -> dict[str, Any]:
    """The metadata of a page without the secrets of its request and its headers, and without its actions' results."""
    told: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(meta, request=None, headers=(), results=()))
    if meta.request is not None:
        told["request"] = shown_request(meta.request)
    if meta.headers:
        told["headers"] = shown_headers(meta.headers)
    return told


def for_readers(shown: dict[str, Any]) -> dict[str, Any]:
    """A request, found or page, shown as above, for a user who may only look: without what its writer alone can judge.

    Hidden are the values of `meta` and `kwargs`, and those of headers that are not well known.
    """
    told = {
        name: dict.fromkeys(value, HIDDEN) if name in ("meta", "kwargs") else value for name, value in shown.items()
    }
    if "headers" in told:
        told["headers"] = [
            [name, value if _plain_header.fullmatch(name) else HIDDEN] for name, value in told["headers"]
        ]
    if told.get("request"):
        told["request"] = for_readers(told["request"])
    return told


def named_request(request_id: int, record: RequestRecord | None) -> str:
    """A request in a few words: its method, its callback, its id; empty for a plain GET."""
    method = record.method if record is not None else "GET"
    callback = f" for {record.callback}" if record is not None and record.callback else ""
    named = f", id {request_id:016x}" if request_id else ""
    return f"{method}{callback}{named}" if callback or named or method != "GET" else ""


def _without_logins(value: Any) -> Any:
    """The value without users and passwords in its URLs."""
    if isinstance(value, str):
        return _login.sub(f"{HIDDEN}@", value)
    if isinstance(value, list | tuple):
        return [_without_logins(one) for one in value]
    if isinstance(value, dict):
        return {name: _without_logins(one) for name, one in value.items()}
    return value
