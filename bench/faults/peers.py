"""The same kills for others: Scrapy with JOBDIR, and scrapy-redis with a real Redis, judged by the same access log.

    python -m bench.faults.peers             20,000 pages, 5 seeds, beside crawlog's newest runs of the fault `kill`
    python -m bench.faults.peers --short     200 pages, 1 seed

The peer is killed with -9 every 5 s and started again after 1 s, with the same command. Redis itself is never killed.
Both peers run at once, each with a site of its own: at this pace neither takes a quarter of a core.
"""

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.faults import judge
from bench.faults.__main__ import FOLDER, LONG, SHORT, kept
from bench.faults.crawl import RESTART_S, Size
from bench.faults.graph import Graph
from bench.faults.judge import Evidence
from bench.faults.processes import EVERY_S, Kill
from bench.faults.site import Site
from bench.peer import PEERS, PYTHON, install_redis
from bench.results import options_of, run_as, section, table
from tests.support.synthetic_site import free_port

KINDS = {"jobdir": "Scrapy with JOBDIR", "redis": "scrapy-redis"}
LIMIT = 2.5
"""A run may take so many times as long as a calm crawl; ours takes twice as long."""


class Outcome(NamedTuple):
    """Outcome of a peer's crawl.

    Attributes:
        lost: Pages that answer 200 and have no row.
        rowless: Of these, those that the site had answered.
        doubled: Rows beyond one a URL.
        has_ended: Whether it came to its own end.
    """

    kind: str
    kills: int
    lost: int
    rowless: int
    doubled: int
    again_percent: float
    hurried: int
    robots: int
    took_s: float
    has_ended: bool


def run(kind: str, seed: int, size: Size) -> Outcome:
    """One crawl under kills."""
    folder = FOLDER / f"peer-{kind}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    graph = Graph(size.hosts, size.pages, seed, free_port())
    (folder / "seeds.txt").write_text("\n".join(graph.seeds) + "\n")
    dice = random.Random(f"{kind}/{seed}")
    redis = _redis(folder) if kind == "redis" else None
    where = f"redis://127.0.0.1:{redis[0]}" if redis else str(folder / "job")
    words = ["seeds.txt", "rows.jsonl", str(size.delay_s), kind, where]
    command = [str(PYTHON), str(PEERS / "scrapy_killed.py"), *words]
    try:
        with Site(graph, folder / "access.log", size.latency_s) as site:
            began = time.monotonic()
            kills, has_ended = _killed(command, folder, dice, LIMIT * size.calm_s)
            took_s = time.monotonic() - began
            requests = site.requests()
    finally:
        if redis is not None:
            redis[1].kill()
            redis[1].wait()
    rows = _rows(folder / "rows.jsonl")
    seen = Evidence(graph, "", size.delay_s, requests, [], [], [], [], [], {})
    wanted = {url for url, entry in graph.expected.items() if entry.kind == "page"}
    missing = wanted - rows.keys()
    answered = {url for url, hits in seen.hits.items() if any(hit.complete for hit in hits)}
    found = judge.judge(seen)
    return Outcome(
        kind, kills, len(missing), len(missing & answered), sum(rows.values()) - len(rows),
        judge.again_percent(seen, found), found["hurried"].times, found["robots"].times, took_s, has_ended,
    )  # fmt: skip


def _killed(command: Sequence[str], folder: Path, dice: random.Random, limit_s: float) -> tuple[int, bool]:
    """Kills and starts again until it ends by itself; how often, and whether it did."""
    kills = 0
    end = time.monotonic() + limit_s
    with (folder / "said.log").open("ab") as said:
        while time.monotonic() < end:
            process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
            try:
                process.wait(EVERY_S + dice.uniform(-0.5, 0.5))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
                time.sleep(RESTART_S)
            else:
                return kills, process.returncode == 0
    return kills, False


def _redis(folder: Path) -> tuple[int, "subprocess.Popen[bytes]"]:
    """A server with its default settings, and its port."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            break
    return port, server


def _rows(file: Path) -> Counter[str]:
    """Rows by URL; lines torn by a kill are none."""
    found = Counter[str]()
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found[str(json.loads(line)["url"])] += 1
        except (ValueError, KeyError, TypeError):
            continue
    return found


def main() -> int:
    """Prints the table; 1 when a crawl failed, or was not killed once. What one loses is the result, and no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--only", choices=KINDS, help="one of them")
    asked = options_of(parser)
    size, seeds = (SHORT, asked.seeds or 1) if asked.short else (LONG, asked.seeds or 5)
    kinds = [asked.only] if asked.only else list(KINDS)
    install_redis()
    runs: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    for seed in range(1, seeds + 1):
        with ThreadPoolExecutor() as pool:
            for outcome in pool.map(run, kinds, [seed] * len(kinds), [size] * len(kinds)):
                runs[outcome.kind].append(outcome)
                print(outcome, file=sys.stderr, flush=True)
    ours = _ours(size)
    head = (
        "crawler",
        "seeds",
        "kills",
        "lost",
        "answered, no row",
        "rows doubled",
        "again %",
        "hurried",
        "robots",
        "s",
    )
    lines = [_line("crawlog", ours)] if ours else []
    text = table(head, [*lines, *(_line(KINDS[kind], ended) for kind, ended in runs.items())])
    print(text)
    if asked.write:
        facts = {
            "run": f"{run_as('faults.peers')}, {seeds} seeds, worst of them",
            "site": f"{size.hosts} hosts x {size.pages} paths, {size.delay_s} s delay",
            "cut off": f"after {LIMIT * size.calm_s:.0f} s; a calm crawl takes {size.calm_s:.0f} s or less",
        }
        section("faults-peers", "The same kills for others", text, facts)
    return int(any(has_failed(one, size) for ended in runs.values() for one in ended))


def has_failed(one: Outcome, size: Size) -> bool:
    """Whether a crawl shows nothing: it ended with an error before it was cut off, or no kill hit it."""
    return not one.kills or not (one.has_ended or one.took_s >= LIMIT * size.calm_s)


def _ours(size: Size) -> list[Outcome]:
    """Of crawlog: what was kept of the fault `kill`, the newest run of each seed."""
    newest = {one.seed: one for _, one in kept(size) if one.fault == Kill.name}
    return [
        Outcome(
            "crawlog", one.pending, one.counts["lost"], one.counts["unrecorded"], one.counts["doubled"],
            one.again_percent, one.counts["hurried"], one.counts["robots"], one.took_s, has_ended=True,
        )
        for one in newest.values()
    ]  # fmt: skip


def _line(title: str, runs: list[Outcome]) -> tuple[str, ...]:
    took = f"{max(one.took_s for one in runs):.0f}" + ("" if all(one.has_ended for one in runs) else ", cut off")
    worst = [max(one[field] for one in runs) for field in range(1, 8)]
    cells = [f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in worst]
    return (title, str(len(runs)), *cells, took)


if __name__ == "__main__":
    sys.exit(main())
