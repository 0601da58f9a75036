"""The seen table beyond memory: 1, 10 and 100 million known URLs with a cache of 256 MB.

    python -m bench.seen_large                    all sizes, both ways, both loads; writes its section of RESULTS.md
    python -m bench.seen_large --known 5 --cache 13     another size, in millions, and cache; nothing is written
    python -m bench.seen_large --short            100,000 URLs and a cache of 16 MB; nothing is written

Known URLs lie on a thousandth as many domains by Zipf's law. `bench/seen_made.py` makes the tables. Then each way takes
offers in a process of its own. An offer is the fold's work for a found URL, from the canonical string on, with a
checkpoint every 10,000 inserts; CPU of all threads counts. Tables are read past the page cache (direct reads), so each
read is a read of the disk. The Bloom filter is that of one partition of a job with 100 million URLs in all, so each
size has three full filters, and a rate of false positives that can be measured. It is judged against `stated_rate`, the
rate that the filters' sizes give, which is below `dedup.error`. *No table* is the same work without any answer.

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
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rocksdict import Options

from bench.results import options_of, run_as, section, table, versions
from bench.seen import disk_of, url_of
from bench.seen_loads import UNIFORM_RECORD, Load, known_domains
from bench.seen_made import ERROR, make_bloom, make_exact
from crawlog.streams.fold.bloom import stated_rate
from crawlog.streams.fold.overlay import Rows
from crawlog.streams.fold.seen import SeenTable
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.state.partition import Database, StateMemory
from crawlog.streams.url.canonical import fingerprint
from crawlog.streams.url.place import Places
from tests.support.synthetic_site import REPO, WORK

CACHE_MB = 256
ROCKSDB_MB = 32
"""Of the cache: RocksDB's, for the tables' indices and filters, and write buffers. The rest are pages in memory.
Half as much for the Bloom filter, whose tables have a third of the exact ones' bytes."""

PAGE_BYTES, BLOOM_PAGE_BYTES = 3_400, 6 * 532
"""A page in memory, about: 300 fingerprints, their object, its place in two collections, and its part of the recent
fingerprints; or six blocks of 512 bytes with three numbers each."""

JOB_URLS = 100_000_000
KNOWN = (1_000_000, 10_000_000, 100_000_000)
CHECKPOINT_INSERTS = 10_000
REBUILT = 500_000
"""URLs that are folded into an empty table."""

GOAL_PACE = 150_000
GOAL_EXACT, GOAL_BLOOM = 12.0, 3.2
"""Bytes of disk a known URL, at most."""

RATE_WITHIN = 0.1
EXACT, BLOOM = "exact pages", "Bloom filter"
WAYS = (EXACT, BLOOM)
BARE_OFFERS = 500_000
LOADS = ("uniform", "crawl")
JOB = 1


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
        disk: Bytes of disk a URL.
        cpu_us: CPU to offer 500,000 new URLs, a domain after the other, to an empty table: a URL, microseconds.
        rate: False positives among URLs that are not known.
    """

    known: int
    way: str
    disk: float
    cpu_us: float
    rate: float


class DirectMemory(StateMemory):
    """The budget of a worker's databases; their tables are read past the page cache."""

    def options(self) -> Options:
        """Those of a worker, with direct reads."""
        options = super().options()
        options.set_use_direct_reads(True)
        return options


# ---------------------------------------------------------------------- the ways


class Pages:
    """The seen table of a job."""

    def __init__(self, rows: Rows, case: Case) -> None:
        memory = case.cache_mb - rocksdb_mb(case) << 20
        is_bloom = case.way == BLOOM
        self._error = ERROR if is_bloom else 0.0
        self._seen = SeenTable(rows, memory // (BLOOM_PAGE_BYTES if is_bloom else PAGE_BYTES), shares(case.known))

    def take(self, marks: list[tuple[int, int]]) -> list[bool]:
        """Whether each URL was known; it is marked. `marks` are domains and fingerprints."""
        seen, error, known = self._seen, self._error, []
        for domain, mark in marks:
            was = seen.knows(JOB, 0, domain, mark, error)
            if not was:
                seen.insert(JOB, 0, domain, mark, error)
            known.append(was)
        return known

    @property
    def changes(self) -> int:
        """Inserts since the last flush."""
        return self._seen.changes

    def flush(self) -> None:
        """Before a checkpoint."""
        self._seen.flush()


def shares(known: int) -> int:
    """Partitions of which each knows so many URLs."""
    return max(JOB_URLS // known, 1)


def rocksdb_mb(case: Case) -> int:
    """RocksDB's part of the cache."""
    return min(ROCKSDB_MB // 2 if case.way == BLOOM else ROCKSDB_MB, case.cache_mb // 2)


# ---------------------------------------------------------------------- measuring


def folder_of(known: int, way: str) -> Path:
    """The folder of the tables made for a way."""
    return WORK / "seen-large" / f"{way.split(maxsplit=1)[0]}-{known}"


def make(known: int, way: str) -> Made:
    """Make the table of one size and way in this process."""
    domains, folder = known_domains(known), folder_of(known, way)
    shutil.rmtree(folder, ignore_errors=True)
    database = Database(folder, StateMemory(CACHE_MB))
    rate = 0.0
    if way == BLOOM:
        rate = make_bloom(database, domains, JOB, shares(known))
    else:
        make_exact(database, domains, JOB)
    database.flush()
    database._db.compact_range(None, None)  # noqa: SLF001  # nobody but a benchmark asks
    database.close()
    Database(folder, StateMemory(CACHE_MB)).close()  # files that the compaction left go when it is opened
    return Made(known, way, disk_of(folder)["tables"] / known, rebuilding_us(way, min(known, REBUILT)), rate)


def rebuilding_us(way: str, count: int) -> float:
    """CPU to fold new URLs into an empty table, microseconds a URL."""
    folder = WORK / "seen-large" / "rebuilt"
    database = Database(folder, StateMemory(ROCKSDB_MB))
    rows = Rows(database)
    table = Pages(rows, Case(way, "", count, CACHE_MB, 0, 0))
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
    collect_seldom()  # as a worker does
    folder = WORK / "seen-large" / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(folder_of(case.known, case.way), folder, copy_function=link_tables)
    load = Load(case.known)
    records = load.uniform() if case.load == "uniform" else load.crawl()
    began = time.monotonic()
    database = Database(folder, DirectMemory(rocksdb_mb(case)))
    rows = Rows(database)
    way = Pages(rows, case)
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


def bare_pace() -> float:
    """Offers a CPU second without a table: where the URL belongs, and its fingerprint."""
    place = Places(1).of
    urls = [
        url_of(number, domain)
        for record in islice(Load(1_000_000).uniform(), BARE_OFFERS // UNIFORM_RECORD)
        for number, domain in record
    ]
    began = time.process_time()
    for url in urls:
        _ = place(url).domain_hash, fingerprint(url)
    return len(urls) / (time.process_time() - began)


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
    takes = [[f"{one.known:,}", one.way, f"{one.disk:.2f}", f"{one.rate:.2e}", f"{one.cpu_us:.2f}"] for one in made]
    sizes = table(["known", "table", "disk B/URL", "false positives", "rebuilt, µs/URL"], takes)
    return table([*head, "restore s", "RSS MB"], rows) + "\n\n" + sizes


def goals(results: dict[Case, Result], made: list[Made]) -> list[str]:
    """The goals that were missed."""
    missed = []
    for case, one in results.items():
        name = f"{case.way}, {case.load}, {case.known:,} known"
        if (case.way == EXACT and one.dropped) or one.twice:
            missed.append(f"{name}: {one.dropped} wrongly dropped, {one.twice} taken twice, none allowed")
        if case.way == EXACT and one.pace < GOAL_PACE:
            missed.append(f"{name}: {one.pace:,.0f} offers a CPU second, ≥ {GOAL_PACE:,} wanted")
    for size in made:
        name, most = f"{size.way}, {size.known:,} known", GOAL_BLOOM if size.way == BLOOM else GOAL_EXACT
        if size.disk > most:
            missed.append(f"{name}: {size.disk:.2f} bytes a URL, ≤ {most} wanted")
        stated = stated_rate(ERROR, shares(size.known), size.known)
        if size.way == BLOOM and abs(size.rate / stated - 1) > RATE_WITHIN:
            missed.append(f"{name}: {size.rate:.2e} false positives, {stated:.2e} within a tenth wanted")
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
        for way in ways:
            made.append(Made(**in_process("make", known, way)))  # type: ignore[arg-type]  # what `make` printed
            print(made[-1], file=sys.stderr)
            for load in LOADS:
                warming, offers = (10_000, 10_000) if args.short else (500_000, 200_000)
                case = Case(way, load, known, 16 if args.short else args.cache, warming, offers)
                results[case] = Result(**in_process("case", *case))  # type: ignore[arg-type]  # what a case printed
                print(f"{case}: {results[case].pace:,.0f} offers a CPU second, {results[case]}", file=sys.stderr)
    shutil.rmtree(WORK / "seen-large", ignore_errors=True)
    missed = goals(results, made)
    bare = f"No table: {bare_pace():,.0f} offers a CPU second."
    body = report(results, made) + f"\n\n{bare}\n\n" + ("\n".join(missed) if missed else "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "xxhash"]).items())
        load = ", ".join(f"{one:.0f}" for one in os.getloadavg())
        facts = {"run": run_as("seen_large"), "versions": packages, "load afterwards": load}
        section("seen-large", "Seen table beyond memory", body, facts)
    wrong = any(one.twice or (case.way == EXACT and one.dropped) for case, one in results.items())
    return 1 if wrong or (missed and not args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
