"""The seen table: a set of fingerprints, kept as Bloom pages, the same bytes for the same offers."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams import rows as r
from crawlog.streams import seen
from crawlog.streams.seen import SeenTable


class Offer(NamedTuple):
    """A URL of a job's epoch, offered once."""

    job: int
    epoch: int
    domain: int
    fingerprint: int


def mark(number: int) -> int:
    """A fingerprint as good as any."""
    return xxhash.xxh3_64_intdigest(str(number).encode())


class Table:
    """A table over memory that can be flushed, written and opened again."""

    def __init__(self, confirm: bool = True, cached: int = 4096) -> None:
        self.base = r.Memory()
        self.confirm = confirm
        self.cached = cached
        self.open()

    def open(self) -> None:
        """Open what was written last."""
        self.rows = r.Rows(self.base)
        self.seen = SeenTable(self.rows, self.cached)

    def offer(self, offer: Offer) -> bool:
        """Whether the URL is new; it is marked."""
        job, epoch, domain, fingerprint = offer
        if self.seen.knows(job, epoch, domain, fingerprint, self.confirm) is not None:
            return False
        self.seen.insert(job, epoch, domain, fingerprint, self.confirm)
        return True

    def write(self) -> None:
        """A checkpoint."""
        self.seen.flush()
        self.base.write(self.rows.taken())

    def offer_all(self, fingerprints: Iterable[int]) -> int:
        """How many of one domain are new."""
        return sum(self.offer(Offer(1, 0, 7, fingerprint)) for fingerprint in fingerprints)


OFFERS = st.builds(
    Offer, st.sampled_from([1, 2]), st.sampled_from([0, 1]), st.integers(1, 3), st.integers(0, 60).map(mark)
)
STEPS = st.lists(st.one_of(OFFERS, st.sampled_from(["write", "open"])), max_size=300)


def run(table: Table, steps: "list[Offer | str]") -> list[bool]:
    """The answers to the offers; `open` loses nothing because it writes first."""
    answers = []
    for step in steps:
        if isinstance(step, Offer):
            answers.append(table.offer(step))
        else:
            table.write()
            if step == "open":
                table.open()
    table.write()
    return answers


@given(STEPS, st.sampled_from([1, 4096]))
def test_a_confirmed_table_is_a_set(steps: "list[Offer | str]", cached: int) -> None:
    """Each URL of each job, epoch and domain is new exactly once, wherever the table is written and opened again."""
    known: set[Offer] = set()
    expected = []
    for offer in (step for step in steps if isinstance(step, Offer)):
        expected.append(offer not in known)
        known.add(offer)
    assert run(Table(cached=cached), steps) == expected


@given(STEPS, st.booleans())
def test_the_same_offers_give_the_same_bytes(steps: "list[Offer | str]", confirm: bool) -> None:
    """When a table is written and how many pages it holds do not show in its rows."""
    offers_only: list[Offer | str] = [step for step in steps if isinstance(step, Offer)]
    one, other = Table(confirm), Table(confirm, cached=1)
    run(one, offers_only)
    run(other, steps)
    assert one.base.rows == other.base.rows


@pytest.fixture
def small_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real levels in small, so that all of them are reached."""
    levels = ((2, 1), (4, 1), (8, 2), (8, 4), (0, 8))
    monkeypatch.setattr(seen, "LEVELS", levels)
    monkeypatch.setattr(seen, "_DOWN_FROM", seen._down_from_each(levels))
    monkeypatch.setattr(seen, "CONFIRMED", (16, 0.1))


@pytest.mark.usefixtures("small_levels")
def test_no_level_forgets() -> None:
    """A domain grows over all levels, the last far beyond its measure, while pages are written and let go."""
    table = Table(cached=2)
    for batch in range(20):
        assert table.offer_all(mark(n) for n in range(batch * 50, batch * 50 + 50)) == 50
        table.write()
    table.open()
    assert table.seen.domain(1, 0, 7).top == 4
    assert table.offer_all(mark(n) for n in range(1000)) == 0


def test_a_large_domain_is_exact() -> None:
    """40,000 URLs of one domain, each offered twice, the table opened again between."""
    table = Table(cached=4)
    assert table.offer_all(map(mark, range(40_000))) == 40_000
    table.write()
    table.open()
    assert table.offer_all(map(mark, range(40_000))) == 0


def test_pages_let_go_lose_nothing() -> None:
    """One page in memory, 300 domains, written after each offer."""
    table = Table(cached=1)
    offers = [Offer(1, 0, domain, mark(n)) for n in range(2) for domain in range(300)]
    for offer in offers:
        assert table.offer(offer)
        table.write()
    assert not any(table.offer(offer) for offer in offers)


def test_memory_is_bounded_by_the_cache() -> None:
    """After a write no more pages and domains are held than asked for."""
    table = Table(cached=10)
    for domain in range(100):
        table.offer(Offer(1, 0, domain, mark(1)))
    table.write()
    assert (len(table.seen._held), len(table.seen._domains)) == (10, 10)


def test_look_ups_alone_do_not_fill_memory() -> None:
    """Offers that are all known change nothing, so no checkpoint comes and lets pages go."""
    table = Table(cached=10)
    for domain in range(500):
        assert table.seen.knows(1, 0, domain, mark(1), confirm=True) is None
    assert len(table.seen._held) <= 21
    assert len(table.seen._domains) <= 21


def test_a_look_up_leaves_no_trace() -> None:
    """Asking for an unknown URL of an unknown domain changes no row."""
    table = Table()
    assert table.seen.knows(1, 0, 7, mark(1), confirm=True) is None
    table.write()
    assert table.base.rows == {}


def test_an_insert_dirties_one_page() -> None:
    """A domain of several levels: one page, its domain and its fingerprint are written."""
    table = Table()
    table.offer_all(map(mark, range(10_000)))
    table.write()
    table.offer_all([mark(10_000)])
    table.seen.flush()
    assert sorted(key[:1] for key in table.rows.dirty) == [b"b", b"f", b"n"]


@pytest.mark.parametrize("confirm", [True, False])
def test_a_full_page_is_one_small_value(confirm: bool) -> None:
    """4 KiB at most."""
    table = Table(confirm)
    table.offer_all(map(mark, range(5_000)))
    table.write()
    assert max(len(value) for key, value in table.base.rows.items() if key[:1] == b"b") <= 4096


def test_the_filter_alone_errs_as_rarely_as_it_says() -> None:
    """Of 200,000 unknown URLs against 20,000 known ones it takes fewer than five for known: 1e-6 a page and level."""
    table = Table(confirm=False)
    table.offer_all(map(mark, range(20_000)))
    unknown = range(1_000_000, 1_200_000)
    assert sum(table.seen.knows(1, 0, 7, mark(n), confirm=False) is not None for n in unknown) < 5


def test_the_filter_alone_keeps_no_fingerprints() -> None:
    """What is not confirmed takes no row for each URL."""
    table = Table(confirm=False)
    table.offer_all(map(mark, range(100)))
    table.write()
    assert {key[:1] for key in table.base.rows} == {b"b", b"n"}


def test_a_row_of_a_fingerprint_can_be_replaced() -> None:
    """The newer value is what `knows` gives, after a write too."""
    table = Table()
    table.seen.insert(1, 0, 7, mark(1), confirm=True, value=b"old")
    table.seen.update(1, 0, 7, mark(1), b"new")
    table.write()
    assert table.seen.knows(1, 0, 7, mark(1), confirm=True) == b"new"
