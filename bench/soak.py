"""One long crawl: does a page cost at the end what it cost at the start, and does anything grow that should not?

    python -m bench.soak            400,000 small pages on 400 hosts, killed whole at half: a quarter of an hour
    python -m bench.soak --calm     the same without the kill
    python -m bench.soak --short    4,000 of them: a minute, nothing written

The pages are the synthetic site's, which counts what it served. CPU by process comes from samples, each tenth of the
crawl apart from the others; the kill falls into the sixth, which so shows the cost of a restart as well.
A fixed piece of work beside it tells a slower crawl from a slower machine: with other work on it, or in another hour,
the same costs twice the CPU.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import IO

from bench import results
from bench.meter import descendants, name_of
from bench.rows import doubled, rows_of
from tests.support.synthetic_site import STOP_S, WORK, Site

FOLDER = WORK / "soak"
STAGES = ("fetch", "parse", "sink", "broker", "run")
PARTS = 10
LOOK_S = 0.5
LIMIT_S = 7200.0
MIB = 2**20
FIXED = json.dumps([{"at": at, "url": f"http://example.com/{at}"} for at in range(2000)])
"""Reading this takes some 2 ms."""

GOAL = 1.1
"""Highest CPU a page of the last tenth, compared with the second: the first holds the start."""


@dataclass(frozen=True)
class Look:
    """Processes, memory and folders at one moment.

    Attributes:
        pages: Pages served so far, each counted once.
        again: Requests beyond the first of a page.
        cpu_s: CPU by process id, of all that ever were.
        rss: Bytes by stage, the largest process of it.
        folders: Bytes on disk: state and log.
        fixed_ms: CPU of the fixed piece of work, the mean since the look before.
    """

    at: float
    pages: int
    again: int
    cpu_s: dict[str, float]
    rss: Counter[str]
    folders: dict[str, int]
    fixed_ms: float


@dataclass
class Watch:
    """Samples the command and its children; other children of this process are no part of the crawl."""

    data: Path
    run: int = 0
    names: dict[int, str] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)
    fixed_ms: list[float] = field(default_factory=list)

    def look(self, site: Site) -> Look:
        """Now."""
        rss: Counter[str] = Counter()
        for pid, cpu_s in self.others().items():
            name = self.names.get(pid, "run")
            self.spent[pid] = max(self.spent.get(pid, 0.0), cpu_s)
            rss[name] = max(rss[name], _resident(pid))
        cpu_s_of: dict[str, float] = defaultdict(float)
        for pid, seconds in self.spent.items():
            cpu_s_of[self.names.get(pid, "run")] += seconds
        stats = site.stats()
        folders = {name: _size(self.data / name) for name in ("state", "kafka")}
        self.work()
        fixed_ms, self.fixed_ms = fmean(self.fixed_ms), []
        return Look(time.monotonic(), stats.unique, stats.duplicates, dict(cpu_s_of), rss, folders, fixed_ms)

    def work(self) -> None:
        """Does the fixed piece of work."""
        before = time.thread_time()
        json.loads(FIXED)
        self.fixed_ms.append((time.thread_time() - before) * 1000)

    def others(self) -> dict[int, float]:
        """CPU by process id of all that runs now."""
        ours = {self.run, *descendants(self.run)}
        alive = {pid: cpu_s for pid, cpu_s in descendants().items() if pid in ours}
        for pid in alive:
            command = _read(f"/proc/{pid}/cmdline")
            if command:  # a zombie has none
                name = name_of(command.rstrip("\0").split("\0"))
                self.names[pid] = name if name in STAGES else "run"
        return alive

    def kill_all(self) -> None:
        """Ends all that runs, without notice."""
        for pid in self.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _read(path: str) -> str:
    """Content of a process's file; nothing when the process is gone."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if words else 0


def _size(folder: Path) -> int:
    """Bytes that a folder takes on the disk: Kafka's indexes are longer than what they hold."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.lstat(Path(at) / name).st_blocks * 512
    return total


def crawl(folder: Path, hosts: int, pages: int, *, kill: bool = True) -> tuple[list[Look], list[str]]:
    """Crawls the site, with a kill of all at half or without.

    Returns:
        A look at each tenth of the pages, from none to all; what went wrong.
    """
    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = folder / "rows.jsonl"
    with Site(hosts, pages, flags={"bytes": 8000, "links": 30, "prerender-mb": 500}) as site:
        (folder / "seeds.txt").write_text("\n".join(site.seeds) + "\n")
        words = ["run", "--seeds", str(folder / "seeds.txt"), "-o", str(rows), "--data", str(folder / "data")]
        words += ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0"]
        with (folder / "output.log").open("w") as said:
            command = [sys.executable, "-P", "-m", "crawlog", *words]
            looks, exit_code = _follow(command, Watch(folder / "data"), site, said, kill=kill)
        stats = site.stats()
    urls = [row["url"] for row in rows_of(rows)]
    wrong = [] if exit_code == 0 else [f"exit code {exit_code}"]
    if stats.unique != stats.expected or len(set(urls)) != stats.expected:
        wrong.append(f"{stats.unique:,} of {stats.expected:,} pages fetched, {len(set(urls)):,} with a row")
    wrong += doubled(urls)
    if stats.private:
        wrong.append(f"{stats.private} requests that robots.txt forbids")
    return looks, wrong


def _follow(
    command: list[str], watch: Watch, site: Site, said: IO[str], *, kill: bool
) -> tuple[list[Look], int | None]:
    """Runs the crawl, and again after a kill of all at half; the looks, and the exit code, None if it took too long."""
    run = subprocess.Popen(command, stdout=said, stderr=said)
    watch.run = run.pid
    looks, is_killed = [watch.look(site)], not kill
    try:
        while run.poll() is None and time.monotonic() - looks[0].at < LIMIT_S:
            time.sleep(LOOK_S)
            watch.work()
            stats = site.stats()
            if stats.unique * PARTS >= stats.expected * len(looks):
                looks.append(watch.look(site))
                print(_line(looks[-2], looks[-1]), file=sys.stderr, flush=True)
            if not is_killed and stats.unique * 2 >= stats.expected:
                is_killed = True
                watch.kill_all()
                run.wait(STOP_S)
                run = subprocess.Popen(command, stdout=said, stderr=said)
                watch.run = run.pid
        return looks, run.poll()
    finally:
        watch.kill_all()
        run.wait(STOP_S)


def _milliseconds(before: Look, after: Look, stage: str) -> float:
    """CPU of one stage for each page between two looks."""
    return (after.cpu_s.get(stage, 0) - before.cpu_s.get(stage, 0)) * 1000 / max(1, after.pages - before.pages)


def _line(before: Look, after: Look) -> str:
    spent = ", ".join(f"{stage} {_milliseconds(before, after, stage):.2f}" for stage in STAGES)
    held = ", ".join(f"{stage} {after.rss[stage] / MIB:.0f}" for stage in STAGES)
    disk = ", ".join(f"{name} {size / MIB:.0f}" for name, size in after.folders.items())
    work = f"fixed work {after.fixed_ms:.2f}"
    return f"{after.pages:>9,} pages, {after.at - before.at:5.0f} s; ms {spent}, {work}; RSS MB {held}; disk MB {disk}"


def main() -> int:
    """0 when nothing was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--calm", action="store_true", help="without the kill; nothing written")
    parser.add_argument("--hosts", type=int, default=400)
    parser.add_argument("--pages", type=int, default=1000, help="on each host")
    args = results.options_of(parser)
    hosts, pages = (20, 200) if args.short else (args.hosts, args.pages)
    looks, wrong = crawl(FOLDER, hosts, pages, kill=not args.calm)
    rows = []
    for number, (before, after) in enumerate(itertools.pairwise(looks), start=1):
        spent = [_milliseconds(before, after, stage) for stage in STAGES]
        speed = (after.pages - before.pages) / (after.at - before.at)
        held = [f"{after.rss[stage] / MIB:.0f}" for stage in STAGES]
        disk = [f"{size / MIB:.0f}" for size in after.folders.values()]
        rows.append(
            [str(number), f"{after.pages:,}", f"{speed:.0f}", *(f"{ms:.2f}" for ms in (*spent, sum(spent))),
             f"{after.fixed_ms:.2f}", " / ".join(held), *disk]
        )  # fmt: skip
    head = ["tenth", "pages", "pages/s", *(f"{stage} ms" for stage in STAGES), "CPU ms a page",
            "fixed work ms", f"RSS MB: {' / '.join(STAGES)}", "state MB", "log MB"]  # fmt: skip
    text = results.table(head, rows)
    if len(rows) == PARTS:
        ratio = float(rows[-1][8]) / float(rows[1][8])
        verdict = "reached" if ratio <= GOAL else "MISSED"
        fixed = looks[-1].fixed_ms / looks[2].fixed_ms
        text += f"\n\nCPU a page, the last tenth against the second: {ratio:.2f} (≤ {GOAL}): {verdict}."
        text += f" CPU of a fixed piece of work at these times: {fixed:.2f}."
    text += f" {looks[-1].again} requests repeated."
    print(text, *wrong, sep="\n")
    if args.write and not wrong:
        facts = {"run": f"{results.run_as('soak')}, {hosts} hosts x {pages} pages: bodies of 8 kB, 30 links"}
        results.section("soak", "One long crawl", text, facts)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
