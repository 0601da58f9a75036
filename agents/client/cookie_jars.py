"""The cookie jars of one worker: rows of the fold, under the answers that are not folded yet.

A jar is read when its first request is built. From then on it is kept in memory, where an answer's cookies count for
the next request at once. The cookies that changed go into the next done of the jar, so the log has them in the order of
the answers. Another owner of the partition, or another epoch of the job, begins at the row again.

`CookieWalls` knows redirects that lead back to their start: a check for cookies by way of another URL.

    /page ─ 302 ─► /check ─ 302, a cookie ─► /page

By then /page is known as a redirect, but with the cookie it is a page, so it must be fetched once more. Redirects are
remembered with the cookies of their requests.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from crawlog.schemas.requests import CookieGiven
from crawlog.schemas.urls import CookieChange
from crawlog.streams.session import NO_ROOM, CookieJar, StoredCookie
from crawlog.streams.url import registrable_domain

log = structlog.get_logger()

# Most jars in memory; the least recently used one is dropped first. It is read from its row when it is needed.
MOST_JARS = 10_000

REMEMBERED = 10_000  # Redirects remembered, the latest ones; some 400 bytes each

MOST_HOPS = 5  # Redirects followed back in a row


class StoredJar(NamedTuple):
    """The row of a jar.

    Attributes:
        fold: Identity of the state that has it.
        epoch: The job's.
        read: Reads its cookies.
        ownership: Identity of the ownership of its partition; another worker may have changed the row before it began.
    """

    fold: object
    epoch: int
    read: Callable[[], tuple[StoredCookie, ...]]
    ownership: object = None


# Finds a jar by its job's name, a URL of its domain and its own name; None where this worker has no row of it.
RowOf = Callable[[str, str, str], StoredJar | None]


def _no_row(_job: str, _url: str, _name: str) -> None:
    return None


class _Held(NamedTuple):
    """A jar in memory, and what its row was of; it does not keep that state alive.

    Attributes:
        epoch: None where no row was there to tell it.
    """

    jar: CookieJar
    fold: object | None
    epoch: int | None
    ownership: object = None

    def is_of(self, row: StoredJar, *, is_stored: bool) -> bool:
        """Whether the row would give this jar. One in memory alone outlives a state."""
        return self.epoch == row.epoch and (self.fold is row.fold or not is_stored)


class CookieJars:
    """Jars by job, registrable domain and name.

    Args:
        row_of: Finds the rows; by default there are none, and all jars begin empty.
    """

    def __init__(self, row_of: RowOf = _no_row) -> None:
        self._row_of = row_of
        self._held: OrderedDict[tuple[str, str, str], _Held] = OrderedDict()
        self._told: set[str] = set()

    def of(self, job: str, url: str, name: str = "", *, is_stored: bool = True) -> CookieJar:
        """The jar for a request.

        Args:
            is_stored: Whether it has a row. A login form's cookies have none where the job keeps no others; the row
                then only tells the epoch.
        """
        key = job, registrable_domain(urlsplit(url).hostname or ""), name
        held = self._held.get(key)
        row = self._row_of(job, url, name)
        if held is None or (row is not None and not held.is_of(row, is_stored=is_stored)):
            held = self._held[key] = _read(row, held) if is_stored else _unstored(row, held)
            if len(self._held) > MOST_JARS:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return held.jar

    def give(self, jar: CookieJar, job: str, url: str, cookies: Iterable[CookieGiven]) -> None:
        """Put the cookies of a request into a jar. That there is no room for one is told once a job."""
        left_out = jar.give(url, cookies, time.time())
        if left_out and job not in self._told:
            self._told.add(job)
            log.warning("cookie_left_out", job=job, url=url, cookie=left_out[0][:40], reason=NO_ROOM)

    def changes(self, job: str, url: str, name: str = "") -> tuple[CookieChange, ...]:
        """The cookies of a jar that changed and that no done has named."""
        held = self._held.get((job, registrable_domain(urlsplit(url).hostname or ""), name)) if self._held else None
        return held.jar.changes() if held is not None else ()


def _read(row: StoredJar | None, old: _Held | None) -> _Held:
    """The jar of a row, with what no done has named of the jar that it replaces in the same epoch and ownership.

    1 worker A aborts an answer that set a cookie → 2 B owns the partition, its dones change the row → 3 A owns it
    again: its cookie is older than the row.
    """
    if row is None:
        return _Held(CookieJar(), None, None)
    jar = CookieJar(row.read())
    if old is not None and (old.epoch is None or (old.epoch, old.ownership) == (row.epoch, row.ownership)):
        jar.apply(old.jar.changes(), time.time())
    return _Held(jar, row.fold, row.epoch, row.ownership)


def _unstored(row: StoredJar | None, old: _Held | None) -> _Held:
    """A jar in memory alone: empty, or the former one if that did not know its epoch yet."""
    jar = old.jar if old is not None and old.epoch is None else CookieJar()
    return _Held(jar, None, None) if row is None else _Held(jar, None, row.epoch, row.ownership)


class _Step(NamedTuple):
    target: str
    cookies: str


class CookieWalls:
    """Redirects seen lately, of all jobs."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, str], _Step] = OrderedDict()

    def note(self, job: str, url: str, target: str, cookies: str) -> None:
        """Remember that a URL redirects to another one.

        Args:
            cookies: The cookies of the request.
        """
        self._steps[job, url] = _Step(target, cookies)
        self._steps.move_to_end((job, url))
        if len(self._steps) > REMEMBERED:
            self._steps.popitem(last=False)

    def forget(self, job: str, url: str) -> None:
        self._steps.pop((job, url), None)

    def leads_back(self, job: str, url: str, target: str, cookies_of: Callable[[str], str]) -> bool:
        """Whether a redirect leads to a URL that led to it, and that would now be sent cookies it was not sent then.

        Args:
            cookies_of: The cookies that a URL would be sent now.
        """
        first = step = self._steps.get((job, target))
        for _ in range(MOST_HOPS):
            if step is None or step.target == url:
                break
            step = self._steps.get((job, step.target))
        if first is None or step is None or step.target != url:
            return False
        return cookies_of(target) not in ("", first.cookies)
