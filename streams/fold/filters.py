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
_STEP = 16
"""Groups whose first tag is found by one sum."""

_START = (1 << 32) - 1
_BEHIND = [sum(1 << 2 * group for group in range(first, _GROUPS, _STEP)) for first in range(_STEP, _GROUPS + 1, _STEP)]
"""A tag of a group, as it counts in the starts behind it."""

_BYTE = [bytes((group,)) for group in range(_GROUPS)]
_MOST_IN_BYTE = 255
_NIBBLES, _BYTES, _WORDS = range(3)
"""How the sizes of groups are stored: most pages have none above 15."""
_LOW, _HIGH = bytes(both & 15 for both in range(256)), bytes(both >> 4 for both in range(256))


def filter_bits(partitions: int) -> int:
    """Bits of a fingerprint that a filter keeps."""
    return MOST_BITS - min(partitions.bit_length() - 1, SHARED_BITS)


class _FilterPage(FingerprintPage):
    """Tags in the order of their groups, and in a group in the order of their insertion; the latest ones apart.

    Attributes:
        width: Bytes of a tag.
        tags: All of them.
        sizes: Tags of each group.
        starts: Numbers of the tags before every sixteenth group, 32 bits each, in one integer: one addition counts a
            tag in all of them.
        latest: Those that are not among `tags`: a byte for the group and a tag each, in the order of their insertion.
        is_merged: Whether the row of the tags must be written.
        is_beside: Whether the row of the latest exists.
    """

    __slots__ = ("is_beside", "is_merged", "latest", "sizes", "starts", "tags", "width")

    def __init__(self, domain: Domain[Any], slot: int, width: int) -> None:
        super().__init__(domain, slot)
        self.width = width
        self.sizes = array("B", bytes(_GROUPS))
        self.starts = 0
        self.tags = self.latest = b""
        self.is_merged = self.is_beside = False

    def fill(self, width: int, marks: Iterable[tuple[int, int]]) -> None:
        """Replace its content by (group, tag) pairs in the order of their groups."""
        sizes = [0] * _GROUPS
        tags = []
        for group, tag in marks:
            sizes[group] += 1
            tags.append(tag.to_bytes(width, "little"))
        self.take(width, array("B" if max(sizes) <= _MOST_IN_BYTE else "I", sizes), b"".join(tags))
        self.latest = b""
        self.is_merged = True

    def take(self, width: int, sizes: "array[int]", tags: bytes) -> None:
        """Replace all but the latest."""
        self.width = width
        self.sizes = sizes
        self.tags = tags
        self.starts = before = 0
        for group in range(0, _GROUPS, _STEP):
            self.starts |= before << 2 * group
            before += sum(sizes[group : group + _STEP])

    def has(self, group: int, tag: bytes) -> bool:
        """Whether a group has a tag."""
        sizes, width = self.sizes, self.width
        if self.latest and self._is_late(_BYTE[group] + tag):
            return True
        size = sizes[group]
        if not size:
            return False
        start = ((self.starts >> 2 * (group & ~15) & _START) + sum(sizes[group & ~15 : group])) * width
        end = start + size * width
        at = self.tags.find(tag, start, end)
        while at > 0 and at % width:  # the end of one tag and the beginning of the next
            at = self.tags.find(tag, at + 1, end)
        return at >= 0

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
        latest, each = self.latest, self.width + 1
        for at in range(0, len(latest), each):
            self._insert(latest[at], latest[at + 1 : at + each])
        self.latest = b""
        self.is_merged = True

    def _insert(self, group: int, tag: bytes) -> None:
        sizes, tags = self.sizes, self.tags
        end = ((self.starts >> 2 * (group & ~15) & _START) + sum(sizes[group & ~15 : group + 1])) * self.width
        self.tags = b"".join((tags[:end], tag, tags[end:]))
        if sizes[group] == _MOST_IN_BYTE and sizes.typecode == "B":
            sizes = self.sizes = array("I", sizes)
        sizes[group] += 1
        self.starts += _BEHIND[group >> 4]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(group, tag) of each; the latest ones must be merged."""
        tags, width, at = self.tags, self.width, 0
        for group, size in enumerate(self.sizes):
            for end in range(at + width, at + width * size + width, width):
                yield group, int.from_bytes(tags[at:end], "little")
                at = end

    def read(self, stored: bytes | None, latest: bytes | None) -> None:
        """Take what `write` stored; None for a row that is not there."""
        self.latest = latest or b""
        self.is_beside = bool(latest)
        if not stored:
            return
        form = stored[0] >> 4
        end = 1 + (_GROUPS // 2, _GROUPS, _GROUPS * array("I").itemsize)[form]
        head = stored[1:end]
        if form == _NIBBLES:
            sizes = bytearray(_GROUPS)
            sizes[::2], sizes[1::2] = head.translate(_LOW), head.translate(_HIGH)
            head = bytes(sizes)
        self.take(stored[0] & 15, array("I" if form == _WORDS else "B", head), stored[end:])

    def write(self, rows: Rows) -> None:
        """Write the latest ones, and the others if they changed."""
        job, epoch, _ = self.domain.key
        if self.is_merged:
            rows.put(r.page_key(job, epoch, self.slot), self._packed())
            self.is_merged = False
        if self.latest:
            rows.put(r.page_latest_key(job, epoch, self.slot), self.latest)
        elif self.is_beside:
            rows.delete(r.page_latest_key(job, epoch, self.slot))
        self.is_beside = bool(self.latest)

    def _packed(self) -> bytes:
        """A byte with the form, the sizes of the groups, and the tags."""
        sizes = self.sizes
        if max(sizes) < 1 << 4:
            low, high = int.from_bytes(sizes[::2], "little"), int.from_bytes(sizes[1::2], "little")
            form, head = _NIBBLES, (low | high << 4).to_bytes(_GROUPS // 2, "little")
        else:
            form, head = (_BYTES if sizes.typecode == "B" else _WORDS), sizes.tobytes()
        return bytes((form << 4 | self.width,)) + head + self.tags


class FilterTable(Domain[_FilterPage]):
    """The filter of a (job, epoch). Its row is like a domain's; `queued` are the URLs in it.

    Args:
        bits: Bits of a fingerprint that it keeps (`filter_bits`).
    """

    __slots__ = ("_below", "group_at", "mask")

    def __init__(self, holder: PageHolder, job: int, epoch: int, bits: int) -> None:
        stored = holder.rows.get(r.filter_key(job, epoch))
        super().__init__(holder, (job, epoch, 0), r.read_domain(stored) if stored else r.DomainRow(1, 0))
        self.group_at = bits - _GROUP_BITS
        self._below = (1 << self.group_at) - 1
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
        return ((fingerprint & self._below) >> self._shift(width)).to_bytes(width, "little")

    def _page(self, fingerprint: int) -> _FilterPage:
        slot = fingerprint & self.mask
        if slot >= self.size:
            slot &= self.mask >> 1
        return self.pages.get(slot) or self._load(slot)

    def _load(self, slot: int) -> _FilterPage:
        job, epoch, _ = self.key
        keys = r.page_key(job, epoch, slot), r.page_latest_key(job, epoch, slot)
        found = self.holder.rows.get_many(keys)  # one read, as they are neighbours
        page = _FilterPage(self, slot, self._width(slot))
        page.read(found[keys[0]], found[keys[1]])
        return self._hold(page)

    def _hold(self, page: _FilterPage) -> _FilterPage:
        self.pages[page.slot] = page
        self.holder.hold(page)
        return page

    def _changed(self, page: _FilterPage) -> None:
        if not page.dirty:
            self.holder.changed(page)
        if not self.dirty:
            self.holder.grown(self)

    def _shift(self, width: int) -> int:
        """Position of the lowest bit in tags of a width."""
        return max(self.group_at - 8 * width, 0)

    def _width(self, slot: int) -> int:
        """Bytes of the tags of a page, which hold all bits that neither its number nor the group tells."""
        known = self.mask.bit_length()
        half = self.mask + 1 >> 1
        if slot < half and slot + half >= self.size:  # not split yet in this round
            known -= 1
        return next(width for width in (2, 3, 4) if self._shift(width) <= known)

    def _grow(self) -> None:
        """Add one page, with half of the page that is next in turn."""
        slot, self.size = self.size, self.size + 1
        self.mask = page_mask(self.size)
        half = self.mask >> 1
        source = self.pages.get(slot & half) or self._load(slot & half)
        source.merge()
        width = self._width(slot)
        low = self._shift(source.width)
        bit, cut = half.bit_length() - low, self._shift(width) - low
        halves: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        for group, tag in source:
            halves[tag >> bit & 1].append((group, tag >> cut))
        source.fill(width, halves[0])
        fresh = self._hold(_FilterPage(self, slot, width))
        fresh.fill(width, halves[1])
        self._changed(source)
        self._changed(fresh)
