"""Replay of group parse: stored pages parsed again, against a bare loop over the same log, and against fetching again.

    python -m bench.replay             20 hosts x 600 pages, 3 rounds; writes its section of RESULTS.md
    python -m bench.replay --short     20 x 20, one round: does it work, no numbers to quote

The bare loop reads crawl.pages with one consumer, which decompresses, and makes of each page what the default spider
makes of it: its row and its links. A parse worker does the same and writes item records and founds, and commits.

**Pages a CPU second** of a worker is marginal: CPU of all partitions less CPU of the smallest one, by the pages
between, so that imports and the joining of the group do not count; the loop's is counted from its first to its last
record. The broker's CPU in the same time stands beside it. Whole commands follow: start-up, fold and sink included.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.meter import Measured, measure
from bench.peer import CRAWLOG, install_crawlog
from bench.results import options_of, run_as, section, table, versions
from bench.rows import doubled, rows_of
from bench.speed import FLAGS, HOSTS, span
from crawlog.schemas import pages
from crawlog.schemas.urls import DEFAULT_SPEC
from crawlog.streams import groups
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import consumer_config
from crawlog.streams.coded_pages import page_of
from crawlog.streams.engine import engine
from crawlog.streams.groups.groups import Group
from crawlog.streams.groups.offsets import Target, plan
from crawlog.streams.html.links import Links
from crawlog.streams.log.read import take
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from crawlog.streams.spiders.default import parse_page
from crawlog.streams.url.canonical import Canonicaliser
from crawlog.streams.url.place import Places
from tests.support.logins import login
from tests.support.synthetic_site import STOP_S, WORK, Site

GOAL = 0.75
"""The worker's pages a CPU second, in those of the bare loop, at least."""

POLITE_PAGES = 12
"""Pages a host of the polite crawl: its pace does not depend on how many there are."""

WORKED_OFF_S = 600.0

FOLDER = WORK / "runs" / "replay"
FAST = {"politeness.delay_s": 0, "politeness.per_host": 16}


class Cost(NamedTuple):
    """Cost of some pages."""

    pages: int
    cpu_s: float
    broker_s: float


NOTHING = Cost(0, 0.0, 0.0)


@dataclass
class Paces:
    """Pages a CPU second of each round: the process alone, and with the broker."""

    alone: list[float] = field(default_factory=list)
    with_broker: list[float] = field(default_factory=list)

    def add(self, cost: Cost, less: Cost = NOTHING) -> None:
        """One round, less the cost of a smaller one.

        Raises: SystemExit: the difference is lost in the noise.
        """
        count, cpu_s = cost.pages - less.pages, cost.cpu_s - less.cpu_s
        if count <= 0 or cpu_s <= 0:
            sys.exit(f"{cost.pages:,} pages are too few to tell from {less.pages:,}: give more with --pages")
        self.alone.append(count / cpu_s)
        self.with_broker.append(count / (cpu_s + cost.broker_s - less.broker_s))


@dataclass
class Whole:
    """A whole command, or two."""

    title: str
    pages: int
    took_s: float
    cpu_s: float
    requests: int

    def row(self) -> list[str]:
        """A line of the table."""
        pace, each_ms = self.pages / self.took_s, 1000 * self.cpu_s / self.pages
        return [
            self.title,
            f"{self.pages:,}",
            f"{self.took_s:,.1f}",
            f"{pace:,.0f}",
            f"{each_ms:.2f}",
            f"{self.requests:,}",
        ]


# ---------------------------------------------------------------- whole commands


def command(name: str, data: Path, settings: Mapping[str, object], *more: str) -> Measured:
    """One crawlog command, measured.

    Raises: SystemExit: it failed.
    """
    pairs = [f"-s{key}={value}" for key, value in settings.items()]
    measured = measure([str(CRAWLOG), *more, "--data", str(data), *pairs], FOLDER / name)
    if measured.exit_code:
        sys.exit(f"crawlog {more[0]} ended with {measured.exit_code}; see {FOLDER / name / 'output.log'}")
    return measured


def crawl(name: str, site: Site, title: str, settings: Mapping[str, object]) -> Whole:
    """The site crawled from nothing."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site.reset()
    allowed = {"network.allow_private": "true", **settings}
    measured = command(name, folder / "data", allowed, "run", *site.seeds, "-o", str(folder / "rows.jsonl"))
    stats = site.stats()
    if stats.unique != stats.expected:
        sys.exit(f"{title}: {stats.expected - stats.unique} pages were not asked for")
    if again := doubled(row["url"] for row in rows_of(folder / "rows.jsonl")):
        sys.exit(f"{title}: {again[0]}")
    return Whole(title, stats.unique, measured.took_s, measured.cpu_s, stats.unique + stats.duplicates)


def replayed(name: str, site: Site) -> Whole:
    """The pages of a finished crawl parsed again, by the two commands that a user types."""
    folder, data = FOLDER / name, FOLDER / name / "data"
    before = _sorted(rows_of(folder / "rows.jsonl"))
    site.reset()
    order = command(name, data, {}, "replay", "--group", "parse", "--to-earliest", "--execute")
    allowed = {"network.allow_private": "true", **FAST}
    work = command(name, data, allowed, "run", *site.seeds, "-o", str(folder / "rows.jsonl"))
    after = _sorted(rows_of(folder / "rows.jsonl"))
    if after != before:
        sys.exit("the same spider made other rows of the same pages")
    stats = site.stats()
    requests = int(stats.unique + stats.duplicates)
    return Whole("replay --execute, run", len(after), order.took_s + work.took_s, order.cpu_s + work.cpu_s, requests)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["url"]))


# ---------------------------------------------------------------- parse alone


class Log:
    """The log of a finished crawl, on a broker of its own."""

    def __init__(self, settings: Settings, broker_pid: int) -> None:
        self.settings = settings
        self.admin = Admin(settings)
        [self.group] = groups.named(self.admin, "parse")
        self._broker = psutil.Process(broker_pid)
        held = groups.held(self.admin, self.group)
        self.ends = {number: one.end for number, one in held.items()}
        self.firsts = {number: one.first for number, one in held.items()}
        self.sizes = {number: one.end - one.first for number, one in held.items() if one.end > one.first}

    def broker_s(self) -> float:
        """The broker's CPU so far."""
        return _cpu_s(self._broker)

    def bare(self) -> Cost:
        """Reads, decompresses and parses every page."""
        links = Links(Canonicaliser(DEFAULT_SPEC.canonical), Places(len(self.ends)))
        consumer = Consumer(consumer_config(self.settings))
        topic = self.group.topic
        left = sum(self.sizes.values())
        count = 0
        broker_s, began_s = self.broker_s(), time.process_time()
        consumer.assign([TopicPartition(topic, number, self.firsts[number]) for number in self.sizes])
        while count < left:
            for record in take(consumer, 1.0):
                headers: list[tuple[str, Any]] = list(record.headers() or ())  # type: ignore[arg-type]  # pairs
                meta, body = page_of(
                    pages.decode(dict(headers)[pages.HEADER]), record.value(), headers, self.settings.body_room
                )
                parse_page(meta, body, links, DEFAULT_SPEC)
                count += 1
        cost = Cost(count, time.process_time() - began_s, self.broker_s() - broker_s)
        consumer.close()
        return cost

    def worker(self, partitions: list[int]) -> Cost:
        """A parse worker that has these partitions to do again.

        Raises: SystemExit: it does not get to the end.
        """
        held = groups.held(self.admin, self.group, partitions)
        groups.move(self.admin, self.group, plan(self.group.topic, Target("to-earliest"), held)[0])
        broker_s = self.broker_s()
        with (FOLDER / "worker.log").open("ab") as said:
            process = subprocess.Popen(
                [
                    str(CRAWLOG),
                    "worker",
                    "parse",
                    "--bootstrap",
                    self.settings.kafka.bootstrap,
                    "--data",
                    str(FOLDER / "w"),
                ],
                stdout=said,
                stderr=said,
                env=os.environ | login(self.settings),
            )
        try:
            self._until_worked_off(process)
            cpu_s = _cpu_s(psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait(STOP_S)
        self._until_empty(self.group)
        return Cost(sum(self.sizes[number] for number in partitions), cpu_s, self.broker_s() - broker_s)

    def _until_worked_off(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + WORKED_OFF_S
        while any(one.committed != one.end for one in groups.held(self.admin, self.group, self.sizes).values()):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the parse worker did not get to the end; see {FOLDER / 'worker.log'}")
            time.sleep(0.2)

    def _until_empty(self, of: Group) -> None:
        while groups.members(self.admin, [of.name]):
            time.sleep(0.1)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def paces(data: Path, rounds: int, *, is_short: bool) -> tuple[Paces, Paces]:
    """Of the bare loop and of a parse worker, in turns. A short run has the worker's start in its cost."""
    bare, worker = Paces(), Paces()
    settings = load({"run.data": str(data)})
    local = engine.start(settings, data, lambda _: None)
    try:
        log = Log(local.point(settings), local.pid)
        smallest = min(log.sizes, key=lambda number: log.sizes[number])
        for number in range(rounds):
            bare.add(log.bare())
            few = NOTHING if is_short else log.worker([smallest])
            worker.add(log.worker(sorted(log.sizes)), less=few)
            print(
                f"round {number + 1}  bare {bare.alone[-1]:,.0f}  worker {worker.alone[-1]:,.0f} pages/CPU s",
                file=sys.stderr,
            )
    finally:
        local.stop()
    return bare, worker


def main() -> int:
    """1 when a page was fetched again, or, at full size, the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="20 pages a host, one round; nothing is written")
    parser.add_argument("--pages", type=int, help="pages a host")
    args = options_of(parser)
    rounds = 1 if args.short else 3
    count = args.pages or (20 if args.short else 600)
    install_crawlog()
    with Site(HOSTS, count, flags=FLAGS) as site, Site(HOSTS, POLITE_PAGES, flags=FLAGS) as few:
        wholes = [
            crawl("fast", site, "fetched at full speed", FAST),
            crawl("polite", few, "fetched politely, 1 s between requests to a host", {}),
            replayed("fast", site),
        ]
    bare, worker = paces(FOLDER / "fast" / "data", rounds, is_short=args.short)
    share = statistics.median(worker.alone) / statistics.median(bare.alone)
    share_all = statistics.median(worker.with_broker) / statistics.median(bare.with_broker)
    head = ["", "pages/CPU s", "in the bare loop's", "with the broker's CPU", "in the bare loop's"]
    body = table(
        head,
        [
            ["bare loop", span(bare.alone, 0), "1.00", span(bare.with_broker, 0), "1.00"],
            ["parse worker", span(worker.alone, 0), f"{share:.2f}", span(worker.with_broker, 0), f"{share_all:.2f}"],
        ],
    )
    body += "\n\n" + table(
        ["whole commands", "pages", "s", "pages/s", "CPU ms/page", "requests"], [whole.row() for whole in wholes]
    )
    asked = wholes[-1].requests
    verdict = "reached" if share >= GOAL else "MISSED"
    body += f"\n\nGoal: ≥ {GOAL:.0%} of the bare loop's pages a CPU second: {share:.0%}, {verdict}."
    body += f" Requests while {wholes[-1].pages:,} pages were parsed again: {asked}."
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "faust-streaming", "confluent-kafka"]).items())
        shape = f"{HOSTS} hosts x {count} pages of 30 kB with 60 links, {rounds} rounds"
        section("replay", "Replay", body, {"run": run_as("replay"), "shape": shape, "versions": packages})
    return 1 if asked or (share < GOAL and not args.short) else 0


if __name__ == "__main__":
    sys.exit(main())
