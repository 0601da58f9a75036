"""The tables of `bench.seen_large`, made in bulk: the rows that a fold would have written, up to the order of offers.

A hundred million offers would take minutes more. A domain has as many pages as linear hashing gives it, and the latest
fingerprints of a page lie in their own row; the benchmark's answers show that the rows are right.
"""

from array import array
from collections.abc import Iterator

from rocksdict import WriteBatch

from bench.seen import url_of
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.filters import MOST_BITS, PER_PAGE, FilterTable
from crawlog.streams.fold.fingerprints import FULL, LATEST, page_mask
from crawlog.streams.fold.overlay import Changes, InMemory, Rows
from crawlog.streams.fold.seen import SeenTable
from crawlog.streams.state.partition import Database
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places

AT_ONCE = 20_000
"""Rows that are written together."""

FIRST_SPLIT, LAST_SPLIT = 395, 435
"""Mean fingerprints of a page that is not split yet, at the first and the last split of a round: full pages, of which
there are more the fuller all are, cause the splits."""


def row_key(domain: int, mark: int) -> bytes:
    """Key of a fingerprint's own row."""
    return b"f" + (domain >> 32).to_bytes(4, "big") + mark.to_bytes(8, "big")


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


def make_filter(database: Database, domains: list[range], job: int) -> None:
    """Pages of tags, for all domains together."""
    count = domains[-1].stop
    rows = Rows(InMemory())
    table = FilterTable(SeenTable(rows, count), job, 0, MOST_BITS)
    pages = [array("Q") for _ in range(-(-count // PER_PAGE))]
    table.size, table.queued, table.mask = len(pages), count, page_mask(len(pages))
    for domain, marks in _marks(domains):
        rows.put(r.domain_key(job, 0, domain), r.pack(r.DomainRow(0, len(marks))))
        _by_page(marks, len(pages), pages)
    table.write(rows)
    for slot, marks in enumerate(pages):
        page = table._load(slot)  # noqa: SLF001  # nobody but this makes pages in bulk
        tag, width = table._tag, page.width  # noqa: SLF001  # as above
        tags = [(mark >> table.group_at & 255, tag(mark, width)) for mark in marks]
        late = slot % (LATEST + 1)
        page.fill(width, ((group, int.from_bytes(one, "little")) for group, one in sorted(tags[late:])))
        for group, one in tags[:late]:
            page.add(group, one)
        page.write(rows)
        del table.pages[slot]
        if len(rows.dirty) >= AT_ONCE:
            database.write(rows.taken())
    database.write(rows.taken())


def make_rows(database: Database, domains: list[range]) -> None:
    """A row for each fingerprint."""
    for domain, marks in _marks(domains):
        batch = WriteBatch(raw_mode=True)
        for number, mark in enumerate(marks, 1):
            batch.put(row_key(domain, mark), b"")
            if number % AT_ONCE == 0:
                database.apply(batch)
                batch = WriteBatch(raw_mode=True)
        database.apply(batch)


def _marks(domains: list[range]) -> Iterator[tuple[int, "array[int]"]]:
    """The hash of each domain, and the fingerprints of its URLs."""
    place = Places(1).of
    for number, urls in enumerate(domains):
        domain = place(url_of(urls.start, number)).domain_hash
        yield domain, array("Q", [fingerprint(url_of(url, number)) for url in urls])


def _by_page(marks: "array[int]", size: int, pages: "list[array[int]] | None" = None) -> "list[array[int]]":
    """Fingerprints by their page, as linear hashing places them."""
    pages = [array("Q") for _ in range(size)] if pages is None else pages
    mask = page_mask(size)
    half = mask >> 1
    for mark in marks:
        slot = mark & mask
        pages[slot if slot < size else slot & half].append(mark)
    return pages
