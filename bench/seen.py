"""The seen table: 5 million offers of 2 million distinct URLs, on the store that a fetch worker has.

    python -m bench.seen               full size, three ways; writes its section of RESULTS.md
    python -m bench.seen --short       a hundredth of it

An offer is the fold's work for a found URL, from the canonical string on: its place, its fingerprint, the look-up,
the insert; with a checkpoint every 10,000 inserts. CPU of all threads counts, RocksDB's included. Every answer is
compared with the truth. URLs lie on 10,000 domains by Zipf's law, so the largest has a tenth of them. They come either
as pages bring them, 50 links of one domain at a time, or shuffled, those of a thousand pages at a time, which is bad
for the caches.
"""

import argparse
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.results import options_of, run_as, section, table, versions
from crawlog.streams.fold.overlay import Rows
from crawlog.streams.fold.seen import SeenTable
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.settings.machine import State
from crawlog.streams.state.partition import Database, StateMemory
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places
from tests.support.synthetic_site import WORK

OFFERS = 5_000_000
DISTINCT = 2_000_000
DOMAINS = 10_000
LINKS = 50
"""Offers of one domain in a row, where they come as pages bring them."""

RECORD = 50
"""URLs of one found record, which the fold looks up together; parse sends more, where pages come faster."""

PARTITIONS = 8
"""Of the job, by default; the URLs are those of one of them. The size of a Bloom filter goes by it."""

CHECKPOINT_INSERTS = 10_000
PACE = 150_000
"""Offers a CPU second, at least."""

DISK_BYTES = 20.0
"""Disk bytes per URL, at most."""


@dataclass(frozen=True)
class Way:
    """One way to measure: the order of the offers, and the rate of a Bloom filter; 0 for whole fingerprints."""

    title: str
    mixed: bool
    error: float


WAYS = (
    Way("as pages bring them", mixed=False, error=0.0),
    Way("shuffled", mixed=True, error=0.0),
    Way("as pages bring them, Bloom filter", mixed=False, error=1e-4),
)


@dataclass
class Result:
    """Cost of one way, and how often it was wrong."""

    way: Way
    offers: int
    distinct: int
    cpu_s: float
    wall_s: float
    dropped: int
    twice: int
    disk: dict[str, int]

    @property
    def pace(self) -> float:
        """Offers a CPU second."""
        return self.offers / self.cpu_s

    @property
    def disk_bytes(self) -> float:
        """Disk bytes per URL, everything in the folder."""
        return sum(self.disk.values()) / self.distinct


def url_of(number: int, domain: int) -> str:
    """A canonical URL of 60 to 70 characters."""
    return f"https://www.site-{domain}.example/{number % 97}/articles/of-some-length-{number}.html"


def domains_of(distinct: int, domains: int) -> list[range]:
    """The URLs of each domain, as numbers; sizes by Zipf's law."""
    weights = [1 / rank for rank in range(1, domains + 1)]
    total, start, ranges = sum(weights), 0, []
    for weight in weights:
        size = max(1, int(distinct * weight / total))
        ranges.append(range(start, min(start + size, distinct)))
        start = min(start + size, distinct)
    ranges.append(range(start, distinct))  # what rounding left over
    return [urls for urls in ranges if urls]


def offers(total: int, distinct: int, *, mixed: bool) -> Iterator[list[tuple[int, int]]]:
    """(URL, domain) numbers in chunks: every URL at least once, the others again, in an order fixed by a seed."""
    dice = random.Random(7)
    todo: list[tuple[int, int, int]] = []  # domain and the run of its URLs that one page links to
    for domain, urls in enumerate(domains_of(distinct, min(DOMAINS, distinct // 20))):
        todo += [(domain, at, min(at + LINKS, urls.stop)) for at in range(urls.start, urls.stop, LINKS)]
    again = dice.choices(todo, k=(total - distinct) // (distinct // len(todo)) + 1)
    runs = todo + again
    dice.shuffle(runs)
    count, chunk = 0, []
    for domain, start, stop in runs:
        chunk += [(number, domain) for number in range(start, stop)]
        if len(chunk) >= 50_000:
            if mixed:
                dice.shuffle(chunk)
            yield chunk
            count += len(chunk)
            chunk = []
    yield chunk


def offer(seen: SeenTable, marks: list[tuple[int, int, int]], taken: bytearray, error: float) -> tuple[int, int]:
    """The fold's work for a record's URLs; how many were wrongly dropped, and how many taken twice.

    Args:
        marks: Domain, fingerprint and number of each URL.
        taken: By number; URLs that are taken are noted in it.
    """
    dropped = twice = 0
    for domain, mark, number in marks:
        if not seen.knows(1, 0, domain, mark, error):
            seen.insert(1, 0, domain, mark, error)
            twice += taken[number]
            taken[number] = 1
        elif not taken[number]:
            dropped += 1
            taken[number] = 1
    return dropped, twice


def measure(way: Way, total: int, distinct: int, folder: Path) -> Result:
    """Offers everything once this way, in an empty store."""
    shutil.rmtree(folder, ignore_errors=True)
    state = State()
    database = Database(folder, StateMemory(state.memory_mb))
    rows = Rows(database)
    seen = SeenTable(rows, state.cached_pages, PARTITIONS)
    place = Places(1).of
    taken = bytearray(distinct)
    dropped = twice = made = 0
    making_s = 0.0
    cpu, wall = time.process_time(), time.monotonic()
    chunks = offers(total, distinct, mixed=way.mixed)
    while True:
        began = time.thread_time()
        chunk = [(url_of(number, domain), number) for number, domain in next(chunks, [])]
        making_s += time.thread_time() - began
        if not chunk:
            break
        made += len(chunk)
        for record in (chunk[at : at + RECORD] for at in range(0, len(chunk), RECORD)):
            marks = [(place(url).domain_hash, fingerprint(url), number) for url, number in record]
            lost, again = offer(seen, marks, taken, way.error)
            dropped, twice = dropped + lost, twice + again
            if seen.changes >= CHECKPOINT_INSERTS:
                seen.flush()
                database.write(rows.taken())
    seen.flush()
    database.write(rows.taken())
    _settle(database)
    cpu_s, wall_s = time.process_time() - cpu - making_s, time.monotonic() - wall - making_s
    database.close()
    Database(folder, StateMemory(state.memory_mb)).close()  # what a compaction left half done goes when it is opened
    assert all(taken), "every URL is offered"
    return Result(way, made, distinct, cpu_s, wall_s, dropped, twice, disk_of(folder))


def _settle(database: Database) -> None:
    """Wait for compactions under way, as a worker that goes on would; their CPU counts. Closing would cut them off."""
    held = database._db  # noqa: SLF001  # nobody but a benchmark asks
    held.flush()
    while any(held.property_int_value(f"rocksdb.{what}") for what in ("compaction-pending", "num-running-compactions")):
        time.sleep(0.01)


def disk_of(folder: Path) -> dict[str, int]:
    """Bytes by kind of file: tables, the write-ahead log, all else."""
    sizes = {"tables": 0, "write-ahead log": 0, "other": 0}
    for file in folder.rglob("*"):
        kind = {".sst": "tables", ".log": "write-ahead log"}.get(file.suffix, "other")
        sizes[kind] += file.stat().st_size if file.is_file() else 0
    return sizes


def report(results: list[Result]) -> str:
    """The table."""
    head = [
        "offers",
        "count",
        "offers/CPU s",
        "offers/s",
        "wrongly dropped",
        "taken twice",
        "disk B/URL",
        "tables B/URL",
    ]
    rows = [
        [
            one.way.title,
            f"{one.offers:,}",
            f"{one.pace:,.0f}",
            f"{one.offers / one.wall_s:,.0f}",
            f"{one.dropped:,}",
            f"{one.twice:,}",
            f"{one.disk_bytes:.1f}",
            f"{one.disk['tables'] / one.distinct:.1f}",
        ]
        for one in results
    ]
    return table(head, rows)


def goals(results: list[Result]) -> list[str]:
    """The goals that were missed, by the exact ways; the Bloom filter is allowed its rate."""
    missed = []
    for one in results:
        if not one.way.error and (one.dropped or one.twice):
            missed.append(f"{one.way.title}: {one.dropped} wrongly dropped, {one.twice} taken twice, none allowed")
        if not one.way.error and one.disk_bytes > DISK_BYTES:
            missed.append(f"{one.way.title}: {one.disk_bytes:.1f} disk bytes per URL, ≤ {DISK_BYTES} wanted")
    if results[0].pace < PACE:
        missed.append(f"{results[0].way.title}: {results[0].pace:,.0f} offers a CPU second, ≥ {PACE:,} wanted")
    return missed


def main() -> int:
    """Measures all ways; 1 when an answer was wrong, or, at full size, another goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a hundredth of the size; nothing is written")
    args = options_of(parser)
    scale = 100 if args.short else 1
    results = []
    collect_seldom()  # as a worker does
    for way in WAYS:
        results.append(measure(way, OFFERS // scale, DISTINCT // scale, WORK / "seen"))
        print(f"{way.title}: {results[-1].pace:,.0f} offers a CPU second", file=sys.stderr)
    missed = goals(results)
    body = report(results) + "\n\n" + ("\n".join(missed) if missed else "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "xxhash"]).items())
        shape = (
            f"{DISTINCT:,} URLs on {DOMAINS:,} domains by Zipf's law; a checkpoint every {CHECKPOINT_INSERTS:,} inserts"
        )
        section("seen", "Seen table", body, {"run": run_as("seen"), "shape": shape, "versions": packages})
    wrong = any(not one.way.error and (one.dropped or one.twice) for one in results)
    return 1 if wrong or (missed and not args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
