"""The fingerprints of one registrable domain, in pages.

A page is the unit that is read, changed and cached. The bits of a fingerprint choose its page; the domain's row has
the number of pages (`size`). The bytes of a page depend only on the sequence of offers, so two folds of one log write
the same bytes.
"""

from array import array
from bisect import bisect_left, insort
from typing import Any, Generic, Protocol, TypeVar

from . import rows as r
from .overlay import Rows
from .recent import RecentMarks

FULL = 448
"""Fingerprints of an exact page, at most: 3.5 KiB. With one more, its domain gets another page."""

LATEST = 64
"""The latest fingerprints of an exact page, at most: they have a row of their own, so an insert writes about 300 bytes
instead of some KiB. A domain with no more fingerprints than this has no page: they are in the domain's row."""


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
        return self.used or self.dirty

    def write(self, rows: Rows) -> None:
        """Put what changed into the rows."""
        raise NotImplementedError


class PageHolder(Protocol):
    """The seen table: it caches the pages of all domains."""

    rows: Rows
    recent: RecentMarks | None

    def number(self) -> int:
        """A number for a domain that comes into memory; no other has had it."""

    def hold(self, page: FingerprintPage) -> None:
        """A page was read or made."""

    def changed(self, page: FingerprintPage) -> None:
        """A page that was clean is to be written."""

    def grown(self, domain: "Domain[Any]") -> None:
        """A domain whose row was clean is to be written."""


P = TypeVar("P", bound=FingerprintPage)


class Domain(Generic[P]):
    """A domain in memory, with its pages that are in memory.

    Attributes:
        key: (job, epoch, hash of the registrable domain).
        size: The number of its pages.
        queued: URLs ever queued.
        used: Whether it was asked lately while it had no page.
    """

    __slots__ = ("dirty", "holder", "key", "pages", "queued", "size", "used")

    def __init__(self, holder: PageHolder, key: tuple[int, int, int], row: r.DomainRow) -> None:
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
        """Its row."""
        return r.DomainRow(self.size, self.queued)

    def write(self, rows: Rows) -> None:
        """Put its row into the rows."""
        rows.put(r.domain_key(*self.key), r.pack(self.row))

    def has(self, fingerprint: int) -> bool:
        """Whether a fingerprint was added."""
        raise NotImplementedError

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint that `has` does not find."""
        raise NotImplementedError


class _ExactPage(FingerprintPage):
    """Fingerprints in memory as they are in two rows: most of them sorted, the latest ones in order of their insertion.

    Attributes:
        marks: The sorted row; 8 bytes each in the byte order of the machine. Every platform with a wheel of RocksDB is
            little-endian.
        latest: The second row: those that are not in the sorted one.
        is_merged: Whether the sorted row must be written.
        is_beside: Whether the second row exists.
    """

    __slots__ = ("is_beside", "is_merged", "latest", "marks")

    def __init__(self, domain: Domain[Any], slot: int, stored: bytes, latest: bytes) -> None:
        super().__init__(domain, slot)
        self.marks = array("Q", stored)
        self.latest = latest
        self.is_merged = False
        self.is_beside = bool(latest)

    @property
    def count(self) -> int:
        """Number of fingerprints."""
        return len(self.marks) + (len(self.latest) >> 3)

    def __contains__(self, fingerprint: int) -> bool:
        marks = self.marks
        at = bisect_left(marks, fingerprint)
        return (at < len(marks) and marks[at] == fingerprint) or (bool(self.latest) and self._is_late(fingerprint))

    def _is_late(self, fingerprint: int) -> bool:
        needle = fingerprint.to_bytes(8, "little")
        at = self.latest.find(needle)
        while at > 0 and at & 7:  # the end of one fingerprint and the beginning of the next
            at = self.latest.find(needle, at + 1)
        return at >= 0

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint; many latest ones are merged into the sorted row."""
        self.latest += fingerprint.to_bytes(8, "little")
        if len(self.latest) > 8 * LATEST:
            self.merge(array("Q", sorted([*self.marks, *array("Q", self.latest)])))

    def merge(self, marks: "array[int]") -> None:
        """Set the sorted row to all fingerprints."""
        self.marks = marks
        self.latest = b""
        self.is_merged = True

    def write(self, rows: Rows) -> None:
        """Write the sorted row if it changed, and the latest fingerprints."""
        if self.is_merged:
            rows.put(r.exact_key(*self.domain.key, self.slot), self.marks.tobytes())
            self.is_merged = False
        if self.latest:
            rows.put(r.latest_key(*self.domain.key, self.slot), self.latest)
        elif self.is_beside:
            rows.delete(r.latest_key(*self.domain.key, self.slot))
        self.is_beside = bool(self.latest)


class Exact(Domain[_ExactPage]):
    """Whole fingerprints, sorted, by linear hashing (Litwin 1980): a look-up reads one page, and is never wrong.

    A full page makes the domain add one page, which takes half of the next page in the order of their numbers, full or
    not. So `size` alone tells the page of a fingerprint.

    In a crawl of many domains most have few URLs. Their fingerprints are in the domain's row, so all that is known of
    them takes one look-up and one write. The first page is made of these fingerprints.
    """

    __slots__ = ("few", "mask", "number")

    def __init__(self, holder: PageHolder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        super().__init__(holder, key, row)
        self.number = holder.number()
        self.mask = page_mask(self.size)
        self.few = array("Q", row.few)

    @property
    def row(self) -> r.DomainRow:
        """Its row, with the fingerprints while it has no page."""
        return r.DomainRow(self.size, self.queued, self.few.tobytes())

    def has(self, fingerprint: int) -> bool:
        """Whether it was added: one search in one page, which is read unless the fingerprint came lately."""
        if not self.size:
            self.used = True
            few = self.few
            at = bisect_left(few, fingerprint)
            return at < len(few) and few[at] == fingerprint
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        page = self.pages.get(slot)
        if page is None:
            return self._has_on_disk(slot, fingerprint)
        page.used = True
        return fingerprint in page

    def _has_on_disk(self, slot: int, fingerprint: int) -> bool:
        recent = self.holder.recent
        if recent is not None and recent.has(self.number, fingerprint):
            return True
        page = self._load(slot)
        page.used = True
        known = fingerprint in page
        if known and recent is not None:
            recent.note(self.number, fingerprint)
        return known

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint that `has` does not find; a full page makes the domain grow."""
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
        if self.holder.recent is not None:
            self.holder.recent.note(self.number, fingerprint)
        if not page.dirty:
            self.holder.changed(page)
        if page.count > FULL:
            self._grow()

    def _begin_pages(self) -> None:
        """Make the first page of the fingerprints in the domain's row."""
        page = self._hold(_ExactPage(self, 0, b"", b""))
        page.merge(self.few)
        self.few = array("Q")
        self.holder.changed(page)
        self.size = 1

    def _grow(self) -> None:
        """Add one page, with half of the page that is next in turn."""
        slot, self.size = self.size, self.size + 1
        mask = self.mask = page_mask(self.size)
        source = self.pages.get(slot & (mask >> 1)) or self._load(slot & (mask >> 1))
        page = self._hold(_ExactPage(self, slot, b"", b""))
        marks = sorted([*source.marks, *array("Q", source.latest)])
        page.merge(array("Q", [mark for mark in marks if mark & mask == slot]))
        source.merge(array("Q", [mark for mark in marks if mark & mask != slot]))
        for each in (source, page):
            if not each.dirty:
                self.holder.changed(each)

    def _load(self, slot: int) -> _ExactPage:
        keys = (r.exact_key(*self.key, slot), r.latest_key(*self.key, slot))
        found = self.holder.rows.get_many(keys)  # one read, as they are neighbours
        return self._hold(_ExactPage(self, slot, found[keys[0]] or b"", found[keys[1]] or b""))

    def _hold(self, page: _ExactPage) -> _ExactPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page


def page_mask(size: int) -> int:
    """The bit mask that numbers so many pages."""
    return (1 << max(size - 1, 0).bit_length()) - 1
