"""The seen table: a set of fingerprints, kept in pages, the same bytes for the same offers."""

from collections.abc import Iterable
from typing import NamedTuple

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.fold import fingerprints as pages
from crawlog.streams.fold.overlay import InMemory, Rows
from crawlog.streams.fold.seen import SeenTable


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

    def __init__(self, error: float = 0.0, cached: int = 4096) -> None:
        self.base = InMemory()
        self.error = error
        self.cached = cached
        self.open()

    def open(self) -> None:
        """Open what was written last."""
        self.rows = Rows(self.base)
        self.seen = SeenTable(self.rows, self.cached)

    def offer(self, offer: Offer) -> bool:
        """Whether the URL is new; it is marked."""
        job, epoch, domain, fingerprint = offer
        if self.seen.knows(job, epoch, domain, fingerprint, self.error):
            return False
        self.seen.insert(job, epoch, domain, fingerprint, self.error)
        return True

    @property
    def size(self) -> int:
        """Of the one domain."""
        domain = self.seen.domain(1, 0, 7, self.error)
        assert isinstance(domain, pages.Exact)
        return domain.size

    def write(self) -> None:
        """A checkpoint."""
        self.seen.flush()
        self.base.write(self.rows.taken())

    def offer_all(self, fingerprints: Iterable[int]) -> int:
        """How many of one domain are new."""
        return self.offer_all_of(7, fingerprints)

    def offer_all_of(self, domain: int, fingerprints: Iterable[int]) -> int:
        """How many of a domain are new."""
        return sum(self.offer(Offer(1, 0, domain, fingerprint)) for fingerprint in fingerprints)


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
def test_an_exact_table_is_a_set(steps: "list[Offer | str]", cached: int) -> None:
    """Each URL of each job, epoch and domain is new exactly once, wherever the table is written and opened again."""
    known: set[Offer] = set()
    expected = []
    for offer in (step for step in steps if isinstance(step, Offer)):
        expected.append(offer not in known)
        known.add(offer)
    assert run(Table(cached=cached), steps) == expected


@given(STEPS, st.sampled_from([0.0, 1e-4]))
def test_the_same_offers_give_the_same_bytes(steps: "list[Offer | str]", error: float) -> None:
    """When a table is written and how many pages it holds do not show in its rows."""
    offers_only: list[Offer | str] = [step for step in steps if isinstance(step, Offer)]
    one, other = Table(error), Table(error, cached=1)
    run(one, offers_only)
    run(other, steps)
    assert one.base.rows == other.base.rows


@given(
    st.sets(st.integers(0, (1 << 64) - 1) | st.integers(0, 300), max_size=300),
    st.integers(1, 30),
    st.booleans(),
    st.sampled_from([1, 2, 5]),
)
def test_a_table_splits_its_pages_and_stays_a_set(
    fingerprints: set[int], batch: int, opened: bool, latest: int
) -> None:
    """Pages of four: whatever its bits, a fingerprint is known once offered; no row tells when it was written."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pages, "FULL", 4)
        patched.setattr(pages, "LATEST", latest)
        table, at_once = Table(cached=2), Table()
        order = sorted(fingerprints, key=mark)
        for at in range(0, len(order), batch):
            assert table.offer_all(order[at : at + batch]) == len(order[at : at + batch])
            table.write()
            if opened:
                table.open()
        assert table.offer_all(fingerprints) == 0
        at_once.offer_all(order)
        at_once.write()
        assert table.base.rows == at_once.base.rows


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


def test_memory_is_bounded_while_all_domains_change() -> None:
    """Pages that are on disk go, though their domain has a row to write; nothing is lost thereby."""
    table = Table(cached=10)
    marks = [mark(number) for number in range(20_000)]
    assert table.offer_all(marks) == 20_000
    table.write()
    for number, known in enumerate(marks):
        assert not table.offer(Offer(1, 0, 7, known))
        if number % 2_000 == 0:
            assert table.offer(Offer(1, 0, 7, mark(100_000 + number)))
    assert len(table.seen._held) <= 10 + 2 + 10
    table.write()
    assert table.offer_all(mark(100_000 + number) for number in range(0, 20_000, 2_000)) == 0


def test_a_domain_leaves_memory_with_its_last_page() -> None:
    """It had a row to write when its page went."""
    table = Table(cached=1)
    for domain in range(50):
        table.offer_all_of(domain, map(mark, range(70)))
        table.write()
    assert len(table.seen._domains) <= 2


def test_what_came_lately_is_known_without_its_page() -> None:
    """Two pages of some hundred are held; URLs whose pages have gone are asked again, and no page is read."""
    table = Table(cached=2)
    table.offer_all(map(mark, range(40_000)))
    table.write()
    late = [mark(number) for number in range(40_000, 40_050)]
    table.offer_all(late)
    table.write()
    domain, recent = table.seen.domain(1, 0, 7, error=0.0), table.seen.recent
    assert isinstance(domain, pages.Exact)
    assert recent is not None
    gone = [one for one in late if recent.has(domain.number, one) and one & 127 not in domain.pages]
    held = set(domain.pages)
    assert len(gone) > 10
    assert table.offer_all(gone) == 0
    assert set(domain.pages) == held
    assert table.offer_all_of(8, gone) == len(gone)


def test_look_ups_alone_do_not_fill_memory() -> None:
    """Offers that are all known change nothing, so no checkpoint comes and lets pages go."""
    table = Table(cached=10)
    for domain in range(500):
        assert not table.seen.knows(1, 0, domain, mark(1), error=0.0)
    assert len(table.seen._held) <= 21
    assert len(table.seen._domains) <= 21


def test_a_look_up_leaves_no_trace() -> None:
    """Asking for an unknown URL of an unknown domain changes no row."""
    table = Table()
    assert not table.seen.knows(1, 0, 7, mark(1), error=0.0)
    table.write()
    assert table.base.rows == {}


def test_an_insert_dirties_one_page() -> None:
    """A table of many pages: one of them is written, and its domain's row."""
    table = Table()
    table.offer_all(map(mark, range(10_000)))
    table.write()
    table.offer_all([mark(10_001)])
    table.seen.flush()
    assert sorted(key[:1] for key in table.rows.dirty) == [b"e", b"n"]


def test_an_insert_writes_a_few_bytes_of_a_page() -> None:
    """Most inserts write the latest fingerprints of a page: some 300 bytes each with two keys, not 3,000."""
    table = Table()
    table.offer_all(map(mark, range(10_000)))
    table.write()
    written = 0
    for number in range(10_000, 10_500):
        table.offer_all([mark(number)])
        table.seen.flush()
        written += sum(len(key) + len(value or b"") for key, value in table.rows.dirty.items())
        table.base.write(table.rows.taken())
    assert written < 500 * 450


def test_what_is_marked_counts_as_changed_until_it_is_written() -> None:
    """A page that takes many URLs is one row: a worker that counted rows alone would write the seldomer."""
    table = Table()
    table.offer_all(map(mark, range(100)))
    table.offer_all(map(mark, range(100)))
    assert table.seen.changes == 100
    table.write()
    assert table.seen.changes == 0


def test_a_small_domain_is_one_row() -> None:
    """Most domains of the web have few URLs: one look-up and one write for all that is known of such a domain."""
    table = Table()
    table.offer_all(map(mark, range(64)))
    table.write()
    assert sorted(key[:1] + key[-1:] for key in table.base.rows) == [b"n\x07"]
    table.offer_all([mark(64)])
    table.write()
    assert sorted(key[:1] + key[-1:] for key in table.base.rows) == [b"e\0", b"n\x07"]


def test_a_domain_that_outgrew_its_row_is_let_go_with_its_pages() -> None:
    """It was held before it had a page: it goes once, and comes back as it was."""
    table = Table(cached=1)
    for number in range(200):
        assert table.offer(Offer(1, 0, 7, mark(number)))
        assert table.offer(Offer(1, 0, 8 + number, mark(number)))
        table.write()
    assert table.offer_all(map(mark, range(200))) == 0
    assert len(table.seen._domains) <= 3


def test_a_full_page_is_one_small_value() -> None:
    """Some KiB at most, wherever between two sizes a table is."""
    table = Table()
    for batch in range(20):
        table.offer_all(mark(n) for n in range(batch * 500, batch * 500 + 500))
        table.write()
        assert max(len(value) for key, value in table.base.rows.items() if key[:1] == b"e") <= 4 << 10


def test_exact_pages_are_about_half_full_at_least() -> None:
    """A known URL takes 8 bytes and little more, since a domain has a page for each 200 to 448 of them."""
    table = Table()
    for count in (1_000, 5_000, 20_000):
        table.offer_all(map(mark, range(count)))
        assert count / 448 <= table.size <= count / 200
