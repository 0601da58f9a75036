"""The end-to-end table: CPU a page and pages a second, for crawlog and its peers, in one run, on one site.

    python -m bench.speed                      all peers, 5 rounds, 20 hosts x 12 and x 1,200 pages
    python -m bench.speed --short              2 rounds of 12 and 60 pages: does it work, no numbers to quote
    python -m bench.speed --only crawlog,bare

**Marginal CPU a page** = (CPU of the large crawl - CPU of the small one) / pages between, user and system time of every
process the command starts (broker, Redis, killed children), the site's own apart. The cost of the small crawl beyond
its pages is the start-up, reported by itself. **Pages a second** run from the site's first request to the last row.
Rounds are interleaved and change direction (A B C, C B A); medians with the least and the most. A crawl counts only if
the site saw every page and the rows name exactly the site's pages; repeated requests are reported. If one does not
count, nothing is written.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.meter import Measured, measure
from bench.peer import ALL, Peer
from bench.results import section, table
from bench.site import WORK, Site

HOSTS = 20
FLAGS = {"bytes": 30_000, "links": 60}
SIZES = (12, 1200)
SHORT_SIZES = (12, 60)

TARGETS = (("scrapy_documented", 8.0), ("scrapy_tuned", 2.2), ("scrapy_redis", 8.0))
"""Peers and how many times their CPU a page crawlog's shall be."""

BARE_CPU = 2.2
"""crawlog's CPU a page, in those of the bare loop, at most."""

BARE_PACE = 0.8
"""crawlog's pages a second, in those of the bare loop, at least."""

RECORDS = 3.0
"""Kafka records a page, all topics together, at most."""

FIRST_FETCH_S = 6.0

ONCE = ("broker", "fetch", "parse", "sink")
"""crawlog's processes: one that died and was started again spoils the CPU count."""


@dataclass
class Crawl:
    """One crawl, measured and judged.

    Attributes:
        pages: Pages of the site.
        pace: Pages a second from the first request to the last row.
        first_s: From the start of the command to the site's first request.
        records: Kafka records, by topic.
        faults: Why it does not count; empty when it does.
    """

    peer: str
    pages: int
    measured: Measured
    duplicates: int
    pace: float
    first_s: float
    site_cpu_s: float
    records: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def crawl(peer: Peer, site: Site, truth: set[str], folder: Path) -> Crawl:
    """Runs a peer once, in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "seeds.txt").write_text("\n".join(site.seeds) + "\n")
    rows = folder / "rows.jsonl"
    site.reset()
    before = site.stats().cpu_s
    measured = measure(peer.command, folder, watch=rows)
    stats = site.stats()
    lasted_s = (measured.last_row_ns - stats.first_ns) / 1e9
    one = Crawl(
        peer.name,
        stats.expected,
        measured,
        stats.duplicates,
        stats.unique / lasted_s if stats.first_ns and lasted_s > 0 else 0.0,
        (stats.first_ns - measured.started_ns) / 1e9 if stats.first_ns else 0.0,
        stats.cpu_s - before,
        records_by_topic(folder / "data"),
    )
    if measured.exit_code or measured.timed_out:
        one.faults.append(f"exit code {measured.exit_code}" + (", timed out" if measured.timed_out else ""))
    if measured.left_behind:
        one.faults.append(f"left behind: {', '.join(measured.left_behind)}")
    started = Counter(process.name for process in measured.processes.values())
    for name in ONCE:
        if started[name] > 1:
            one.faults.append(f"{name} was started {started[name]} times")
    if stats.unique != stats.expected:
        one.faults.append(f"{stats.expected - stats.unique} pages never asked for")
    if stats.private:
        one.faults.append(f"{stats.private} requests against robots.txt")
    one.faults += row_faults(rows, truth)
    return one


def row_faults(path: Path, truth: set[str]) -> list[str]:
    """How the rows differ from the site's pages."""
    if not path.exists():
        return ["no rows"]
    with path.open() as lines:
        urls = {json.loads(line)["url"] for line in lines}
    missing, extra = truth - urls, urls - truth
    faults = []
    if missing:
        faults.append(f"{len(missing)} pages without a row, e.g. {min(missing)}")
    if extra:
        faults.append(f"{len(extra)} rows of no page, e.g. {min(extra)}")
    return faults


def records_by_topic(data: Path) -> dict[str, int]:
    """Records of each topic, all partitions, by the offsets that a broker writes down when it stops."""
    counts: dict[str, int] = {}
    for checkpoint in data.glob("**/replication-offset-checkpoint"):
        for line in checkpoint.read_text().splitlines()[2:]:  # a version and a count come first
            topic, _, offset = line.split()
            counts[topic] = counts.get(topic, 0) + int(offset)
    return counts


# ---------------------------------------------------------------- what the rounds say


@dataclass
class Score:
    """One peer over all rounds.

    Attributes:
        cpu_ms: Marginal CPU a page of each round, milliseconds.
        split_ms: The same by process, from samples; medians.
        startup_s: CPU beyond the pages', median.
        pace: Pages a second of each round's large crawl.
        peak_mb: Peak memory by process in the large crawls, the highest.
        records: Marginal Kafka records a page by topic, median.
    """

    peer: Peer
    cpu_ms: list[float] = field(default_factory=list)
    split_ms: dict[str, float] = field(default_factory=dict)
    startup_s: float = 0.0
    pace: list[float] = field(default_factory=list)
    peak_mb: dict[str, float] = field(default_factory=dict)
    first_s: float = 0.0
    duplicates: int = 0
    site_ms: float = 0.0
    records: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """Marginal CPU a page, milliseconds, median."""
        return statistics.median(self.cpu_ms)


def score(peer: Peer, rounds: Sequence[tuple[Crawl, Crawl]]) -> Score:
    """Score of a peer from its (small, large) crawls."""
    total = Score(peer)
    splits: list[dict[str, float]] = []
    records: list[dict[str, float]] = []
    startups = []
    for small, large in rounds:
        between = large.pages - small.pages
        each_s = (large.measured.cpu_s - small.measured.cpu_s) / between
        total.cpu_ms.append(1000 * each_s)
        startups.append(small.measured.cpu_s - small.pages * each_s)
        total.pace.append(large.pace)
        names = large.measured.by_name()
        less = {name: process.cpu_s for name, process in small.measured.by_name().items()}
        splits.append({name: 1000 * (p.cpu_s - less.get(name, 0.0)) / between for name, p in names.items()})
        records.append({t: (n - small.records.get(t, 0)) / between for t, n in large.records.items()})
        for name, process in names.items():
            total.peak_mb[name] = max(process.peak_rss_mb, total.peak_mb.get(name, 0.0))
        total.duplicates = max(total.duplicates, large.duplicates)
        total.faults += [f"{one.pages} pages: {fault}" for one in (small, large) for fault in one.faults]
    total.split_ms = medians(splits)
    total.records = medians(records)
    total.startup_s = statistics.median(startups)
    total.first_s = statistics.median(large.first_s for _, large in rounds)
    total.site_ms = statistics.median(1000 * large.site_cpu_s / large.pages for _, large in rounds)
    return total


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each key over the rounds that have it."""
    keys = dict.fromkeys(key for one in rounds for key in one)
    return {key: statistics.median(one[key] for one in rounds if key in one) for key in keys}


def span(values: Sequence[float], digits: int = 2) -> str:
    """Median and, in brackets, the least and the most."""
    text = f"{statistics.median(values):,.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def score_table(scores: dict[str, Score]) -> str:
    """The table of all peers, and a line for each that does not count."""
    us, floor = (one if one and not one.faults else None for one in map(scores.get, ("crawlog", "bare")))
    head = ["crawler", "state", "CPU ms/page", "x bare", "x crawlog", "pages/s", "x bare", "start-up CPU s",
            "first request s", "repeated", "site ms/page", "peak MB"]  # fmt: skip
    rows = []
    for one in scores.values():
        pace = statistics.median(one.pace)
        bare_pace = statistics.median(floor.pace) if floor else 0.0
        peaks = sorted(one.peak_mb.items(), key=lambda item: -item[1])
        rows.append([
            one.peer.title + (" (INVALID)" if one.faults else ""),
            one.peer.keeps,
            span(one.cpu_ms),
            f"{one.ms / floor.ms:.2f}" if floor else "",
            f"{one.ms / us.ms:.2f}" if us else "",
            span(one.pace, 0),
            f"{pace / bare_pace:.2f}" if bare_pace else "",
            f"{one.startup_s:.1f}",
            f"{one.first_s:.1f}",
            f"{one.duplicates:,}",
            f"{one.site_ms:.2f}",
            ", ".join(f"{name} {mb:.0f}" for name, mb in peaks if mb >= 5),
        ])  # fmt: skip
    text = table(head, rows)
    for one in scores.values():
        for fault in dict.fromkeys(one.faults):
            text += f"\n\n{one.peer.title} does not count: {fault}"
    return text


def targets(scores: dict[str, Score]) -> tuple[str, bool]:
    """The goals and whether each was reached; those whose peers did not run are left out."""
    us = scores.get("crawlog")
    if us is None:
        return "", True
    if us.faults:
        return "No goal is judged: crawlog's crawls do not count.", False
    scores = {name: one for name, one in scores.items() if not one.faults}
    rows: list[tuple[str, str, str, bool]] = []
    if floor := scores.get("bare"):
        times = us.ms / floor.ms
        rows.append(("CPU a page, in the bare loop's", f"≤ {BARE_CPU}", f"{times:.2f}", times <= BARE_CPU))
        pace = statistics.median(us.pace) / statistics.median(floor.pace)
        rows.append(("pages a second, in the bare loop's", f"≥ {BARE_PACE}", f"{pace:.2f}", pace >= BARE_PACE))
    for name, least in TARGETS:
        if other := scores.get(name):
            times = other.ms / us.ms
            rows.append((f"CPU a page, better than {other.peer.title}", f"≥ {least}", f"{times:.2f}", times >= least))
    ours = sum(each for topic, each in us.records.items() if not topic.startswith("__"))
    if us.records:
        rows.append(("Kafka records a page", f"≤ {RECORDS}", f"{ours:.2f}", ours <= RECORDS))
    rows.append(("first request after, s", f"≤ {FIRST_FETCH_S}", f"{us.first_s:.1f}", us.first_s <= FIRST_FETCH_S))
    text = table(["goal", "wanted", "got", ""], [[a, b, c, "reached" if d else "MISSED"] for a, b, c, d in rows])
    return text, all(row[3] for row in rows)


def details(scores: dict[str, Score]) -> str:
    """Where crawlog's CPU and records go."""
    us = scores.get("crawlog")
    if us is None:
        return ""
    split = ", ".join(f"{name} {ms:.3f}" for name, ms in sorted(us.split_ms.items(), key=lambda i: -i[1]) if ms > 0.001)
    topics = ", ".join(f"{topic} {each:.3f}" for topic, each in sorted(us.records.items()) if each > 0.0005)
    return f"crawlog's CPU ms/page by process: {split}.\nKafka records/page by topic: {topics or 'no offsets found'}."


# ---------------------------------------------------------------- the run


def told(one: Crawl) -> str:
    """A crawl in one line."""
    took = f"{one.measured.cpu_s:>7.2f} CPU s  {one.pace:>7,.0f} pages/s"
    return f"{one.peer:<18} {one.pages:>7,} pages  {took}  {'; '.join(one.faults) or 'complete'}"


def play(
    peers: Sequence[Peer], sizes: tuple[int, int], rounds: int, flags: Mapping[str, object] = FLAGS
) -> dict[str, Score]:
    """All rounds of all peers; each crawl is reported as it ends."""
    pairs: dict[str, list[tuple[Crawl, Crawl]]] = {peer.name: [] for peer in peers}
    with ExitStack() as stack:
        sites = {pages: stack.enter_context(Site(HOSTS, pages, flags=flags)) for pages in sizes}
        truths = {pages: site.urls() for pages, site in sites.items()}
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else list(reversed(peers)):
                done = {}
                for pages in sizes if number % 2 == 0 else sizes[::-1]:
                    folder = WORK / "runs" / f"{peer.name}-{pages}"
                    done[pages] = one = crawl(peer, sites[pages], truths[pages], folder)
                    print(f"round {number + 1}  {told(one)}", file=sys.stderr)
                pairs[peer.name].append((done[sizes[0]], done[sizes[1]]))
    return {peer.name: score(peer, pairs[peer.name]) for peer in peers}


def chosen(names: str | None, without: str | None) -> list[Peer]:
    """The peers asked for, in the table's order.

    Raises: SystemExit: an unknown name.
    """
    only = set(names.split(",")) if names else set(ALL)
    skip = set(without.split(",")) if without else set()
    if unknown := (only | skip) - set(ALL):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    return [peer for name, peer in ALL.items() if name in only - skip]


def main() -> int:
    """Runs the table; 1 when a crawl did not count, or, at full size, a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small crawls, 2 rounds; nothing is written")
    parser.add_argument("--only", help="peers, by name, with commas")
    parser.add_argument("--without", help="peers to leave out")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--pages", type=int, nargs=2, metavar=("SMALL", "LARGE"), help="pages a host")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md in spite of --short")
    args = parser.parse_args()
    peers = chosen(args.only, args.without)
    small, large = args.pages or (SHORT_SIZES if args.short else SIZES)
    rounds = args.rounds or (2 if args.short else 5)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the sites are stopped
    for peer in peers:
        peer.install()
    scores = play(peers, (small, large), rounds)
    goals, reached = targets(scores)
    parts = [score_table(scores), goals, details(scores)]
    body = "\n\n".join(part for part in parts if part)
    print(body)
    invalid = any(one.faults for one in scores.values())
    if not invalid and (args.write or not args.short):
        command = " ".join(["python -m bench.speed", *sys.argv[1:]])
        site = (
            f"{HOSTS} hosts x {small} and x {large} pages of 30 kB with 60 links; {rounds} rounds, median (least–most)"
        )
        facts = {"run": f"`{command}`", "site": site}
        facts |= {peer.title: f"`{peer.shown}` · {peer.version()}" for peer in peers}
        section("speed", "End to end", body, facts)
    return 1 if invalid or not (reached or args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
