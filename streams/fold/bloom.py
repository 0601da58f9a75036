"""A scalable Bloom filter of all URLs that a job knows in a partition (`dedup.mode=bloom`).

    fingerprint ─► newest filter ─► block of 512 bytes ─► are its k bits set?   yes: known
                   │ no                                                          no in all filters: new
                   ▼
                   the filter before it, half as large, with twice the error …

A filter that is full is followed by one that is twice as large and has half the error, so the errors of all of them
together stay below the job's rate (Almeida, Baquero, Preguiça, Hutchison 2007). All bits of a URL in a filter lie in
one block, so a look-up reads one row a filter. Blocks fill unevenly, which costs some accuracy; the size of a filter
counts that in (Putze, Sanders, Singler 2007).

The k bits come from two halves of the fingerprint, `a + i * b + f(i)`: extended double hashing (Kirsch and Mitzenmacher
2006). Plain double hashing doubles the error here, because a block has few bits: two URLs of one block often had the
same progression, or a shifted one. With 32-bit halves, of which the upper 12 bits of the sum count, and a cubic f, the
error is within some percent of that of independent bits.
"""

from array import array
from functools import cache
from itertools import accumulate
from math import exp, log2
from typing import NamedTuple

import msgspec

from . import rows as r
from .overlay import Rows

BLOCK_BYTES = 512
_BITS = 8 * BLOCK_BYTES

# URLs of the first filters of all partitions together: four filters hold 100 million URLs, at 3.1 bytes each.
FIRST_URLS = 6_670_000

# Neighbouring blocks read together while memory has room: they lie in one block of the store, which is one read of the
# disk. So a filter comes into memory in a sixteenth of the reads after a restart.
AHEAD = 16

_GOLDEN = 0x9E3779B97F4A7C15  # odd, its bits irregular: mixes all bits of a fingerprint into the upper ones
_WORD = (1 << 64) - 1
_HALF = (1 << 32) - 1
_UPPER = 32 - 12  # of a 32-bit half the upper 12 bits choose one of 4,096
_MOST_LOAD = 700  # exp(-load) is 0 from 745 on


class FilterShape(NamedTuple):
    """The form of one filter.

    Attributes:
        capacity: URLs that it takes.
        load: Mean URLs of a block when it is full.
        hashes: Bits of a URL.
    """

    capacity: int
    load: int
    hashes: int

    @property
    def blocks(self) -> int:
        """Number of its blocks."""
        return -(-self.capacity // self.load)


def false_positives(load: float, hashes: int) -> float:
    """The rate of a filter whose blocks have `load` URLs on the average; their number is Poisson distributed."""
    rate, probability, empty = 0.0, exp(-load), 1.0
    still_empty = (1 - 1 / _BITS) ** hashes
    for count in range(int(2 * load) + 100):
        rate += probability * (1 - empty) ** hashes
        probability *= load / (count + 1)
        empty *= still_empty
    return rate


@cache
def shape_of(error: float, partitions: int, number: int) -> FilterShape:
    """The form of a job's filter with a number, 0 for the first.

    Args:
        error: The job's rate. The first filter has half of it, the next a quarter, and so on.
    """
    own = error / 2 ** (number + 1)
    hashes = max(int(-log2(own)) - 1, 1)  # one fewer than in a plain filter is best for uneven blocks
    low, high = 1, _MOST_LOAD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if false_positives(middle, hashes) <= own else (low, middle)
    return FilterShape(-(-FIRST_URLS // partitions) << number, low, hashes)


_EMPTY = 1  # the slot of all blocks without bits: those of a filter that has just begun take no memory


class _Filter:
    """One filter of a chain.

    Attributes:
        slots: The place of each block in memory; 0 where it is not there, `_EMPTY` where it has no bits.
        steps: What is added to the step from one bit to the next, for each bit.
    """

    __slots__ = ("blocks", "capacity", "job", "prefix", "slots", "steps")

    def __init__(self, job: int, epoch: int, number: int, shape: FilterShape) -> None:
        self.job = job
        self.prefix = r.filter_prefix(job, epoch, number)
        self.capacity = shape.capacity
        self.blocks = shape.blocks
        self.slots = array("I", bytes(4 * self.blocks))
        self.steps = tuple(index * _GOLDEN & _HALF for index in range(shape.hashes))


class Blocks:
    """The blocks in memory, of all jobs of a partition: in one piece, because an object each would take a third more.

    The oldest one makes room. URLs lie in blocks at random, so the use of a block does not foretell the next.

    Args:
        most: Blocks held at most; more only while all of them are changed.

    Attributes:
        arena: Their bytes; those of the slots 0 (none) and `_EMPTY` stay 0.
        changed: Slots whose block the rows do not have yet.
    """

    def __init__(self, rows: Rows, most: int) -> None:
        self.arena = bytearray((_EMPTY + 1) * BLOCK_BYTES)
        self.changed: dict[int, None] = {}
        self._rows = rows
        self._most = most
        self._owners: list[_Filter | None] = [None, None]
        self._numbers = array("I", [0, 0])
        self._hand = _EMPTY

    def load(self, owner: _Filter, block: int) -> int:
        """Read a block that is not in memory, and its neighbours while there is room; returns its slot."""
        if len(self._owners) + AHEAD <= self._most:
            first = block - block % AHEAD
            absent = [one for one in range(first, min(first + AHEAD, owner.blocks)) if not owner.slots[one]]
            keys = [r.block_key(owner.prefix, one) for one in absent]
            found = self._rows.get_many(keys)
            for one, key in zip(absent, keys, strict=True):
                self._keep(owner, one, found[key])
        else:
            self._keep(owner, block, self._rows.get(r.block_key(owner.prefix, block)))
        return owner.slots[block]

    def _keep(self, owner: _Filter, block: int, stored: bytes | None) -> None:
        if stored:
            self.hold(owner, block, stored)
        else:
            owner.slots[block] = _EMPTY

    def hold(self, owner: _Filter, block: int, stored: bytes) -> int:
        """Give a block a slot of its own."""
        slot = self._free()
        if slot is None:
            slot = len(self._owners)
            self._owners.append(owner)
            self._numbers.append(block)
            self.arena += stored
        else:
            self._owners[slot] = owner
            self._numbers[slot] = block
            self.arena[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES] = stored
        owner.slots[block] = slot
        return slot

    def _free(self) -> int | None:
        """The slot of the oldest block that the rows have, or None while there is room."""
        held = len(self._owners) - _EMPTY - 1
        if held < max(self._most, len(self.changed) + 1):
            return None
        while True:
            self._hand = slot = (self._hand - _EMPTY) % held + _EMPTY + 1
            if slot not in self.changed:
                owner = self._owners[slot]
                assert owner is not None
                owner.slots[self._numbers[slot]] = 0
                return slot

    def forget(self, job: int) -> None:
        """Keep no change of a job: its rows were dropped. Its slots are used again in their turn."""
        self.changed = {slot: None for slot in self.changed if (owner := self._owners[slot]) and owner.job != job}

    def flush(self) -> None:
        """Write the changed blocks into the rows."""
        for slot in self.changed:
            owner = self._owners[slot]
            assert owner is not None
            key = r.block_key(owner.prefix, self._numbers[slot])
            self._rows.put(key, bytes(self.arena[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES]))
        self.changed.clear()


class BloomFilter:
    """The chain of filters of a (job, epoch); its row has the number of URLs, which tells how many filters it has."""

    def __init__(self, held: Blocks, rows: Rows, job: int, epoch: int, error: float, partitions: int) -> None:
        self._held = held
        self._place = job, epoch
        self._form = error, partitions
        stored = rows.get(r.filter_key(job, epoch))
        self.count = msgspec.msgpack.decode(stored, type=int) if stored else 0
        self._stored = self.count
        self._chain: list[_Filter] = []  # the newest first
        self._full_at = 0
        while self.count >= self._full_at:
            self._extend()

    def _extend(self) -> None:
        number = len(self._chain)
        shape = shape_of(*self._form, number)
        self._chain.insert(0, _Filter(*self._place, number, shape))
        self._full_at += shape.capacity

    def has(self, fingerprint: int) -> bool:
        """Whether it was added, or has the bits of others."""
        held, mixed = self._held, fingerprint * _GOLDEN & _WORD
        for one in self._chain:
            block = mixed * one.blocks >> 64
            slot = one.slots[block] or held.load(one, block)
            arena, first, step = held.arena, fingerprint & _HALF, fingerprint >> 32
            start = slot << 12
            for more in one.steps:
                bit = start | first >> _UPPER & 4095
                if not arena[bit >> 3] >> (bit & 7) & 1:
                    break
                first += step
                step += more
            else:
                return True
        return False

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint that `has` does not find."""
        if self.count == self._full_at:
            self._extend()
        held, newest = self._held, self._chain[0]
        block = (fingerprint * _GOLDEN & _WORD) * newest.blocks >> 64
        slot = newest.slots[block] or held.load(newest, block)
        if slot == _EMPTY:
            slot = held.hold(newest, block, bytes(BLOCK_BYTES))
        arena, first, step = held.arena, fingerprint & _HALF, fingerprint >> 32
        start = slot << 12
        for more in newest.steps:
            bit = start | first >> _UPPER & 4095
            arena[bit >> 3] |= 1 << (bit & 7)
            first += step
            step += more
        held.changed[slot] = None
        self.count += 1

    def write(self, rows: Rows) -> None:
        """Put its row into the rows if it changed."""
        if self.count == self._stored:
            return
        self._stored = self.count
        rows.put(r.filter_key(*self._place), r.pack(self.count))


def stated_rate(error: float, partitions: int, urls: int) -> float:
    """The rate that the forms of the filters give a partition with so many URLs."""
    shapes: list[FilterShape] = []
    while sum(shape.capacity for shape in shapes) < urls:
        shapes.append(shape_of(error, partitions, len(shapes)))
    rest = [urls - full for full in accumulate((shape.capacity for shape in shapes), initial=0)]
    return sum(
        false_positives(min(left, shape.capacity) / shape.blocks, shape.hashes)
        for left, shape in zip(rest, shapes, strict=False)
    )
