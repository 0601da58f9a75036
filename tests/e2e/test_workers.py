"""Any number of workers, coming and going: the same pages, the same rows, and a state that is the fold of its log."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.settings.sources import load
from crawlog.streams.state.verify import Verdict, verify
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.processes import Process, crawlog

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]

DELAY_S = 0.2


@pytest.fixture
def crawl(tmp_path: Path, cluster: Settings) -> Iterator[Cluster]:
    """A site of 1,000 pages on 20 hosts, each of which is asked five times a second at most; nothing has begun."""
    settings = {"politeness.delay_s": DELAY_S, "fetch.concurrency": 16} | log_of(cluster)
    with Cluster(tmp_path, hosts=20, pages=50, settings=settings) as made:
        yield made


def assert_whole(crawl: Cluster) -> None:
    """Every page is one row and was asked for once, politely, and the states are the folds of their logs."""
    crawl.finish()
    rows = crawl.rows()
    assert set(rows) == crawl.urls
    assert set(rows.values()) == {1}
    stats = crawl.site.stats()
    assert (stats.unique, stats.duplicates, stats.private) == (len(crawl.urls), 0, 0)
    assert shortest_rest(crawl) >= DELAY_S
    assert all(verdict.equal for verdict in verdicts(crawl))


def shortest_rest(crawl: Cluster) -> float:
    """The shortest time between two requests to one host, robots.txt included, seconds."""
    by_host: dict[str, list[float]] = {}
    for at, host, _ in crawl.requests():
        by_host.setdefault(host, []).append(at)
    return min(later - earlier for times in by_host.values() for earlier, later in pairwise(times))


def verdicts(crawl: Cluster) -> list[Verdict]:
    """A second fold of each partition's log, compared with the state that the workers kept."""
    return list(verify(load(crawl.settings), crawl.data / "state"))


def worker(crawl: Cluster, stage: str, name: str) -> Process:
    """One more worker of a stage, as another machine would start it."""
    settings = load({**crawl.settings, "run.data": str(crawl.data)})
    environ = os.environ | to_environ(settings) | {"CRAWLOG_WORKER": name}
    with (crawl.folder / f"{name}.log").open("wb") as said:
        return crawlog("worker", stage, env=environ, stdout=said, stderr=said)


def has_joined(log: Path) -> None:
    """Wait until a worker has partitions of its own."""
    end = time.monotonic() + 120.0
    while "partitions=" not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


@pytest.mark.long
def test_any_number_of_workers_gives_the_same_pages(crawl: Cluster) -> None:
    """Two of each share the partitions, a third joins and leaves: no page is lost or asked twice, no host too soon."""
    crawl.start("--workers", "fetch=2,parse=2")
    crawl.until(0.01)  # a worker takes seconds to start, more on a busy machine, and the crawl ten
    joined = [worker(crawl, stage, f"{stage}-9") for stage in ("fetch", "parse")]
    for stage in ("fetch", "parse"):
        has_joined(crawl.folder / f"{stage}-9.log")
    for process in joined:
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in joined] == [0, 0]
    assert_whole(crawl)
