"""The fingerprints of one registrable domain, in pages.

A page is the unit that is read, changed and cached. The bits of a fingerprint choose its page; the domain's row has
the number of pages (`size`). The bytes of a page depend only on the sequence of offers, so two folds of one log write
the same bytes.
"""

from array import array
from bisect import bisect_left, insort
from typing import Protocol

from . import rows as r
from .overlay import Rows

FULL = 448  # Fingerprints of an exact page, at most: 3.5 KiB. With one more, its domain gets another page.

# The latest fingerprints of an exact page, at most: they have a row of their own, so an insert writes about 300 bytes
# instead of some KiB. A domain with no more fingerprints than this has no page: they are in the domain's row.
LATEST = 64

PER_CACHED_PAGE = 32  # Entries for each page that may be held: 512 bytes


class RecentMarks:
    """Fingerprints that were known or marked lately, for domains with more pages than memory holds.

    Links repeat those of the web pages before, and the fingerprints of a few hundred lie in as many pages of the seen
    table. A page in memory takes 2,500 bytes, an entry here 16: a link that comes again is known without its page.
    A fingerprint has one place, and a newer one takes it.

    Args:
        pages: Pages that may be held in memory.
    """

    __slots__ = ("_marks", "_mask", "_owners")

    def __init__(self, pages: int) -> None:
        size = 1 << (pages * PER_CACHED_PAGE).bit_length() - 1
        self._mask = size - 1
        self._marks = array("Q", bytes(8 * size))
        self._owners = array("Q", bytes(8 * size))

    def has(self, owner: int, mark: int) -> bool:
        """Whether a domain's fingerprint was noted; a domain has a number of its own, 1 at least."""
        at = (mark >> 20) & self._mask
        return self._marks[at] == mark and self._owners[at] == owner

    def note(self, owner: int, mark: int) -> None:
        """Remember that a domain has a fingerprint."""
        at = (mark >> 20) & self._mask
        self._marks[at] = mark
        self._owners[at] = owner


class PageHolder(Protocol):
    """The seen table: it caches the pages of all domains."""

    rows: Rows
    recent: RecentMarks | None

    def number(self) -> int:
        """A number for a domain that comes into memory; no other has had it."""

    def hold(self, page: "ExactPage") -> None:
        """A page was read or made."""

    def changed(self, page: "ExactPage") -> None:
        """A page that was clean is to be written."""


class Domain:
    """A domain in memory that only counts its URLs: a Bloom filter knows them.

    Attributes:
        key: (job, epoch, hash of the registrable domain).
        queued: URLs ever queued.
    """

    __slots__ = ("dirty", "key", "queued")

    def __init__(self, key: tuple[int, int, int], row: r.DomainRow) -> None:
        self.key = key
        self.queued = row.queued
        self.dirty = False

    @property
    def row(self) -> r.DomainRow:
        """Its row."""
        return r.DomainRow(0, self.queued)

    def write(self, rows: Rows) -> None:
        """Put its row into the rows."""
        rows.put(r.domain_key(*self.key), r.pack(self.row))


class ExactPage:
    """Fingerprints in memory as they are in two rows: most of them sorted, the latest ones in order of their insertion.

    Attributes:
        marks: The sorted row; 8 bytes each in the byte order of the machine. Every platform with a wheel of RocksDB is
            little-endian.
        latest: The second row: those that are not in the sorted one.
        is_merged: Whether the sorted row must be written.
        is_beside: Whether the second row exists.
    """

    __slots__ = ("dirty", "domain", "is_beside", "is_merged", "latest", "marks", "slot", "used")

    def __init__(self, domain: "Exact", slot: int, stored: bytes, latest: bytes) -> None:
        self.domain = domain
        self.slot = slot
        self.marks = array("Q", stored)
        self.latest = latest
        self.is_merged = False
        self.is_beside = bool(latest)
        self.dirty = False
        self.used = False

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


class Exact(Domain):
    """Whole fingerprints, sorted, by linear hashing (Litwin 1980): a look-up reads one page, and is never wrong.

    A full page makes the domain add one page, which takes half of the next page in the order of their numbers, full or
    not. So `size` alone tells the page of a fingerprint.

    In a crawl of many domains most have few URLs. Their fingerprints are in the domain's row, so all that is known of
    them takes one look-up and one write. The first page is made of these fingerprints.

    Attributes:
        size: The number of its pages.
        pages: Those in memory.
        used: Whether it was asked lately while it had no page.
    """

    __slots__ = ("few", "holder", "mask", "number", "pages", "size", "used")

    def __init__(self, holder: PageHolder, key: tuple[int, int, int], row: r.DomainRow) -> None:
        super().__init__(key, row)
        self.holder = holder
        self.number = holder.number()
        self.size = row.size
        self.mask = page_mask(self.size)
        self.few = array("Q", row.few)
        self.pages: dict[int, ExactPage] = {}
        self.used = False

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
        page = self._hold(ExactPage(self, 0, b"", b""))
        page.merge(self.few)
        self.few = array("Q")
        self.holder.changed(page)
        self.size = 1

    def _grow(self) -> None:
        """Add one page, with half of the page that is next in turn."""
        slot, self.size = self.size, self.size + 1
        mask = self.mask = page_mask(self.size)
        source = self.pages.get(slot & (mask >> 1)) or self._load(slot & (mask >> 1))
        page = self._hold(ExactPage(self, slot, b"", b""))
        marks = sorted([*source.marks, *array("Q", source.latest)])
        page.merge(array("Q", [mark for mark in marks if mark & mask == slot]))
        source.merge(array("Q", [mark for mark in marks if mark & mask != slot]))
        for each in (source, page):
            if not each.dirty:
                self.holder.changed(each)

    def _load(self, slot: int) -> ExactPage:
        keys = (r.exact_key(*self.key, slot), r.latest_key(*self.key, slot))
        found = self.holder.rows.get_many(keys)  # one read, as they are neighbours
        return self._hold(ExactPage(self, slot, found[keys[0]] or b"", found[keys[1]] or b""))

    def _hold(self, page: ExactPage) -> ExactPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page


def page_mask(size: int) -> int:
    """The bit mask that numbers so many pages."""
    return (1 << max(size - 1, 0).bit_length()) - 1
