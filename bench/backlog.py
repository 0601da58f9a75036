"""Backlog: millions of seeds while workers are fetching, over few hosts and over very many.

    python -m bench.backlog              2,000,000 URLs on 10 hosts and on 200,000: a quarter of an hour
    python -m bench.backlog --short      20,000 on 2,000; nothing is written
    python -m bench.backlog --urls 10_000_000 --hosts 1_000_000     another size; nothing is written

`crawlog up` works on an empty folder, then `crawlog seed` gives it the file. Hosts are loopback addresses, each a
registrable domain of its own; one small server answers for all. Measured are the URLs that the fold takes a second from
the first to the last, the requests a second meanwhile, the memory of the fetch worker, how long `crawlog status`, `why`
and `verify` take beside the workers, and the time from a `kill -9` of everything, once halfway and once after the last
fold, to the next request.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ctypes import c_int64
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from bench.results import options_of, run_as, section, table, versions
from crawlog.processes.hold import holder
from crawlog.streams.engine import engine
from crawlog.streams.fleet import ProgressReader
from crawlog.streams.jobs import FleetReports
from crawlog.streams.settings.settings import Settings
from tests.support.synthetic_site import WORK, free_port

URLS = 2_000_000
HOSTS = (10, 200_000)
FOLDED = 25_000
"""Seeds folded a second, at least."""
REQUESTS = 300
"""Requests a second while they are folded, at least."""
FIRST_S = 15.0
"""From a kill of everything to the next request, at most."""
RSS_MB = 450
STATUS_S = 2.0
LIMIT_S = 1200.0

FOLDER = WORK / "runs" / "backlog"
CRAWLOG = [sys.executable, "-m", "crawlog"]
BODY = b"<html><title>a page</title><p>Nothing leads on from here.</p></html>"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
NO_ROBOTS = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Answering(asyncio.Protocol):
    """Answers every GET, and counts those of pages."""

    pages: Any = None

    def connection_made(self, transport: Any) -> None:
        """Keeps the way back."""
        self._transport = transport
        self._left = b""

    def data_received(self, data: bytes) -> None:
        """Answers the complete requests in it."""
        *requests, self._left = (self._left + data).split(b"\r\n\r\n")
        for request in requests:
            if request.startswith(b"GET /robots.txt "):
                self._transport.write(NO_ROBOTS)
            else:
                self.pages.value += 1
                self._transport.write(ANSWER)


def serve(port: int, pages: Any) -> None:
    """Answers on every loopback address until killed."""

    async def forever() -> None:
        Answering.pages = pages
        server = await asyncio.get_running_loop().create_server(Answering, "0.0.0.0", port, backlog=4096)
        await server.serve_forever()

    uvloop.run(forever())


def lines(urls: int, hosts: int, port: int) -> Iterator[str]:
    """The seeds, host after host in turn."""
    for number in range(urls):
        host = number % hosts
        yield f"http://127.{1 + host // 62_500}.{host // 250 % 250}.{host % 250 + 1}:{port}/p/{number // hosts}\n"


class Result(NamedTuple):
    """Measurements of one file of seeds; times in seconds."""

    urls: int
    hosts: int
    folded: float
    requests: float
    least: float
    rss_mb: float
    status_s: float
    why_s: float
    verify_s: float
    first_s: tuple[float, ...]

    def faults(self) -> list[str]:
        """The goals that were missed."""
        missed = {
            f"{self.folded:,.0f} seeds a second folded, ≥ {FOLDED:,} wanted": self.folded < FOLDED,
            f"{self.requests:.0f} requests a second meanwhile, ≥ {REQUESTS} wanted": self.requests < REQUESTS,
            f"{self.rss_mb:.0f} MB in the fetch worker, ≤ {RSS_MB} wanted": self.rss_mb > RSS_MB,
            f"{self.status_s:.1f} s for `status`, ≤ {STATUS_S} wanted": self.status_s > STATUS_S,
            f"{max(self.first_s):.1f} s to the next request after a kill, ≤ {FIRST_S} wanted": max(self.first_s)
            > FIRST_S,
        }
        return [f"{self.hosts:,} hosts: {what}" for what, is_missed in missed.items() if is_missed]


class Crawl:
    """The workers under `crawlog up`, watched from outside."""

    def __init__(self, data: Path, pages: Any, limit_s: float) -> None:
        self._options = ["--data", str(data)]
        self._data = data
        self._pages = pages
        self._limit_s = limit_s
        self.peak_mb = 0.0

    def up(self) -> None:
        """Starts engine and workers, and follows their reports."""
        rests = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0"]
        subprocess.run(
            [*CRAWLOG, "up", *self._options, *rests], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr
        )
        local = engine.running(self._data)
        assert local is not None
        self.picture = FleetReports()
        self.watch = ProgressReader(local.point(Settings()), self.picture)

    def seed(self, file: Path) -> "subprocess.Popen[bytes]":
        """Seeds a file beside the workers."""
        return subprocess.Popen(
            [*CRAWLOG, "seed", str(file), "--job", "bench", *self._options],
            stderr=subprocess.DEVNULL,
        )

    def taken(self) -> int:
        """URLs that the folds have queued so far; 0 until all of them have reported."""
        self.watch.poll(0.05)
        if len(list(self.picture.of("fetch"))) < Settings().kafka.partitions:
            return 0
        counts = self.picture.counts("bench")
        return counts.queued + counts.fetched + counts.failed + counts.refused

    def look(self) -> None:
        """Notes the memory of the fetch worker."""
        for process in self._processes():
            if process.name().startswith("crawlog: fetch"):
                self.peak_mb = max(self.peak_mb, process.memory_info().rss / 2**20)

    def _processes(self) -> list[psutil.Process]:
        """All processes of `up`: the holder of the folder, its children and the broker."""
        held, local = holder(self._data), engine.running(self._data)
        first = [psutil.Process(one.pid) for one in (held, local) if one is not None]
        return [*first, *(child for process in first for child in process.children(recursive=True))]

    def takes_s(self, *command: str) -> float:
        """How long a command takes that reads beside the workers."""
        began = time.monotonic()
        subprocess.run([*CRAWLOG, *command, *self._options], check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began

    def kill(self) -> float:
        """Kills everything, starts it again; the time to the next request, the kill's included."""
        self.watch.close()
        mine, began = self._processes(), time.monotonic()
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)
        before = self._pages.value
        starting = threading.Thread(target=self.up)
        starting.start()
        while (took_s := time.monotonic() - began) < self._limit_s and self._pages.value == before:
            time.sleep(0.01)
        starting.join()
        if self._pages.value == before:
            raise TimeoutError(f"no request in {took_s:.0f} s after everything was killed and started again")
        return took_s

    def down(self) -> None:
        """Stops it."""
        subprocess.run(
            [*CRAWLOG, "down", *self._options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def measure(folder: Path, urls: int, hosts: int, limit_s: float = LIMIT_S) -> Result:
    """One file of seeds; raises if not all of them are folded in the end.

    Args:
        limit_s: Longest wait for the next request, for the folds and for the seeder, each.
    """
    port = free_port()
    file = folder / "seeds.txt"
    with file.open("w") as out:
        out.writelines(lines(urls, hosts, port))
    apart = multiprocessing.get_context("spawn")  # a fork would destroy our Kafka clients, and die of their threads
    pages = apart.Value(c_int64, 0, lock=False)
    server = apart.Process(target=serve, args=(port, pages), daemon=True)
    server.start()
    crawl = Crawl(folder / "data", pages, limit_s)
    crawl.up()
    try:
        seeding = crawl.seed(file)
        before = _follow(crawl, urls // 2, pages, limit_s)
        halfway_s = crawl.kill()
        folded, requests, least = _paces(before, _follow(crawl, urls, pages, limit_s))
        if seeding.wait(limit_s):
            raise RuntimeError(f"`crawlog seed` ended with exit code {seeding.returncode}")
        status_s, why_s = crawl.takes_s("status"), crawl.takes_s("why", next(lines(1, hosts, port)).strip())
        print(f"`status` takes {status_s:.1f} s, `why` {why_s:.1f}", file=sys.stderr)
        first_s = (halfway_s, crawl.kill())
        verify_s = crawl.takes_s("verify")
    finally:
        crawl.down()
        server.kill()
    return Result(urls, hosts, folded, requests, least, crawl.peak_mb, status_s, why_s, verify_s, first_s)


Mark = tuple[float, int, int]
"""(time, URLs folded, requests sent)."""


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _follow(crawl: Crawl, upto: int, pages: Any, limit_s: float) -> list[Mark]:
    """Marks every 5 seconds, from the first reports until so many are folded."""
    marks: list[Mark] = []
    until = time.monotonic() + limit_s
    taken = 0
    while taken < upto:
        taken, now = crawl.taken(), time.monotonic()
        if now > until:
            raise TimeoutError(f"{taken:,} of {upto:,} URLs are folded after {limit_s:.0f} s")
        if taken and (not marks or now - marks[-1][0] >= 5 or taken >= upto):
            marks.append((now, taken, pages.value))
            crawl.look()
            print(f"{taken:>9,} folded, {pages.value:>7,} requests, {crawl.peak_mb:.0f} MB", file=sys.stderr)
    return marks


def _paces(*phases: list[Mark]) -> tuple[float, float, float]:
    """Seeds folded a second, requests a second, and those of the slowest 5 seconds, without the time between phases."""
    steps = [(b[0] - a[0], b[1] - a[1], b[2] - a[2]) for marks in phases for a, b in itertools.pairwise(marks)]
    took_s = sum(step[0] for step in steps) or 1.0
    slowest = min((step[2] / step[0] for step in steps if step[0] >= 5), default=0.0)
    return sum(step[1] for step in steps) / took_s, sum(step[2] for step in steps) / took_s, slowest


def report(results: list[Result]) -> str:
    """The table."""
    head = [
        "URLs",
        "hosts",
        "folded/s",
        "requests/s meanwhile",
        "least of 5 s",
        "fetch MB",
        "status s",
        "why s",
        "verify s",
        "next request after a kill s",
    ]
    rows = [
        [
            f"{one.urls:,}",
            f"{one.hosts:,}",
            f"{one.folded:,.0f}",
            f"{one.requests:.0f}",
            f"{one.least:.0f}",
            f"{one.rss_mb:.0f}",
            f"{one.status_s:.1f}",
            f"{one.why_s:.1f}",
            f"{one.verify_s:.0f}",
            ", ".join(f"{first:.1f}" for first in one.first_s),
        ]
        for one in results
    ]
    return table(head, rows)


def main() -> int:
    """1 when, at full size, a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="20,000 URLs on 2,000 hosts; nothing is written")
    parser.add_argument("--urls", type=int, default=URLS)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(HOSTS))
    args = options_of(parser)
    urls, hosts = (20_000, [2_000]) if args.short else (args.urls, args.hosts)
    is_whole = (urls, tuple(hosts)) == (URLS, HOSTS)
    results = [measure(_empty(FOLDER), urls, count) for count in hosts]
    missed = [fault for one in results for fault in one.faults()]
    body = report(results) + "\n\n" + ("\n".join(missed) or "All goals reached.")
    print(body)
    if args.write:
        packages = ", ".join(f"{k} {v}" for k, v in versions(["crawlog", "rocksdict", "aiokafka"]).items())
        section(
            "backlog",
            "Millions of seeds beside a crawl",
            body,
            {"run": run_as("backlog"), "versions": packages},
        )
    return 1 if missed and is_whole else 0


if __name__ == "__main__":
    sys.exit(main())
