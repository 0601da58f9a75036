"""The Bloom filter of a job: it forgets nothing, and errs at the rate that it is made for."""

from collections.abc import Iterable

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.fold import rows as r
from crawlog.streams.fold.bloom import BLOCK_BYTES, WORDS, false_positives, shape_of, stated_rate
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.fold.seen import SeenTable

MARKS = st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 300), st.integers(0, 40).map(lambda n: n << 30))
"""Arbitrary ones, and some that differ in few bits: a stranger may choose them."""

MANY = 1_000_000
"""Partitions so many that the first filter of each takes 15 URLs."""


def mark(number: int) -> int:
    """A fingerprint as good as any."""
    return xxhash.xxh3_64_intdigest(str(number).encode())


class Watched(InMemory):
    """Rows that note which of them are read."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(rows)
        self.reads: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""
        self.reads.append(key)
        return super().get(key)


class Filter:
    """One over memory that can be written and opened again."""

    def __init__(self, error: float = 1e-4, partitions: int = 1, cached: int = 4096) -> None:
        self.base: InMemory = InMemory()
        self.error = error
        self.partitions = partitions
        self.cached = cached
        self.open()

    def open(self) -> None:
        """Open what was written last."""
        self.rows = Rows(self.base)
        self.seen = SeenTable(self.rows, self.cached, self.partitions)

    def write(self) -> None:
        """A checkpoint."""
        self.seen.flush()
        self.base.write(self.rows.taken())

    def knows(self, fingerprint: int) -> bool:
        """Whether it is known."""
        return self.seen.knows(1, 0, 7, fingerprint, self.error)

    def offer(self, fingerprint: int, domain: int = 7) -> bool:
        """Whether it is new; it is marked."""
        if self.knows(fingerprint):
            return False
        self.seen.insert(1, 0, domain, fingerprint, self.error)
        return True

    def offer_all(self, fingerprints: Iterable[int]) -> list[bool]:
        """The answers."""
        return [self.offer(fingerprint) for fingerprint in fingerprints]

    def blocks(self) -> int:
        """Its rows with bits."""
        return sum(key[:1] == b"b" for key in self.base.rows)


@given(
    st.lists(MARKS, max_size=200), st.integers(1, 20), st.sampled_from([1e-5, 1e-4, 0.1]), st.sampled_from([1, 4096])
)
def test_it_resumes_from_a_checkpoint_with_the_same_answers(
    marks: list[int], batch: int, error: float, cached: int
) -> None:
    """One is written and opened again after each batch, one never: both answer alike, and forget nothing."""
    often, never = Filter(error, MANY, cached), Filter(error, MANY)
    for at in range(0, len(marks), batch):
        assert often.offer_all(marks[at : at + batch]) == never.offer_all(marks[at : at + batch])
        often.write()
        often.open()
    assert all(often.knows(one) for one in marks)
    never.write()
    assert often.base.rows == never.base.rows


def test_what_was_not_checkpointed_is_new_again() -> None:
    """A killed consumer resumes at the offset of its filter: the offers behind that offset are offered again."""
    table = Filter()
    table.offer_all(map(mark, range(1_000)))
    table.write()
    table.offer_all(map(mark, range(1_000, 2_000)))
    table.seen.flush()
    table.open()
    assert not any(table.offer_all(map(mark, range(1_000))))
    assert all(table.offer_all(map(mark, range(1_000, 2_000))))


@pytest.mark.parametrize("urls", [14_300, 42_900, 71_500, 100_100])
def test_false_positives_are_within_a_tenth_of_the_stated_rate(urls: int) -> None:
    """One full filter, two, three with the last half full, three: among 100,000 unknown URLs or more."""
    error = 0.02
    table = Filter(error, 1_000)
    for number in range(urls):
        table.seen.insert(1, 0, 7, mark(number), error)
    expected = stated_rate(error, 1_000, urls)
    asked = max(100_000, int(1_500 / expected))
    wrong = sum(table.knows(mark(number)) for number in range(1_000_000, 1_000_000 + asked))
    assert wrong / asked == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("partitions", [1, 8, 1024])
@pytest.mark.parametrize("error", [1e-5, 1e-4, 0.01, 0.1])
def test_the_rates_of_all_filters_stay_below_the_jobs(error: float, partitions: int) -> None:
    """However many URLs come: a thousand, a hundred million, a hundred times as many."""
    for urls in (1_000, 100_000_000 // partitions, 10_000_000_000 // partitions):
        assert stated_rate(error, partitions, urls) <= error
    assert stated_rate(error, partitions, 100_100_000 // partitions) > 0.7 * error


def test_each_filter_is_twice_as_large_with_half_the_error() -> None:
    """The error of a full filter is that of its blocks' load, at most."""
    shapes = [shape_of(1e-4, 8, number) for number in range(5)]
    assert [shape.capacity // shapes[0].capacity for shape in shapes] == [1, 2, 4, 8, 16]
    for number, shape in enumerate(shapes):
        assert false_positives(shape.load) <= 1e-4 / 2 ** (number + 1) < false_positives(shape.load + 1)


@pytest.mark.parametrize("partitions", [1, 8, 64])
def test_a_hundred_million_urls_take_less_than_3_2_bytes_each(partitions: int) -> None:
    """Three filters hold them; keys of 12 bytes count."""
    shapes = [shape_of(1e-4, partitions, number) for number in range(3)]
    assert sum(shape.capacity for shape in shapes) * partitions >= 100_000_000
    assert sum(shape.blocks for shape in shapes) * partitions * (BLOCK_BYTES + 12) < 3.2 * 100_000_000


def reads_of(urls: int) -> tuple[Filter, Watched]:
    """A table of 10,000 partitions' share, opened again with room for six blocks and no neighbours; and its rows."""
    table = Filter(partitions=10_000, cached=1)
    table.offer_all(map(mark, range(urls)))
    table.write()
    table.base = base = Watched(table.base.rows.items())
    table.open()
    return table, base


def test_a_look_up_reads_one_block_a_filter() -> None:
    """Three filters, no block in memory, and a URL that none of them knows."""
    table, base = reads_of(5_000)
    assert not table.knows(mark(6_000))
    assert [key[7] for key in base.reads if key[:1] == b"b"] == [2, 1, 0]


def test_a_url_that_a_block_in_memory_knows_is_known_without_a_read() -> None:
    """It is in the oldest filter; the blocks of the newer ones are not in memory."""
    table, base = reads_of(5_000)
    known = mark(1)
    assert not table.knows(mark(6_000))
    oldest = table.seen._filters[1, 0]._chain[-1]
    mixed = xxhash.xxh3_128_intdigest(known.to_bytes(8, "little"))
    table.seen._blocks.load(oldest, (mixed >> 88) * oldest.blocks >> 40)
    base.reads.clear()
    assert table.knows(known)
    assert base.reads == []


def test_a_filter_that_begins_is_empty_without_a_read() -> None:
    """The rows have nothing of it: 1,430 URLs fill the first filter, the next one begins the second."""
    table, base = reads_of(1_430)
    assert table.offer(mark(2_000))
    assert {key[7] for key in base.reads if key[:1] == b"b"} == {0}


def test_a_filter_comes_into_memory_by_many_blocks_a_read() -> None:
    """After a restart: of 769 blocks, each row is read once, in a few reads of neighbours."""
    table = Filter(partitions=100)
    table.offer_all(map(mark, range(5_000)))
    table.write()
    table.base = base = Watched(table.base.rows.items())
    table.open()
    assert all(table.knows(mark(number)) for number in range(5_000))
    assert [key for key in base.reads if key[:1] == b"b"] == []
    assert len(table.seen._blocks.arena) == (table.blocks() + 2) * WORDS


def test_an_insert_changes_one_block() -> None:
    """Of a table of many: one of them is written, and the rows with the counts."""
    table = Filter(partitions=100)
    table.offer_all(map(mark, range(10_000)))
    table.write()
    assert table.offer(mark(10_001))
    table.seen.flush()
    assert sorted(key[:1] for key in table.rows.dirty) == [b"b", b"l", b"n"]


def test_blocks_let_go_lose_nothing() -> None:
    """Six blocks are held, of 769 that change between two checkpoints."""
    table = Filter(partitions=100, cached=1)
    for at in range(0, 5_000, 50):
        assert all(table.offer_all(map(mark, range(at, at + 50))))
        table.write()
    assert not any(table.offer_all(map(mark, range(5_000))))
    assert table.blocks() > 300


def test_memory_is_bounded_by_the_cache() -> None:
    """Look-ups in 1,700 blocks hold as many as two pages may, and none of those without bits."""
    table = Filter(partitions=10, cached=2)
    for number in range(2_000):
        table.knows(mark(number))
    assert len(table.seen._blocks.arena) == 2 * WORDS
    table.offer_all(map(mark, range(2_000)))
    table.write()
    table.open()
    assert all(table.knows(mark(number)) for number in range(2_000))
    assert len(table.seen._blocks.arena) == (2 * 6 + 2) * WORDS


def test_domains_share_a_filter_and_are_counted_apart() -> None:
    """The budget of a domain needs its own number."""
    table = Filter()
    for domain, number in ((1, 1), (2, 2), (2, 3)):
        table.offer(mark(number), domain)
    table.write()
    assert [table.seen.domain(1, 0, domain, table.error).queued for domain in (1, 2)] == [1, 2]
    assert table.base.rows[r.filter_key(1, 0)] == r.pack(3)


def test_a_job_that_is_forgotten_leaves_nothing_in_memory() -> None:
    """Its rows were dropped; it begins with an empty filter, beside another job's."""
    table = Filter(cached=1)
    table.seen.insert(2, 0, 7, mark(1), table.error)
    table.offer(mark(5))
    table.seen.forget(1)
    table.write()
    assert table.blocks() == 1
    assert table.offer(mark(5))
    assert table.seen.knows(2, 0, 7, mark(1), table.error)


def test_a_look_up_leaves_no_trace() -> None:
    """Asking for an unknown URL changes no row."""
    table = Filter()
    assert not table.knows(mark(1))
    table.write()
    assert table.base.rows == {}
