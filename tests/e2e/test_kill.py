"""Everything killed, workers told to stop. The judge is the site's access log.

Each kind of worker, the broker and a zombie are killed in tests/bench/test_faults.py, each write is in test_crash.py.
"""

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, needs_site
from tests.support.processes import crawlog

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]

CONCURRENCY = 8
DELAY_S = 0.2


def rests(crawl: Cluster) -> list[float]:
    """Seconds between two requests to one host, for all hosts, in no order."""
    by_host: dict[str, list[float]] = {}
    for at, host, _ in crawl.requests():
        by_host.setdefault(host, []).append(at)
    return [later - earlier for times in by_host.values() for earlier, later in pairwise(times)]


def test_a_planned_stop_repeats_nothing_and_a_kill_of_everything_little(tmp_path: Path) -> None:
    """Told to stop, workers end what they ask for, then others go on. Killed, they leave that much to be asked twice.

    One of two fetch workers is stopped, later the other; then supervisor, workers and broker are killed at once, and
    the same command goes on. Each page is one result.
    """
    settings = {"fetch.concurrency": CONCURRENCY, "politeness.delay_s": DELAY_S}
    with Cluster(tmp_path, hosts=20, pages=30, flags={"latency": "200ms"}, settings=settings) as crawl:
        crawl.start("--workers", "fetch=2")
        for share, number in ((0.15, 0), (0.4, 1)):
            crawl.until(share)
            while len(pids := crawl.pids("fetch")) < 2:
                time.sleep(0.01)
            os.kill(pids[number], signal.SIGTERM)
        crawl.until(0.7)
        assert crawl.site.stats().duplicates == 0
        killed = crawl.kill_all()
        crawl.start()
        summary = crawl.finish()
        rows = crawl.rows()
        assert set(rows) == crawl.urls
        assert set(rows.values()) == {1}
        assert (summary["dead"], summary["queued"]) == (0, 0)
        stats = crawl.site.stats()
        assert (stats.unique, stats.private) == (len(crawl.urls), 0)
        assert stats.duplicates <= CONCURRENCY * max(killed, 1)
        assert min(rests(crawl)) > 0.95 * DELAY_S


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_killed_crawl_resumes_with_the_bloom_filter_of_its_offset(tmp_path: Path, workers: int) -> None:
    """However many workers share the filters: no page is lost, and the states have the digests of one fold of the log.

    Supervisor, workers and broker are killed at once, at half, and the same command goes on.
    """
    settings = {"fetch.concurrency": CONCURRENCY, "politeness.delay_s": 0.05, "dedup.mode": "bloom"}
    with Cluster(tmp_path, hosts=20, pages=20, settings=settings) as crawl:
        crawl.start("--workers", f"fetch={workers}")
        crawl.until(0.5)
        crawl.kill_all()
        crawl.start("--workers", f"fetch={workers}")
        summary = crawl.finish()
        assert crawl.rows() == dict.fromkeys(crawl.urls, 1)
        assert (summary["dead"], summary["queued"]) == (0, 0)
        verified, _ = crawlog("verify", "--data", crawl.data).communicate()
        assert "every state is the fold of its log" in verified
