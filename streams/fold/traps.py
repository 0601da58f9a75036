"""Crawler traps: which new URL looks like another page of an endless site, and how many of them a host may have.

The fold asks for each URL that no other rule drops and that the job does not know, so an answer depends only on the
log. A URL that looks honest is not counted and costs little. A URL that looks like a trap is a *stray*: a host may have
`strays` of them, and one more for each ten URLs of its domain, because large sites have odd corners. Further strays are
dropped, counted by rule. So a wrong suspicion costs an honest site nothing until it has that many strays.

The rules mostly compare a URL with the page on which it was found: a calendar leads from one date to the next, an
endless relative link repeats its own path, only the session id changes.
"""

import re
from typing import Protocol

import msgspec
import xxhash

from crawlog.schemas.urls import FoundUrl, TrapRules
from crawlog.streams.url import Place, fingerprint, sessionless

from . import rows as r

MORE_PER_URLS = 10  # One stray more for so many URLs of the domain

# Strays of a calendar that are remembered for a host, the latest ones: a date found on one is a stray too.
MAX_CALENDARS = 256

# Values of a facet, at most. A parameter with more values is an identifier: each value is a page of its own.
MAX_VALUES = 64

MAX_NAMES = 64  # Parameters remembered for one path, at most; a path with more is a program with many pages

MAX_NAME_CHARS = 64  # A longer name was not given by a person: it is not remembered

FREE_FACETS = 3  # Facets of one path that may be combined freely

LONG_QUERY = 8  # Parameters from which on each further one is a stray

DEEP_PATH = 16  # Path segments from which on each further one is a stray

_PATH_FROM = len("https://")

_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
# A date at the end of the path (not `/2019/05/title`), or among the parameters.
_CALENDAR = re.compile(
    rf"/(?:1[89]|2\d)\d\d[-/](?:0?[1-9]|1[0-2]|w\d\d?|{_MONTHS})(?:[-/](?:0?[1-9]|[12]\d|3[01]))?(?:/|\.\w{{1,5}})?(?:$|\?)"
    r"|/(?:calendar|kalender|calendrier|calendario|cal|events?|agenda|diary|schedule|archives?)/(?:1[89]|2\d)\d\d/?(?:$|\?)"
    r"|[?&](?:(?:year|month|day|week|date|yr|mon|cal\w*)=\d|\w+=(?:1[89]|2\d)\d\d-\d)",
    re.IGNORECASE,
)

_DIGITS = re.compile(r"\d+")
_WORDS = re.compile(rf"(?<=[-/=])(?:{_MONTHS})(?=[-/?&]|$)", re.IGNORECASE)
# Parameters that show the same content in another order or portion: they are not facets.
_TURNS_PAGES = frozenset(
    {
        "page",
        "p",
        "pg",
        "paged",
        "pagenum",
        "start",
        "offset",
        "from",
        "limit",
        "per_page",
        "perpage",
        "pagesize",
        "page_size",
        "sort",
        "sortby",
        "sort_by",
        "order",
        "orderby",
        "order_by",
        "dir",
        "direction",
        "view",
        "lang",
        "hl",
        "locale",
    }
)


class _Rows(Protocol):
    def get(self, key: bytes) -> bytes | None: ...
    def put(self, key: bytes, value: bytes) -> None: ...


class StrayRow(msgspec.Struct, array_like=True):
    """A host's strays; `calendars` holds hashes of the latest ones that are dates."""

    count: int = 0
    calendars: list[int] = []


class FacetRow(msgspec.Struct, array_like=True):
    """Parameters of one path: hashes of their values by name; None for one with too many values."""

    names: dict[str, list[int] | None] = {}
    facets: int = 0


_read_strays = msgspec.msgpack.Decoder(StrayRow).decode
_read_facets = msgspec.msgpack.Decoder(FacetRow).decode
_read_count = msgspec.msgpack.Decoder(int).decode


class Traps:
    """The strays of all hosts of a partition.

    Args:
        rows: The state; `flush` writes the changes to it.
        cached: Hosts and paths held in memory.
    """

    def __init__(self, rows: _Rows, cached: int = 4096) -> None:
        self._rows = rows
        self._cached = cached
        self._strays: dict[bytes, StrayRow] = {}
        self._facets: dict[tuple[int, str], FacetRow] = {}
        self._changed: dict[bytes, StrayRow | FacetRow] = {}
        self._parent = _Parent("")

    def suspicion(self, job: int, rules: TrapRules, found: FoundUrl, url: str, place: Place) -> str | None:
        """The rule by which a new URL looks like a trap; None for nearly every URL.

        Args:
            job: The job's number in this partition.
        """
        parent = self._parent
        if parent.url != found.parent:
            parent = self._parent = _Parent(found.parent)
        if "&" in url and rules.facets and self._is_combination(job, url, place):
            return "trap_facets"
        if parent.is_date and rules.calendar and self._is_next_date(job, url, parent, place):
            return "trap_calendar"
        return _growth(url, parent) if rules.growing else None

    def may_stray(self, job: int, rules: TrapRules, rule: str, url: str, place: Place, queued: int) -> bool:
        """Whether a host may have one more stray; if so, it is counted.

        Args:
            rule: The rule that `suspicion` returned.
            queued: URLs of the domain that the job queued so far.
        """
        key = r.strays_key(job, place.host_hash)
        row = self._stray_row(key)
        if row.count >= rules.strays + queued // MORE_PER_URLS:
            return False
        row.count += 1
        if rule == "trap_calendar":
            row.calendars = [*row.calendars[1 - MAX_CALENDARS :], _hash(url)]
        self._changed[key] = row
        return True

    # ------------------------------------------------------------------ dates

    def _is_next_date(self, job: int, url: str, parent: "_Parent", place: Place) -> bool:
        """Whether a date was found on another date of its kind, or on one that was itself a stray."""
        if not url.startswith(parent.origin) or _CALENDAR.search(url, _PATH_FROM) is None:
            return False
        if shape(url) == shape(parent.url):
            return True
        return _hash(parent.url) in self._stray_row(r.strays_key(job, place.host_hash)).calendars

    def _stray_row(self, key: bytes) -> StrayRow:
        row = self._strays.get(key)
        if row is None:
            stored = self._rows.get(key)
            row = self._strays[key] = _read_strays(stored) if stored else StrayRow()
        return row

    # ------------------------------------------------------------------ facets

    def _is_combination(self, job: int, url: str, place: Place) -> bool:
        """Whether a URL only combines, in yet another way, parameters and values that its path was seen with."""
        path, _, query = url.partition("?")
        row = self._facets.get((job, path))
        if row is None:
            stored = self._rows.get(r.facets_key(job, place.host_hash, fingerprint(path)))
            row = self._facets[job, path] = _read_facets(stored) if stored else FacetRow()
        names = row.names
        params = query.split("&")
        is_new = False
        for param in params:
            name, _, value = param.partition("=")
            values = names.get(name, _UNKNOWN)
            if values is None:  # an identifier: this is a page of its own
                return False
            hashed_value = _hash(value)
            if hashed_value not in values:
                is_new = True
                if _note(row, name, hashed_value):
                    self._changed[r.facets_key(job, place.host_hash, fingerprint(path))] = row
        if is_new:
            return False
        return row.facets > FREE_FACETS or (len(params) > FREE_FACETS and len(names) > FREE_FACETS)

    # ------------------------------------------------------------------ hosts

    def hosts(self, job: int, domain: int) -> int:
        """Hosts of a domain that have had a queue, the domain's own name left out."""
        stored = self._rows.get(r.hosts_key(job, domain))
        return _read_count(stored) if stored else 0

    def one_host_more(self, job: int, domain: int) -> None:
        self._rows.put(r.hosts_key(job, domain), r.pack(self.hosts(job, domain) + 1))

    # ------------------------------------------------------------------ memory

    def flush(self) -> None:
        """Write what changed into the rows: before each checkpoint."""
        for key, row in self._changed.items():
            self._rows.put(key, r.pack(row))
        self._changed.clear()
        if len(self._strays) > self._cached:
            self._strays.clear()
        if len(self._facets) > self._cached:
            self._facets.clear()

    def forget(self, job: int) -> None:
        """Remove a job from memory: its rows were dropped."""
        self._strays = {key: row for key, row in self._strays.items() if r.job_of(key) != job}
        self._changed = {key: row for key, row in self._changed.items() if r.job_of(key) != job}
        self._facets = {key: row for key, row in self._facets.items() if key[0] != job}


_UNKNOWN: list[int] = []


def _note(row: FacetRow, name: str, hashed_value: int) -> bool:
    """Add a new value of a parameter; returns whether there was room."""
    names = row.names
    values = names.get(name)
    if values is None:
        if len(names) >= MAX_NAMES or len(name) > MAX_NAME_CHARS:
            return False
        names[name] = [hashed_value]
        row.facets += name.lower() not in _TURNS_PAGES
    elif len(values) < MAX_VALUES:
        values.append(hashed_value)
    else:
        names[name] = None
        row.facets -= name.lower() not in _TURNS_PAGES
    return True


def session_twin(url: str) -> tuple[str, str] | None:
    """For a URL with a session id: the URL without it, and a name that all sessions of the page share."""
    if "?" not in url and ";" not in url and "(" not in url:
        return None
    bare = sessionless(url)
    return None if bare == url else (bare, f"{bare}\tsession")


class _Parent:
    """The page on which a URL was found, taken apart once for all its URLs."""

    __slots__ = ("folder", "is_date", "known", "origin", "query", "repeats", "segments", "size", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        path, _, self.query = url.partition("?")
        self.size = len(path)
        self.folder = path[: path.rfind("/") + 1]
        self.origin = url[: url.find("/", _PATH_FROM) + 1] or "no origin"
        segments = self.folder[_PATH_FROM:].split("/")[1:-1]
        self.segments = len(segments)
        self.known = frozenset(segments)
        self.repeats = len(segments) - len(self.known)
        self.is_date = _CALENDAR.search(url, _PATH_FROM) is not None


def _growth(url: str, parent: _Parent) -> str | None:
    if parent.query and "&" in url and _grown_query(url.partition("?")[2], parent.query):
        return "trap_query"
    if not parent.segments or not url.startswith(parent.folder):
        return None
    more = url[len(parent.folder) :].partition("?")[0]
    if "/" not in more:
        if parent.repeats <= 1 and more not in parent.known:
            return "trap_depth" if parent.segments >= DEEP_PATH and len(parent.folder) == parent.size else None
        return "trap_repeats" if more else None
    named = [part for part in more.split("/") if part]
    if parent.segments + len(named) > DEEP_PATH:
        return "trap_depth"
    repeated = sum(part in parent.known for part in named)
    is_like_parent = repeated and repeated * 2 >= len(named)
    return "trap_repeats" if is_like_parent or (named and parent.repeats > 1) else None


def _grown_query(query: str, parent_query: str) -> bool:
    count, before = query.count("&") + 1, parent_query.count("&") + 1
    if count <= before:
        return False
    return count > LONG_QUERY or count - len(_names(query)) > before - len(_names(parent_query))


def _names(query: str) -> set[str]:
    """The names of parameters; those of a list (`a[]`) count each, because a list may have many."""
    return {param if "]=" in param else param.partition("=")[0] for param in query.split("&")}


def shape(url: str) -> str:
    """A URL without its numbers and month names: two dates of one calendar have one shape."""
    return _DIGITS.sub("0", _WORDS.sub("0", url))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode()) & 0xFFFFFFFF
