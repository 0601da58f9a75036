"""Requests of crawlog's own spiders to records of the log, and back.

Request ─► record_of ─► RequestRecord, in founds, queue rows and pages ─► request_of ─► response.request
"""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from crawlog.schemas.requests import MAX_REQUEST_BYTES, Action, RequestRecord, packed

from .spider_request import ARGUMENTS, Callback, Request
from .values import Carrier, Untravelled, Values

# Keys of `response.meta` that say something of the page; they do not travel on with `meta=response.meta`.
OF_PAGE = ("depth", "download_latency")

_PLAIN = RequestRecord()


def record_of(request: Request, spider: object, values: Values) -> RequestRecord | None:
    """The record of a request; None for a plain GET, whose URL says everything.

    Raises: Untravelled: a value cannot travel, the callback is none of the spider's methods, or it is too large.
    """
    callback = callback_name(spider, request.callback, "callback")
    callback = "" if callback == "parse" else callback
    kwargs = values.packed_dict(request.cb_kwargs, "cb_kwargs") if request.cb_kwargs else {}
    if _is_bare(request):  # most requests
        if not kwargs:
            return RequestRecord(callback=callback) if callback else None
        return _of_size(RequestRecord(callback=callback, kwargs=kwargs), request)
    meta = {key: value for key, value in request.meta.items() if key not in OF_PAGE}
    record = RequestRecord(
        method=request.method,
        headers=request.headers.pairs(),
        body=request.body,
        cookies=request.cookies,
        callback=callback,
        errback=callback_name(spider, request.errback, "errback"),
        kwargs=kwargs,
        unfiltered=request.dont_filter,
        once=request.once,
        attempts=request.attempts,
        timeout_s=float(request.timeout),
        proxy=request.proxy,
        render=request.render,
        actions=request.actions,
        flags=tuple(map(str, request.flags)),
    )
    if meta:
        record = _with_meta(record, meta, values)
    return None if record == _PLAIN else _of_size(record, request)


def _of_size(record: RequestRecord, request: Request) -> RequestRecord:
    """The record. Raises: Untravelled: it is too large."""
    size_bytes = len(packed(record))
    if size_bytes > MAX_REQUEST_BYTES:
        raise Untravelled(
            f"{request!r:.200} has {size_bytes:,} bytes with its meta, cb_kwargs and body; the limit is"
            f" {MAX_REQUEST_BYTES:,}: yield what you have as an item, and carry the key of it"
        )
    return record


def _with_meta(record: RequestRecord, meta: dict[str, Any], values: Values) -> RequestRecord:
    """The record with the values of `meta`, and with what Scrapy's keys among them mean."""
    return msgspec.structs.replace(
        record,
        meta=values.packed_dict(meta, "meta"),
        jar=_text(meta, "cookiejar"),
        keeps_cookies=not meta.get("dont_merge_cookies"),
        attempts=_attempts(record.attempts, meta),
        timeout_s=record.timeout_s or float(meta.get("download_timeout") or 0),
        proxy=record.proxy or _text(meta, "proxy"),
        answers=_statuses(meta),
        all_answers=bool(meta.get("handle_httpstatus_all")),
        follows=not meta.get("dont_redirect"),
    )


def request_of(url: str, record: RequestRecord, spider: object, values: Values) -> Request:
    """The request of a record. Raises: ValueError: its values are of another version of the spider."""
    request = Request(
        url,
        method_of(spider, record.callback) if record.callback else None,
        record.method,
        record.headers,
        record.body,
        None,
        values.unpacked_dict(record.meta),
        dont_filter=record.unfiltered,
        errback=method_of(spider, record.errback) if record.errback else None,
        flags=record.flags,
        cb_kwargs=values.unpacked_dict(record.kwargs),
        once=record.once,
        attempts=record.attempts,
        timeout=record.timeout_s,
        render=record.render,
        actions=record.actions,
        proxy=record.proxy,
    )
    request.cookies = record.cookies
    return request


def request_carrier(spider: object) -> Carrier:
    """How requests travel within values: `meta={"next": Request(…)}`."""

    def fields(request: Request) -> dict[str, Any]:
        named = {name: getattr(request, name) for name in ARGUMENTS}
        return named | {
            "callback": callback_name(spider, request.callback, "callback"),
            "errback": callback_name(spider, request.errback, "errback"),
            "headers": request.headers.pairs(),
            "cookies": [msgspec.to_builtins(cookie) for cookie in request.cookies],
            "actions": [msgspec.to_builtins(action) for action in request.actions],
        }

    def make(named: dict[str, Any]) -> Request:
        for what in ("callback", "errback"):
            named[what] = method_of(spider, named[what]) if named.get(what) else None
        named["actions"] = msgspec.convert(named.get("actions", ()), tuple[Action, ...])
        return Request(**named)

    return Carrier("request", lambda kind: kind is Request, fields, make)


def callback_name(spider: object, callback: Callback | None, what: str) -> str:
    """The name of a method of the spider; empty for none. Raises: Untravelled: the spider has no such method."""
    if callback is None:
        return ""
    name = callback if isinstance(callback, str) else _method_name(spider, callback)
    if not name or not is_method(spider, name):
        shown = callback if isinstance(callback, str) else getattr(callback, "__qualname__", repr(callback))
        raise Untravelled(f"{what} = {shown!s:.200}: {type(spider).__name__} has no such method")
    return name


def _method_name(spider: object, callback: Callable[..., Any]) -> str:
    """The name by which a bound method is found; empty if it is none of the spider."""
    if not inspect.ismethod(callback) or callback.__self__ is not spider:
        return ""
    name = callback.__func__.__name__
    if getattr(spider, name, None) == callback:
        return name
    kinds = type(spider).__mro__  # `__parse` is found by `_Books__parse`; a decorator may have given another name
    return next((one for kind in kinds for one in vars(kind) if getattr(spider, one, None) == callback), "")


def method_of(spider: object, name: str) -> Callable[..., Any]:
    """The method of a name in a record. Raises: ValueError: this version of the spider has none."""
    if not is_method(spider, name):
        raise ValueError(
            f"{type(spider).__name__} has no method {name!r:.100}: another version of it made this request"
        )
    found: Callable[..., Any] = getattr(spider, name)
    return found


def is_method(spider: object, name: str) -> bool:
    """Whether this names a method that the spider's author wrote: not one of Python's own, such as `__init__`."""
    if name.startswith("__") and name.endswith("__"):
        return False
    method = getattr(spider, name, None)
    return inspect.ismethod(method) or (callable(method) and name in vars(type(spider)))


def _text(meta: dict[str, Any], key: str) -> str:
    value = meta.get(key)
    return "" if value is None else str(value)


def _attempts(given: int, meta: dict[str, Any]) -> int:
    if given or "max_retry_times" not in meta:
        return given or (1 if meta.get("dont_retry") else 0)
    return 1 if meta.get("dont_retry") else int(meta["max_retry_times"]) + 1


def _statuses(meta: dict[str, Any]) -> tuple[int, ...] | None:
    listed = meta.get("handle_httpstatus_list")
    return None if listed is None else tuple(map(int, listed))


def _is_bare(request: Request) -> bool:
    """Whether nothing but the URL, the callback and its arguments is given; `meta` may have keys of the page."""
    return not (
        request.method != "GET"
        or request.has_headers
        or request.body
        or request.cookies
        or request.errback
        or request.dont_filter
        or request.flags
        or request.once
        or request.attempts
        or request.timeout
        or request.proxy
        or request.render is not None
        or (request.meta and not request.meta.keys() <= _PAGE_KEYS)
    )


_PAGE_KEYS = frozenset(OF_PAGE)
