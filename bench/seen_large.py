"""The seen table beyond memory: 20 and 100 million known URLs with a cache of 256 MB.

    python -m bench.seen_large                    both sizes, each way, both loads; writes its section of RESULTS.md
    python -m bench.seen_large --known 5 --cache 13     another size, in millions, and cache; nothing is written
    python -m bench.seen_large --short            100,000 URLs and a cache of 16 MB; nothing is written

Known URLs lie on a thousandth as many domains by Zipf's law. `bench/seen_made.py` makes the tables. Then each way takes
offers in a process of its own. An offer is the fold's work for a found URL, from the canonical string on, with a
checkpoint every 10,000 inserts; CPU of all threads counts. Tables are read past the page cache (direct reads), so each
read is a read of the disk.

`bench/seen_loads.py` has the two loads: *uniform*, the worst case, and *crawl*.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rocksdict import Options

from bench.results import options_of, run_as, section, table, versions
from bench.seen import disk_of, url_of
from bench.seen_loads import Load, known_domains
from bench.seen_made import make_exact, make_filter, make_rows, row_key
from crawlog.streams.fold.overlay import Rows
from crawlog.streams.fold.seen import SeenTable
from crawlog.streams.state.partition import Database, StateMemory
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places
from crawlog.streams.worker.process import spare_the_collector
from tests.support.synthetic_site import REPO, WORK

CACHE_MB = 256
ROCKSDB_MB = 32
"""Of the cache: RocksDB's, for the tables' indices and filters, and write buffers. The rest are pages in memory.
Half as much for the filter alone, whose tables have a quarter of the exact ones' bytes."""

PAGE_BYTES, FILTER_PAGE_BYTES = 3_400, 3_000
"""A page in memory, about: 300 fingerprints, their object, its place in two collections, and its part of the recent
fingerprints. One of a filter grew a process by 2,980 bytes (83,334 of 1,200 URLs)."""

KNOWN = (20_000_000, 100_000_000)
CHECKPOINT_INSERTS = 10_000
REBUILT = 500_000
"""URLs that are folded into an empty table."""

GOAL_PACE = 150_000
GOAL_EXACT, GOAL_FILTER = 12.0, 2.2
"""Bytes of disk a known URL, at most."""

GOAL_RATE = 1e-4
EXACT, FILTER, BOTH, ROWS = "exact pages", "filter alone", "filter, then exact", "a row each, RocksDB's filters"
WAYS = (EXACT, FILTER, BOTH, ROWS)
LOADS = ("uniform", "crawl")
JOBS = {EXACT: 1, FILTER: 2}
"""Both tables lie in one database, as two jobs'."""


class Case(NamedTuple):
    """What one process measures.

    Attributes:
        warming: Offers before those that are measured: they fill the caches.
    """

    way: str
    load: str
    known: int
    cache_mb: int
    warming: int
    offers: int


@dataclass
class Result:
    """Cost of one case.

    Attributes:
        cpu_us: An offer's CPU, microseconds.
        system_us: The kernel's part of it: mostly reads.
        reads: Reads of the disk an offer, by the thread that folds.
        new: Offers of URLs that were not known.
        dropped: New URLs that were taken for known ones.
        twice: Known URLs that were taken for new ones.
        restore_s: From opening the database to the first answer, by the clock.
    """

    cpu_us: float
    system_us: float
    reads: float
    offers: int
    new: int
    dropped: int
    twice: int
    restore_s: float
    rss_mb: float

    @property
    def pace(self) -> float:
        """Offers a CPU second."""
        return 1e6 / self.cpu_us


@dataclass
class Made:
    """What the tables of one size take.

    Attributes:
        disk: Bytes of disk a URL by way.
        cpu_us: CPU to offer 500,000 new URLs, a domain after the other, to an empty table: a URL, microseconds.
    """

    known: int
    disk: dict[str, float]
    cpu_us: dict[str, float]


class DirectMemory(StateMemory):
    """The budget of a worker's databases; their tables are read past the page cache."""

    def options(self) -> Options:
        """Those of a worker, with direct reads."""
        options = super().options()
        options.set_use_direct_reads(True)
        return options


# ---------------------------------------------------------------------- the ways


class Pages:
    """The seen table: whole fingerprints, or a filter."""

    def __init__(self, rows: Rows, job: int, cached: int) -> None:
        self._job = job
        self._confirm = job == JOBS[EXACT]
        self._seen = SeenTable(rows, cached)

    def take(self, marks: list[tuple[int, int]]) -> list[bool]:
        """Whether each URL was known; it is marked. `marks` are domains and fingerprints."""
        seen, job, confirm, known = self._seen, self._job, self._confirm, []
        for domain, mark in marks:
            was = seen.knows(job, 0, domain, mark, confirm)
            if not was:
                seen.insert(job, 0, domain, mark, confirm)
            known.append(was)
        return known

    @property
    def changes(self) -> int:
        """Inserts since the last flush."""
        return self._seen.changes

    def flush(self) -> None:
        """Before a checkpoint."""
        self._seen.flush()


class FilterFirst(Pages):
    """A filter that says what is new without a read; exact pages confirm what it takes for known."""

    def __init__(self, rows: Rows, cached: int, filter_cached: int) -> None:
        super().__init__(rows, JOBS[EXACT], cached)
        self._filter = SeenTable(rows, filter_cached)

    def take(self, marks: list[tuple[int, int]]) -> list[bool]:
        """As above: only what the filter knows is looked up."""
        exact, sieve, known = self._seen, self._filter, []
        for domain, mark in marks:
            was = sieve.knows(JOBS[FILTER], 0, domain, mark, confirm=False)
            if not was:
                sieve.insert(JOBS[FILTER], 0, domain, mark, confirm=False)
            was = was and exact.knows(JOBS[EXACT], 0, domain, mark, confirm=True)
            if not was:
                exact.insert(JOBS[EXACT], 0, domain, mark, confirm=True)
            known.append(was)
        return known

    def flush(self) -> None:
        """Before a checkpoint."""
        super().flush()
        self._filter.flush()


class RowEach:
    """A row for each fingerprint, looked up by RocksDB with its own filters."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def take(self, marks: list[tuple[int, int]]) -> list[bool]:
        """As above, with one look-up a record."""
        keys = [row_key(domain, mark) for domain, mark in marks]
        found = self._rows.get_many(set(keys))
        known = []
        for key in keys:
            known.append(found[key] is not None)
            found[key] = b""
            if not known[-1]:
                self._rows.put(key, b"")
        return known

    @property
    def changes(self) -> int:
        """Rows not written yet."""
        return len(self._rows.dirty)

    def flush(self) -> None:
        """Nothing is held beside the rows."""


Way = Pages | FilterFirst | RowEach


def way_of(case: Case, rows: Rows) -> Way:
    """The way of a case, with its share of the cache."""
    memory = case.cache_mb - rocksdb_mb(case) << 20
    if case.way == ROWS:
        return RowEach(rows)
    if case.way == FILTER:
        return Pages(rows, JOBS[FILTER], memory // FILTER_PAGE_BYTES)
    if case.way == BOTH:
        filters = min(int(case.known * GOAL_FILTER), memory * 9 // 10)
        return FilterFirst(rows, (memory - filters) // PAGE_BYTES, filters // FILTER_PAGE_BYTES)
    return Pages(rows, JOBS[EXACT], memory // PAGE_BYTES)


def rocksdb_mb(case: Case) -> int:
    """RocksDB's part of the cache."""
    if case.way == ROWS:
        return case.cache_mb
    return min(ROCKSDB_MB // 2 if case.way == FILTER else ROCKSDB_MB, case.cache_mb // 2)


# ---------------------------------------------------------------------- measuring


def folder_of(known: int, way: str) -> Path:
    """The folder of the tables made for a way."""
    return WORK / "seen-large" / f"{'rows' if way == ROWS else 'pages'}-{known}"


def make(known: int, *ways: str) -> Made:
    """Make the tables of one size in this process, those that the ways need."""
    made = Made(known, {}, {})
    shutil.rmtree(WORK / "seen-large", ignore_errors=True)
    before, domains = 0.0, known_domains(known)
    for way in (EXACT, FILTER, ROWS):
        if way not in ways and (way == ROWS or BOTH not in ways):
            continue
        folder = folder_of(known, way)
        database = Database(folder, StateMemory(CACHE_MB))
        if way == ROWS:
            make_rows(database, domains)
        else:
            (make_filter if way == FILTER else make_exact)(database, domains, JOBS[way])
        database.flush()
        database._db.compact_range(None, None)  # noqa: SLF001  # nobody but a benchmark asks
        database.close()
        Database(folder, StateMemory(CACHE_MB)).close()  # files that the compaction left go when it is opened
        size = disk_of(folder)["tables"]
        made.disk[way] = (size - (before if way == FILTER else 0)) / known
        before = size
        made.cpu_us[way] = rebuilding_us(way, min(known, REBUILT))
    return made


def rebuilding_us(way: str, count: int) -> float:
    """CPU to fold new URLs into an empty table, microseconds a URL."""
    folder = WORK / "seen-large" / "rebuilt"
    database = Database(folder, StateMemory(ROCKSDB_MB))
    rows = Rows(database)
    table = way_of(Case(way, "", count, CACHE_MB, 0, 0), rows)
    place = Places(1).of
    began = time.process_time()
    for domain, numbers in enumerate(known_domains(count)):
        table.take([(place(url).domain_hash, fingerprint(url)) for url in (url_of(n, domain) for n in numbers)])
        if table.changes >= CHECKPOINT_INSERTS:
            table.flush()
            database.write(rows.taken())
    spent_s = time.process_time() - began
    database.close()
    shutil.rmtree(folder)
    return 1e6 * spent_s / count


def run_case(case: Case) -> Result:
    """Measure one case in this process, on a copy of its tables."""
    spare_the_collector()  # as a worker does
    folder = WORK / "seen-large" / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder_of(case.known, case.way), folder, copy_function=link_tables)
    load = Load(case.known)
    records = load.uniform() if case.load == "uniform" else load.crawl()
    began = time.monotonic()
    database = Database(folder, DirectMemory(rocksdb_mb(case)))
    rows = Rows(database)
    way = way_of(case, rows)
    place = Places(1).of
    truth: set[int] = set()
    restore_s = 0.0
    for offers in (case.warming, case.offers):
        made = new = dropped = twice = 0
        making_s = 0.0
        reads, cpu, system = thread_reads(), time.process_time(), os.times().system
        while made < offers:
            at = time.thread_time()
            record = [(url_of(number, domain), number) for number, domain in next(records)]
            making_s += time.thread_time() - at
            made += len(record)
            known = way.take([(place(url).domain_hash, fingerprint(url)) for url, _ in record])
            restore_s = restore_s or time.monotonic() - began
            if way.changes >= CHECKPOINT_INSERTS:
                way.flush()
                database.write(rows.taken())
            at = time.thread_time()
            for (_, number), was in zip(record, known, strict=True):
                is_known = number < case.known or number in truth
                new += not is_known
                dropped += was and not is_known
                twice += is_known and not was
                if not is_known:
                    truth.add(number)
            making_s += time.thread_time() - at
        cpu_s, system_s = time.process_time() - cpu - making_s, os.times().system - system
        reads = thread_reads() - reads
    rss = int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")).split()[1])
    database.close()
    shutil.rmtree(folder)
    costs = (1e6 * cpu_s / made, 1e6 * system_s / made, reads / made)
    return Result(*costs, made, new, dropped, twice, restore_s, rss / 1024)


def link_tables(source: str, target: str) -> None:
    """Tables never change, so a copy may share them."""
    (os.link if source.endswith(".sst") else shutil.copyfile)(source, target)


def thread_reads() -> int:
    """Reads that this thread has made; compactions run in others."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("syscr")).split()[1])


def in_process(kind: str, *arguments: object) -> dict[str, object]:
    """Run `make` or a case in a process of its own."""
    command = [sys.executable, "-m", "bench.seen_large", f"--{kind}", json.dumps(arguments)]
    answer = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, check=True, text=True).stdout
    given: dict[str, object] = json.loads(answer.splitlines()[-1])
    return given


def report(results: dict[Case, Result], made: list[Made]) -> str:
    """Both tables."""
    head = ["known", "load", "way", "offers/CPU s", "kernel's µs", "reads/offer", "wrongly dropped", "twice"]
    rows = [
        [
            f"{case.known:,}",
            case.load,
            case.way,
            f"{one.pace:,.0f}",
            f"{one.system_us:.1f} of {one.cpu_us:.1f}",
            f"{one.reads:.3f}",
            f"{one.dropped:,} of {one.new:,}",
            f"{one.twice:,}",
            f"{one.restore_s:.2f}",
            f"{one.rss_mb:.0f}",
        ]
        for case, one in results.items()
    ]
    takes = [
        [
            f"{one.known:,}",
            way,
            f"{one.disk[way]:.2f}",
            f"{one.cpu_us[way]:.2f}",
            f"{one.cpu_us[way] * one.known / 1e6:.0f}",
        ]
        for one in made
        for way in one.disk
    ]
    sizes = table(["known", "table", "disk B/URL", "rebuilt, µs/URL", "so in all, CPU s"], takes)
    return table([*head, "restore s", "RSS MB"], rows) + "\n\n" + sizes


def goals(results: dict[Case, Result], made: list[Made]) -> list[str]:
    """The goals that were missed."""
    missed = []
    for case, one in results.items():
        name = f"{case.way}, {case.load}, {case.known:,} known"
        if case.way == FILTER and one.dropped > max(GOAL_RATE * one.new, 3) * 1.5:
            missed.append(f"{name}: {one.dropped} of {one.new:,} wrongly dropped, {GOAL_RATE:.0e} wanted")
        if (case.way != FILTER and one.dropped) or one.twice:
            missed.append(f"{name}: {one.dropped} wrongly dropped, {one.twice} taken twice, none allowed")
        if case.way == EXACT and one.pace < GOAL_PACE:
            missed.append(f"{name}: {one.pace:,.0f} offers a CPU second, ≥ {GOAL_PACE:,} wanted")
    for size in made:
        for way, most in ((EXACT, GOAL_EXACT), (FILTER, GOAL_FILTER)):
            if size.disk.get(way, 0) > most:
                missed.append(f"{way}, {size.known:,} known: {size.disk[way]:.2f} bytes a URL, ≤ {most} wanted")
    return missed


def main() -> int:
    """Measures all cases; 1 when an exact answer was wrong, or, at full size, another goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="100,000 URLs, 16 MB; nothing is written")
    parser.add_argument("--known", type=float, help="one size, in millions; nothing is written")
    parser.add_argument("--cache", type=int, default=CACHE_MB, help="MiB of memory")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, by how their names begin")
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = options_of(parser)
    if args.make or args.case:
        asked = json.loads(args.make or args.case)
        print(json.dumps(asdict(make(*asked) if args.make else run_case(Case(*asked)))))
        return 0
    sizes = (100_000,) if args.short else (int(args.known * 1e6),) if args.known else KNOWN
    words = args.ways.split(",")
    if unknown := [word for word in words if not any(way.startswith(word) for way in WAYS)]:
        sys.exit(f"no way begins with {', '.join(unknown)}: there are {'; '.join(WAYS)}")
    ways = [way for way in WAYS if way.startswith(tuple(words))]
    results: dict[Case, Result] = {}
    made = []
    for known in sizes:
        made.append(Made(**in_process("make", known, *ways)))  # type: ignore[arg-type]  # what `make` printed
        for way in ways:
            for load in LOADS:
                warming, offers = (10_000, 10_000) if args.short else (500_000, 200_000)
                case = Case(way, load, known, 16 if args.short else args.cache, warming, offers)
                results[case] = Result(**in_process("case", *case))  # type: ignore[arg-type]  # what a case printed
                print(f"{case}: {results[case].pace:,.0f} offers a CPU second", file=sys.stderr)
    shutil.rmtree(WORK / "seen-large", ignore_errors=True)
    missed = goals(results, made)
    body = report(results, made) + "\n\n" + ("\n".join(missed) if missed else "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "xxhash"]).items())
        facts = {"run": run_as("seen_large"), "versions": packages}
        section("seen-large", "Seen table beyond memory", body, facts)
    wrong = any(one.twice or (case.way != FILTER and one.dropped) for case, one in results.items())
    return 1 if wrong or (missed and not args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
