"""The seen table: the URLs that a job knows, as fingerprints of each (job, epoch, registrable domain) in pages.

An exact job keeps whole fingerprints by domain (`fingerprints`): a look-up or an insert touches one page of some KiB,
which stays in memory while it is used. Other jobs have one Bloom filter for all domains (`bloom`). `flush` writes
changed pages and blocks before a checkpoint.
"""

from collections import deque
from itertools import count

from . import rows as r
from .bloom import Blocks, BloomFilter
from .fingerprints import Domain, Exact, ExactPage, RecentMarks
from .overlay import Rows

_BLOCKS_PER_PAGE = 6  # Blocks of Bloom filters that take the memory of an exact page, 3 KB


class SeenTable:
    """The known URLs of all jobs in one partition.

    Args:
        rows: The state; pages and domains are written to it by `flush`.
        cached: Pages held in memory, an eighth more between two flushes; the least used ones go first.
        partitions: Partitions that share a job's URLs.

    Attributes:
        recent: What was known lately, once pages have left memory.
        changes: Inserts since `flush`: each may hold a changed page in memory that no row shows yet.
    """

    def __init__(self, rows: Rows, cached: int = 4096, partitions: int = 1) -> None:
        self.rows = rows
        self.cached = cached
        self.partitions = partitions
        self.recent: RecentMarks | None = None
        self._numbers = count(1)
        self._domains: dict[tuple[int, int, int], Exact] = {}
        # Domains of jobs with a Bloom filter, until the next flush: they only count their URLs.
        self._counted: dict[tuple[int, int, int], Domain] = {}
        self._filters: dict[tuple[int, int], BloomFilter] = {}
        self._blocks = Blocks(rows, cached * _BLOCKS_PER_PAGE)
        # Domains only while they have no page: with pages, the pages are held.
        self._held: deque[ExactPage | Exact] = deque()
        self._most = _with_slack(cached)
        self._changed: list[ExactPage] = []
        self._grown: list[Domain] = []
        self.changes = 0

    def knows(self, job: int, epoch: int, domain: int, fingerprint: int, error: float) -> bool:
        """Whether the URL was seen.

        Args:
            domain: Hash of the registrable domain, as in keys.
            error: The job's rate of new URLs taken for known ones, fixed for its life; 0 for an exact job.
        """
        if error:
            return (self._filters.get((job, epoch)) or self._filter(job, epoch, error)).has(fingerprint)
        if len(self._held) > self._most:  # only here: no caller holds a page now
            self._let_go(self.cached)
        return (self._domains.get((job, epoch, domain)) or self._exact(job, epoch, domain)).has(fingerprint)

    def insert(self, job: int, epoch: int, domain: int, fingerprint: int, error: float) -> None:
        """Mark a URL as seen; `knows` was False for it."""
        entry = self.domain(job, epoch, domain, error)
        if isinstance(entry, Exact):
            entry.add(fingerprint)
        else:
            self._filter(job, epoch, error).add(fingerprint)
        entry.queued += 1
        self.changes += 1
        if not entry.dirty:
            entry.dirty = True
            self._grown.append(entry)

    def domain(self, job: int, epoch: int, domain: int, error: float) -> Domain:
        """A domain with its pages and the number of URLs that were ever queued."""
        key = (job, epoch, domain)
        if not error:
            return self._domains.get(key) or self._exact(*key)
        entry = self._counted.get(key)
        if entry is None:
            if len(self._counted) > self.cached:
                self._counted = {key: one for key, one in self._counted.items() if one.dirty}
            entry = self._counted[key] = Domain(key, self._row(key))
        return entry

    def _exact(self, job: int, epoch: int, domain: int) -> Exact:
        key = (job, epoch, domain)
        entry = self._domains[key] = Exact(self, key, self._row(key))
        if not entry.size:
            self._held.append(entry)
        return entry

    def _row(self, key: tuple[int, int, int]) -> r.DomainRow:
        stored = self.rows.get(r.domain_key(*key))
        return r.read_domain(stored) if stored else r.DomainRow(0, 0)

    def _filter(self, job: int, epoch: int, error: float) -> BloomFilter:
        found = self._filters.get((job, epoch))
        if found is None:
            found = BloomFilter(self._blocks, self.rows, job, epoch, error, self.partitions)
            self._filters[job, epoch] = found
        return found

    def holds(self, job: int, epoch: int, domain: int) -> bool:
        """Whether a domain is in memory."""
        key = (job, epoch, domain)
        return key in self._domains or key in self._counted

    def number(self) -> int:
        """A number for a domain that comes into memory."""
        return next(self._numbers)

    def hold(self, page: ExactPage) -> None:
        """Cache a page that was read or made; it stays until others are used more."""
        self._held.append(page)

    def changed(self, page: ExactPage) -> None:
        """Remember that a page must be written."""
        page.dirty = True
        self._changed.append(page)

    def forget(self, job: int) -> None:
        """Remove a job from memory: its rows were dropped."""
        self._domains = {key: entry for key, entry in self._domains.items() if key[0] != job}
        self._counted = {key: entry for key, entry in self._counted.items() if key[0] != job}
        self._filters = {key: one for key, one in self._filters.items() if key[0] != job}
        self._blocks.forget(job)
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
            if isinstance(entry, Exact):
                self._forget_if_bare(entry)
        self._grown.clear()
        self._blocks.flush()
        for one in self._filters.values():
            one.write(self.rows)
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
            if one.used or one.dirty:
                one.used = False
                self._held.append(one)
                continue
            entry = _domain_of(one)
            if isinstance(one, ExactPage):
                if self.recent is None:
                    self.recent = RecentMarks(self.cached)
                del entry.pages[one.slot]
                self._forget_if_bare(entry)
            elif not entry.pages and self._domains.get(entry.key) is entry:  # it may have gone with its last page
                del self._domains[entry.key]
        self._most = _with_slack(max(self.cached, len(self._held)))

    def _forget_if_bare(self, entry: Exact) -> None:
        """Remove a domain from memory that has pages, but none in memory."""
        if entry.size and not entry.pages and not entry.dirty and self._domains.get(entry.key) is entry:
            del self._domains[entry.key]


def _with_slack(pages: int) -> int:
    """So many pages that letting the surplus go is worth a walk."""
    return pages + (pages >> 3) + 1


def _domain_of(held: ExactPage | Exact) -> Exact:
    return held.domain if isinstance(held, ExactPage) else held
