"""The figures of very many hosts: what they cost a fetch worker and the service, and how fast a browser shows them.

    python -m bench.hosts                  100,000 hosts in 8 partitions
    python -m bench.hosts --hosts 10000    fewer

Measured in CPU time, as other programs may run: a request counted by a fetch worker, a bucket that it writes; a bucket
taken by the service, its memory, an answer of `/api/v1/hosts`. By the clock: the first paint of the page in Chromium.
"""

import argparse
import asyncio
import base64
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bench.results import table
from crawlog.schemas import hosts as h
from crawlog.schemas.hosts import BUCKETS, HostBucket, bucket_of
from crawlog.service.process import make_app
from crawlog.service.routing import HOSTS
from crawlog.streams.fold import Changes
from crawlog.streams.hosts import HostTable
from crawlog.streams.http import Answer
from crawlog.streams.jobs import Commands
from crawlog.streams.settings import load
from crawlog.streams.state.partition import Database, StateMemory
from tests.support.dashboard import browser
from tests.support.dispatching import World

PARTITIONS = 8
PASSWORD = "bench"

Client = TestClient[web.Request, web.Application]

ANSWERS = 10


def cpu_ms(count: int, work: Callable[[], object]) -> float:
    """CPU milliseconds of one call, of so many."""
    began = time.process_time()
    for _ in range(count):
        work()
    return 1000 * (time.process_time() - began) / count


def worker(hosts: int, folder: Path) -> tuple[list[tuple[str, str]], list[HostBucket]]:
    """The costs in a fetch worker that owns one partition with its part of the hosts; and its buckets."""
    world = World()
    world.job()
    names = [f"http://host-{number}.example.com:8080" for number in range(hosts // PARTITIONS)]
    for first in range(0, len(names), 500):
        world.find(*(f"{name}/{page}" for name in names[first : first + 500] for page in range(2)))
    world.checkpoint()
    database = Database(folder / "state", StateMemory(64))
    database.write(Changes(dict(world.base.rows)))
    world.rows.base = database
    ledger, owned = world.frontier.ledger, world.frontier.owned[0]
    asked = list(owned.hosts.values())
    answers = [Answer(200), Answer(403), Answer(None, "timeout")]

    def count_all() -> None:
        for number, host in enumerate(asked):
            ledger.answered(host, answers[number % 40 % 3], world.wall)

    counted = cpu_ms(3, count_all) / len(asked)
    buckets = [ledger.figures(owned, bucket, [], 60.0) for bucket in range(BUCKETS)]

    def again() -> None:
        for bucket, before in enumerate(buckets):
            h.encode(ledger.figures(owned, bucket, (h.decode(h.encode(before)) or before).hosts, 60.0))

    count_all()
    written = cpu_ms(1, again) / BUCKETS
    assert sum(bucket_of(host.hash) < BUCKETS for host in asked) == len(asked)
    rows = [
        ("a request counted by a fetch worker, us", f"{1000 * counted:.1f}"),
        ("a bucket written by a fetch worker, ms", f"{written:.2f}"),
        ("all buckets, at 1 % of a core, s", f"{max(written * PARTITIONS / 10, 1.0) * BUCKETS:.0f}"),
    ]
    return rows, buckets


def service(hosts: HostTable, buckets: list[HostBucket]) -> list[tuple[str, str]]:
    """The costs in the service; fills the table."""
    process = psutil.Process()
    before = process.memory_info().rss
    records = [
        (h.key(partition, bucket), h.encode(figures).replace(b"host-", b"host-%d-" % partition))
        for partition in range(PARTITIONS)
        for bucket, figures in enumerate(buckets)
    ]
    began = time.process_time()
    for key, value in records:
        hosts.take(key, value, time.time())
    taken = 1000 * (time.process_time() - began) / len(records)
    hosts.is_complete = True
    grown = process.memory_info().rss - before - sum(len(value) for _, value in records)
    pages = {
        "the worst": hosts.page,
        "of a kind": lambda: hosts.page("failing"),
        "searched": lambda: hosts.page(text="host-99"),
        "by queue": lambda: hosts.page(sort="queued"),
    }
    return [
        ("a bucket taken by the service, ms", f"{taken:.2f}"),
        ("memory of the table, MB", f"{max(grown, 0) / 1e6:.0f}"),
        *((f"50 hosts, {name}, ms", f"{cpu_ms(5, work):.0f}") for name, work in pages.items()),
    ]


async def painted(app: web.Application) -> tuple[float, list[float]]:
    """CPU milliseconds of the page with its client; by the clock, until its first paint, at first without a cache."""
    async with TestServer(app) as server, Client(server) as client, browser() as chromium:
        login = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        began = time.process_time()
        for _ in range(ANSWERS):
            async with client.get("/ui/hosts", headers={"Authorization": f"Basic {login}"}) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
        worked = 1000 * (time.process_time() - began) / ANSWERS
        context = await chromium.new_context(http_credentials={"username": "ann", "password": PASSWORD})
        page, found = await context.new_page(), []
        for _ in range(3):
            await page.goto(str(server.make_url("/ui/hosts")))
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
            await page.wait_for_function(f"{paint} > 0")
            found.append(float(await page.evaluate(paint)))
        return worked, found


def main() -> int:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, default=100_000)
    count = parser.parse_args().hosts
    with tempfile.TemporaryDirectory() as folder:
        rows, buckets = worker(count, Path(folder))
    state = SimpleNamespace(control=SimpleNamespace(commands=Commands()))
    fleet: Any = SimpleNamespace(look=lambda ask: ask(state), jobs=list, stages=list)
    app = make_app(load({"service.users": {"ann": PASSWORD}}, environ={}), fleet, "")
    rows += service(app[HOSTS].table, buckets)
    worked, (first, *later) = asyncio.run(painted(app))
    rows.append(("the page in the service, ms", f"{worked:.0f}"))
    rows += [("first paint in Chromium, ms", f"{first:.0f}"), ("the same again, ms", f"{min(later):.0f}")]
    print(table(["measured", f"{count:,} hosts"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
