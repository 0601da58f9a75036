"""Conservation in one partition of crawl.pages: each page that a done names exists, and each page has a result.

A page has a result when an item record, a dead letter or a found with `again` names it or a later page of its URL. A
page of a deleted job needs none.

Pure. `check.py` reads the log and feeds the ledger: first the pages of the partition, then dones and founds of
crawl.urls in their order, then items and dead letters in any order.

Memory: 9 bytes a page (a hash of job and URL, and a mark), and some 150 bytes for each missing page.
"""

from array import array
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import xxhash

from crawlog.streams.url import fingerprint

THERE = 1
NAMED = 2


def page_name(job: str, url: str, request_id: int = 0) -> int:
    """Hash of job, URL and request that identifies a page in the ledger: 8 bytes, never 0.

    A GET with a callback has its URL's fingerprint as its identity; the items of its page have none.
    """
    name = f"{job} {url} {request_id:x}" if request_id and request_id != fingerprint(url) else f"{job} {url}"
    return xxhash.xxh3_64_intdigest(name.encode()) or 1


class GonePage(NamedTuple):
    """A done whose page is lost: the offset of its record in crawl.urls, and the offset of the page."""

    done: int
    page: int


class Ledger:
    """The pages of one partition, each with a mark: whether it exists, and whether it has a result.

    Args:
        start, end: The bounds of the partition in crawl.pages.
        parsed: Each page before this offset has been parsed; later pages need no result yet, but may not be trimmed.

    Attributes:
        trimmed: Number of dones whose page was parsed, and then trimmed from the log's start.
    """

    def __init__(self, start: int, end: int, parsed: int) -> None:
        self.trimmed = 0
        self._start, self._end = start, end
        self._parsed = min(parsed, end)
        self._names = array("Q", bytes(8 * (end - start)))
        self._marks = bytearray(end - start)
        self._gone: dict[int, GonePage] = {}
        self._asked: dict[int, float] = {}

    def page(self, offset: int, name: int, *, needs_item: bool = True) -> None:
        """A page exists; `name` is 0 for a record that is no page."""
        at = offset - self._start
        self._names[at] = name
        self._marks[at] = THERE if needs_item else THERE | NAMED

    def done(self, name: int, at: int, page: int) -> None:
        """A done at an offset of crawl.urls names a page."""
        if page < min(self._start, self._parsed):
            self.trimmed += 1
            self._gone.pop(name, None)
        elif self._is(page, name):
            self._gone.pop(name, None)
            if name in self._asked:
                self._asked[name] = page
        else:
            self._gone[name] = GonePage(at, page)

    def again(self, name: int) -> None:
        """A URL was queued again: its earlier losses are being repaired."""
        self._gone.pop(name, None)
        self._asked[name] = inf

    def named(self, offset: int, name: int | None = None) -> None:
        """An item record names a page by offset and URL; or a dead letter names any record by its offset alone."""
        if name is None:
            if self._start <= offset < self._end:
                self._marks[offset - self._start] |= NAMED
        elif self._is(offset, name):
            self._marks[offset - self._start] |= NAMED

    def skipped(self, start: int, end: int) -> None:
        """The operator left these pages out: they need no result."""
        for offset in range(max(start, self._start), min(end, self._end)):
            self.named(offset)

    def gone(self) -> list[GonePage]:
        """Dones whose page is not in the log and whose URL was not queued again since."""
        return sorted(self._gone.values())

    def unparsed(self) -> list[int]:
        """Offsets before `parsed` of pages without a result."""
        alone = [at for at in self._unnamed() if self._start + at >= self._asked.get(self._names[at], 0)]
        if not alone:
            return alone
        wanted = {self._names[at] for at in alone}
        wanted.discard(0)
        last = {name: at for at, name in enumerate(self._names) if name in wanted and self._is_settled(at)}
        return [self._start + at for at in alone if last.get(self._names[at], -1) < at]

    def _unnamed(self) -> Iterator[int]:
        marks, past = self._marks, max(self._parsed - self._start, 0)
        at = marks.find(THERE, 0, past)
        while at >= 0:
            yield at
            at = marks.find(THERE, at + 1, past)

    def _is(self, offset: int, name: int) -> bool:
        return self._start <= offset < self._end and self._names[offset - self._start] == name

    def _is_settled(self, at: int) -> bool:
        """Whether a page has a result, or is not parsed yet."""
        return bool(self._marks[at] & NAMED) or self._start + at >= self._parsed
