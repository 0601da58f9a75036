"""The filter of a job without whole fingerprints: a set of the fingerprints' bits, however it grows."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.fold import filters
from crawlog.streams.fold.filters import FilterTable, filter_bits
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.fold.seen import SeenTable

MARKS = st.one_of(st.integers(0, (1 << 64) - 1), st.integers(0, 300), st.integers(0, 40).map(lambda n: n << 30))
"""Arbitrary ones, and some that differ in few bits: a stranger may choose them."""


class Filter:
    """One over memory that can be written and opened again."""

    def __init__(self, bits: int) -> None:
        self.base = InMemory()
        self.bits = bits
        self.open()

    def open(self) -> None:
        """Open what was written last."""
        self.rows = Rows(self.base)
        self.seen = SeenTable(self.rows, 2, self.bits)

    def write(self) -> None:
        """A checkpoint."""
        self.seen.flush()
        self.base.write(self.rows.taken())

    def offer(self, fingerprint: int, domain: int = 7) -> bool:
        """Whether it is new; it is marked."""
        if self.seen.knows(1, 0, domain, fingerprint, confirm=False):
            return False
        self.seen.insert(1, 0, domain, fingerprint, confirm=False)
        return True

    def offer_all(self, fingerprints: Iterable[int]) -> list[bool]:
        """The answers."""
        return [self.offer(fingerprint) for fingerprint in fingerprints]

    def table(self) -> FilterTable:
        """The table of all domains."""
        return self.seen._filters[1, 0]


@given(
    st.lists(MARKS, max_size=400),
    st.sampled_from([20, 25, 32, 37, 40]),
    st.sampled_from([1, 7, 100]),
    st.sampled_from([0, 2, 9]),
    st.booleans(),
)
def test_it_knows_exactly_the_bits_that_it_keeps(
    marks: list[int], bits: int, per_page: int, latest: int, written: bool
) -> None:
    """Over all widths of tags, splits and forms of pages: nothing is forgotten, and nothing else taken for known."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filters, "PER_PAGE", per_page)
        patched.setattr(filters, "LATEST", latest)
        table, known, expected = Filter(bits), set[int](), []
        for number, mark in enumerate(marks):
            kept = mark & (1 << bits) - 1
            expected.append(kept not in known)
            known.add(kept)
            assert table.offer(mark) == expected[-1]
            if written and number % 20 == 0:
                table.write()
                table.open()
        assert not any(table.offer_all(marks))


@given(st.lists(MARKS, max_size=200), st.sampled_from([3, 30]))
def test_its_rows_do_not_depend_on_when_they_are_written(marks: list[int], per_page: int) -> None:
    """Two folds of one log have the same bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filters, "PER_PAGE", per_page)
        patched.setattr(filters, "LATEST", 4)
        often, once = Filter(32), Filter(32)
        for mark in marks:
            often.offer(mark)
            often.write()
        once.offer_all(marks)
        once.write()
        assert often.base.rows == once.base.rows


def test_tags_get_shorter_as_pages_become_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 bits, with 256 pages, 8 tell the page, 8 the group and two bytes the rest."""
    monkeypatch.setattr(filters, "PER_PAGE", 2)
    table = Filter(32)
    widths = []
    for number in range(600):
        table.offer(number * 0x9E3779B97F4A7C15 % (1 << 64))
        widths.append(table.table()._width(0))
    assert widths == sorted(widths, reverse=True)
    assert set(widths) == {3, 2}


def test_an_insert_writes_the_latest_alone() -> None:
    """Not the page of some KiB that it falls into."""
    table = Filter(40)
    table.offer_all(range(0, 1_000 << 30, 1 << 30))
    table.write()
    assert table.offer(1_000 << 30)
    table.seen.flush()
    assert sum(len(value or b"") for key, value in table.rows.dirty.items() if key[:1] == b"b") < 64 * 5


def test_a_group_may_have_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 fingerprints with the same page and group, as only a stranger makes them."""
    monkeypatch.setattr(filters, "PER_PAGE", 10_000)
    table = Filter(40)
    marks = [number << 8 for number in range(300)]
    assert all(table.offer_all(marks))
    table.write()
    table.open()
    assert not any(table.offer_all(marks))


def test_domains_share_a_filter_and_are_counted_apart() -> None:
    """The budget of a domain needs its own number."""
    table = Filter(40)
    for domain in (1, 2, 2):
        table.offer(domain * 1_000 + len(table.rows.dirty), domain)
    assert table.seen.domain(1, 0, 1, confirm=False).queued == 1
    assert table.table().queued == sum(table.seen.domain(1, 0, domain, confirm=False).queued for domain in (1, 2))


def test_a_job_that_is_forgotten_leaves_nothing_in_memory() -> None:
    """Its rows were dropped; it begins with an empty filter."""
    table = Filter(40)
    table.offer(5)
    table.seen.forget(1)
    assert table.offer(5)


@pytest.mark.parametrize(("partitions", "bits"), [(1, 40), (2, 39), (8, 37), (9, 37), (1024, 37)])
def test_partitions_share_a_jobs_urls(partitions: int, bits: int) -> None:
    """Each partition has a part of a hundred million URLs, up to eight."""
    assert filter_bits(partitions) == bits


def test_a_large_filter_takes_two_bytes_a_url() -> None:
    """300,000 URLs with 31 bits are as 79 million with 39: tags of two bytes, and little more."""
    table = Filter(31)
    table.seen.cached = 10_000
    for number in range(300_000):
        table.seen.insert(1, 0, 7, number * 0x9E3779B97F4A7C15 % (1 << 64), confirm=False)
    table.write()
    assert sum(len(key) + len(value) for key, value in table.base.rows.items() if key[:1] == b"b") < 300_000 * 2.2
