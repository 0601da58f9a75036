"""`Request`: what a spider yields to have something fetched, and which of its methods gets the page. And its identity.

The arguments are Scrapy's, in Scrapy's order; those after them are crawlog's own.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec
import xxhash

from crawlog.schemas.requests import MAX_ACTIONS, Action, CookieGiven, RequestRecord
from crawlog.streams.requests import header_refusal, method_refusal
from crawlog.streams.session import cookie_refusal, form_encoded
from crawlog.streams.timing import Length, Time, timing
from crawlog.streams.url import fingerprint

from .headers import GivenHeaders, Headers


def request_id(url: str, request: RequestRecord, named: Collection[str] = ()) -> int:
    """Identity of a request that may be known already.

    A GET without body, named headers and actions has that of its URL.

    Args:
        url: Canonical.
        named: Names of headers that tell requests apart, in lower case.
    """
    telling = sorted((name.lower(), value) for name, value in request.headers if name.lower() in named)
    method = request.method.upper()
    if method == "GET" and not request.body and not telling and not request.actions:
        return fingerprint(url)
    state = xxhash.xxh3_64()
    _add(state, url.encode(), method.encode(), request.body)
    for name, value in telling:
        _add(state, name.encode(), value.encode())
    if request.actions:
        _add(state, b"actions", msgspec.json.encode(request.actions, order="deterministic"))
    return state.intdigest() or 1


def unfiltered_id(parent: int, attempt: int, filtered: int, count: int) -> int:
    """Identity of a request that is sent although its fingerprint may be known.

    It depends on the parent and on nothing of the parent's other outputs, so a page that is parsed twice gives the same
    identities in any order; and a chain of pages that ask for themselves moves.

    Args:
        parent: Identity of the page that gave it: its id, or its URL's fingerprint.
        attempt: Attempt of that page.
        filtered: Identity it would have if it were filtered.
        count: Requests of this identity that the page gave before.
    """
    state = xxhash.xxh3_64()
    _add(state, b"unfiltered", *(number.to_bytes(8, "big") for number in (parent, attempt, filtered, count)))
    return state.intdigest() or 1


def _add(state: "xxhash.xxh3_64", *parts: bytes) -> None:
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)


Callback = Callable[..., Any] | str  # A method of the spider, or its name

Fields = Mapping[str, object] | Iterable[tuple[str, object]]

_MOST_PRIORITY: Final = (1 << 31) - 1


class RequestOptions(TypedDict, total=False):
    """The arguments of a request beside its URL and its callback."""

    method: str
    headers: GivenHeaders | None
    body: bytes | str | None
    cookies: Mapping[str, str] | Sequence[Mapping[str, Any]] | None
    meta: Mapping[str, Any] | None
    encoding: str
    priority: int
    dont_filter: bool
    errback: Callback | None
    flags: Iterable[str] | None
    cb_kwargs: Mapping[str, Any] | None
    json: Any
    form: Fields | None
    once: bool
    attempts: int
    timeout: float
    render: bool | None
    actions: Sequence[Action]
    proxy: str
    eta: Time | None
    countdown: Length | None
    expires: Time | Length | None
    age: Length | None
    itag: str | float | None


class Request:
    """A request to send. It is sent once if its URL is in the job's scope, and if none like it was sent before.

    Args:
        url: Absolute, or relative to the page's own URL. It is made canonical; one that is not http(s) is ignored.
        callback: The method that gets the page; `parse` by default.
        method: GET by default; POST where there is `json` or `form`.
        headers: They join those of the job, and replace those of the same name.
        body: A text is sent in `encoding`.
        cookies: They join the jar before the request is sent. A name and a value, or dicts with `name`, `value`,
            `domain`, `path`, `secure`.
        meta: Values for the callback: `response.meta`. Some keys are Scrapy's and have its meaning: `cookiejar`,
            `dont_merge_cookies`, `dont_redirect`, `handle_httpstatus_list`, `handle_httpstatus_all`, `proxy`,
            `download_timeout`, `max_retry_times`, `dont_retry`.
        priority: Within a host, higher is sent first.
        dont_filter: It is sent although one like it was sent before.
        errback: The method that gets a `Failure`: no answer, or one whose status is not for the callback.
        cb_kwargs: Further arguments of the callback.
        json: Sent as the body, with its content type.
        form: Fields, sent as the body of a POST or as the query of a GET.
        once: It is never sent twice, not even where the worker that sent it was killed.
        attempts: Attempts, the first one included; 0 for those of the job.
        timeout: Seconds in all; 0 for those of the job.
        render: Whether a browser renders the page; None for the job's rules.
        actions: What is done with the page in the browser, in order: values of `crawlog.actions`.
        proxy: URL of a proxy; it passes the egress guard.
        eta: It is not sent before then: a datetime (UTC without a zone), its ISO form, or UTC epoch seconds.
        countdown: The same, as a length of time from the page that gives it: seconds, `"6h"`, or a timedelta.
        expires: It is not sent after then, and ends as refused (`expired`): a time, or a length of time as above.
        age: In a job with `recrawl.age`: how long after it was fetched it is due again, in place of that setting.
        itag: In such a job: the version of the page, such as the date beside its link. With another one than before it
            is due at once, with the same one later.

    Raises: TypeError: the URL is no text, or the callback is no method of a spider. ValueError: a header is refused,
        a time is none, or there are both `eta` and `countdown`.
    """

    def __init__(  # noqa: PLR0913  # Scrapy's own arguments, and ours
        self,
        url: str,
        callback: Callback | None = None,
        method: str = "",
        headers: GivenHeaders | None = None,
        body: bytes | str | None = None,
        cookies: Mapping[str, str] | Sequence[Mapping[str, Any]] | None = None,
        meta: Mapping[str, Any] | None = None,
        encoding: str = "utf-8",
        priority: int = 0,
        dont_filter: bool = False,
        errback: Callback | None = None,
        flags: Iterable[str] | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
        *,
        json: Any = None,
        form: Fields | None = None,
        once: bool = False,
        attempts: int = 0,
        timeout: float = 0.0,
        render: bool | None = None,
        actions: Sequence[Action] = (),
        proxy: str = "",
        eta: Time | None = None,
        countdown: Length | None = None,
        expires: Time | Length | None = None,
        age: Length | None = None,
        itag: str | float | None = None,
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"Request wants a URL as str, got {type(url).__name__}")
        if not isinstance(priority, int):
            raise TypeError(f"Request wants a priority as int, got {type(priority).__name__}")
        self.url = url
        self.callback = checked_callback(callback, "callback")
        self.errback = checked_callback(errback, "errback")
        self._headers = Headers(headers) if headers else None
        self.cookies = _cookies(cookies)
        self.meta: dict[str, Any] = dict(meta or {})
        self.cb_kwargs: dict[str, Any] = dict(cb_kwargs or {})
        self.encoding = encoding
        self.priority = max(-_MOST_PRIORITY - 1, min(priority, _MOST_PRIORITY))
        self.dont_filter = dont_filter
        self.flags = list(flags or ())
        self.once = once
        self.attempts = attempts
        self.timeout = timeout
        self.render = True if actions else render
        self.actions = _checked_actions(actions)
        self.proxy = proxy
        self.eta, self.countdown, self.expires = eta, countdown, expires
        self.age, self.itag = age, itag
        self.timing = timing(eta, countdown, expires, age, itag)
        self.method = (method or ("POST" if json is not None or form is not None else "GET")).upper()
        self.body = body.encode(encoding) if isinstance(body, str) else body or b""
        if json is not None or form is not None:
            self._fill(json, form, body)
        if self.method != "GET" or self._headers is not None:
            _check_parts(self.method, self.headers)

    @property
    def headers(self) -> Headers:
        """Its own headers; those of the job join them."""
        if self._headers is None:  # most requests have none
            self._headers = Headers()
        return self._headers

    @property
    def has_headers(self) -> bool:
        """Whether it has headers of its own."""
        return bool(self._headers)

    def __repr__(self) -> str:
        return f"<{self.method} {self.url}>"

    def _fill(self, json: Any, form: Fields | None, body: object) -> None:
        """Write `json` or `form`. Raises: TypeError: there are several of body, json and form."""
        if (json is not None) + (form is not None) + (body is not None) > 1:
            raise TypeError("Request takes one of body, json and form")
        if form is None:
            self.body = msgspec.json.encode(json)
            self.headers.setdefault("Content-Type", "application/json")
            return
        fields = list(form.items() if isinstance(form, Mapping) else form)
        text = form_encoded(fields, self.encoding)
        if self.method in {"GET", "HEAD"}:
            path, _, fragment = self.url.partition("#")
            joint = "" if not text else "&" if "?" in path else "?"
            self.url = f"{path}{joint}{text}" + (f"#{fragment}" if fragment else "")
            return
        self.body = text.encode()
        self.headers.setdefault("Content-Type", "application/x-www-form-urlencoded")

    def replace(self, **changed: Any) -> "Request":
        """A request with the same arguments but these."""
        named = {name: getattr(self, name) for name in ARGUMENTS if name not in changed}
        if {"json", "form"} & changed.keys():
            named.pop("body", None)
            named.pop("method", None)
            named["headers"] = [pair for pair in self.headers.pairs() if pair[0].lower() != "content-type"]
        return type(self)(**(named | changed))

    def copy(self) -> "Request":
        """The same request once more."""
        return self.replace()


# The arguments of a request that are its attributes too.
ARGUMENTS: Final = tuple(
    name for name in inspect.signature(Request.__init__).parameters if name not in {"self", "json", "form"}
)


def checked_callback(callback: Callback | None, what: str) -> Callback | None:
    """The callback. Raises: TypeError: it is no method and no name of one."""
    if callback is None or isinstance(callback, str):
        return callback
    if inspect.ismethod(callback):
        return callback
    name = getattr(callback, "__qualname__", None) or repr(callback)
    raise TypeError(
        f"{what} = {name:.200}: it is a method of the spider, or its name: a page comes to another process, perhaps"
        " years later. Write a method, and pass what it needs in cb_kwargs"
    )


def _checked_actions(given: Sequence[Action]) -> tuple[Action, ...]:
    if any(not isinstance(one, Action) for one in given):
        raise TypeError("actions = [actions.click(…), …]: each is a value of a function of crawlog.actions")
    if len(given) > MAX_ACTIONS:
        raise TypeError(f"a request has at most {MAX_ACTIONS} actions, not {len(given)}")
    return tuple(given)


def _cookies(given: Mapping[str, str] | Sequence[Mapping[str, Any]] | None) -> tuple[CookieGiven, ...]:
    if not given:
        return ()
    if isinstance(given, Mapping):
        return tuple(_checked(CookieGiven(str(name), str(value))) for name, value in given.items())
    return tuple(one if isinstance(one, CookieGiven) else _cookie(one) for one in given)


def _cookie(one: Mapping[str, Any]) -> CookieGiven:
    if "name" not in one or "value" not in one:
        raise ValueError(f"a cookie has a name and a value, and these have {sorted(one)!r:.100}")
    domain, path = str(one.get("domain") or ""), str(one.get("path") or "")
    return _checked(CookieGiven(str(one["name"]), str(one["value"]), domain, path, bool(one.get("secure"))))


def _checked(cookie: CookieGiven) -> CookieGiven:
    """The cookie. Raises: ValueError: it cannot be sent; without its value, which may be a secret."""
    if refusal := cookie_refusal(cookie.name, cookie.value):
        raise ValueError(f"the cookie {cookie.name[:40]!r} cannot be sent: {refusal}")
    return cookie


def _check_parts(method: str, headers: Headers) -> None:
    if refusal := method_refusal(method):
        raise ValueError(f"the method cannot be sent: {refusal}")
    for name, value in headers.pairs():
        if refusal := header_refusal(name, value):
            raise ValueError(f"the header {name[:40]!r} cannot be set: {refusal}")
