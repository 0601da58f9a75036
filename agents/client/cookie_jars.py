"""The cookie jars of one worker: rows of the fold, under the answers that are not folded yet.

A jar is read when its first request is built. From then on it is kept in memory, where an answer's cookies count for
the next request at once. The cookies that changed go into the next done of the jar, so the log has them in the order of
the answers. Another owner of the partition, or another epoch of the job, begins at the row again.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from crawlog.schemas.urls import CookieChange
from crawlog.streams.http import CookieJar, StoredCookie
from crawlog.streams.url import registrable_domain

MOST_JARS = 10_000
"""Most jars in memory; the least recently used one is dropped first. It is read from its row when it is needed."""


class StoredJar(NamedTuple):
    """The row of a jar.

    Attributes:
        fold: Identity of the state that has it.
        epoch: The job's.
        read: Reads its cookies.
    """

    fold: object
    epoch: int
    read: Callable[[], tuple[StoredCookie, ...]]


RowOf = Callable[[str, str, str], StoredJar | None]
"""Finds a jar by its job's name, a URL of its domain and its own name; None where this worker has no row of it."""


def _no_row(_job: str, _url: str, _name: str) -> None:
    return None


class _Held(NamedTuple):
    """A jar in memory, and the state and epoch that its row was of; it does not keep that state alive."""

    jar: CookieJar
    fold: object | None
    epoch: int


class CookieJars:
    """Jars by job, registrable domain and name.

    Args:
        row_of: Finds the rows; by default there are none, and all jars begin empty.
    """

    def __init__(self, row_of: RowOf = _no_row) -> None:
        self._row_of = row_of
        self._held: OrderedDict[tuple[str, str, str], _Held] = OrderedDict()

    def of(self, job: str, url: str, name: str = "", *, is_stored: bool = True) -> CookieJar:
        """The jar for a request.

        Args:
            is_stored: Whether it has a row. A login form's cookies have none where the job keeps no others.
        """
        key = job, registrable_domain(urlsplit(url).hostname or ""), name
        held = self._held.get(key)
        row = self._row_of(job, url, name) if is_stored else None
        if held is None or (row is not None and not (row.fold is held.fold and row.epoch == held.epoch)):
            held = self._held[key] = _read(row, held)
            if len(self._held) > MOST_JARS:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return held.jar

    def changes(self, job: str, url: str, name: str = "") -> tuple[CookieChange, ...]:
        """The cookies of a jar that changed and that no done has named."""
        held = self._held.get((job, registrable_domain(urlsplit(url).hostname or ""), name)) if self._held else None
        return held.jar.changes() if held is not None else ()


def _read(row: StoredJar | None, old: _Held | None) -> _Held:
    """The jar of a row, with what no done has named of the jar that it replaces in the same epoch."""
    if row is None:
        return _Held(CookieJar(), None, 0)
    jar = CookieJar(row.read())
    if old is not None and (old.fold is None or old.epoch == row.epoch):
        jar.apply(old.jar.changes(), time.time())
    return _Held(jar, row.fold, row.epoch)
