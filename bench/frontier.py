"""The frontier: memory with a million URLs queued over 10,000 hosts, and whether it serves as fast as with 10,000.

    python -m bench.frontier               the state and dispatcher of a fetch worker, without Kafka; writes RESULTS.md
    python -m bench.frontier --large       ten million URLs over a million hosts, and their restore: ten minutes
    python -m bench.frontier --live        a whole crawl: the fetch worker's memory while a million seeds wait
    python -m bench.frontier --short       a tenth of it

Each case is a process of its own: it imports all that a fetch worker imports, folds founds of 500 URLs into eight
partitions with checkpoints as a worker makes them, then serves: next URL, request ended, done folded. Between two
requests to a host lies a second of a virtual clock, so no time is spent waiting. CPU of all threads counts. In either
case hosts have ten URLs at least, so they come back from their rests; those of the million are read back from disk.
At the end the checkpoint is opened again, as after a kill, up to the first URL served.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from bench.meter import measure
from bench.peer import CRAWLOG
from bench.results import options_of, run_as, section, table, versions
from crawlog.schemas.urls import FoundUrl, JobSpec, Result, ScopeSpec, UrlsRecord, encode
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.frontier.dispatcher import Frontier
from crawlog.streams.frontier.host import RobotsTask, Task
from crawlog.streams.job_spec import own_policy
from crawlog.streams.kernel import collect_seldom
from crawlog.streams.settings.machine import State
from crawlog.streams.settings.sources import NO_FILE, load
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.url.place import Places
from tests.support.synthetic_site import REPO, WORK, Site

PARTITIONS = 8
JOB = "bench"
BATCH = 500
DONES = 50
"""Results in one done record."""

IN_FLIGHT = 100
"""Requests at a time, each to another host."""

SERVED = 600_000
"""URLs served: 60 of each of 10,000 hosts, so that windows of 25 are filled again, twice. Where fewer are queued, as
many are folded in each time all are served."""

IDLE_S = 0.5
CASES = ((10_000, 1_000), (1_000_000, 10_000))
"""(URLs, hosts): the first one is the measure of speed, the last one of memory."""


class Goals(NamedTuple):
    """What the last case must reach.

    Attributes:
        memory_mb: Resident memory of a fetch worker, at most.
        slower: A serve may cost this many times the first case's.
        restore_s: From opening its checkpoints to the first URL, at most.
    """

    memory_mb: float
    slower: float
    restore_s: float


GOALS = Goals(memory_mb=250.0, slower=1.10, restore_s=60.0)
"""Of a million; a tenth slower is noise."""

LARGE = (CASES[0], (10_000_000, 1_000_000))
LARGE_GOALS = Goals(memory_mb=600.0, slower=1.25, restore_s=60.0)
"""Of ten million: 0.8 of the first case's pace."""

LIVE_S = 180
"""How long the live crawl lasts, seconds: to seed, fold, and ask every host for its robots.txt and some pages."""


class Clock:
    """A virtual monotonic clock."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.time_s


@dataclass
class Case:
    """Cost of one case.

    Attributes:
        queued: URLs that the folds say are queued, before serving.
        fold_us: CPU to fold one URL in, checkpoints included, microseconds.
        serve_us: CPU of next and finished, a URL.
        done_us: CPU to fold one done in, checkpoints included.
        rss_mb: Resident memory with everything queued; `peak_mb` the highest until the end.
        base_mb: The same before the first record.
        restore_s: From opening the checkpoints to the first URL, by the clock.
        longest_s: The longest part of it that keeps the event loop: a step of loading a partition.
        disk_mb: Size of the checkpoints.
    """

    urls: int
    hosts: int
    queued: int
    fold_us: float
    serve_us: float
    done_us: float
    base_mb: float
    rss_mb: float
    peak_mb: float
    restore_s: float
    longest_s: float
    disk_mb: float


class Worker:
    """A fetch worker's state and dispatcher, fed by hand: new, or taken up from the checkpoints in a folder.

    Attributes:
        longest_s: The longest of the steps that gave the dispatcher a partition, seconds.
    """

    def __init__(self, folder: Path) -> None:
        state = State()
        self.clock = Clock()
        self.places = Places(PARTITIONS)
        self.frontier = Frontier(own_policy(load({"robots.obey": False}, NO_FILE, {})), self.clock, self.clock)
        self._limit = state.checkpoint_changes
        memory = StateMemory(state.memory_mb)
        log = LogIdentity("bench", "bench")
        self.partitions = [
            Partition(folder / str(n), n, self.places, log, memory, state.cached_pages) for n in range(PARTITIONS)
        ]
        self._rounds = 0
        self._pages = 0
        self.longest_s = 0.0
        record = encode(UrlsRecord(job=JOB, at=1.0, spec=JobSpec(scope=ScopeSpec(kind="any"))))
        for number, partition in enumerate(self.partitions):
            if not partition.offset:
                self.fold(number, record)
            began = time.monotonic()
            for _ in self.frontier.take_over(number, partition.fold, partition.db):
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                began = time.monotonic()
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def close(self) -> None:
        """End as a kill does: what no checkpoint has is lost."""
        for number, partition in enumerate(self.partitions):
            self.frontier.disown(number)
            partition.db.close()

    def fold(self, number: int, value: bytes) -> None:
        """Folds the next record of a partition; a checkpoint when there are enough changes."""
        partition = self.partitions[number]
        partition.take(value, partition.offset, self.clock())
        if partition.changes >= self._limit:
            partition.checkpoint()
            self._rounds += 1
            if self._rounds % 10 == 0:
                self.frontier.size_windows()

    def queue(self, urls: int, hosts: int) -> None:
        """Folds that many new URLs in, as batches of one partition each."""
        batches: list[list[FoundUrl]] = [[] for _ in range(PARTITIONS)]
        pages = range(self._pages, self._pages + urls // hosts)
        self._pages = pages.stop
        for url in urls_of(pages, hosts):
            number = self.places.of(url).partition
            batches[number].append(FoundUrl(url))
            if len(batches[number]) == BATCH:
                self.fold(number, encode(UrlsRecord(job=JOB, at=1.0, urls=batches[number])))
                batches[number] = []
        for number, batch in enumerate(batches):
            if batch:
                self.fold(number, encode(UrlsRecord(job=JOB, at=1.0, urls=batch)))
        for partition in self.partitions:
            partition.checkpoint()
        self.frontier.size_windows()

    def next(self) -> Task:
        """The next URL, the clock put forward where all hosts rest."""
        while True:
            task = self.frontier.next()
            if isinstance(task, Task):
                return task
            if isinstance(task, RobotsTask):
                raise TypeError("no robots.txt is asked for here")
            at = self.frontier.next_at()
            assert at is not None, "URLs are queued, and no host will ever be ready"
            self.clock.time_s = max(at, self.clock.time_s)

    def serve(self, count: int) -> tuple[float, float]:
        """Takes and ends that many URLs.

        Returns: CPU seconds of the dispatcher, and of the dones.
        """
        serving_s = done_s = 0.0
        for _ in range(count // IN_FLIGHT):
            began = time.process_time()
            tasks = [self.next() for _ in range(IN_FLIGHT)]
            for task in tasks:
                self.frontier.finished(task.host)
            served = time.process_time()
            self._done(tasks)
            serving_s += served - began
            done_s += time.process_time() - served
        return serving_s, done_s

    def _done(self, tasks: list[Task]) -> None:
        results: dict[int, list[Result]] = {}
        for task in tasks:
            result = Result(
                task.row.url, task.sequence, "fetched", priority=task.row.priority, http=200, at=self.clock()
            )
            results.setdefault(task.partition.fold.partition, []).append(result)
        for number, each in results.items():
            for at in range(0, len(each), DONES):
                self.fold(number, encode(UrlsRecord(job=JOB, at=1.0, results=each[at : at + DONES])))


def urls_of(pages: range, hosts: int) -> Iterator[str]:
    """A URL of every host for each page, in an order fixed by a seed."""
    dice = random.Random(pages.start)
    order = list(range(hosts))
    for page in pages:
        dice.shuffle(order)
        for host in order:
            yield f"https://www.host-{host}.example/articles/{page % 89}/of-some-length-{page}.html"


def memory_mb(name: str) -> float:
    """This process's resident memory now (`VmRSS`) or at its peak (`VmHWM`), MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def settle() -> None:
    """Waits until RocksDB has no more work for the folded rows: it is no part of serving."""
    while True:
        before = time.process_time()
        time.sleep(IDLE_S)
        if time.process_time() - before < 0.01 * IDLE_S:
            return


def run_case(urls: int, hosts: int, served: int) -> Case:
    """Measures one case in this process."""
    import crawlog.agents.fetch.fetch_agent  # its imports are part of a worker's memory

    assert crawlog.agents.fetch.fetch_agent
    collect_seldom()  # as a worker does
    folder = WORK / "frontier"
    shutil.rmtree(folder, ignore_errors=True)
    worker = Worker(folder)
    base_mb = memory_mb("VmRSS")
    began = time.process_time()
    worker.queue(urls, hosts)
    queue_s = time.process_time() - began
    queued = sum(partition.fold.jobs[JOB].counts.queued for partition in worker.partitions)
    rss_mb = memory_mb("VmRSS")
    serving_s = done_s = 0.0
    for at in range(0, served, urls):
        if at:
            worker.queue(urls, hosts)
        settle()
        serve_s, fold_s = worker.serve(min(served, urls))
        serving_s, done_s = serving_s + serve_s, done_s + fold_s
    peak_mb = memory_mb("VmHWM")
    worker.close()
    disk_mb = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
    began = time.monotonic()
    restored = Worker(folder)
    if urls > served:
        restored.next()
    restore_s = time.monotonic() - began
    restored.close()
    return Case(
        urls,
        hosts,
        queued,
        fold_us=1e6 * queue_s / urls,
        serve_us=1e6 * serving_s / served,
        done_us=1e6 * done_s / served,
        base_mb=base_mb,
        rss_mb=rss_mb,
        peak_mb=peak_mb,
        restore_s=restore_s,
        longest_s=restored.longest_s,
        disk_mb=disk_mb,
    )


def in_process(urls: int, hosts: int, served: int) -> Case:
    """Measures one case in a process of its own."""
    command = [sys.executable, "-m", "bench.frontier", "--case", str(urls), str(hosts), str(served)]
    answer = subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, check=True, text=True).stdout
    return Case(**json.loads(answer.splitlines()[-1]))


def report(cases: list[Case]) -> str:
    """The table."""
    costs = ["fold µs/URL", "serve µs/URL", "done µs/URL"]
    head = ["queued", "hosts", *costs, "RSS MB", "peak MB", "before MB", "disk MB", "restore s", "longest call s"]
    rows = [
        [
            f"{one.queued:,}",
            f"{one.hosts:,}",
            *(f"{value:.1f}" for value in (one.fold_us, one.serve_us, one.done_us)),
            *(f"{value:.0f}" for value in (one.rss_mb, one.peak_mb, one.base_mb, one.disk_mb)),
            *(f"{value:.2f}" for value in (one.restore_s, one.longest_s)),
        ]
        for one in cases
    ]
    return table(head, rows)


def wrong_counts(cases: list[Case]) -> list[str]:
    """Cases that did not queue each of their URLs once."""
    return [f"{one.queued:,} of {one.urls:,} URLs queued" for one in cases if one.queued != one.urls]


def missed_goals(cases: list[Case], goals: Goals) -> list[str]:
    """The goals that were missed."""
    small, large = cases[0], cases[-1]
    missed = []
    if large.peak_mb > goals.memory_mb:
        missed.append(f"{large.peak_mb:.0f} MB at the peak, ≤ {goals.memory_mb:.0f} wanted")
    if large.serve_us > goals.slower * small.serve_us:
        missed.append(f"a serve takes {large.serve_us:.1f} µs, with {small.urls:,} queued {small.serve_us:.1f}")
    if large.restore_s > goals.restore_s:
        missed.append(f"the restore takes {large.restore_s:.0f} s, ≤ {goals.restore_s:.0f} wanted")
    return missed


TIMED_OUT = 124
"""Exit code of timeout(1) for a command that went on until it was interrupted, and then ended."""


def live(urls: int, hosts: int, lasts_s: int) -> tuple[str, list[str], bool]:
    """A real fetch worker's memory: every page of the site is a seed, and each host is asked a few times.

    Returns: The figures, what went wrong, and whether the goals were reached.
    """
    folder = WORK / "runs" / "frontier-live"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Site(hosts, urls // hosts, flags={"bytes": 1500, "links": 2, "prerender-mb": 0}) as site:
        (folder / "seeds.txt").write_text("\n".join(sorted(site.urls())) + "\n")
        settings = ["network.allow_private=true", f"politeness.delay_s={lasts_s // 4}"]
        words = [word for setting in settings for word in ("-s", setting)]
        crawl = [str(CRAWLOG), "run", "--seeds", "seeds.txt", "-o", "rows.jsonl", "--data", "data", *words]
        measured = measure(["timeout", "--signal=INT", "--kill-after=30", str(lasts_s), *crawl], folder)
        stats = site.stats()
    processes = measured.by_name()
    peaks = ", ".join(f"{name} {process.peak_rss_mb:.0f}" for name, process in processes.items())
    text = f"Live, {urls:,} seeds on {hosts:,} hosts, {stats.unique:,} pages fetched in {lasts_s} s; peak MB: {peaks}."
    fetch = processes.get("fetch")
    wrong = [] if measured.exit_code in (0, TIMED_OUT) else [f"exit code {measured.exit_code}"]
    wrong += [] if stats.unique else ["no page was fetched"]
    is_small = fetch is not None and fetch.peak_rss_mb <= GOALS.memory_mb
    return text, wrong, is_small and stats.raw["hosts_touched"] == hosts


def main() -> int:
    """Measures; 1 when something went wrong, or, at full size, a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a tenth of the size; nothing is written")
    parser.add_argument("--large", action="store_true", help="ten million URLs over a million hosts")
    parser.add_argument("--live", action="store_true", help="a whole crawl with a real fetch worker")
    parser.add_argument("--case", type=int, nargs=3, help=argparse.SUPPRESS)
    args = options_of(parser, "live", "large")
    if args.case:
        print(json.dumps(asdict(run_case(*args.case))))
        return 0
    scale = 10 if args.short else 1
    if args.live:
        lasts_s = LIVE_S // (4 if args.short else 1)
        text, wrong, reached = live(CASES[-1][0] // scale, CASES[-1][1] // scale, lasts_s)
        text = "\n".join([text, *wrong])
    else:
        sizes, goals = (LARGE, LARGE_GOALS) if args.large else (CASES, GOALS)
        cases = [in_process(urls // scale, hosts // scale, SERVED // scale) for urls, hosts in sizes]
        wrong, missed = wrong_counts(cases), missed_goals(cases, goals)
        text = report(cases) + "\n\n" + ("\n".join(wrong + missed) or "All goals reached.")
        reached = not missed
    print(text)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "faust-streaming"]).items())
        kind = "live" if args.live else "large" if args.large else ""
        name, title = (f"frontier-{kind}", f"Frontier, {kind}") if kind else ("frontier", "Frontier")
        section(name, title, text, {"run": run_as("frontier"), "versions": packages})
    return 1 if wrong or not (reached or args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
