"""The seen table: which URLs a job knows, as Bloom pages over exact fingerprints.

Per (job, epoch, registrable domain) the pages form levels. Level 0 is one tiny page; each further level has more
pages, and a fingerprint's bits choose its page in each. A level is closed when a page of it is full, so an insert
dirties one page and a look-up reads at most one page a level. A "seen" answer of a page is confirmed against the exact
fingerprints; a false positive then costs a read, never a page. Without confirmation the filters alone decide.

Every value depends on the sequence of offers only, so two folds of one log give the same bytes.
"""

from collections import deque
from operator import index

from rbloom import Bloom

from . import rows as r

LEVELS = ((32, 1), (256, 1), (0, 2), (0, 16), (0, 128), (0, 1024), (0, 8192))
"""(keys a page, pages) by level; 0 stands for a full page. The last level takes whatever comes."""

CONFIRMED = (2048, 1e-3)
"""Keys of a full page and its false positive rate where fingerprints confirm: 3.7 KB."""

UNCONFIRMED = (1000, 1e-6)
"""The same where the filter alone decides: 3.6 KB."""


def _down_from_each(levels: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(level, the bits of a slot that choose its page), from each level down. Pages are powers of two."""
    masks = [(level, pages - 1 << 3) for level, (_, pages) in enumerate(levels)]
    return tuple(tuple(reversed(masks[: top + 1])) for top in range(len(levels)))


_DOWN_FROM = _down_from_each(LEVELS)
_PAGE_BITS_FROM = 10
"""Where in a fingerprint, shifted by so much, the bits of a slot begin that choose the page: three bits further on."""


class _Domain:
    """A domain in memory, with those of its pages that are."""

    __slots__ = ("dirty", "key", "pages", "queued", "top")

    def __init__(self, key: tuple[int, int, int], top: int, queued: int) -> None:
        self.key = key
        self.top = top
        self.queued = queued
        self.dirty = False
        self.pages: dict[int, _Page] = {}


class _Page:
    """One Bloom page in memory; `count` of its keys is stored before the filter."""

    __slots__ = ("bloom", "count", "dirty", "domain", "full", "slot", "used")

    def __init__(self, bloom: Bloom, count: int, full: int, domain: _Domain, slot: int) -> None:
        self.bloom = bloom
        self.count = count
        self.full = full
        self.domain = domain
        self.slot = slot
        self.dirty = False
        self.used = False


class SeenTable:
    """Offers of one partition's fold.

    Args:
        rows: The state; pages and domains are written to it by `flush`, fingerprints at once.
        cached: Pages held in memory before those not used lately are let go.
    """

    def __init__(self, rows: r.Rows, cached: int = 4096) -> None:
        self.rows = rows
        self.cached = cached
        self._domains: dict[tuple[int, int, int], _Domain] = {}
        self._held: deque[_Page] = deque()
        self._most = 2 * cached
        self._changed: list[_Page] = []
        self._grown: list[_Domain] = []
        self._ahead: dict[int, bytes | None] = {}

    def knows(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool) -> bytes | None:
        """The fingerprint's row (often empty) when the URL was seen, else None.

        Args:
            domain: Hash of the registrable domain, as in keys.
            confirm: The job's setting; fixed for the job's life.
        """
        if fingerprint in self._ahead:
            return self._ahead[fingerprint]
        if len(self._held) > self._most:  # here, where nobody holds a page
            self._let_go(self.cached)
        entry = self._domains.get((job, epoch, domain)) or self.domain(job, epoch, domain)
        if self._maybe(entry, fingerprint, confirm):
            return self.rows.get(r.seen_key(job, epoch, domain, fingerprint)) if confirm else b""
        return None

    def read_ahead(self, job: int, epoch: int, marks: list[tuple[int, int]]) -> None:
        """Look up together what `knows` will be asked of one record, in a job that confirms: it costs half as much.

        The answers stand until `let_go_ahead`; what is inserted or updated meanwhile is noted in them.

        Args:
            marks: (domain, fingerprint) of each URL.
        """
        if len(self._held) > self._most:
            self._let_go(self.cached)
        ahead: dict[int, bytes | None] = {}
        maybe: dict[bytes, int] = {}
        last = None
        for domain, fingerprint in marks:
            if domain != last:
                last = domain
                entry = self.domain(job, epoch, domain)
                prefix = r.seen_key(job, epoch, domain, 0)[:-8]
            if self._maybe(entry, fingerprint, True):
                maybe[prefix + fingerprint.to_bytes(8, "big")] = fingerprint
            else:
                ahead[fingerprint] = None
        for key, stored in self.rows.get_many(maybe).items():
            ahead[maybe[key]] = stored
        self._ahead = ahead

    def let_go_ahead(self) -> None:
        """Forget what was read ahead: the record is folded."""
        self._ahead = {}

    def _maybe(self, entry: _Domain, fingerprint: int, confirm: bool) -> bool:
        """Whether a page has the fingerprint: those of the top level first, which has the most."""
        pages = entry.pages
        bits = fingerprint >> _PAGE_BITS_FROM
        for level, mask in _DOWN_FROM[entry.top]:
            page = pages.get(bits & mask | level) or self._load(entry, bits & mask | level, confirm)
            page.used = True
            if fingerprint in page.bloom:
                return True
        return False

    def insert(self, job: int, epoch: int, domain: int, fingerprint: int, confirm: bool, value: bytes = b"") -> None:
        """Mark a URL as seen that `knows` did not know."""
        entry = self.domain(job, epoch, domain)
        page = self._page(entry, fingerprint, confirm)
        if page.count >= page.full and entry.top < len(LEVELS) - 1:
            entry.top += 1
            page = self._page(entry, fingerprint, confirm)
        page.bloom.add(fingerprint)
        page.count += 1
        if not page.dirty:
            page.dirty = True
            self._changed.append(page)
        entry.queued += 1
        if not entry.dirty:
            entry.dirty = True
            self._grown.append(entry)
        if confirm:
            self.rows.put(r.seen_key(job, epoch, domain, fingerprint), value)
            if self._ahead:
                self._ahead[fingerprint] = value

    def update(self, job: int, epoch: int, domain: int, fingerprint: int, value: bytes) -> None:
        """Replace the row of a fingerprint that is known."""
        if self._ahead:
            self._ahead[fingerprint] = value
        self.rows.put(r.seen_key(job, epoch, domain, fingerprint), value)

    def domain(self, job: int, epoch: int, domain: int) -> _Domain:
        """The domain's levels and how many of its URLs were ever queued."""
        key = (job, epoch, domain)
        entry = self._domains.get(key)
        if entry is None:
            stored = self.rows.get(r.domain_key(job, epoch, domain))
            row = r.read_domain(stored) if stored else r.DomainRow(0, 0)
            entry = self._domains[key] = _Domain(key, row.top, row.queued)
        return entry

    def forget(self, job: int) -> None:
        """Let go of all that is held of a job whose rows were dropped."""
        self._domains = {key: entry for key, entry in self._domains.items() if key[0] != job}
        self._held = deque(page for page in self._held if page.domain.key[0] != job)
        self._changed = [page for page in self._changed if page.domain.key[0] != job]
        self._grown = [entry for entry in self._grown if entry.key[0] != job]

    def flush(self) -> None:
        """Write what changed into the rows, and let old pages go: before each checkpoint."""
        for page in self._changed:
            self.rows.put(_page_key(page.domain, page.slot), page.count.to_bytes(4, "big") + page.bloom.save_bytes())
            page.dirty = False
        self._changed.clear()
        for entry in self._grown:
            self.rows.put(r.domain_key(*entry.key), r.pack(r.DomainRow(entry.top, entry.queued)))
            entry.dirty = False
        self._grown.clear()
        self._let_go(self.cached)

    def _let_go(self, most: int) -> None:
        """Forget pages until `most` are held: the longest held first, one used since it was last looked at later.

        What is dirty stays, and so does its domain: the rows do not have it yet.
        """
        for _ in range(2 * len(self._held)):
            if len(self._held) <= most:
                break
            page = self._held.popleft()
            entry = page.domain
            if page.used or page.dirty or entry.dirty:
                page.used = False
                self._held.append(page)
                continue
            del entry.pages[page.slot]
            if not entry.pages:
                del self._domains[entry.key]
        self._most = max(2 * self.cached, 2 * len(self._held))

    def _page(self, entry: _Domain, fingerprint: int, confirm: bool) -> _Page:
        slot = _slot(entry.top, fingerprint)
        return entry.pages.get(slot) or self._load(entry, slot, confirm)

    def _load(self, entry: _Domain, slot: int, confirm: bool) -> _Page:
        keys, rate = CONFIRMED if confirm else UNCONFIRMED
        keys = LEVELS[slot & 7][0] or keys
        stored = self.rows.get(_page_key(entry, slot))
        count = 0
        if stored is None:
            bloom = Bloom(keys, rate, hash_func=index)
        else:
            count = int.from_bytes(stored[:4], "big")
            bloom = Bloom.load_bytes(stored[4:], hash_func=index)
        page = entry.pages[slot] = _Page(bloom, count, keys, entry, slot)
        self._held.append(page)
        return page


def _slot(level: int, fingerprint: int) -> int:
    """A fingerprint's page in a level, as (page << 3) + level."""
    return fingerprint >> _PAGE_BITS_FROM & _DOWN_FROM[level][0][1] | level


def _page_key(entry: _Domain, slot: int) -> bytes:
    return r.page_key(*entry.key, slot & 7, slot >> 3)
