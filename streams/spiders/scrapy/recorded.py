"""A request of Scrapy as a record of the log, and back.

Request ─► recorded ─► RequestRecord ─► log ─► PageMeta.request ─► restored ─► Request, of the same class
"""

import inspect
import logging
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any, cast
from urllib.parse import quote, urlsplit

import msgspec
from scrapy.crawler import Crawler
from scrapy.http import Request
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.request import _decode_cookie, _to_verbose_cookies

from crawlog.schemas.pages import ActionResult
from crawlog.schemas.requests import MAX_REQUEST_BYTES, Action, CookieGiven, RequestRecord, packed
from crawlog.schemas.urls import CanonicalRules
from crawlog.streams.requests import header_refusal
from crawlog.streams.session import cookie_refusal, default_path
from crawlog.streams.timing import Timing, timing
from crawlog.streams.url import Canonicaliser, InvalidUrl

from . import facts
from .kinds import Kinds
from .meta_table import LEFT_BEHIND, TIMING, refusal
from .with_playwright import METHODS, Browsed, methods

log = logging.getLogger(__name__)

BESIDE = "_crawlog"  # Key of `meta` for what a record has no field for; the spider never sees it

# Headers that the client writes; browsers show them, so users copy them.
FRAMING = frozenset({b"Content-Length", b"Connection", b"Keep-Alive", b"Proxy-Connection", b"Te", b"Trailer"})

FORBIDDEN = frozenset({b"Host", b"Transfer-Encoding", b"Upgrade"})

_NOT_RECORDED = FRAMING | {b"Host", b"Proxy-Authorization"}


_VERBATIM = Canonicaliser(CanonicalRules(verbatim=True))


class Unsendable(Exception):
    """A request or an item that cannot travel in the log; the message says which part, why, and the way out."""


class UnsendableUrl(Unsendable):
    """A request whose URL cannot be sent: it fails alone, and its page goes on.

    Attributes:
        kind: What is wrong with such URLs.
    """

    def __init__(self, said: str, kind: str) -> None:
        super().__init__(said)
        self.kind = kind


class Recorder:
    """Writes requests of one spider, and makes them again.

    Args:
        kinds: Classes that may travel.
        headers: Those of the job, which are not in the records, and those of each request.
        retries: Retries of a request; None if a middleware of the project retries, not crawlog.
    """

    def __init__(self, crawler: Crawler, kinds: Kinds, *, headers: facts.DefaultHeaders, retries: int | None) -> None:
        self._spider = crawler.spider
        settings = crawler.settings
        self._kinds = kinds
        own = headers.of_job | {"User-Agent": headers.user_agent}
        self._defaults = {name.title().encode(): value.encode() for name, value in own.items()}
        self._of_each = headers.of_each
        self._retries = retries
        self._has_cookies = facts.has_cookies(settings)
        self._obeys_robots = facts.obeys_robots(settings)
        self._timeout_s = facts.timeout_of(settings, crawler.spider)
        self._browsed = Browsed(settings)
        self._names: dict[Callable[..., Any], str] = {}

    def recorded(self, request: Request, *, is_filtered: bool) -> RequestRecord:
        """The request as a record.

        Args:
            is_filtered: Whether it is sent only if its identity is not known, whatever its `dont_filter`.

        Raises: UnsendableUrl: Its URL cannot be sent. Unsendable: Part of it cannot travel.
        """
        meta = dict(request._meta or ())  # noqa: SLF001  # reading `meta` would make an empty one
        statuses = meta.get("handle_httpstatus_list")
        record = msgspec.structs.replace(
            self._outgoing(request, meta),
            callback=self._method(request, "callback"),
            errback=self._method(request, "errback"),
            kwargs=self._tagged(request._cb_kwargs or {}, request, "cb_kwargs"),  # noqa: SLF001  # as above
            meta=self._tagged(self._kept(meta, request, is_filtered), request, "meta"),
            unfiltered=not is_filtered,
            kind=self._class(request),
            flags=tuple(map(str, request.flags)) if request._flags else (),  # noqa: SLF001  # as above
            answers=tuple(map(int, statuses)) if statuses is not None else None,
            all_answers=bool(meta.get("handle_httpstatus_all")),
            follows=not meta.get("dont_redirect"),
        )
        if (size := len(packed(record))) > MAX_REQUEST_BYTES:
            raise Unsendable(
                f"{request} has {size:,} bytes with its body, meta and cb_kwargs; a request has at most "
                f"{MAX_REQUEST_BYTES:,}: carry less along, or read it again in the callback"
            )
        return record

    def timing(self, request: Request) -> Timing | None:
        """When a request is sent, by crawlog's keys of `meta`. Raises: Unsendable: a value is no time."""
        if TIMING.keys().isdisjoint(request.meta):
            return None
        try:
            return timing(**{name: request.meta.get(key) for key, name in TIMING.items()})
        except ValueError as error:
            raise Unsendable(f"{request}: meta {', '.join(TIMING)}: {error}") from None

    def outgoing(self, request: Request) -> RequestRecord:
        """What is sent of a request, without what only its callback needs. Raises: as `recorded`."""
        record = self._outgoing(request, request.meta)
        if record.actions:
            raise Unsendable(f"{request}: meta['playwright']: no browser renders a download: yield the request")
        return record

    def _outgoing(self, request: Request, meta: Mapping[str, Any]) -> RequestRecord:
        for name, value in self._of_each.items():
            request.headers.setdefault(name, value)
        self._check(request, meta)
        actions = self._actions(request, meta)
        merges = (self._has_cookies and not meta.get("dont_merge_cookies", False)) or bool(actions)
        headers, without = self._headers(request, drops_cookies=merges)
        return RequestRecord(
            method=request.method,
            url="" if _as_sent(request.url) == request.url else request.url,
            headers=headers,
            without=without,
            body=request.body,
            cookies=self._cookies(request) if merges else (),
            jar=_jar(self._browsed.jar(meta)),
            keeps_cookies=merges,
            attempts=self._attempts(meta),
            timeout_s=_timeout(meta, self._timeout_s),
            proxy=_proxy(request, str(meta.get("proxy") or "")),
            render=True if actions else None,
            actions=actions,
        )

    def restored(self, url: str, record: RequestRecord | None, results: Sequence[ActionResult] = ()) -> Request:
        """The request of a page, of its own class and with its callback.

        Args:
            results: What its actions returned.

        Raises: Unsendable: A class or a method that is not the spider's.
        """
        if record is None:
            return Request(url)
        values = self._kinds.values
        try:
            kind = self._kinds.request(record.kind)
            meta, kwargs = values.unpacked_dict(record.meta), values.unpacked_dict(record.kwargs)
        except ValueError as error:
            raise Unsendable(f"the request of {url} cannot be made again: {error}") from None
        policy = meta.get("referrer_policy")
        if isinstance(policy, str) and "." in policy and not self._kinds.has(policy):
            raise Unsendable(f"meta['referrer_policy'] = {policy[:100]!r}: no class of Scrapy's or of the project")
        beside, usual = meta.pop(BESIDE, {}), _usual_path(record.url or url)
        if METHODS in beside:
            meta[METHODS] = methods(beside[METHODS], record.actions, results)
        request = kind(
            **cast("dict[str, Any]", beside.get("attributes", {})),
            url=record.url or url,
            method=record.method,
            headers=_multiple(record.headers) | {name: [] for name in record.without},
            body=record.body,
            cookies=_restored_cookies(record.cookies, usual, is_list="cookies" in beside),
            meta=meta,
            cb_kwargs=kwargs,
            encoding=beside.get("encoding", "utf-8"),
            priority=beside.get("priority", 0),
            dont_filter=beside.get("dont_filter", record.unfiltered),
            callback=self._bound(record.callback),
            errback=self._bound(record.errback),
            flags=list(record.flags),
        )
        for name, value in self._defaults.items():
            request.headers.setdefault(name, value)
        return request

    def _actions(self, request: Request, meta: Mapping[str, Any]) -> tuple[Action, ...]:
        try:
            return self._browsed.actions(meta)
        except ValueError as error:
            raise Unsendable(f"{request}: meta[{METHODS!r}]: {error}") from None

    def _check(self, request: Request, meta: Mapping[str, Any]) -> None:
        scheme = urlparse_cached(request).scheme
        if scheme not in {"http", "https"}:
            said = "crawlog fetches http and https only; read other sources in start()"
            raise UnsendableUrl(f"{request}: {said}", f"requests for {scheme}: {said}")
        for key in meta:
            if key.startswith("playwright") and not self._browsed.is_on:
                continue
            if told := refusal(key, meta[key], obeys_robots=self._obeys_robots):
                raise Unsendable(f"{request}: meta[{key!r}]: {told}")
        for name in request.headers if request._headers else ():  # noqa: SLF001  # as above
            if name in FORBIDDEN and not (name == b"Host" and _is_own_host(request)):
                raise Unsendable(f"{request}: the header {name.decode()} is refused: crawlog writes it from the URL")

    def _headers(self, request: Request, *, drops_cookies: bool) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """The headers; and those that have no value: Scrapy does not send them, nor the job's."""
        if not request._headers:  # noqa: SLF001  # as above
            return (), ()
        kept, without = [], []
        for name, values in request.headers.items():
            if not values:
                without.append(_text(name))
            elif name in _NOT_RECORDED or (drops_cookies and name == b"Cookie"):
                continue
            elif values != [self._defaults.get(name)]:
                kept += [(_text(name), _text(value)) for value in values]
        for title, text in kept:
            if refused := header_refusal(title, text):
                raise Unsendable(f"{request}: the header {title[:40]!r} is refused: {refused}")
        return tuple(kept), tuple(without)

    def _cookies(self, request: Request) -> tuple[CookieGiven, ...]:
        if not request._cookies:  # noqa: SLF001  # as above
            return ()
        is_https, usual = urlparse_cached(request).scheme == "https", _usual_path(request.url)
        found = []
        for cookie in _to_verbose_cookies(request.cookies):
            if (decoded := _decode_cookie(cookie, request)) and _is_sendable(decoded, request):
                domain, path = decoded.get("domain", ""), decoded.get("path") or usual
                secure = bool(cookie.get("secure", is_https))
                value, _, _ = decoded["value"].partition(";")
                found.append(CookieGiven(decoded["name"], value, domain, path, secure))
        return tuple(found)

    def _kept(self, meta: dict[str, Any], request: Request, is_filtered: bool) -> dict[str, Any]:
        """The meta that travels, with what else of the request has no field."""
        kept = {key: value for key, value in meta.items() if key not in LEFT_BEHIND}
        slot = kept.get("download_slot")
        if slot is not None and slot == (urlparse_cached(request).hostname or ""):
            del kept["download_slot"]
        if kept.get("download_timeout") == self._timeout_s:
            del kept["download_timeout"]
        beside = self._beside(request)
        if METHODS in kept and self._browsed.is_on:
            beside[METHODS] = self._browsed.keys(kept)
            del kept[METHODS]
        if bool(request.dont_filter) == is_filtered:
            beside["dont_filter"] = is_filtered
        if beside:
            kept[BESIDE] = beside
        return kept

    def _beside(self, request: Request) -> dict[str, Any]:
        beside: dict[str, Any] = {}
        if request.encoding != "utf-8":
            beside["encoding"] = request.encoding
        if request.priority:
            beside["priority"] = request.priority
        if isinstance(request._cookies, list) and request._cookies:  # noqa: SLF001  # as above
            beside["cookies"] = "list"
        if own := {name: getattr(request, name) for name in type(request).attributes if name not in Request.attributes}:
            beside["attributes"] = own
        return beside

    def _tagged(self, given: Mapping[str, Any], request: Request, where: str) -> dict[str, Any]:
        if not given:
            return {}
        try:
            return self._kinds.values.packed_dict(given, where)
        except (TypeError, ValueError) as error:
            raise Unsendable(f"{request}: {error}") from None

    def _attempts(self, meta: Mapping[str, Any]) -> int:
        """Attempts, the first one included; 0 for the job's."""
        if self._retries is None:
            return 0
        if meta.get("dont_retry"):
            return 1
        times, most = meta.get("retry_times", 0), meta.get("max_retry_times")
        if most is None and not times:
            return 0
        return max(1, int(self._retries if most is None else most) - int(times) + 1)

    def _method(self, request: Request, which: str) -> str:
        """The name of a callback: a method of the spider."""
        method = getattr(request, which)
        if method is None:
            return ""
        if method is NO_CALLBACK:
            raise Unsendable(f"{request}: NO_CALLBACK is for requests of middlewares, which crawlog does not send")
        name = self._names.get(method) if isinstance(method, FunctionType | MethodType) else None
        if name is None:
            name = self._names[method] = self._found(method, request, which)
        return name

    def _found(self, method: Any, request: Request, which: str) -> str:
        for name in (getattr(method, "__name__", ""), *dir(type(self._spider))):
            if self.is_callback(name) and getattr(self._spider, name) == method:
                return name
        what = "a lambda" if getattr(method, "__name__", "") == "<lambda>" else f"{method!r:.100}"
        raise Unsendable(
            f"{request}: its {which} is {what}, which cannot travel in the log: it is a method of the spider; "
            "values for it go into cb_kwargs"
        )

    def _bound(self, name: str) -> Any:
        if not name:
            return None
        if not self.is_callback(name):
            raise Unsendable(f"the spider has no method {name!r}, which a request names as its callback")
        return getattr(self._spider, name)

    def is_callback(self, name: str) -> bool:
        """Whether it names a method of the spider: of the object, of its class, or a static one."""
        found = inspect.getattr_static(self._spider, name, None)
        if isinstance(found, property | cached_property):
            return False  # the user's code, which may do anything
        return isinstance(found, staticmethod) or inspect.ismethod(getattr(self._spider, name, None))

    def _class(self, request: Request) -> str:
        try:
            return self._kinds.of_request(request)
        except TypeError as error:
            raise Unsendable(f"{request}: {error}") from None


def _is_sendable(cookie: Mapping[str, str], request: Request) -> bool:
    """Whether a cookie can be sent, up to a `;` in its value as by Scrapy; a warning names one that loses something."""
    name, (value, cut, _) = cookie["name"], cookie["value"].partition(";")
    if refusal := cookie_refusal(name, value):
        log.warning("Invalid cookie found in request %s: %.40r is left out: %s", request, name, refusal)
    elif cut:
        log.warning("Invalid cookie found in request %s: the value of %.40r ends before its `;`", request, name)
    return not refusal


def _usual_path(url: str) -> str:
    """The path of a request's cookies that have none, as in Scrapy; empty for the whole host."""
    return default_path(urlsplit(url).path).removesuffix("/")


def _restored_cookies(cookies: tuple[CookieGiven, ...], usual_path: str, *, is_list: bool) -> Any:
    """Cookies in the form in which the request had them: middlewares change them in place."""
    if is_list or any(cookie.domain or cookie.path not in ("", usual_path) for cookie in cookies):
        return [_verbose(cookie, usual_path) for cookie in cookies]
    return {cookie.name: cookie.value for cookie in cookies}


def _verbose(cookie: CookieGiven, usual_path: str) -> Any:
    """A cookie as requests of Scrapy have it."""
    if cookie.path == usual_path:
        cookie = msgspec.structs.replace(cookie, path="")
    return {name: value for name, value in msgspec.structs.asdict(cookie).items() if value or name == "value"}


def _as_sent(url: str) -> str:
    """The URL as the queue has it. Raises: UnsendableUrl: it is none."""
    try:
        return _VERBATIM.canonical(url)
    except InvalidUrl as error:
        raise UnsendableUrl(str(error), "requests for what is no URL of a page, such as http://") from None


def _jar(key: Any) -> str:
    if key is None or isinstance(key, str):
        return key or ""
    if isinstance(key, int | float | bytes | tuple):
        return repr(key)
    raise Unsendable(f"meta['cookiejar'] = {key!r:.80}: the name of a cookie jar is a text or a number")


def _timeout(meta: Mapping[str, Any], usual_s: float) -> float:
    given = meta.get("download_timeout")
    return 0.0 if given is None or given == usual_s else max(0.0, float(given))


def _is_own_host(request: Request) -> bool:
    return request.headers.get("Host") == (urlparse_cached(request).netloc or "").encode()


def _proxy(request: Request, url: str) -> str:
    """The proxy of a request, with the login that HttpProxyMiddleware or the spider put into a header.

    Raises: Unsendable: The header is no Basic login.
    """
    if url and "://" not in url:
        url = f"http://{url.removeprefix('//')}"  # as Scrapy's add_http_if_no_scheme
    given = request.headers.get(b"Proxy-Authorization") if request._headers else None  # noqa: SLF001  # as above
    scheme, found, place = url.partition("://")
    if given is None or not found or "@" in place:
        return url
    kind, _, login = given.partition(b" ")
    try:
        user, _, password = b64decode(login, validate=True).decode("latin-1").partition(":")
    except ValueError:
        user = password = ""
    if kind.lower() != b"basic" or not user:
        raise Unsendable(f"{request}: the header Proxy-Authorization is refused: crawlog sends Basic logins to proxies")
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{place}"


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _multiple(headers: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found
