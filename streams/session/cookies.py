"""The cookies of one job at one registrable domain, by RFC 6265bis.

aiohttp's jar is not used: it keeps one cookie of a name for all paths of a response, sends one of a name, knows no
prefixes, lets http:// set cookies that are only for https://, and compares decoded paths. Values are never decoded
here: they go back as they came. `SameSite` is ignored, because a crawler comes from no other site, and `HttpOnly`
needs no rule. Pure: time is `now`, UTC epoch seconds.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from crawlog.schemas.requests import CookieGiven
from crawlog.schemas.urls import CookieChange
from crawlog.streams.url import registrable_domain

# Cookies of one jar; RFC 6265bis 6.1 asks for 50. Further ones are refused, so that a session cookie stays.
MOST_COOKIES = 100

MOST_BYTES = 16 * 1024  # All cookies of a jar together, because servers accept 8 to 16 KiB of headers

NO_ROOM = f"a jar holds at most {MOST_COOKIES} cookies and {MOST_BYTES:,} bytes"  # Why a jar takes no further cookie

MAX_PAIR = 4096
# Name and value of a cookie, and an attribute's value, bytes (RFC 6265bis 5.6): a longer one is ignored.
MAX_ATTRIBUTE = 1024

NEVER = float("inf")

_control = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_age = re.compile(r"-?[0-9]+", re.ASCII)
_between = re.compile(r"[\t\x20-\x2f\x3b-\x40\x5b-\x60\x7b-\x7e]+")
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
# Patterns of a date's tokens: a token is the first of these that matches and was not found before.
_DATE = {
    "clock": re.compile(r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?![0-9])"),
    "day": re.compile(r"[0-9]{1,2}(?![0-9])"),
    "month": re.compile(_MONTHS.replace(" ", "|"), re.IGNORECASE | re.ASCII),
    "year": re.compile(r"[0-9]{2,4}(?![0-9])"),
}

_FIRST_YEAR = 1601
_WSP = " \t"
_BLANKS = " \t\r\n"


class Said(NamedTuple):
    """A Set-Cookie header, read (RFC 6265bis 5.6).

    Attributes:
        expires: By its date; None without one.
        max_age: Seconds; None without one.
        domain, path: As written, or empty.
    """

    name: str
    value: str
    expires: float | None = None
    max_age: float | None = None
    domain: str = ""
    path: str = ""
    is_secure: bool = False


class _Cookie(NamedTuple):
    value: str
    is_secure: bool
    expires: float

    def is_over(self, now: float) -> bool:
        return self.expires <= now


class _Key(NamedTuple):
    """The identity of a cookie."""

    name: str
    domain: str
    is_host_only: bool
    path: str


class StoredCookie(NamedTuple):
    """A cookie as a jar's row has it.

    Attributes:
        expires: UTC epoch seconds; `NEVER` for a cookie without an end.
    """

    name: str
    value: str
    domain: str
    path: str
    is_host_only: bool
    is_secure: bool
    expires: float


def read(header: str) -> Said | None:
    """A Set-Cookie header's value; None where there is no cookie in it, or none that could be sent back."""
    if _control.search(header) or not _is_text(header):
        return None
    pair, *attributes = header.split(";")
    name, equals, value = pair.partition("=")
    if not equals:
        name, value = "", pair
    name, value = name.strip(_WSP), value.strip(_WSP)
    if not (name or value) or _size(name) + _size(value) > MAX_PAIR:
        return None
    said = Said(name, value)
    for attribute in attributes:
        kind, _, text = attribute.partition("=")
        said = _with(said, kind.strip(_WSP).lower(), text.strip(_WSP))
    return said


def _given(name: str, value: str) -> Said | None:
    """The cookie of a request; None if it cannot be sent."""
    pair = f"{name.strip(_BLANKS)}={value.strip(_BLANKS)}"
    return read(pair) if ";" not in pair else None


def cookie_refusal(name: str, value: str) -> str:
    """Why a request cannot send a cookie; empty if it can. The value is not repeated."""
    if _given(name, value) is not None:
        return ""
    pair = f"{name.strip(_BLANKS)}{value.strip(_BLANKS)}"
    if ";" in pair:
        return "a `;` ends a cookie: give each of several by its own name"
    if _control.search(pair) or not _is_text(pair):
        return "it has a line end or a control character"
    return f"it has more than {MAX_PAIR:,} bytes" if pair else "it has neither name nor value"


def _with(said: Said, kind: str, text: str) -> Said:
    """With another attribute; of several of one kind the last one counts."""
    if _size(text) > MAX_ATTRIBUTE:
        return said
    match kind:
        case "secure":
            said = said._replace(is_secure=True)
        case "domain":
            said = said._replace(domain=text.removeprefix(".").lower())
        case "path":
            said = said._replace(path=text if text.startswith("/") else "")
        case "max-age" if _age.fullmatch(text):
            said = said._replace(max_age=float(text[:20]))
        case "expires" if (at := date(text)) is not None:
            said = said._replace(expires=at)
    return said


def date(text: str) -> float | None:
    """A cookie's date, however it is written (RFC 6265bis 5.1.1); None where it is none."""
    found: dict[str, re.Match[str]] = {}
    for token in _between.split(text):
        for part, shape in _DATE.items():
            if part not in found and (match := shape.match(token)):
                found[part] = match
                break
    if len(found) < len(_DATE):
        return None
    year = int(found["year"][0])
    if year < 100:
        year += 1900 if year >= 70 else 2000
    month = _MONTHS.index(found["month"][0].lower()) // 4 + 1
    hour, minute, second = (int(digits) for digits in found["clock"].groups())
    try:
        at = datetime(year, month, int(found["day"][0]), hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return at.timestamp() if year >= _FIRST_YEAR else None


class CookieJar:
    """The cookies of one job at one registrable domain.

    Args:
        stored: The cookies of its row, in order.
    """

    __slots__ = ("_changed", "_cookies", "_size_bytes")

    def __init__(self, stored: Iterable[StoredCookie] = ()) -> None:
        self._cookies: dict[_Key, _Cookie] = {}
        self._changed: dict[_Key, bool] = {}  # whether it was removed in between: it has lost its place then
        self._size_bytes = 0
        for name, value, domain, path, is_host_only, is_secure, expires in stored:
            self._put(_Key(name, domain, is_host_only, path), _Cookie(value, is_secure, expires))

    def keep(self, url: str, headers: Iterable[str], now: float) -> None:
        """Take what a response set.

        Args:
            url: Of the request, canonical.
            headers: The values of Set-Cookie, in order.
        """
        for header in headers:
            said = read(header)
            key = self._key(url, said, now) if said is not None else None
            if said is not None and key is not None:
                self._change(key, _cookie(said, now), now)

    def give(self, url: str, cookies: Iterable[CookieGiven], now: float) -> list[str]:
        """Take what a request for a URL brings along. One that could not be sent, or not there, is left out.

        Blanks and line ends around names and values are none of the cookies', as in Scrapy.

        Returns: The names of those for which there is no room.
        """
        left_out = []
        for given in cookies:
            said = _given(given.name, given.value)
            if said is None:
                continue
            domain = given.domain.removeprefix(".").lower()
            said = said._replace(domain=domain, path=given.path or "/", is_secure=given.secure)
            key = self._key(url, said, now)
            if key is not None and not self._change(key, _cookie(said, now), now):
                left_out.append(said.name)
        return left_out

    def apply(self, changes: Iterable[CookieChange], now: float) -> None:
        """Take changes that another jar noted, within the limits of a jar."""
        for change in changes:
            key = _Key(change.name, change.domain, not change.wide, change.path)
            expires = NEVER if change.expires is None else change.expires
            cookie = _Cookie(change.value, change.secure, -NEVER if change.gone else expires)
            if _is_bounded(key, cookie):
                self._change(key, cookie, now)

    def changes(self) -> tuple[CookieChange, ...]:
        """The cookies that changed since this was called last, as they are now."""
        changes = []
        for key, was_dropped in self._changed.items():
            cookie = self._cookies.get(key)
            if was_dropped and cookie is not None:
                changes.append(_change_of(key, None))
            changes.append(_change_of(key, cookie))
        self._changed = {}
        return tuple(changes)

    def stored(self) -> tuple[StoredCookie, ...]:
        return tuple(
            StoredCookie(name, cookie.value, domain, path, is_host_only, cookie.is_secure, cookie.expires)
            for (name, domain, is_host_only, path), cookie in self._cookies.items()
        )

    def header(self, url: str, now: float) -> str:
        """The value of Cookie for a request; empty where none is sent. Longer paths come first, then the older ones."""
        if not self._cookies:
            return ""
        host, path, is_secure = _parts(url)
        sent = [
            (key, cookie)
            for key, cookie in self._cookies.items()
            if (key.domain == host or (not key.is_host_only and is_within(host, key.domain)))
            and path_matches(path, key.path)
            and (is_secure or not cookie.is_secure)
            and not cookie.is_over(now)
        ]
        sent.sort(key=lambda each: -len(each[0].path))
        return "; ".join(f"{key.name}={cookie.value}" if key.name else cookie.value for key, cookie in sent)

    def _change(self, key: _Key, cookie: _Cookie, now: float) -> bool:
        """Put, replace or remove a cookie; False if there is no room for it."""
        known = self._cookies.get(key)
        if known is not None and (cookie.is_over(now) or known.is_over(now)):
            self._drop(key)
        is_new = key not in self._cookies
        has_room = cookie.is_over(now) or self._has_room(key, cookie, now)
        if has_room and not cookie.is_over(now):
            self._put(key, cookie)  # a known one keeps its place: the older cookie is sent first
        if self._cookies.get(key) != known:
            was_dropped = self._changed.pop(key, False) if is_new else self._changed.get(key, False)
            self._changed[key] = was_dropped or (is_new and known is not None)
        return has_room

    def _put(self, key: _Key, cookie: _Cookie) -> None:
        self._size_bytes += self._growth(key, cookie)
        self._cookies[key] = cookie

    def _key(self, url: str, said: Said, now: float) -> _Key | None:
        """The key of a cookie; None if the URL may not set it (RFC 6265bis 5.7)."""
        host, path, is_secure = _parts(url)
        if not _may_set(host, said.domain) or not _keeps_promise(said) or (said.is_secure and not is_secure):
            return None
        key = _Key(said.name, said.domain or host, not said.domain, said.path or default_path(path))
        return key if is_secure or not self._hides_secure(key, now) else None

    def _hides_secure(self, key: _Key, now: float) -> bool:
        """Whether one set over http would be sent beside, or before, one of its name that is only for https."""
        return any(
            cookie.is_secure
            and not cookie.is_over(now)
            and key.name == other.name
            and (is_within(other.domain, key.domain) or is_within(key.domain, other.domain))
            and path_matches(key.path, other.path)
            for other, cookie in self._cookies.items()
        )

    def _has_room(self, key: _Key, cookie: _Cookie, now: float) -> bool:
        if self._fits(key, cookie):
            return True
        for old in [old for old, each in self._cookies.items() if each.is_over(now)]:
            self._drop(old)
        return self._fits(key, cookie)

    def _fits(self, key: _Key, cookie: _Cookie) -> bool:
        is_counted = key in self._cookies or len(self._cookies) < MOST_COOKIES
        return is_counted and self._size_bytes + self._growth(key, cookie) <= MOST_BYTES

    def _growth(self, key: _Key, cookie: _Cookie) -> int:
        """Bytes that the jar has more with a cookie in it, in the place of what it has under the key."""
        known = self._cookies.get(key)
        return _bytes(key, cookie) - (_bytes(key, known) if known is not None else 0)

    def _drop(self, key: _Key) -> None:
        self._size_bytes -= _bytes(key, self._cookies.pop(key))


def _cookie(said: Said, now: float) -> _Cookie:
    expires = NEVER if said.expires is None else said.expires
    if said.max_age is not None:
        expires = now + said.max_age if said.max_age > 0 else -NEVER
    return _Cookie(said.value, said.is_secure, expires)


def _change_of(key: _Key, cookie: _Cookie | None) -> CookieChange:
    name, domain, is_host_only, path = key
    if cookie is None:
        return CookieChange(name, "", domain, path, not is_host_only, gone=True)
    expires = None if cookie.expires == NEVER else cookie.expires
    return CookieChange(name, cookie.value, domain, path, not is_host_only, cookie.is_secure, expires)


def _is_bounded(key: _Key, cookie: _Cookie) -> bool:
    """Whether a cookie that came from the log is one that `read` could have given."""
    is_text = not _control.search(key.name + cookie.value)
    return is_text and _size(key.name) + _size(cookie.value) <= MAX_PAIR and _size(key.domain) <= MAX_ATTRIBUTE


def _may_set(host: str, domain: str) -> bool:
    """Whether a host may set cookies of a domain: its own or one above it, but no public suffix."""
    if not domain:
        return True
    is_above = domain.isascii() and is_within(host, domain)
    return is_above and registrable_domain(domain) == registrable_domain(host)


def _keeps_promise(said: Said) -> bool:
    """Whether a cookie is what its name's prefix says; one without a name is not to look as if it had one."""
    prefix = (said.name or said.value).lower()
    if not prefix.startswith(("__secure-", "__host-")):
        return True
    if not said.name or not said.is_secure:
        return False
    return prefix.startswith("__secure-") or (not said.domain and said.path == "/")


def is_within(host: str, domain: str) -> bool:
    """Whether a host is a domain or, if it is a name, lies within it (domain-match, RFC 6265bis 5.1.3)."""
    return host == domain or (host.endswith(f".{domain}") and not _is_address(host))


def path_matches(path: str, cookie_path: str) -> bool:
    """Whether a cookie of a path is for a request's path (RFC 6265bis 5.1.4)."""
    if not path.startswith(cookie_path):
        return False
    return len(path) == len(cookie_path) or cookie_path.endswith("/") or path[len(cookie_path)] == "/"


def default_path(path: str) -> str:
    """The path of a cookie that has none: the request's up to its last slash."""
    return path[: path.rfind("/")] or "/"


def _parts(url: str) -> tuple[str, str, bool]:
    """Host, path as it is sent, and whether nobody reads along: over TLS, or on this machine, as browsers have it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return host, parts.path or "/", parts.scheme == "https" or _is_here(host)


def _is_here(host: str) -> bool:
    return (
        host in ("localhost", "::1") or host.endswith(".localhost") or (host.startswith("127.") and _is_address(host))
    )


def _is_address(host: str) -> bool:
    return ":" in host or host.rpartition(".")[2].isdigit()  # WHATWG: what ends in a number is an IPv4 address


def _is_text(header: str) -> bool:
    """Whether it can be sent back: bytes that are no UTF-8 come as lone surrogates, which aiohttp would leave out."""
    return header.isascii() or not any("\ud800" <= char <= "\udfff" for char in header)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _bytes(key: _Key, cookie: _Cookie) -> int:
    return _size(key.name) + _size(cookie.value) + _size(key.domain) + _size(key.path)
