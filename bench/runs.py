"""`python -m bench.runs`: 1, 2, 4 and 8 runs with jobs of their own on one cluster, some of the same hosts among them.

    python -m bench.runs                    measures, and writes RESULTS.md
    python -m bench.runs --short            two runs, small; nothing is written

All must end with exit code 0 and a FILE that has every row; each page is asked for once for each job that has it; each
host rests between two requests of any run. Their time is compared with that of one run over as many pages.
A host that eight runs share has eight times the requests, one after the other: that rest is a part of their time, and
`--shared 0` leaves it out.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.faults import judge
from bench.faults.graph import Entry, Graph, Target
from bench.faults.judge import Evidence
from bench.faults.site import Request, Site
from bench.results import options_of, run_as, section, table, versions
from crawlog.streams.engine import engine
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.logins import login, start
from tests.support.synthetic_site import WORK, free_port

COUNTS = (1, 2, 4, 8)
MOST = 1.5
"""Times the time of one run."""

LIMIT_S = 900.0
DELAY_S = 0.1
LATENCY_S = (0.0, 0.02)


class Size(NamedTuple):
    """How much each run has to do.

    Attributes:
        hosts: Of each run, the shared ones among them.
        shared: Hosts that every run has.
        pages: Paths of a host.
    """

    hosts: int = 40
    shared: int = 3
    pages: int = 25


class Ended(NamedTuple):
    """One run.

    Attributes:
        code: Exit code; None when it did not end.
        hosts: Numbers of its hosts.
        rows: Of FILE.
    """

    job: str
    code: int | None
    hosts: frozenset[int]
    rows: list[dict[str, Any]]


class Outcome(NamedTuple):
    """Some runs beside each other, and one run over as many pages."""

    runs: int
    pages: int
    took_s: float
    alone_s: float
    problems: list[str]

    @property
    def times(self) -> float:
        """How much longer than one run."""
        return self.took_s / self.alone_s


def expected(graph: Graph, hosts: frozenset[int]) -> dict[str, Entry]:
    """Everything that a job with these hosts reaches, by URL."""
    left = [Target(host, "/") for host in sorted(hosts)]
    reached = set(left)
    while left:
        for lead in graph.entries[left.pop()].leads:
            if lead.host in hosts and lead not in reached:
                reached.add(lead)
                left.append(lead)
    return {graph.url(target): graph.entries[target] for target in reached}


def judged(graph: Graph, ended: Sequence[Ended], requests: Sequence[Request]) -> list[str]:
    """Broken promises, one line each."""
    seen = Evidence(graph, "", DELAY_S, requests, [], [], [], [], [], {})
    due = Counter[str]()
    problems = []
    for one in ended:
        known = expected(graph, one.hosts)
        due.update({url: _tries(entry) for url, entry in known.items()})
        problems += _of_run(one, known)
    asked = Counter({url: sum(hit.complete for hit in hits) for url, hits in seen.hits.items()})
    problems += _some(
        "asked for too often", (f"{url}: {n}, due {due[url]}" for url, n in asked.items() if n > due[url])
    )
    problems += _some(
        "asked for too rarely", (f"{url}: {asked[url]}, due {n}" for url, n in due.items() if asked[url] < n)
    )
    for name in ("hurried", "crowded", "robots"):
        problems += _some(name, judge.CHECKS[name](seen).examples)
    return problems


def _tries(entry: Entry) -> int:
    return {"forbidden": 0, "broken": judge.ATTEMPTS, "cut": judge.ATTEMPTS}.get(entry.kind, 1)


def _of_run(one: Ended, known: Mapping[str, Entry]) -> list[str]:
    due = {url for url, entry in known.items() if entry.kind not in judge.ROWLESS}
    rows = Counter(str(row.get("url")) for row in one.rows)
    code = [] if one.code == 0 else [f"{one.job}: exit {one.code}"]
    return [
        *code,
        *_some(f"{one.job} has no row", due - rows.keys()),
        *_some(f"{one.job} has a row of no page", rows.keys() - due),
        *_some(f"{one.job} has many rows", (url for url, count in rows.items() if count > 1)),
    ]


def _some(what: str, places: Iterable[str]) -> list[str]:
    found = sorted(places)
    return [f"{what} {len(found)}: {'; '.join(found[: judge.EXAMPLES])}"] if found else []


def hosts_of(number: int, size: Size) -> frozenset[int]:
    """The hosts of a run: those that all have, and its own."""
    own = size.hosts - size.shared
    first = size.shared + number * own
    return frozenset({*range(size.shared), *range(first, first + own)})


# --- running --------------------------------------------------------------------------------------------------------


@contextmanager
def broker(folder: Path) -> Iterator[Settings]:
    """A broker of the harness' own, as a cluster is for the runs."""
    settings = load({"run.data": str(folder)})
    running = engine.start(settings, folder, lambda _: None)
    try:
        yield running.point(settings)
    finally:
        running.stop()


def measure(folder: Path, graph: Graph, jobs: Mapping[str, frozenset[int]]) -> tuple[float, list[str]]:
    """Runs all jobs at once; seconds until the last has ended, and problems."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Site(graph, folder / "access.log", LATENCY_S) as site, broker(folder / "broker") as log:
        began = time.monotonic()
        with ExitStack() as stack:
            started = {
                job: stack.enter_context(_started(folder, graph, job, hosts, log)) for job, hosts in jobs.items()
            }
            codes = {job: _code(process, began + LIMIT_S) for job, process in started.items()}
        took_s = time.monotonic() - began
        ended = [Ended(job, codes[job], hosts, _rows(folder / f"{job}.jsonl")) for job, hosts in jobs.items()]
        problems = judged(graph, ended, site.requests())
    if not problems:
        shutil.rmtree(folder)
    return took_s, problems


@contextmanager
def _started(
    folder: Path, graph: Graph, job: str, hosts: frozenset[int], log: Settings
) -> Iterator[subprocess.Popen[bytes]]:
    """`crawlog run` of one job; killed at the end, should it still run."""
    seeds = folder / f"{job}.txt"
    seeds.write_text("".join(f"{graph.url(Target(host, '/'))}\n" for host in sorted(hosts)))
    pairs = {"network.allow_private": "true", "politeness.delay_s": DELAY_S, "politeness.ip_rate": 0,
             "fetch.retry_delay_s": 0.5}  # fmt: skip
    command = [
        *("run", "--seeds", str(seeds), "--job", job, "--json"),
        *("--data", str(folder / job), "-o", str(folder / f"{job}.jsonl"), "--bootstrap", log.kafka.bootstrap),
        *("--workers", "fetch=1,parse=1"),
        *(f"-s{name}={value}" for name, value in pairs.items()),
    ]
    process = start(command, folder / f"{job}.log", login(log))
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def _code(process: subprocess.Popen[bytes], until: float) -> int | None:
    try:
        return process.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def compare(count: int, size: Size, *, is_timed: bool = True) -> Outcome:
    """Compares so many runs with one run over as many hosts as they have together; shared hosts count for each.

    Args:
        is_timed: Whether the times are judged: those of small crawls are times of starting.
    """
    graph = Graph(size.shared + count * (size.hosts - size.shared), size.pages, count, free_port())
    jobs = {f"job-{number}": hosts_of(number, size) for number in range(count)}
    took_s, problems = measure(WORK / "runs" / str(count), graph, jobs)
    whole = Graph(count * size.hosts, size.pages, count, free_port())
    alone_s, others = measure(WORK / "runs" / f"{count}-alone", whole, {"alone": frozenset(range(whole.hosts))})
    pages = sum(len(expected(graph, hosts)) for hosts in jobs.values())
    problems += [f"the run alone: {what}" for what in others]
    outcome = Outcome(count, pages, took_s, alone_s, problems)
    late = [f"{outcome.times:.2f} times as long as one run"] if is_timed and outcome.times > MOST else []
    return outcome._replace(problems=problems + late)


def report(outcomes: Sequence[Outcome]) -> str:
    """A line for each number of runs, then broken promises."""
    rows = [
        [str(one.runs), f"{one.pages:,}", f"{one.took_s:.0f}", f"{one.alone_s:.0f}", f"{one.times:.2f}"]
        for one in outcomes
    ]
    problems = [f"- NOT KEPT, {one.runs} runs: {what}" for one in outcomes for what in one.problems]
    told = table(("runs", "pages of all", "s", "s of one run", "times"), rows)
    return "\n\n".join(filter(None, (told, "\n".join(problems))))


def main() -> int:
    """Exit code 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="two runs, small, times not judged; nothing is written")
    parser.add_argument("--runs", default=",".join(map(str, COUNTS)), help="how many, with commas")
    parser.add_argument("--hosts", type=int, default=Size().hosts, help="of each run")
    parser.add_argument("--pages", type=int, default=Size().pages, help="paths of a host")
    parser.add_argument("--shared", type=int, default=Size().shared, help="hosts that all have; 0 for times alone")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    asked = options_of(parser)
    size = Size(8, 2, 6) if asked.short else Size(asked.hosts, asked.shared, asked.pages)
    outcomes = []
    for count in (2,) if asked.short else map(int, asked.runs.split(",")):
        outcomes.append(compare(count, size, is_timed=not asked.short))
        print(report(outcomes[-1:]), file=sys.stderr, flush=True)
    print(report(outcomes))
    if asked.write:
        facts = {
            "run": run_as("runs"),
            "site": f"{size.hosts} hosts a run, {size.shared} of them shared, x {size.pages} paths, {DELAY_S} s",
            "workers": "of each run: one fetch, one parse, one sink; one run over as many pages has the same",
            "load": f"{os.getloadavg()[2]:.1f}, of the last 15 minutes",
            **versions(("crawlog", "faust-streaming", "confluent-kafka", "rocksdict")),
        }
        section("runs", "Several runs on one cluster", report(outcomes), facts)
    return int(any(one.problems for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
