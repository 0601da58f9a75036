"""How the fingerprints of one registrable domain lie in pages: the exact way, and the Bloom filter's.

A page is one small row, and the part of a domain that is read, changed and written together; a fingerprint's bits say
which one is its own. The domain's row says how many there are (`size`). What a page holds depends on the sequence of
offers only, so two folds of one log give the same bytes.
"""

from array import array
from bisect import bisect_left, insort
from operator import index
from typing import Any, Generic, Protocol, TypeVar

from rbloom import Bloom

from . import rows as r

FULL = 256
"""Fingerprints of an exact page beyond which its domain gets one page more: 2 KiB."""

LEVELS = ((32, 1), (256, 1), (0, 2), (0, 16), (0, 128), (0, 1024), (0, 8192))
"""(keys a page, pages) of a filter by level; 0 stands for a full page. The last level takes whatever comes."""

FILTER = (1000, 1e-6)
"""Keys of a filter's full page and its false positive rate: 3.6 KB."""

_DOWN_FROM = tuple(tuple((level, LEVELS[level][1]) for level in range(top, -1, -1)) for top in range(len(LEVELS)))
"""(level, its pages), from each level down."""


class Page:
    """One page in memory."""

    __slots__ = ("dirty", "domain", "slot", "used")

    def __init__(self, domain: "Domain[Any]", slot: int) -> None:
        self.domain = domain
        self.slot = slot
        self.dirty = False
        self.used = False

    def key(self) -> bytes:
        """The row's key."""
        raise NotImplementedError

    def value(self) -> bytes:
        """The row's value."""
        raise NotImplementedError


class Holder(Protocol):
    """Who holds the pages of all domains."""

    rows: r.Rows

    def hold(self, page: Page) -> None:
        """A page was read or made."""

    def changed(self, page: Page) -> None:
        """A page that was clean is to be written."""


P = TypeVar("P", bound=Page)


class Domain(Generic[P]):
    """A domain in memory, with those of its pages that are.

    Attributes:
        key: (job, epoch, hash of the registrable domain).
        size: How many pages it has; of a filter the top level.
        queued: URLs ever queued.
    """

    __slots__ = ("dirty", "holder", "key", "pages", "queued", "size")

    def __init__(self, holder: Holder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        self.holder = holder
        self.key = key
        self.size = row.size
        self.queued = row.queued
        self.dirty = False
        self.pages: dict[int, P] = {}

    def has(self, fingerprint: int) -> bool:
        """Whether it was added."""
        raise NotImplementedError

    def add(self, fingerprint: int) -> None:
        """Add one that `has` did not have."""
        raise NotImplementedError


class _ExactPage(Page):
    __slots__ = ("marks",)

    def __init__(self, domain: Domain[Any], slot: int, stored: bytes | None) -> None:
        super().__init__(domain, slot)
        self.marks = array("Q", stored or b"")

    def key(self) -> bytes:
        """The row's key."""
        return r.exact_key(*self.domain.key, self.slot)

    def value(self) -> bytes:
        """The fingerprints in order, 8 bytes each, in the machine's order: low first, wherever RocksDB has a wheel."""
        return self.marks.tobytes()


class Exact(Domain[_ExactPage]):
    """Whole fingerprints, sorted, by linear hashing (Litwin 1980): a look-up reads one page, and is never wrong.

    A page that is full has the domain get one page more, which takes its half of the page whose turn it is. So pages
    are split in the order of their numbers, whichever was full, and `size` alone says where a fingerprint lies.
    """

    __slots__ = ("mask",)

    def __init__(self, holder: Holder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        super().__init__(holder, key, row)
        self.mask = _mask(self.size)

    def has(self, fingerprint: int) -> bool:
        """Whether it was added: one search in one page."""
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        page = self.pages.get(slot) or self._load(slot)
        page.used = True
        marks = page.marks
        at = bisect_left(marks, fingerprint)
        return at < len(marks) and marks[at] == fingerprint

    def add(self, fingerprint: int) -> None:
        """Add one that `has` did not have; a page that is full then has the domain grow."""
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        page = self.pages.get(slot) or self._load(slot)
        marks = page.marks
        insort(marks, fingerprint)
        if not page.dirty:
            self.holder.changed(page)
        if len(marks) > FULL or not self.size:
            self._grow()

    def _grow(self) -> None:
        """One page more."""
        slot, self.size = self.size, self.size + 1
        if slot == 0:
            return
        mask = self.mask = _mask(self.size)
        source = self.pages.get(slot & (mask >> 1)) or self._load(slot & (mask >> 1))
        page = self._hold(_ExactPage(self, slot, None))
        page.marks = array("Q", [mark for mark in source.marks if mark & mask == slot])
        source.marks = array("Q", [mark for mark in source.marks if mark & mask != slot])
        for each in (source, page):
            if not each.dirty:
                self.holder.changed(each)

    def _load(self, slot: int) -> _ExactPage:
        stored = self.holder.rows.get(r.exact_key(*self.key, slot)) if self.size else None
        return self._hold(_ExactPage(self, slot, stored))

    def _hold(self, page: _ExactPage) -> _ExactPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page


def _mask(size: int) -> int:
    """The bits that number so many pages."""
    return (1 << max(size - 1, 0).bit_length()) - 1


class _FilterPage(Page):
    __slots__ = ("bloom", "count", "full")

    def __init__(self, domain: Domain[Any], slot: int, stored: bytes | None) -> None:
        super().__init__(domain, slot)
        keys, rate = FILTER
        self.full = LEVELS[slot & 7][0] or keys
        self.count = int.from_bytes(stored[:4], "big") if stored else 0
        self.bloom = (
            Bloom.load_bytes(stored[4:], hash_func=index) if stored else Bloom(self.full, rate, hash_func=index)
        )

    def key(self) -> bytes:
        """The row's key."""
        return r.page_key(*self.domain.key, self.slot & 7, self.slot >> 3)

    def value(self) -> bytes:
        """How many were added, and the filter."""
        return self.count.to_bytes(4, "big") + self.bloom.save_bytes()


class Filter(Domain[_FilterPage]):
    """A Bloom filter in levels, each of more pages than the one before; one in a million is wrongly known.

    A level is closed when one of its pages is full. A look-up reads at most one page a level, an insert changes one.
    """

    __slots__ = ()

    def has(self, fingerprint: int) -> bool:
        """Whether a page has it: those of the top level first, which has the most."""
        pages = self.pages
        for level, count in _DOWN_FROM[self.size]:
            slot = ((fingerprint >> 13) % count << 3) | level
            page = pages.get(slot) or self._load(slot)
            page.used = True
            if fingerprint in page.bloom:
                return True
        return False

    def add(self, fingerprint: int) -> None:
        """Add one that `has` did not have, to the top level."""
        page = self._page(fingerprint)
        if page.count >= page.full and self.size < len(LEVELS) - 1:
            self.size += 1
            page = self._page(fingerprint)
        page.bloom.add(fingerprint)
        page.count += 1
        if not page.dirty:
            self.holder.changed(page)

    def _page(self, fingerprint: int) -> _FilterPage:
        slot = ((fingerprint >> 13) % LEVELS[self.size][1] << 3) | self.size
        return self.pages.get(slot) or self._load(slot)

    def _load(self, slot: int) -> _FilterPage:
        stored = self.holder.rows.get(r.page_key(*self.key, slot & 7, slot >> 3))
        page = self.pages[slot] = _FilterPage(self, slot, stored)
        self.holder.hold(page)
        return page
