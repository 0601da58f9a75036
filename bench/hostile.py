"""A crawl of misbehaving servers beside well-behaved ones: is each outcome right, and what does it cost others?

    python -m bench.hostile            10,000 hostile URLs, 5,000 good pages, 50 hosts of a byte a second; five minutes
    python -m bench.hostile --short    a few URLs of each behaviour, and no comparison: half a minute, nothing written
    python -m bench.hostile --large    250 hosts that send a page of 7 MB each at once: only what memory that takes
    python -m bench.hostile --trials   300 pages that fail their trial, and little room: how much slower good hosts are
    python -m bench.hostile --lag      only how long each behaviour blocks the loop of the HTTP client

The good pages are the synthetic site's, which counts what it served; the outcomes are read from crawl.urls by a plain
consumer. A page that fetch took and parse refused, such as a bomb, has its reason in its row. Each behaviour and its
outcome stand in `hostile_site.py`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import hostile_site as web
from bench import results
from bench.faults import reader
from bench.meter import Measured, measure
from bench.rows import doubled, rows_of
from crawlog.agents.client.client import Client
from crawlog.agents.client.transport import HttpRequest
from crawlog.streams.engine import engine
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.logins import login
from tests.support.synthetic_site import REPO, WORK, Site

FOLDER = WORK / "hostile"
SETTINGS: dict[str, object] = {
    "network.allow_private": "true",
    "fetch.user_agent": "hostile-test",
    "fetch.attempts": 2,
    "fetch.retry_delay_s": 0.2,
    "fetch.timeout_s": 5,
    "fetch.connect_timeout_s": 2,
    "fetch.first_byte_timeout_s": 3,
    "fetch.chunk_timeout_s": 2,
    "robots.attempts": 2,
    "robots.retry_window_s": 2,
    "politeness.max_delay_s": 0.5,
}
"""Small times, so that a crawl of what is slow ends soon; all other limits are the defaults."""

WORDS = re.compile(r"[a-z0-9_]+(?:: [a-z0-9_]+)*(?=: |$)")
"""The words of a reason, without the detail behind them."""

MAX_REDIRECTS = 10
DEAD_LETTERS = 4
"""Exit code of a run that left some."""
GOALS = {"rss_mb": 400.0, "lag_ms": 250.0, "slower": 1.2, "tarpits": 0.97}
TICK_S = 0.002
LIMIT_S = 480.0


@dataclass(frozen=True)
class Plan:
    """The sites of one crawl.

    Attributes:
        sizes: URLs of one behaviour, by its size.
        hosts: Addresses of one behaviour.
        good: Hosts of good pages, and pages of each.
        only: Behaviours, by name; empty for all.
        settings: Other ones.
    """

    sizes: dict[str, int]
    hosts: int
    good: tuple[int, int]
    delay_s: float
    only: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)

    def urls(self, port: int) -> dict[str, int]:
        """Hostile URLs and their behaviours, one of each behaviour after the other."""
        chosen = [n for n, one in enumerate(web.BEHAVIOURS) if not self.only or one.name in self.only]
        counts = {n: self.sizes[web.BEHAVIOURS[n].size] for n in chosen}
        most = max(counts.values(), default=0)
        return {
            web.url(port, n, number, self.hosts): n
            for number in range(most)
            for n in chosen
            if number < counts[n]
        }  # fmt: skip


FULL = Plan({"many": 101, "large": 8, "slow": 8}, 8, (50, 100), 1.0)
"""At crawlog's own delay: a quarter of it keeps both cores of a small machine busy from first to last, the hostile site
among what runs on them, and how much slower good hosts are then tells how many cores there are."""
SHORT = Plan({"many": 1, "large": 1, "slow": 1}, 1, (10, 30), 0.1, settings={"fetch.connect_timeout_s": 4})
"""Beside other tests: a handshake may wait for the processor for more than two seconds."""
PATIENT = {
    f"fetch.{name}": 120 for name in ("timeout_s", "connect_timeout_s", "first_byte_timeout_s", "chunk_timeout_s")
}
LARGE = Plan({"many": 0, "large": 250, "slow": 0}, 250, (10, 30), 0.1, (web.LONG,), PATIENT)
TRIALS = Plan(
    {"many": 51, "large": 0, "slow": 0},
    8,
    (20, 30),
    1.0,
    tuple(one.name for one in web.TREES),
    {"log.max_unparsed_mb": 8},
)
CALM = Plan({"many": 0, "large": 0, "slow": 0}, 8, FULL.good, FULL.delay_s)


@dataclass
class Crawled:
    """Results of a crawl."""

    measured: Measured
    good_s: float
    lost: int
    wrong: dict[str, Counter[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    strays: list[str] = field(default_factory=list)
    load: float = 0.0
    dead: int = 0
    doubled: list[str] = field(default_factory=list)

    @property
    def died(self) -> list[str]:
        """Stages that needed more than one process."""
        names = Counter(process.name for process in self.measured.processes.values())
        return [stage for stage in ("fetch", "parse", "sink") if names[stage] != 1]

    def rss_mb(self, stage: str) -> float:
        """The highest of a stage."""
        found = self.measured.by_name().get(stage)
        return found.peak_rss_mb if found else 0.0

    @property
    def problems(self) -> list[str]:
        """Broken promises, in words."""
        said = [f"{name}: {dict(found)}" for name, found in self.wrong.items()]
        said += [f"more or fewer than one process: {stage}" for stage in self.died]
        said += [f"asked for {url}" for url in self.strays[:5]]
        said += self.doubled
        if self.lost:
            said.append(f"{self.lost} good pages lost")
        if self.measured.exit_code != (DEAD_LETTERS if self.dead else 0):
            said.append(f"exit code {self.measured.exit_code}")
        return said


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The hostile site; its port."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    web.certificates(folder)
    port = _free_ports()
    command = [sys.executable, "-m", "bench.hostile_site", "--port", str(port), "--certificates", str(folder)]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"the hostile site does not start at port {port}")
            yield port
        finally:
            process.send_signal(signal.SIGKILL)


def _free_ports() -> int:
    """The first of as many free ports in a row as the site takes, below those that the kernel gives away."""
    for first in range(20_000, 30_000, 10):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + 1 + len(web.CERTIFICATES)):
                held.enter_context(socket.create_server(("0.0.0.0", port)))
            return first
    raise RuntimeError("no free ports between 20,000 and 30,000")


def crawl(folder: Path, plan: Plan, port: int, certificates: Path) -> Crawled:
    """One `crawlog run` at a log of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    hostile = plan.urls(port)
    broker = engine.start(load({"run.data": str(folder / "broker")}), folder / "broker", lambda _: None)
    try:
        there = broker.point(Settings())
        with Site(*plan.good, flags={"bytes": 3000, "links": 20}) as site:
            wanted = site.urls()
            seeds = _mixed(site.seeds, list(hostile))
            (folder / "seeds.txt").write_text("\n".join(seeds) + "\n")
            before = os.getloadavg()[0]
            measured = measure(
                _command(folder, broker.bootstrap, plan),
                folder,
                timeout_s=LIMIT_S,
                env=os.environ | login(there) | {"SSL_CERT_FILE": str(certificates / "ca.pem")},
            )
            stats = site.stats()
        every = rows_of(folder / "rows.jsonl")
        rows = {row["url"]: row for row in every}
        good_s = (int(stats.raw["last_ns"]) - stats.first_ns) / 1e9
        crawled = Crawled(measured, good_s, len(wanted - rows.keys()), load=before)
        crawled.doubled = doubled(row["url"] for row in every)
        errors = {url: row["error"] or "" for url, row in rows.items()}
        _judge(crawled, reader.read(there, "crawl.urls"), errors, hostile)
        _judge_dead(crawled, reader.read(there, "crawl.dead", with_values=False), hostile)
    finally:
        broker.stop()
    return crawled


def _mixed(good: Sequence[str], hostile: Sequence[str]) -> list[str]:
    """Good seeds among the first hostile ones."""
    head = hostile[: len(good)]
    return (
        [url for pair in zip(good, head, strict=False) for url in pair]
        + list(good[len(head) :])
        + list(hostile[len(good) :])
    )


def _command(folder: Path, bootstrap: str, plan: Plan) -> list[str]:
    settings = SETTINGS | {"politeness.delay_s": plan.delay_s, **plan.settings}
    words = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    at = ["--data", str(folder / "data"), "--bootstrap", bootstrap, "-o", str(folder / "rows.jsonl")]
    at += ["--workers", "fetch=1,parse=1"]  # so that a stage with another process has lost one
    return [sys.executable, "-P", "-m", "crawlog", "run", "--seeds", str(folder / "seeds.txt"), *at, "--json", *words]


def _judge(
    crawled: Crawled, records: Sequence[reader.Record], errors: Mapping[str, str], hostile: dict[str, int]
) -> None:
    """Outcomes that differ from the behaviour's, and requests that must not be made.

    Args:
        errors: Of the rows, by URL.
    """
    outcomes = {url: outcome for record in records for url, outcome in _outcomes(record.json or {}, errors)}
    for asked, number in hostile.items():
        behaviour = web.BEHAVIOURS[number]
        outcome = outcomes.get(asked, "lost")
        crawled.counts[outcome] += 1
        if outcome not in behaviour.outcome.split("|"):
            crawled.wrong.setdefault(behaviour.name, Counter())[outcome] += 1
    hosts = {urlsplit(one).hostname for one in hostile}
    per_host: Counter[str | None] = Counter()
    for asked, outcome in outcomes.items():
        host = urlsplit(asked).hostname
        per_host[host] += 1
        known = host in hosts or (host or "").startswith("127.1.")
        if not known and not outcome.startswith(
            ("failed private_address", "failed robots_unreachable: private", "failed robots_unreachable: dns")
        ):
            crawled.strays.append(f"{asked}: {outcome}")
    of_host = Counter(urlsplit(one).hostname for one in hostile)
    crawled.strays += [
        f"{host}, {per_host[host]} URLs for {seeds} seeds"
        for host, seeds in of_host.items()
        if per_host[host] > seeds * (MAX_REDIRECTS + 1)
    ]  # fmt: skip


def _judge_dead(crawled: Crawled, letters: Sequence[reader.Record], hostile: dict[str, int]) -> None:
    """Pages that are dead and should not be, and the other way round."""
    errors = {
        json.loads(one.headers["crawlog"])["url"]: one.headers["error"] for one in letters if "crawlog" in one.headers
    }
    crawled.dead = len(letters)
    for asked, number in hostile.items():
        behaviour, error = web.BEHAVIOURS[number], errors.get(asked, "")
        if not error.startswith(behaviour.dead) or bool(error) != bool(behaviour.dead):
            crawled.wrong.setdefault(behaviour.name, Counter())[f"dead: {error}"] += 1


def _outcomes(record: dict[str, Any], errors: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Outcomes in the final results of a record; where fetch gives no reason, the row may."""
    for result in record.get("results", ()):
        if not (result.get("status") == "failed" and result.get("next_at", 0) > 0):
            reason = WORDS.match(result.get("reason") or errors.get(result["url"], ""))
            words = (result.get("status"), result.get("http"), reason and reason[0])
            yield result["url"], " ".join(str(word) for word in words if word not in (None, ""))


# --- the lag of the loop ----------------------------------------------------------------------------------------------


async def lags(port: int, names: Sequence[str] = (), at_once: int = 4) -> dict[str, float]:
    """Longest time that the client kept the loop, by behaviour, milliseconds of CPU: other processes do not count."""
    settings = load({"network.allow_private": True, "fetch.timeout_s": 3.0, "fetch.first_byte_timeout_s": 1.0})
    client = Client(settings, "lag", lambda: True)
    found: dict[str, float] = {}
    try:
        for number, behaviour in enumerate(web.BEHAVIOURS):
            if behaviour.tls or (names and behaviour.name not in names):
                continue
            path = "robots.txt" if behaviour.robots else "page"
            urls = [web.url(port, number, n).rpartition("/page/")[0] + f"/{path}" for n in range(at_once)]
            found[behaviour.name] = await _lag(client, urls, any_type=bool(behaviour.robots))
    finally:
        await client.close()
    return found


async def _lag(client: Client, urls: Sequence[str], *, any_type: bool) -> float:
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            before = time.thread_time()
            await asyncio.sleep(TICK_S)
            worst = max(worst, time.thread_time() - before)

    ticking = asyncio.create_task(tick())
    for answer in await asyncio.gather(*(client.get(HttpRequest(url, any_type=any_type)) for url in urls)):
        answer.held.give()
    ticking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await ticking
    return worst * 1000


# --- what is printed --------------------------------------------------------------------------------------------------


def _report(mixed: Crawled, calm: Crawled | None, tarpits: Crawled | None, lag: dict[str, float]) -> str:
    """The tables."""
    classes = {
        "slow": web.SLOW,
        "headers": web.HEADERS,
        "lengths and chunks": web.LENGTHS,
        "codings": web.CODINGS,
        "redirects": web.REDIRECTS,
        "contents": web.CONTENTS,
        "trees": web.TREES,
        "politeness": web.POLITENESS,
        "TLS": web.TLS,
    }
    rows = []
    for name, members in classes.items():
        wrong = [one.name for one in members if one.name in mixed.wrong]
        ms, slowest = max((lag.get(one.name, 0.0), one.name) for one in members)
        rows.append([name, str(len(members)), str(len(members) - len(wrong)), f"{ms:.0f} ({slowest})"])
    text = results.table(["class", "behaviours", "as named", "longest lag of the loop, ms"], rows)
    figures = [["worker deaths", "0", str(len(mixed.died)), _verdict(not mixed.died)],
               ["good pages lost", "0", str(mixed.lost), _verdict(not mixed.lost)]]  # fmt: skip
    for stage in ("fetch", "parse", "sink"):
        mb = mixed.rss_mb(stage)
        figures.append([f"peak memory of {stage}, MB", "≤ 400", f"{mb:.0f}", _verdict(mb <= GOALS["rss_mb"])])
    worst = max(lag.values(), default=0.0)
    figures.append(["longest lag of the loop, ms", "≤ 250", f"{worst:.0f}", _verdict(worst <= GOALS["lag_ms"])])
    if calm is not None:
        slower = mixed.good_s / calm.good_s
        figures.append(["good hosts slower, times", "≤ 1.20", f"{slower:.2f}", _verdict(slower <= GOALS["slower"])])
    if calm is not None and tarpits is not None:
        share = calm.good_s / tarpits.good_s
        figures.append(["throughput beside 50 tarpits", "≥ 0.97", f"{share:.3f}", _verdict(share >= GOALS["tarpits"])])
    return f"{text}\n\n{results.table(['goal', 'wanted', 'got', ''], figures)}"


def _verdict(reached: bool) -> str:  # a word for a fact
    return "reached" if reached else "MISSED"


def main() -> int:
    """0 when every outcome is as named and nothing good was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--trials", action="store_true")
    parser.add_argument("--lag", action="store_true")
    parser.add_argument("--only", default="", help="names of behaviours, with semicolons between")
    args = results.options_of(parser)
    only = tuple(filter(None, args.only.split(";")))
    if unknown := set(only) - {one.name for one in web.BEHAVIOURS}:
        sys.exit(f"no behaviour {'; '.join(sorted(unknown))}: their names are in bench/hostile_site.py")
    certificates = FOLDER / "certificates"
    with serving(certificates) as port:
        lag = {} if args.large or args.trials else asyncio.run(lags(port, only))
        for name, ms in sorted(lag.items(), key=lambda one: -one[1])[: 10 if not args.lag else None]:
            print(f"{ms:>8.1f} ms  {name}", file=sys.stderr)
        if args.lag:
            return 0
        plan = LARGE if args.large else TRIALS if args.trials else SHORT if args.short else FULL
        mixed = crawl(FOLDER / "mixed", replace(plan, only=only or plan.only), port, certificates)
        calm = tarpits = None
        if plan in (FULL, TRIALS) and not only:
            calm = crawl(FOLDER / "calm", replace(CALM, good=plan.good, delay_s=plan.delay_s), port, certificates)
        if plan is FULL and not only:
            slow = Plan({"slow": 50, "many": 0, "large": 0}, 50, CALM.good, CALM.delay_s, ("a body byte a second",))
            tarpits = crawl(FOLDER / "tarpits", slow, port, certificates)
    problems = mixed.problems
    text = _report(mixed, calm, tarpits, lag)
    print(text)
    for problem in problems:
        print(f"    {problem}")
    if args.write:
        listed = "\n\n".join([text, *(f"- {problem}" for problem in problems)])
        facts = {
            "run": results.run_as("hostile"),
            "hostile": f"{sum(mixed.counts.values()):,} URLs of {len(web.BEHAVIOURS)} behaviours",
            "load before": ", ".join(f"{one.load:.1f}" for one in (mixed, calm) if one),
            "outcomes": ", ".join(f"{word} {count:,}" for word, count in mixed.counts.most_common()),
        }
        results.section("hostile", "The hostile web", listed, facts)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
