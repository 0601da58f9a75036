"""The end-to-end table: CPU a page and pages a second, for crawlog and its peers, in one run, on one site.

    python -m bench.speed                      all peers, 5 rounds, 20 hosts x 12 and x 1,200 pages
    python -m bench.speed --short              2 rounds of 12 and 60 pages: does it work, no numbers to quote
    python -m bench.speed --only crawlog,bare

**Marginal CPU a page** = (CPU of the large crawl - CPU of the small one) / pages between, user and system time of every
process the command starts (broker, Redis, killed children), the site's own apart. The cost of the small crawl beyond
its pages, start and end, is reported by itself. **CPU to first request** is all processes' as the first request comes
in, by samples a quarter of a second apart. **Pages a second** run from the site's first request to the last row.
Rounds are interleaved and change direction (A B C, C B A); medians with the least and the most. A crawl counts only if
the site saw every page and the rows name exactly the site's pages; repeated requests are reported. If one does not
count, nothing is written.
"""

import argparse
import shutil
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.meter import Measured, measure
from bench.peer import ALL, Peer
from bench.results import options_of, run_as, section, table
from bench.rows import doubled, rows_of
from tests.support.synthetic_site import WORK, Site

HOSTS = 20
FLAGS = {"bytes": 30_000, "links": 60}
SIZES = (12, 1200)
SHORT_SIZES = (12, 60)


class Goals(NamedTuple):
    """What crawlog shall reach, in ratios of one run.

    Attributes:
        at_most: Peers, and how many times their CPU a page crawlog's may be.
        at_least: Peers, and how many times crawlog's CPU a page theirs shall be.
        pace: crawlog's pages a second, in those of the bare loop.
        broker_ms: The broker's CPU a response; None for no goal.
        records: Kafka records a page, all topics together; None for no goal.
        startup_s: CPU of all processes until the first request.
        first_s: From the start of the command to the first request.
    """

    at_most: Sequence[tuple[str, float]] = (("bare", 1.7), ("colly", 1.2))
    at_least: Sequence[tuple[str, float]] = (("scrapy_documented", 8.0), ("scrapy_tuned", 2.2), ("scrapy_redis", 8.0))
    pace: float = 0.8
    broker_ms: float | None = None
    records: float | None = 3.0
    startup_s: float = 6.0
    first_s: float = 6.0


NOT_FOUND = 404

ONCE = ("broker", "fetch", "parse", "sink")
"""crawlog's processes: one that died and was started again spoils the CPU count."""


@dataclass
class Crawl:
    """One crawl, measured and judged.

    Attributes:
        pages: Pages of the site.
        pace: Pages a second from the first request to the last row.
        first_s: From the start of the command to the site's first request.
        startup_s: CPU of all processes until then.
        records: Kafka records, by topic.
        faults: Why it does not count; empty when it does.
    """

    peer: str
    pages: int
    measured: Measured
    duplicates: int
    pace: float
    first_s: float
    startup_s: float
    site_cpu_s: float
    records: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def crawl(peer: Peer, site: Site, truth: set[str], folder: Path, *, dead_links: bool = False) -> Crawl:
    """Runs a peer once, in a fresh folder.

    Args:
        dead_links: Whether the pages have links that end in 404: rows of these are no fault.
    """
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
        measured.cpu_until(stats.first_ns) if stats.first_ns else 0.0,
        stats.cpu_s - before,
        records_by_topic(folder / "data"),
    )
    if measured.exit_code or measured.timed_out:
        one.faults.append(f"exit code {measured.exit_code}" + (", timed out" if measured.timed_out else ""))
    if measured.left_behind:
        one.faults.append(f"left behind: {', '.join(measured.left_behind)}")
    started = Counter(process.name for process in measured.processes.values())
    for name in ONCE:
        if started[name] > (peer.parsers if name == "parse" else 1):
            one.faults.append(f"{name} was started {started[name]} times")
    if stats.unique != stats.expected:
        one.faults.append(f"{stats.expected - stats.unique} pages never asked for")
    if stats.private:
        one.faults.append(f"{stats.private} requests against robots.txt")
    one.faults += row_faults(rows, truth, dead_links=dead_links)
    return one


def row_faults(path: Path, truth: set[str], *, dead_links: bool) -> list[str]:
    """How the rows differ from the site's pages."""
    if not path.exists():
        return ["no rows"]
    urls = [row["url"] for row in rows_of(path) if not dead_links or row["status"] != NOT_FOUND]
    missing, extra = truth - set(urls), set(urls) - truth
    faults = doubled(urls)
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
        startup_s: CPU of all processes until the first request, median.
        besides_s: CPU beyond the pages', start and end included, median.
        pace: Pages a second of each round's large crawl.
        peak_mb: Peak memory by process in the large crawls, the highest.
        records: Marginal Kafka records a page by topic, median.
    """

    peer: Peer
    cpu_ms: list[float] = field(default_factory=list)
    split_ms: dict[str, float] = field(default_factory=dict)
    startup_s: float = 0.0
    besides_s: float = 0.0
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
    besides = []
    for small, large in rounds:
        between = large.pages - small.pages
        each_s = (large.measured.cpu_s - small.measured.cpu_s) / between
        total.cpu_ms.append(1000 * each_s)
        besides.append(small.measured.cpu_s - small.pages * each_s)
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
    total.besides_s = statistics.median(besides)
    total.startup_s = statistics.median(one.startup_s for both in rounds for one in both)
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
    head = ["crawler", "state", "CPU ms/page", "x bare", "x crawlog", "pages/s", "x bare", "CPU s besides pages",
            "CPU s to first request", "first request s", "repeated", "site ms/page", "peak MB"]  # fmt: skip
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
            f"{one.besides_s:.1f}",
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


class Judged(NamedTuple):
    """A goal, and what was measured."""

    what: str
    sign: str
    bound: float
    got: float

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached."""
        return self.got <= self.bound if self.sign == "≤" else self.got >= self.bound

    def row(self) -> list[str]:
        """The goal as a row of a table."""
        return [self.what, f"{self.sign} {self.bound}", f"{self.got:.2f}", "reached" if self.is_reached else "MISSED"]


def targets(scores: dict[str, Score], goals: Goals) -> tuple[str, bool]:
    """The goals and whether each was reached; those whose peers did not run are left out."""
    us = scores.get("crawlog")
    if us is None:
        return "", True
    if us.faults:
        return "No goal is judged: crawlog's crawls do not count.", False
    others = {name: one for name, one in scores.items() if not one.faults}
    judged = [*_beside(us, others, goals), *_alone(us, goals)]
    text = table(["goal", "wanted", "got", ""], [one.row() for one in judged])
    return text, all(one.is_reached for one in judged)


def _beside(us: Score, others: Mapping[str, Score], goals: Goals) -> Iterator[Judged]:
    """The goals that compare crawlog with its peers."""
    for name, most in goals.at_most:
        if other := others.get(name):
            yield Judged(f"CPU a page, in that of {other.peer.title}", "≤", most, us.ms / other.ms)
    if floor := others.get("bare"):
        pace = statistics.median(us.pace) / statistics.median(floor.pace)
        yield Judged("pages a second, in the bare loop's", "≥", goals.pace, pace)
    for name, least in goals.at_least:
        if other := others.get(name):
            yield Judged(f"CPU a page, better than {other.peer.title}", "≥", least, other.ms / us.ms)


def _alone(us: Score, goals: Goals) -> Iterator[Judged]:
    """The goals that need no peer."""
    if goals.broker_ms is not None:
        responses = (us.records or {}).get("crawl.pages", 1.0)  # each is a record there
        yield Judged("broker's CPU a response, ms", "≤", goals.broker_ms, us.split_ms.get("broker", 0.0) / responses)
    if us.records and goals.records is not None:
        ours = sum(each for topic, each in us.records.items() if not topic.startswith("__"))
        yield Judged("Kafka records a page", "≤", goals.records, ours)
    yield Judged("CPU until the first request, s", "≤", goals.startup_s, us.startup_s)
    yield Judged("first request after, s", "≤", goals.first_s, us.first_s)


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
    peers: Sequence[Peer],
    sizes: tuple[int, int],
    rounds: int,
    flags: Mapping[str, object] = FLAGS,
    *,
    dead_links: bool = False,
) -> dict[str, Score]:
    """All rounds of all peers; each crawl is reported as it ends. `dead_links` as in `crawl`."""
    pairs: dict[str, list[tuple[Crawl, Crawl]]] = {peer.name: [] for peer in peers}
    with ExitStack() as stack:
        sites = {pages: stack.enter_context(Site(HOSTS, pages, flags=flags)) for pages in sizes}
        truths = {pages: site.urls() for pages, site in sites.items()}
        for number in range(rounds):
            for peer in peers if number % 2 == 0 else list(reversed(peers)):
                done = {}
                for pages in sizes if number % 2 == 0 else sizes[::-1]:
                    folder = WORK / "runs" / f"{peer.name}-{pages}"
                    done[pages] = one = crawl(peer, sites[pages], truths[pages], folder, dead_links=dead_links)
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


class Run(NamedTuple):
    """What a run was asked for.

    Attributes:
        sizes: Pages a host, of the small crawls and the large ones.
        is_written: Whether RESULTS.md gets it, if all crawls count.
    """

    peers: Sequence[Peer]
    sizes: tuple[int, int]
    rounds: int
    is_short: bool
    is_written: bool


def asked(text: str | None, sizes: tuple[int, int], short_sizes: tuple[int, int], only: str | None = None) -> Run:
    """The run that the command line asks for; its peers are installed.

    Args:
        text: The manual.
        only: Peers of a run that names none; None for all.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small crawls, 2 rounds; nothing is written")
    parser.add_argument("--only", help="peers, by name, with commas", default=only)
    parser.add_argument("--without", help="peers to leave out")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--pages", type=int, nargs=2, metavar=("SMALL", "LARGE"), help="pages a host")
    args = options_of(parser)
    peers = chosen(args.only, args.without)
    small, large = args.pages or (short_sizes if args.short else sizes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the sites are stopped
    for peer in peers:
        peer.install()
    rounds = args.rounds or (2 if args.short else 5)
    return Run(peers, (small, large), rounds, args.short, args.write)


def told_all(run: Run, scores: dict[str, Score], goals: Goals, section_of: tuple[str, str, str]) -> int:
    """Prints the table and writes it down; 1 when a crawl did not count, or, at full size, a goal was missed.

    Args:
        section_of: Name and title of its section in RESULTS.md, and what the pages are.
    """
    name, title, pages = section_of
    judged, reached = targets(scores, goals)
    parts = [score_table(scores), judged, details(scores)]
    body = "\n\n".join(part for part in parts if part)
    print(body)
    invalid = any(one.faults for one in scores.values())
    if not invalid and run.is_written:
        small, large = run.sizes
        site = f"{HOSTS} hosts x {small} and x {large} {pages}; {run.rounds} rounds, median (least–most)"
        facts = {"run": run_as(name), "site": site}
        facts |= {peer.title: f"`{peer.shown}` · {peer.version()}" for peer in run.peers}
        section(name, title, body, facts)
    return 1 if invalid or not (reached or run.is_short) else 0


def main() -> int:
    """Runs the table on the synthetic pages."""
    run = asked(__doc__, SIZES, SHORT_SIZES)
    scores = play(run.peers, run.sizes, run.rounds)
    return told_all(run, scores, Goals(), ("speed", "End to end", "pages of 30 kB with 60 links"))


if __name__ == "__main__":
    sys.exit(main())
