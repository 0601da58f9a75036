"""The seen table: which URLs a job knows, as Bloom pages over exact fingerprints.

Per (job, epoch, registrable domain) the pages form levels. Level 0 is one tiny page; each further level has more
pages, and a fingerprint's bits choose its page in each. A level is closed when a page of it is full, so an insert
dirties one page and a look-up reads at most one page a level. A "seen" answer of a page is confirmed against the exact
fingerprints; a false positive then costs a read, never a page. Without confirmation the filters alone decide.

Every value depends on the sequence of offers only, so two folds of one log give the same bytes.
"""

from collections import OrderedDict
from operator import index

from rbloom import Bloom

from . import rows as r

LEVELS = ((32, 1), (256, 1), (0, 2), (0, 16), (0, 128), (0, 1024), (0, 8192))
"""(keys a page, pages) by level; 0 stands for a full page. The last level takes whatever comes."""

CONFIRMED = (2048, 1e-3)
"""Keys of a full page and its false positive rate where fingerprints confirm: 3.7 KB."""

UNCONFIRMED = (1000, 1e-6)
"""The same where the filter alone decides: 3.6 KB."""


class _Page:
    """One Bloom page in memory; `count` of its keys is stored before the filter."""

    __slots__ = ("bloom", "count", "dirty", "full")

    def __init__(self, bloom: Bloom, count: int, full: int) -> None:
        self.bloom = bloom
        self.count = count
        self.full = full
        self.dirty = False


class _Domain:
    __slots__ = ("dirty", "queued", "top")

    def __init__(self, top: int, queued: int) -> None:
        self.top = top
        self.queued = queued
        self.dirty = False


class SeenTable:
    """Offers of one partition's fold.

    Args:
        rows: The state; pages and domains are written to it by `flush`, fingerprints at once.
        cached: Pages held in memory before old ones are let go.
    """

    def __init__(self, rows: r.Rows, cached: int = 4096) -> None:
        self.rows = rows
        self.cached = cached
        self._pages: OrderedDict[bytes, _Page] = OrderedDict()
        self._domains: OrderedDict[bytes, _Domain] = OrderedDict()
        self._changed: dict[bytes, _Page] = {}

    def knows(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool) -> bytes | None:
        """The fingerprint's row (often empty) when the URL was seen, else None.

        Args:
            domain: Hash of the registrable domain, as in keys.
            confirm: The job's setting; fixed for the job's life.
        """
        entry = self.domain(job, epoch, domain)
        for level in range(entry.top, -1, -1):
            if fingerprint in self._page(job, epoch, domain, level, fingerprint, confirm).bloom:
                if not confirm:
                    return b""
                return self.rows.get(r.seen_key(job, epoch, fingerprint))
        return None

    def insert(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool, value: bytes = b"") -> None:
        """Mark a URL as seen that `knows` did not know."""
        entry = self.domain(job, epoch, domain)
        page = self._page(job, epoch, domain, entry.top, fingerprint, confirm)
        if page.count >= page.full and entry.top < len(LEVELS) - 1:
            entry.top += 1
            page = self._page(job, epoch, domain, entry.top, fingerprint, confirm)
        page.bloom.add(fingerprint)
        page.count += 1
        if not page.dirty:
            page.dirty = True
            self._changed[self._key(job, epoch, domain, entry.top, fingerprint)] = page
        entry.queued += 1
        entry.dirty = True
        if confirm:
            self.rows.put(r.seen_key(job, epoch, fingerprint), value)

    def update(self, job: int, epoch: int, fingerprint: int, value: bytes) -> None:
        """Replace the row of a fingerprint that is known."""
        self.rows.put(r.seen_key(job, epoch, fingerprint), value)

    def domain(self, job: int, epoch: int, domain: int) -> _Domain:
        """The domain's levels and how many of its URLs were ever queued."""
        key = r.domain_key(job, epoch, domain)
        entry = self._domains.get(key)
        if entry is None:
            stored = self.rows.get(key)
            row = r.read_domain(stored) if stored else r.DomainRow(0, 0)
            entry = self._domains[key] = _Domain(row.top, row.queued)
        return entry

    def flush(self) -> None:
        """Write what changed into the rows, and let old pages go: before each checkpoint."""
        for key, page in self._changed.items():
            self.rows.put(key, page.count.to_bytes(4, "big") + page.bloom.save_bytes())
            page.dirty = False
        self._changed.clear()
        for key, entry in self._domains.items():
            if entry.dirty:
                self.rows.put(key, r.pack(r.DomainRow(entry.top, entry.queued)))
                entry.dirty = False
        while len(self._pages) > self.cached:
            self._pages.popitem(last=False)
        while len(self._domains) > self.cached:
            self._domains.popitem(last=False)

    def _page(self, job: int, epoch: int, domain: int, level: int, fingerprint: int, confirm: bool) -> _Page:
        key = self._key(job, epoch, domain, level, fingerprint)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = self._changed.get(key) or self._load(key, level, confirm)
        return page

    def _key(self, job: int, epoch: int, domain: int, level: int, fingerprint: int) -> bytes:
        return r.page_key(job, epoch, domain, level, (fingerprint >> 13) % LEVELS[level][1])

    def _load(self, key: bytes, level: int, confirm: bool) -> _Page:
        keys, rate = CONFIRMED if confirm else UNCONFIRMED
        keys = LEVELS[level][0] or keys
        stored = self.rows.get(key)
        if stored is None:
            return _Page(Bloom(keys, rate, hash_func=index), 0, keys)
        return _Page(Bloom.load_bytes(stored[4:], hash_func=index), int.from_bytes(stored[:4], "big"), keys)
