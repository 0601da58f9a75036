"""One large site, all of it in one partition: the pace of its parse worker alone, and with helpers on idle cores.

    python -m bench.one_site             20,000 pages of one host, 3 rounds; writes its section of RESULTS.md
    python -m bench.one_site --short     2,000 pages, one round: does it work, no numbers to quote

The site is crawled without delays once in each way, then its pages are parsed again by one worker, in turns without
helpers and with those of `--workers auto`. The pace of the parsing is that of the rows: from the time when a tenth of
them are in crawl.items to their end, so neither starts nor the joining of the group count. The ratio of the two ways
is taken within a round, and the goal is judged by its median. Rows must be equal in number to the pages.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

import psutil

from bench.peer import CRAWLOG, install_crawlog
from bench.replay import FAST, FOLDER, WORKED_OFF_S, Log, command
from bench.results import options_of, run_as, section, table, versions
from bench.speed import FLAGS, span
from crawlog.streams import groups
from crawlog.streams.engine import engine
from crawlog.streams.groups.offsets import Target, plan
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.sources import load
from tests.support.logins import login
from tests.support.synthetic_site import STOP_S, Site

GOAL = 1.6
"""Pace with helpers, in those of one process, on two cores."""

WAYS: dict[str, int | str] = {"one process": 0, "with helpers": "auto"}

LOOK_S = 0.1
"""Pause between two looks at crawl.items, seconds: each takes CPU that the helpers would have."""


class Parsed(NamedTuple):
    """One parsing of all pages.

    Attributes:
        pace: Pages a second, by the clock.
        cpu_ms: Of owner and helpers a page, their starts included.
    """

    pace: float
    cpu_ms: float


def parsed_again(log: Log, helpers: int | str) -> Parsed:
    """All pages parsed again by one worker.

    Raises: SystemExit: it does not get to the end.
    """
    topic = Topics(log.settings.kafka.prefix).items
    held = groups.held(log.admin, log.group, sorted(log.sizes))
    groups.move(log.admin, log.group, plan(log.group.topic, Target("to-earliest"), held)[0])
    pages = sum(log.sizes.values())
    before = _rows(log, topic)
    with (FOLDER / "worker.log").open("ab") as said:
        options = [
            "--bootstrap",
            log.settings.kafka.bootstrap,
            "--data",
            str(FOLDER / "w"),
            f"-sparse.helpers={helpers}",
        ]
        process = subprocess.Popen(
            [str(CRAWLOG), "worker", "parse", *options], stdout=said, stderr=said, env=os.environ | login(log.settings)
        )
    first, began_s, deadline = 0, 0.0, time.monotonic() + WORKED_OFF_S
    try:
        while (count := _rows(log, topic) - before) < pages:
            if not first and count >= pages // 10:
                first, began_s = count, time.monotonic()
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the parse worker did not get to the end; see {FOLDER / 'worker.log'}")
            time.sleep(LOOK_S)
        took_s = time.monotonic() - began_s
        worker = psutil.Process(process.pid)
        cpu_s = sum(sum(one.cpu_times()[:2]) for one in (worker, *worker.children(recursive=True)))
    finally:
        process.terminate()
        process.wait(STOP_S)
    while groups.members(log.admin, [log.group.name]):
        time.sleep(0.1)
    return Parsed((pages - first) / took_s, 1000 * cpu_s / pages)


def _rows(log: Log, topic: str) -> int:
    return sum(log.admin.ends((topic,), len(log.ends))[topic])


def crawled(site: Site, helpers: int | str) -> float:
    """Pages a second of the whole command, by the clock. Raises: SystemExit: pages are missing."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    site.reset()
    settings = {"network.allow_private": "true", **FAST}
    more = ["run", *site.seeds, "-o", str(FOLDER / "rows.jsonl"), f"-sparse.helpers={helpers}"]
    measured = command("crawl", FOLDER / "data", settings, *more)
    stats = site.stats()
    if stats.unique != stats.expected:
        sys.exit(f"{stats.expected - stats.unique} pages were not asked for")
    return stats.unique / measured.took_s


def main() -> int:
    """1 where the goal is missed at full size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="2,000 pages, one round; nothing is written")
    parser.add_argument("--pages", type=int, help="pages of the site")
    args = options_of(parser)
    rounds = 1 if args.short else 3
    count = args.pages or (2_000 if args.short else 20_000)
    install_crawlog()
    with Site(1, count, flags=FLAGS) as site:
        crawls = {way: crawled(site, helpers) for way, helpers in WAYS.items()}
    again: dict[str, list[Parsed]] = {way: [] for way in WAYS}
    settings = load({"run.data": str(FOLDER / "data")})
    local = engine.start(settings, FOLDER / "data", lambda _: None)
    try:
        log = Log(local.point(settings), local.pid)
        for _ in range(rounds):
            for way, helpers in WAYS.items():
                again[way].append(parsed_again(log, helpers))
                print(f"{way}: {again[way][-1]}", file=sys.stderr)
    finally:
        local.stop()
    ratio = statistics.median(
        helped.pace / alone.pace for alone, helped in zip(*(again[way] for way in WAYS), strict=True)
    )
    body = table(
        ["", "crawl, pages/s", "parsed again, pages/s", "CPU ms/page"],
        [
            [way, f"{crawls[way]:,.0f}", span([one.pace for one in paces], 0), span([one.cpu_ms for one in paces], 2)]
            for way, paces in again.items()
        ],
    )
    verdict = "reached" if ratio >= GOAL else "MISSED"
    body += f"\n\nGoal: ≥ {GOAL} times one process's pace, in one round: {ratio:.2f}, {verdict}."
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "faust-streaming", "selectolax"]).items())
        shape = f"1 host x {count} pages of 30 kB with 60 links, {rounds} rounds, {len(os.sched_getaffinity(0))} cores"
        section("one_site", "One large site", body, {"run": run_as("one_site"), "shape": shape, "versions": packages})
    return 1 if ratio < GOAL and not args.short else 0


if __name__ == "__main__":
    sys.exit(main())
