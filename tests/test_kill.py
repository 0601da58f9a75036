"""Everything killed, workers told to stop. The judge is the site's access log.

Each kind of worker, the broker and a zombie are killed in tests/test_faults.py, each write is in test_crash.py.
"""

import os
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from cluster import Cluster, needs_site

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]

CONCURRENCY = 8
DELAY_S = 0.2


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Cluster]:
    """A crawl of 600 pages on 20 hosts that takes some ten seconds; it has begun."""
    settings = {"fetch.concurrency": CONCURRENCY, "politeness.delay_s": DELAY_S}
    with Cluster(tmp_path, hosts=20, pages=30, settings=settings) as cluster:
        cluster.start()
        yield cluster


def judge(crawl: Cluster, killed_fetchers: int) -> None:
    """Each page is one result, and what was asked for twice fits into the places of the killed workers."""
    summary = crawl.finish()
    rows = crawl.rows()
    assert set(rows) == crawl.urls
    assert set(rows.values()) == {1}
    assert summary["dead"] == 0
    assert summary["queued"] == 0
    stats = crawl.site.stats()
    assert (stats.unique, stats.private) == (len(crawl.urls), 0)
    assert stats.duplicates <= CONCURRENCY * killed_fetchers


def rests(crawl: Cluster) -> list[float]:
    """Seconds between two requests to one host, for all hosts, in no order."""
    by_host: dict[str, list[float]] = {}
    for at, host, _ in crawl.requests():
        by_host.setdefault(host, []).append(at)
    return [later - earlier for times in by_host.values() for earlier, later in pairwise(times)]


def test_a_planned_stop_repeats_nothing(tmp_path: Path) -> None:
    """One of two fetch workers is told to stop, later the other: what they ask for ends first, then others go on."""
    settings = {"fetch.concurrency": CONCURRENCY, "politeness.delay_s": DELAY_S}
    with Cluster(tmp_path, hosts=20, pages=20, flags={"latency": "200ms"}, settings=settings) as cluster:
        cluster.start("--workers", "fetch=2")
        for share, number in ((0.2, 0), (0.5, 1)):
            cluster.until(share)
            os.kill(cluster.pids("fetch")[number], signal.SIGTERM)
        judge(cluster, killed_fetchers=0)
        assert min(rests(cluster)) > 0.95 * DELAY_S


def test_everything_is_killed(crawl: Cluster) -> None:
    """Supervisor, workers and broker at once; the same command goes on."""
    crawl.until(0.3)
    killed = crawl.kill_all()
    crawl.start()
    judge(crawl, max(killed, 1))
    assert min(rests(crawl)) > 0.95 * DELAY_S
