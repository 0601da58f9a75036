"""A crawl whose spider does the worst on some pages: these are dead letters, the worker lives, others have rows."""

import json
import os
import re
from pathlib import Path

import pytest

from crawlog.agents.sandbox.limits import ChildCgroup, ChildLimits
from crawlog.streams.cluster.client import log_bounds
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import PAGES, Numbered, data, run, site, there
from tests.support.processes import ended

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
import os, re, sys, threading, time
from crawlog import Spider

def memory():
    held = [bytearray(1 << 30) for _ in range(10)]

def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            os._exit(9)

def threads():
    for _ in range(20):
        threading.Thread(target=time.sleep, args=(600,)).start()

DEEDS = {
    3: lambda: os._exit(1),
    5: lambda: sum(range(10**12)),
    7: lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    9: memory,
    11: lambda: os.kill(os.getpid(), 9),
    13: lambda: os.closerange(0, 64),
    15: lambda: sys.exit(3),
    17: threads,
    19: lambda: os.write(1, os.urandom(1 << 20)),
    21: BOMB,
}

class Hostile(Spider):
    settings = {"parse.timeout_s": 0.5, "parse.max_memory_mb": 512, "network.allow_private": True}

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        DEEDS.get(number, int)()
        if number == 23:
            yield from ({"n": each} for each in range(20_000))
        yield {"n": number}
"""

REASONS = {
    3: r"spider_died: its process exited with code 1",
    5: r"spider_died: it took more than",
    7: r"spider_died: it took more than",
    9: r"MemoryError",
    11: r"spider_died: its process was ended by signal 9",
    13: r"spider_died: ",
    15: r"SystemExit: 3",
    21: r"spider_died: ",
    23: r"TooMuch: more than 10000 items",
}
"""Of the pages that are dead; threads and garbage on standard output harm nobody."""


def _limits_forks() -> bool:
    corral = ChildCgroup()
    corral.make(ChildLimits())
    corral.remove()
    return os.geteuid() != 0 or corral.is_there


def errors(log: Settings) -> dict[int, str]:
    """The errors of the dead letters, by the page's number."""
    names = Topics(log.kafka.prefix)
    found = {}
    for one in read_partitions(log, names.dead, log_bounds(log, names.dead, [0])):
        headers: dict[str, bytes] = dict(one.headers() or ())  # type: ignore[arg-type]  # bytes
        url = json.loads(headers["crawlog"])["url"]
        found[int(url.rpartition("/")[2])] = str(headers["error"], "utf-8")
    return found


@pytest.mark.long
def test_the_worst_that_a_spider_does_costs_its_page_alone(
    site: Numbered, data: Path, cluster: Settings, there: list[str]
) -> None:
    """Exit, endless loops in C, memory, a fork bomb, closed files, too many outputs, threads, garbage."""
    bomb = "bomb" if _limits_forks() else "lambda: os._exit(9)"
    (data.parent / "hostile.py").write_text(SPIDER.replace("BOMB", bomb))
    urls = [f"{site.origin}/{number}" for number in range(1, PAGES + 1)]
    code, summary, err = ended(run(site, data, *urls, "--spider", data.parent / "hostile.py", *there))
    assert (code, summary["reason"]) == (4, "finished"), err
    assert not re.search(r"worker .*(killed|exited|ended)", err), err
    found = errors(cluster)
    assert found.keys() == REASONS.keys()
    assert [number for number, error in found.items() if not re.match(REASONS[number], error)] == [], found
    rows = [json.loads(line)["n"] for line in (data.parent / "rows.jsonl").read_text().splitlines()]
    assert sorted(rows) == [number for number in range(1, PAGES + 1) if number not in REASONS]
