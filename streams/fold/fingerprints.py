"""How the fingerprints of one registrable domain lie in pages: the exact way, and the Bloom filter's.

A page is the part of a domain that is read, changed and held together; a fingerprint's bits say which one is its own.
The domain's row says how many there are (`size`). What a page holds, and how its rows hold it, depends on the sequence
of offers only, so two folds of one log give the same bytes.
"""

from array import array
from bisect import bisect_left, insort
from operator import index
from typing import Any, Generic, Protocol, TypeVar

from rbloom import Bloom

from . import rows as r
from .overlay import Rows

FULL = 448
"""Fingerprints of an exact page beyond which its domain gets one page more: 3.5 KiB."""

LATEST = 64
"""Fingerprints of an exact page that lie beside it, in a row of their own, before the page is written anew: an insert
then writes 300 bytes or so instead of some KiB. A domain with no more of them has no page: they lie in its row."""

LEVELS = ((32, 1), (256, 1), (0, 2), (0, 16), (0, 128), (0, 1024), (0, 8192))
"""(keys a page, pages) of a filter by level; 0 stands for a full page. The last level takes whatever comes."""

FILTER = (1000, 1e-6)
"""Keys of a filter's full page and its false positive rate: 3.6 KB."""


def _down_from_each(levels: tuple[tuple[int, int], ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(level, the bits of a slot that choose its page), from each level down. Pages are powers of two."""
    masks = [(level, pages - 1 << 3) for level, (_, pages) in enumerate(levels)]
    return tuple(tuple(reversed(masks[: top + 1])) for top in range(len(levels)))


_DOWN_FROM = _down_from_each(LEVELS)
_PAGE_BITS_FROM = 10
"""Where in a fingerprint, shifted by so much, the bits of a slot begin that choose the page: three bits further on."""


class FingerprintPage:
    """One page in memory."""

    __slots__ = ("dirty", "domain", "slot", "used")

    def __init__(self, domain: "Domain[Any]", slot: int) -> None:
        self.domain = domain
        self.slot = slot
        self.dirty = False
        self.used = False

    @property
    def is_needed(self) -> bool:
        """Whether it was used lately, or the rows do not have it yet."""
        return self.used or self.dirty or self.domain.dirty

    def write(self, rows: Rows) -> None:
        """Put what changed into the rows."""
        raise NotImplementedError


class Holder(Protocol):
    """Who holds the pages of all domains."""

    rows: Rows

    def hold(self, page: FingerprintPage) -> None:
        """A page was read or made."""

    def changed(self, page: FingerprintPage) -> None:
        """A page that was clean is to be written."""


P = TypeVar("P", bound=FingerprintPage)


class Domain(Generic[P]):
    """A domain in memory, with those of its pages that are.

    Attributes:
        key: (job, epoch, hash of the registrable domain).
        size: How many pages it has; of a filter the top level.
        queued: URLs ever queued.
        used: It was asked, lately, without a page.
    """

    __slots__ = ("dirty", "holder", "key", "pages", "queued", "size", "used")

    def __init__(self, holder: Holder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        self.holder = holder
        self.key = key
        self.size = row.size
        self.queued = row.queued
        self.dirty = False
        self.used = False
        self.pages: dict[int, P] = {}

    @property
    def is_needed(self) -> bool:
        """Whether it was used lately, or the rows do not have it yet."""
        return self.used or self.dirty

    @property
    def row(self) -> r.DomainRow:
        """What its row says."""
        return r.DomainRow(self.size, self.queued)

    def has(self, fingerprint: int) -> bool:
        """Whether it was added."""
        raise NotImplementedError

    def add(self, fingerprint: int) -> None:
        """Add one that `has` did not have."""
        raise NotImplementedError


class _ExactPage(FingerprintPage):
    """Fingerprints in two rows: most of them sorted, the latest ones beside them in order of coming.

    Attributes:
        marks: All of them, sorted; 8 bytes each in the machine's order: low first, wherever RocksDB has a wheel.
        latest: Those of them that the sorted row has not.
        whole: The sorted row, where it is to be written.
        is_beside: The rows have a row of latest ones.
    """

    __slots__ = ("is_beside", "latest", "marks", "whole")

    def __init__(self, domain: Domain[Any], slot: int, stored: bytes, latest: bytes) -> None:
        super().__init__(domain, slot)
        self.marks = array("Q", stored)
        self.latest = array("Q", latest)
        self.whole: bytes | None = None
        self.is_beside = bool(latest)
        if latest:
            self.marks = array("Q", sorted([*self.marks, *self.latest]))

    def add(self, fingerprint: int) -> None:
        """One more; what is beside the page joins it when there is much of it."""
        insort(self.marks, fingerprint)
        self.latest.append(fingerprint)
        if len(self.latest) > LATEST:
            self.settle()

    def settle(self) -> None:
        """The sorted row has all of them, as they are now: whenever it is written, by any fold of the log."""
        self.whole = self.marks.tobytes()
        self.latest = array("Q")

    def write(self, rows: Rows) -> None:
        """The sorted row only where it has other fingerprints than before."""
        if self.whole is not None:
            rows.put(r.exact_key(*self.domain.key, self.slot), self.whole)
            self.whole = None
        if self.latest:
            rows.put(r.latest_key(*self.domain.key, self.slot), self.latest.tobytes())
        elif self.is_beside:
            rows.delete(r.latest_key(*self.domain.key, self.slot))
        self.is_beside = bool(self.latest)


class Exact(Domain[_ExactPage]):
    """Whole fingerprints, sorted, by linear hashing (Litwin 1980): a look-up reads one page, and is never wrong.

    A page that is full has the domain get one page more, which takes its half of the page whose turn it is. So pages
    are split in the order of their numbers, whichever was full, and `size` alone says where a fingerprint lies.

    Most domains of a crawl of many have few URLs. Their fingerprints lie in the domain's own row, one look-up and one
    write for all that is known of them; the first page is made of these.
    """

    __slots__ = ("few", "mask")

    def __init__(self, holder: Holder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        super().__init__(holder, key, row)
        self.mask = _mask(self.size)
        self.few = array("Q", row.few)

    @property
    def row(self) -> r.DomainRow:
        """What its row says: its fingerprints too, while it has no page."""
        return r.DomainRow(self.size, self.queued, self.few.tobytes())

    def has(self, fingerprint: int) -> bool:
        """Whether it was added: one search in one page."""
        if not self.size:
            self.used = True
            few = self.few
            at = bisect_left(few, fingerprint)
            return at < len(few) and few[at] == fingerprint
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
        if not self.size:
            insort(self.few, fingerprint)
            if len(self.few) > LATEST:
                self._begin_pages()
            return
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        page = self.pages.get(slot) or self._load(slot)
        page.add(fingerprint)
        if not page.dirty:
            self.holder.changed(page)
        if len(page.marks) > FULL:
            self._grow()

    def _begin_pages(self) -> None:
        """The first page, of what lay in the domain's row."""
        page = self._hold(_ExactPage(self, 0, b"", b""))
        page.marks, self.few = self.few, page.marks
        page.settle()
        self.holder.changed(page)
        self.size = 1

    def _grow(self) -> None:
        """One page more."""
        slot, self.size = self.size, self.size + 1
        mask = self.mask = _mask(self.size)
        source = self.pages.get(slot & (mask >> 1)) or self._load(slot & (mask >> 1))
        page = self._hold(_ExactPage(self, slot, b"", b""))
        page.marks = array("Q", [mark for mark in source.marks if mark & mask == slot])
        source.marks = array("Q", [mark for mark in source.marks if mark & mask != slot])
        for each in (source, page):
            each.settle()
            if not each.dirty:
                self.holder.changed(each)

    def _load(self, slot: int) -> _ExactPage:
        get = self.holder.rows.get
        stored = get(r.exact_key(*self.key, slot)) or b""
        return self._hold(_ExactPage(self, slot, stored, get(r.latest_key(*self.key, slot)) or b""))

    def _hold(self, page: _ExactPage) -> _ExactPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page


def _mask(size: int) -> int:
    """The bits that number so many pages."""
    return (1 << max(size - 1, 0).bit_length()) - 1


class _FilterPage(FingerprintPage):
    """A Bloom filter; `count` of its keys is stored before it."""

    __slots__ = ("bloom", "count", "full")

    def __init__(self, domain: Domain[Any], slot: int, stored: bytes | None) -> None:
        super().__init__(domain, slot)
        keys, rate = FILTER
        self.full = LEVELS[slot & 7][0] or keys
        self.count = int.from_bytes(stored[:4], "big") if stored else 0
        self.bloom = (
            Bloom.load_bytes(stored[4:], hash_func=index) if stored else Bloom(self.full, rate, hash_func=index)
        )

    def write(self, rows: Rows) -> None:
        """How many were added, and the filter."""
        key = r.page_key(*self.domain.key, self.slot & 7, self.slot >> 3)
        rows.put(key, self.count.to_bytes(4, "big") + self.bloom.save_bytes())


class Filter(Domain[_FilterPage]):
    """A Bloom filter in levels, each of more pages than the one before; one in a million is wrongly known.

    A level is closed when one of its pages is full. A look-up reads at most one page a level, an insert changes one.
    """

    __slots__ = ()

    def has(self, fingerprint: int) -> bool:
        """Whether a page has it: those of the top level first, which has the most."""
        pages = self.pages
        bits = fingerprint >> _PAGE_BITS_FROM
        for level, mask in _DOWN_FROM[self.size]:
            page = pages.get(bits & mask | level) or self._load(bits & mask | level)
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
        slot = fingerprint >> _PAGE_BITS_FROM & _DOWN_FROM[self.size][0][1] | self.size
        return self.pages.get(slot) or self._load(slot)

    def _load(self, slot: int) -> _FilterPage:
        stored = self.holder.rows.get(r.page_key(*self.key, slot & 7, slot >> 3))
        page = self.pages[slot] = _FilterPage(self, slot, stored)
        self.holder.hold(page)
        return page
