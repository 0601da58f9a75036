"""The seen table: the URLs that a job knows, as fingerprints of each (job, epoch, registrable domain) in pages.

A look-up or an insert touches one page of some KiB, which stays in memory while it is used. `flush` writes changed
pages before a checkpoint. A job that confirms keeps whole fingerprints (`Exact`), by domain; otherwise one filter for
all domains decides alone (`FilterTable`).
"""

from collections import deque
from itertools import count
from typing import Any

from . import rows as r
from .filters import MOST_BITS, FilterTable
from .fingerprints import Domain, Exact, FingerprintPage
from .overlay import Rows
from .recent import RecentMarks


class SeenTable:
    """The known URLs of all jobs in one partition.

    Args:
        rows: The state; pages and domains are written to it by `flush`.
        cached: Pages held in memory, an eighth more between two flushes; the least used ones go first.
        filter_bits: Bits of a fingerprint in a filter.

    Attributes:
        recent: What was known lately, once pages have left memory.
        changes: Inserts since `flush`: each may hold a changed page in memory that no row shows yet.
    """

    def __init__(self, rows: Rows, cached: int = 4096, filter_bits: int = MOST_BITS) -> None:
        self.rows = rows
        self.cached = cached
        self.filter_bits = filter_bits
        self.recent: RecentMarks | None = None
        self._numbers = count(1)
        self._domains: dict[tuple[int, int, int], Exact] = {}
        # Domains of jobs with a filter, until the next flush: they only count their URLs.
        self._counted: dict[tuple[int, int, int], Domain[Any]] = {}
        self._filters: dict[tuple[int, int], FilterTable] = {}
        # Domains only while they have no page: with pages, the pages are held.
        self._held: deque[FingerprintPage | Domain[Any]] = deque()
        self._most = _with_slack(cached)
        self._changed: list[FingerprintPage] = []
        self._grown: list[Domain[Any]] = []
        self.changes = 0

    def knows(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool) -> bool:
        """Whether the URL was seen.

        Args:
            domain: Hash of the registrable domain, as in keys.
            confirm: The job's setting; fixed for the job's life.
        """
        if len(self._held) > self._most:  # only here: no caller holds a page now
            self._let_go(self.cached)
        if not confirm:
            return (self._filters.get((job, epoch)) or self._filter(job, epoch)).has(fingerprint)
        return (self._domains.get((job, epoch, domain)) or self.domain(job, epoch, domain, confirm)).has(fingerprint)

    def insert(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool) -> None:
        """Mark a URL as seen; `knows` was False for it."""
        known = self._domains if confirm else self._counted
        entry = known.get((job, epoch, domain)) or self.domain(job, epoch, domain, confirm)
        (entry if confirm else self._filter(job, epoch)).add(fingerprint)
        entry.queued += 1
        self.changes += 1
        if not entry.dirty:
            self.grown(entry)

    def domain(self, job: int, epoch: int, domain: int, confirm: bool) -> Domain[Any]:
        """A domain with its pages and the number of URLs that were ever queued."""
        key = (job, epoch, domain)
        entry = (self._domains if confirm else self._counted).get(key)
        if entry is None:
            stored = self.rows.get(r.domain_key(job, epoch, domain))
            row = r.read_domain(stored) if stored else r.DomainRow(0, 0)
            if not confirm:
                return self._count(Domain(self, key, row))
            entry = self._domains[key] = Exact(self, key, row)
            if not row.size:
                self._held.append(entry)
        return entry

    def _count(self, entry: Domain[Any]) -> Domain[Any]:
        if len(self._counted) > self.cached:
            self._counted = {key: one for key, one in self._counted.items() if one.dirty}
        self._counted[entry.key] = entry
        return entry

    def _filter(self, job: int, epoch: int) -> FilterTable:
        table = self._filters.get((job, epoch))
        if table is None:
            table = self._filters[job, epoch] = FilterTable(self, job, epoch, self.filter_bits)
        return table

    def holds(self, job: int, epoch: int, domain: int) -> bool:
        """Whether a domain is in memory."""
        key = (job, epoch, domain)
        return key in self._domains or key in self._counted

    def number(self) -> int:
        """A number for a domain that comes into memory."""
        return next(self._numbers)

    def hold(self, page: FingerprintPage) -> None:
        """Cache a page that was read or made; it stays until others are used more."""
        self._held.append(page)

    def changed(self, page: FingerprintPage) -> None:
        """Remember that a page must be written."""
        page.dirty = True
        self._changed.append(page)

    def grown(self, domain: Domain[Any]) -> None:
        """Remember that a domain's row must be written."""
        domain.dirty = True
        self._grown.append(domain)

    def forget(self, job: int) -> None:
        """Remove a job from memory: its rows were dropped."""
        self._domains = {key: entry for key, entry in self._domains.items() if key[0] != job}
        self._counted = {key: entry for key, entry in self._counted.items() if key[0] != job}
        self._filters = {key: table for key, table in self._filters.items() if key[0] != job}
        self._held = deque(one for one in self._held if _domain_of(one).key[0] != job)
        self._changed = [page for page in self._changed if page.domain.key[0] != job]
        self._grown = [entry for entry in self._grown if entry.key[0] != job]

    def flush(self) -> None:
        """Write what changed into the rows and evict old pages: before each checkpoint."""
        for page in self._changed:
            page.write(self.rows)
            page.dirty = False
        self._changed.clear()
        for entry in self._grown:
            entry.write(self.rows)
            entry.dirty = False
            self._forget_if_bare(entry)
        self._grown.clear()
        self._counted.clear()
        self.changes = 0
        self._let_go(self.cached)

    def _let_go(self, most: int) -> None:
        """Evict pages until `most` are held: the oldest first; a page used since its last turn gets another turn.

        A page stays while it is dirty, and a domain's row too, because the rows do not have them yet.
        """
        for _ in range(2 * len(self._held)):
            if len(self._held) <= most:
                break
            one = self._held.popleft()
            if one.is_needed:
                one.used = False
                self._held.append(one)
                continue
            entry = _domain_of(one)
            if isinstance(one, FingerprintPage):
                if self.recent is None:
                    self.recent = RecentMarks(self.cached)
                del entry.pages[one.slot]
                self._forget_if_bare(entry)
            elif not entry.pages and self._domains.get(entry.key) is entry:  # it may have gone with its last page
                del self._domains[entry.key]
        self._most = _with_slack(max(self.cached, len(self._held)))

    def _forget_if_bare(self, entry: Domain[Any]) -> None:
        """Remove a domain from memory that has pages, but none in memory."""
        if entry.size and not entry.pages and not entry.dirty and self._domains.get(entry.key) is entry:
            del self._domains[entry.key]


def _with_slack(pages: int) -> int:
    """So many pages that letting the surplus go is worth a walk."""
    return pages + (pages >> 3) + 1


def _domain_of(held: FingerprintPage | Domain[Any]) -> Domain[Any]:
    return held.domain if isinstance(held, FingerprintPage) else held
