"""A filter of all URLs of a (job, epoch) in a partition, for jobs without whole fingerprints (`dedup.confirm=false`).

A quotient filter: it keeps some 40 bits of each fingerprint, exactly. An unknown URL is taken for a known one if these
bits are equal, so with a probability of n / 2^40 where n are known. Most of the bits take no space: the low ones are
the number of the page, the high ones that of a group in the page, and a *tag* of two to four bytes has those between.
The filter grows by linear hashing, as the exact pages do. A split knows each bit that it needs, so nothing is
forgotten, and the tags get shorter as the pages become many. The latest tags of a page have a row of their own, as
those of exact pages do: each URL falls into another page, and an insert would write some KiB.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any

from . import rows as r
from .fingerprints import LATEST, Domain, FingerprintPage, PageHolder, page_mask
from .overlay import Rows

MOST_BITS = 40
"""Bits of a fingerprint, with one partition: 9.1e-5 at 100 million URLs."""

SHARED_BITS = 3
"""Bits fewer with eight partitions or more, which share a job's URLs: 9.1e-5 at 12.5 million URLs of a partition."""

PER_PAGE = 1_200
"""Mean of the URLs of a page. Two-byte tags, since it then has 65,536 pages, begin at 79 million URLs of 40 bits."""

_GROUP_BITS = 8
_GROUPS = 1 << _GROUP_BITS
_NIBBLES, _BYTES, _WORDS = range(3)
"""How the sizes of groups are stored: most pages have none above 15."""

_SIZES_AT = 1
_TAGS_AT = tuple(_SIZES_AT + size for size in (_GROUPS // 2, _GROUPS, _GROUPS * array("I").itemsize))
_SUM = bytes((both & 15) + (both >> 4) for both in range(256))
"""Of the two sizes in a byte."""

_NONE = [0] * _GROUPS
_BYTE = [bytes((group,)) for group in range(_GROUPS)]


def filter_bits(partitions: int) -> int:
    """Bits of a fingerprint that a filter keeps."""
    return MOST_BITS - min(partitions.bit_length() - 1, SHARED_BITS)


def _row_of(width: int, sizes: list[int], tags: bytes) -> bytes:
    """A byte with the form of the sizes and the width of a tag, the sizes of the groups, and the tags."""
    most = max(sizes)
    if most < 1 << 4:
        form, head = _NIBBLES, bytes(low | high << 4 for low, high in zip(sizes[::2], sizes[1::2], strict=True))
    elif most < 1 << 8:
        form, head = _BYTES, bytes(sizes)
    else:
        form, head = _WORDS, array("I", sizes).tobytes()
    return bytes((form << 4 | width,)) + head + tags


class _FilterPage(FingerprintPage):
    """The two rows of a page as they are stored: most tags are in the one, the latest ones in the other.

    Attributes:
        row: Tags in the order of their groups, and in a group in the order of their insertion (`_row_of`).
        width: Bytes of a tag.
        latest: A byte for the group and a tag each, in the order of their insertion.
        is_merged: Whether the first row must be written.
        is_beside: Whether the second row exists.
    """

    __slots__ = ("is_beside", "is_merged", "latest", "row", "width")

    def __init__(self, domain: Domain[Any], slot: int, row: bytes, latest: bytes = b"") -> None:
        super().__init__(domain, slot)
        self.row = row
        self.width = row[0] & 15
        self.latest = latest
        self.is_merged = False
        self.is_beside = bool(latest)

    def fill(self, width: int, marks: Iterable[tuple[int, int]]) -> None:
        """Replace its content by (group, tag) pairs in the order of their groups."""
        sizes = [0] * _GROUPS
        tags = []
        for group, tag in marks:
            sizes[group] += 1
            tags.append(tag.to_bytes(width, "little"))
        self.width = width
        self.row = _row_of(width, sizes, b"".join(tags))
        self.latest = b""
        self.is_merged = True

    def has(self, group: int, tag: bytes) -> bool:
        """Whether a group has a tag."""
        row, width = self.row, self.width
        form = row[0] >> 4
        if form == _NIBBLES:
            at = _SIZES_AT + (group >> 1)
            before, size = sum(row[_SIZES_AT:at].translate(_SUM)), row[at]
            if group & 1:
                before += size & 15
                size >>= 4
            else:
                size &= 15
        else:
            sizes = self._sizes()
            before, size = sum(sizes[:group]), sizes[group]
        start = _TAGS_AT[form] + before * width
        end = start + size * width
        at = row.find(tag, start, end)
        while at > start and (at - start) % width:  # the end of one tag and the beginning of the next
            at = row.find(tag, at + 1, end)
        return at >= 0 or (bool(self.latest) and self._is_late(_BYTE[group] + tag))

    def _is_late(self, mark: bytes) -> bool:
        at = self.latest.find(mark)
        while at > 0 and at % len(mark):
            at = self.latest.find(mark, at + 1)
        return at >= 0

    def add(self, group: int, tag: bytes) -> None:
        """Add a tag to a group; many latest ones are merged into the others."""
        self.latest += _BYTE[group] + tag
        if len(self.latest) > LATEST * (self.width + 1):
            self.merge()

    def merge(self) -> None:
        """Put the latest ones among the others."""
        latest, width, sizes, tags = self.latest, self.width, self._sizes(), self._tags()
        ends = list(accumulate(sizes))
        marks = [latest[at : at + width + 1] for at in range(0, len(latest), width + 1)]
        pieces: list[bytes] = []
        done = 0
        for mark in sorted(marks, key=itemgetter(0)):  # in a group they stay in the order of their insertion
            group = mark[0]
            end = ends[group] * width
            pieces += (tags[done:end], mark[1:])
            sizes[group] += 1
            done = end
        self.row = _row_of(width, sizes, b"".join((*pieces, tags[done:])))
        self.latest = b""
        self.is_merged = True

    def _sizes(self) -> list[int]:
        """The number of tags of each group in the first row."""
        form = self.row[0] >> 4
        head = self.row[_SIZES_AT : _TAGS_AT[form]]
        if form == _NIBBLES:
            return [size for both in head for size in (both & 15, both >> 4)]
        return list(head) if form == _BYTES else list(array("I", head))

    def _tags(self) -> bytes:
        """The tags of the first row."""
        return self.row[_TAGS_AT[self.row[0] >> 4] :]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(group, tag) of each; the latest ones must be merged."""
        tags, width, at = self._tags(), self.width, 0
        for group, size in enumerate(self._sizes()):
            for end in range(at + width, at + width * size + width, width):
                yield group, int.from_bytes(tags[at:end], "little")
                at = end

    def write(self, rows: Rows) -> None:
        """Write the latest ones, and the others if they changed."""
        job, epoch, _ = self.domain.key
        if self.is_merged:
            rows.put(r.page_key(job, epoch, self.slot), self.row)
            self.is_merged = False
        if self.latest:
            rows.put(r.page_latest_key(job, epoch, self.slot), self.latest)
        elif self.is_beside:
            rows.delete(r.page_latest_key(job, epoch, self.slot))
        self.is_beside = bool(self.latest)


class FilterTable(Domain[_FilterPage]):
    """The filter of a (job, epoch). Its row is like a domain's; `queued` are the URLs in it.

    Args:
        bits: Bits of a fingerprint that it keeps (`filter_bits`).
    """

    __slots__ = ("_below", "_shifts", "group_at", "mask")

    def __init__(self, holder: PageHolder, job: int, epoch: int, bits: int) -> None:
        stored = holder.rows.get(r.filter_key(job, epoch))
        super().__init__(holder, (job, epoch, 0), r.read_domain(stored) if stored else r.DomainRow(1, 0))
        self.group_at = bits - _GROUP_BITS
        self._below = (1 << self.group_at) - 1
        self._shifts = [max(self.group_at - 8 * width, 0) for width in range(5)]  # of the lowest bit in tags of a width
        self.mask = page_mask(self.size)

    def write(self, rows: Rows) -> None:
        """Put its row into the rows."""
        job, epoch, _ = self.key
        rows.put(r.filter_key(job, epoch), r.pack(self.row))

    def has(self, fingerprint: int) -> bool:
        """Whether it was added, or another one with the same bits."""
        page = self._page(fingerprint)
        page.used = True
        return page.has(fingerprint >> self.group_at & _GROUPS - 1, self._tag(fingerprint, page.width))

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint that `has` does not find."""
        page = self._page(fingerprint)
        page.add(fingerprint >> self.group_at & _GROUPS - 1, self._tag(fingerprint, page.width))
        self.queued += 1
        self._changed(page)
        if self.queued > self.size * PER_PAGE:
            self._grow()

    def _tag(self, fingerprint: int, width: int) -> bytes:
        return ((fingerprint & self._below) >> self._shifts[width]).to_bytes(width, "little")

    def _page(self, fingerprint: int) -> _FilterPage:
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        return self.pages.get(slot) or self._load(slot)

    def _load(self, slot: int) -> _FilterPage:
        job, epoch, _ = self.key
        keys = r.page_key(job, epoch, slot), r.page_latest_key(job, epoch, slot)
        found = self.holder.rows.get_many(keys)  # one read, as they are neighbours
        row = found[keys[0]] or _row_of(self._width(slot), _NONE, b"")
        return self._hold(_FilterPage(self, slot, row, found[keys[1]] or b""))

    def _hold(self, page: _FilterPage) -> _FilterPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page

    def _changed(self, page: _FilterPage) -> None:
        if not page.dirty:
            self.holder.changed(page)
        if not self.dirty:
            self.holder.grown(self)

    def _width(self, slot: int) -> int:
        """Bytes of the tags of a page, which hold all bits that neither its number nor the group tells."""
        known = self.mask.bit_length()
        half = self.mask + 1 >> 1
        if slot < half and slot + half >= self.size:  # not split yet in this round
            known -= 1
        return next(width for width in (2, 3, 4) if self._shifts[width] <= known)

    def _grow(self) -> None:
        """Add one page, with half of the page that is next in turn."""
        slot, self.size = self.size, self.size + 1
        self.mask = page_mask(self.size)
        half = self.mask >> 1
        source = self.pages.get(slot & half) or self._load(slot & half)
        source.merge()
        width = self._width(slot)
        low = self._shifts[source.width]
        bit, cut = half.bit_length() - low, self._shifts[width] - low
        halves: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for group, tag in source:
            halves[tag >> bit & 1].append((group, tag >> cut))
        source.fill(width, halves[0])
        fresh = self._hold(_FilterPage(self, slot, _row_of(width, _NONE, b"")))
        fresh.fill(width, halves[1])
        self._changed(source)
        self._changed(fresh)
