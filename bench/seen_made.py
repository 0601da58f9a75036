"""The tables of `bench.seen_large`, made in bulk: the rows that a fold would have written, up to the order of offers.

A hundred million offers would take minutes more. A domain has as many pages as linear hashing gives it, and the latest
fingerprints of a page lie in their own row; the benchmark's answers show that the rows are right.
"""

from array import array
from collections.abc import Iterator

from bench.seen import url_of
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.bloom import Blocks, BloomFilter
from crawlog.streams.fold.fingerprints import FULL, LATEST, page_mask
from crawlog.streams.fold.overlay import Changes, InMemory, Rows
from crawlog.streams.state.partition import Database
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places

ERROR = 1e-4
"""Rate of false positives that a Bloom filter is made for: the default."""

ASKED = 10_000_000
"""Unknown URLs that a large Bloom filter is asked for: a rate of 1e-4 is measured to 3 %."""

AT_ONCE = 20_000
"""Rows that are written together."""

FIRST_SPLIT, LAST_SPLIT = 395, 435
"""Mean fingerprints of a page that is not split yet, at the first and the last split of a round: full pages, of which
there are more the fuller all are, cause the splits."""


def pages_for(urls: int) -> int:
    """Pages of a domain with so many URLs, about."""
    pages = 1 << max((urls // FIRST_SPLIT).bit_length() - 1, 0)
    split = (urls / pages - FIRST_SPLIT) / (LAST_SPLIT - FIRST_SPLIT)
    return int(pages * (1 + min(max(split, 0.0), 1.0)))


def make_exact(database: Database, domains: list[range], job: int) -> None:
    """Pages of whole fingerprints."""
    put: dict[bytes, bytes | None] = {}
    for domain, marks in _marks(domains):
        count = len(marks)
        if count <= LATEST:
            put[r.domain_key(job, 0, domain)] = r.pack(r.DomainRow(0, count, array("Q", sorted(marks)).tobytes()))
            continue
        pages = _by_page(marks, pages_for(count))
        put[r.domain_key(job, 0, domain)] = r.pack(r.DomainRow(len(pages), count))
        for slot, page in enumerate(pages):
            assert len(page) < 2 * FULL
            late = slot % (LATEST + 1)
            put[r.exact_key(job, 0, domain, slot)] = array("Q", sorted(page[late:])).tobytes()
            if late:
                put[r.latest_key(job, 0, domain, slot)] = page[:late].tobytes()
            if len(put) >= AT_ONCE:
                database.write(Changes(put))
                put = {}
    database.write(Changes(put))


def make_bloom(database: Database, domains: list[range], job: int, shares: int) -> float:
    """A Bloom filter of all domains together, added to URL by URL; its rate of false positives.

    Args:
        shares: Partitions that share the job's URLs; this is one of them.
    """
    rows = Rows(InMemory())
    blocks = Blocks(rows, 1 << 32)
    bloom = BloomFilter(blocks, rows, job, 0, ERROR, shares)
    for domain, marks in _marks(domains):
        rows.put(r.domain_key(job, 0, domain), r.pack(r.DomainRow(0, len(marks))))
        for mark in marks:
            bloom.add(mark)
    known = domains[-1].stop
    unknown = range(known, known + min(ASKED, 10 * known))
    wrong = sum(bloom.has(fingerprint(url_of(number, number % len(domains)))) for number in unknown)
    changed = list(blocks.changed)
    bloom.write(rows)
    for at in range(0, len(changed), AT_ONCE):
        blocks.changed = dict.fromkeys(changed[at : at + AT_ONCE])
        blocks.flush()
        database.write(rows.taken())
    return wrong / len(unknown)


def _marks(domains: list[range]) -> Iterator[tuple[int, "array[int]"]]:
    """The hash of each domain, and the fingerprints of its URLs."""
    place = Places(1).of
    for number, urls in enumerate(domains):
        domain = place(url_of(urls.start, number)).domain_hash
        yield domain, array("Q", [fingerprint(url_of(url, number)) for url in urls])


def _by_page(marks: "array[int]", size: int) -> "list[array[int]]":
    """Fingerprints by their page, as linear hashing places them."""
    pages = [array("Q") for _ in range(size)]
    mask = page_mask(size)
    half = mask >> 1
    for mark in marks:
        slot = mark & mask
        pages[slot if slot < size else slot & half].append(mark)
    return pages
