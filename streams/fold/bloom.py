"""A scalable Bloom filter of all URLs that a job knows in a partition (`dedup.mode=bloom`).

    fingerprint ─► 128 bits ─► a block of 512 bytes in each filter ─► five of its 64 words ─► three bits of each word
                               │ a filter whose block has them all: known
                               ▼ first those in memory, then the others, which are read
                               no filter: new

A filter that is full is followed by one that is twice as large and has half the error, so the errors of all of them
together stay below the job's rate (Almeida, Baquero, Preguiça, Hutchison 2007). All bits of a URL in a filter lie in
one block, so a look-up reads one row a filter. Blocks and their words fill unevenly, which costs some accuracy; the
size of a filter counts that in (Putze, Sanders, Singler 2007). From the same paper are the patterns: the three bits of
a word come from a table, so Python tests them at once, a third of the time of one by one.
"""

from array import array
from functools import cache
from itertools import accumulate
from math import comb, exp
from typing import NamedTuple

import msgspec
from xxhash import xxh3_128_intdigest

from . import rows as r
from .overlay import Rows

BLOCK_BYTES = 512

# Words of 64 bits. They have the byte order of the machine: every platform with a wheel of RocksDB is little-endian.
WORDS = BLOCK_BYTES // 8

# URLs of the first filters of all partitions together: three filters hold 100 million URLs, at 3.1 bytes each. A
# smaller first filter would suit smaller jobs, yet a look-up asks each filter, and each has half the error of the last.
FIRST_URLS = 14_300_000

# Neighbouring blocks read together while memory has room: they lie in one block of the store, which is one read of the
# disk. So a filter comes into memory in a sixteenth of the reads after a restart.
AHEAD = 16

_PICKS = 5  # Words of a URL
_EACH_PICK = range(_PICKS)
_PATTERN_BITS = 14
_ANY_PATTERN = (1 << _PATTERN_BITS) - 1
_PICK_BITS = _PATTERN_BITS + 6  # of the 128 bits of a URL, for a word and its pattern
_UPPER_BITS = 40  # choose the block
_UPPER = 128 - _UPPER_BITS
_MOST_LOAD = 700  # exp(-load) is 0 from 745 on


@cache
def _patterns() -> tuple[int, ...]:
    """Words with three bits each: one of the lowest 21, one of the next 21, one of the highest 22."""
    kinds, count = 21 * 21 * 22, 1 << _PATTERN_BITS
    numbers = (at * kinds // count for at in range(count))
    return tuple(1 << n % 21 | 1 << 21 + n // 21 % 21 | 1 << 42 + n // 441 for n in numbers)


class FilterShape(NamedTuple):
    """The form of one filter.

    Attributes:
        capacity: URLs that it takes.
        load: Mean URLs of a block when it is full.
    """

    capacity: int
    load: int

    @property
    def blocks(self) -> int:
        """Number of its blocks."""
        return -(-self.capacity // self.load)


def false_positives(load: float) -> float:
    """The rate of a filter whose blocks have `load` URLs on the average; their number is Poisson distributed.

    Two words of a URL may be the same one. Its six bits are set by others more often than those of two words.
    """
    rate, probability = 0.0, exp(-load)
    clear = [(1 - 3 / 64) ** bits for bits in range(7)]  # that a pattern spares so many bits of its word
    spared = [1 - _PICKS / WORDS * (1 - one) for one in clear]  # that a URL does, nearly
    for count in range(int(2 * load) + 100):
        three, six = _all_set(spared[:4], count), _all_set(spared, count)
        rate += probability * (three**_PICKS + comb(_PICKS, 2) / WORDS * three ** (_PICKS - 2) * (six - three**2))
        probability *= load / (count + 1)
    return rate


def _all_set(spared: list[float], count: int) -> float:
    """The chance that `count` URLs set all of some bits; one URL spares a given number of them with chance `spared`."""
    bits = len(spared) - 1
    return sum((-1.0) ** number * comb(bits, number) * one**count for number, one in enumerate(spared))


@cache
def shape_of(error: float, partitions: int, number: int) -> FilterShape:
    """The form of a job's filter with a number, 0 for the first.

    Args:
        error: The job's rate. The first filter has half of it, the next a quarter, and so on.
    """
    low, high = 1, _MOST_LOAD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if false_positives(middle) <= error / 2 ** (number + 1) else (low, middle)
    return FilterShape(-(-FIRST_URLS // partitions) << number, low)


_EMPTY = 1  # the slot of all blocks without bits: those of a filter that has just begun take no memory


class _Filter:
    """One filter of a chain.

    Attributes:
        slots: The place of each block in memory; 0 where it is not there, `_EMPTY` where it has no bits.
    """

    __slots__ = ("blocks", "capacity", "job", "prefix", "slots")

    def __init__(self, job: int, epoch: int, number: int, shape: FilterShape) -> None:
        self.job = job
        self.prefix = r.filter_prefix(job, epoch, number)
        self.capacity = shape.capacity
        self.blocks = shape.blocks
        self.slots = array("I", bytes(4 * self.blocks))


class Blocks:
    """The blocks in memory, of all jobs of a partition: in one piece, because an object each would take a third more.

    The oldest one makes room. URLs lie in blocks at random, so the use of a block does not foretell the next.

    Args:
        most: Blocks held at most; more only while all of them are changed.

    Attributes:
        arena: Their words; those of the slots 0 (none) and `_EMPTY` stay 0.
        changed: Slots whose block the rows do not have yet.
    """

    def __init__(self, rows: Rows, most: int) -> None:
        self.arena = array("Q", bytes((_EMPTY + 1) * BLOCK_BYTES))
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
            self.arena.frombytes(stored)
        else:
            self._owners[slot] = owner
            self._numbers[slot] = block
            self.arena[slot * WORDS : (slot + 1) * WORDS] = array("Q", stored)
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
            self._rows.put(key, self.arena[slot * WORDS : (slot + 1) * WORDS].tobytes())
        self.changed.clear()


class BloomFilter:
    """The chain of filters of a (job, epoch); its row has the number of URLs, which tells how many filters it has."""

    def __init__(self, held: Blocks, rows: Rows, job: int, epoch: int, error: float, partitions: int) -> None:
        self._held = held
        self._patterns = _patterns()
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
        one = _Filter(*self._place, number, shape)
        if self.count == self._full_at:  # it has no URL yet, and so no row
            one.slots = array("I", [_EMPTY]) * one.blocks
        self._chain.insert(0, one)
        self._full_at += shape.capacity

    def has(self, fingerprint: int) -> bool:
        """Whether it was added, or has the bits of others.

        Blocks in memory are asked first: a URL that one of them knows needs no read, whatever the others hold.
        """
        mixed = xxh3_128_intdigest(fingerprint.to_bytes(8, "little"))
        high, is_absent = mixed >> _UPPER, False
        for one in self._chain:
            slot = one.slots[high * one.blocks >> _UPPER_BITS]
            if not slot:
                is_absent = True
            elif self._is_in(slot, mixed):
                return True
        if is_absent:
            for one in self._chain:
                block = high * one.blocks >> _UPPER_BITS
                if not one.slots[block] and self._is_in(self._held.load(one, block), mixed):
                    return True
        return False

    def _is_in(self, slot: int, mixed: int) -> bool:
        """Whether a block has all bits of a URL."""
        arena, patterns, start = self._held.arena, self._patterns, slot << 6
        for _ in _EACH_PICK:
            pattern = patterns[mixed & _ANY_PATTERN]
            if arena[start | mixed >> _PATTERN_BITS & 63] & pattern != pattern:
                return False
            mixed >>= _PICK_BITS
        return True

    def add(self, fingerprint: int) -> None:
        """Add a fingerprint that `has` does not find."""
        if self.count == self._full_at:
            self._extend()
        held, newest = self._held, self._chain[0]
        mixed = xxh3_128_intdigest(fingerprint.to_bytes(8, "little"))
        block = (mixed >> _UPPER) * newest.blocks >> _UPPER_BITS
        slot = newest.slots[block] or held.load(newest, block)
        if slot == _EMPTY:
            slot = held.hold(newest, block, bytes(BLOCK_BYTES))
        for _ in _EACH_PICK:
            held.arena[slot << 6 | mixed >> _PATTERN_BITS & 63] |= self._patterns[mixed & _ANY_PATTERN]
            mixed >>= _PICK_BITS
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
        false_positives(min(left, shape.capacity) / shape.blocks) for left, shape in zip(rest, shapes, strict=False)
    )
