"""A Scrapy project through the log: with several workers, with everything killed three times, parsed again.

The measure is Scrapy itself, which is not killed.
"""

import os
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from crawlog.streams.crash_points import POINTS, VARIABLE
from tests.support.both import Items, by_scrapy, copied, differing
from tests.support.crawls import there, workers
from tests.support.processes import until
from tests.support.quotes import Quotes, quotes
from tests.support.quotes_runs import QuotesRun

__all__ = ["quotes", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = "whole"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes) -> Path:
    """The project, for this module."""
    return copied("quotes", tmp_path_factory.mktemp("project"), quotes)


@pytest.fixture(scope="module")
def theirs(project: Path, quotes: Quotes) -> tuple[Items, Counter[str]]:
    """What Scrapy gives, and how often it asked for what."""
    items = by_scrapy(project, {SPIDER: {}})[SPIDER]
    return items, _paths(quotes)


def _paths(site: Quotes) -> Counter[str]:
    """Method and path of all requests since the last call; bodies have tokens."""
    counts: Counter[str] = Counter()
    for key, count in site.take().items():
        counts[" ".join(key.split(" ")[:2])] += count
    return counts


def _is_asked(site: Quotes, path: str) -> bool:
    return any(one.path == path for one in list(site.asked))


@pytest.mark.long
def test_two_workers_of_each_stage_give_the_same(
    project: Path, quotes: Quotes, theirs: tuple[Items, Counter[str]], there: list[str], tmp_path: Path
) -> None:
    """Each request once."""
    items, asked = theirs
    run = QuotesRun(project, SPIDER, tmp_path, *there, "--workers", "fetch=2,parse=2").start()
    code, summary, err = run.end()
    assert (code, summary["reason"]) == (0, "finished"), err
    assert differing(run.items(), items) == ""
    assert _paths(quotes) == asked


@pytest.mark.long
def test_three_kills_of_everything_give_the_same(
    project: Path, quotes: Quotes, theirs: tuple[Items, Counter[str]], tmp_path: Path
) -> None:
    """Supervisor, workers, children and broker, at last the state too; only what was in flight is asked for again."""
    items, asked = theirs
    quotes.latency_s = 0.15
    try:
        run = QuotesRun(project, SPIDER, tmp_path)
        for share in (0.2, 0.45, 0.7):
            run.start().reaches(quotes, int(share * asked.total()))
            run.kill_all()
        shutil.rmtree(run.data / "state")  # jars are folded again from the log
        code, summary, err = run.start().end()
    finally:
        quotes.latency_s = 0.0
    assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
    assert differing(run.items(), items) == ""
    again = _paths(quotes) - asked
    assert again.total() <= 3 * len(again), again
    assert again.total() <= 12, again


@pytest.mark.long
def test_deaths_at_every_point_give_the_same(
    project: Path, quotes: Quotes, theirs: tuple[Items, Counter[str]], there: list[str], tmp_path: Path
) -> None:
    """Between any two writes of fetch, parse and sink a worker dies once: pages without dones, items without founds."""
    items, _ = theirs
    spent = tmp_path / "spent"
    spent.mkdir()
    points = [name for name in POINTS if name.partition(".")[0] in ("fold", "checkpoint", "fetch", "parse", "sink")]
    run = QuotesRun(project, SPIDER, tmp_path, *there)
    run.environment = {VARIABLE: " ".join([str(spent), *(f"{name}:{1 if 'sink' in name else 3}" for name in points)])}
    code, summary, err = run.start().end()
    assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
    assert differing(run.items(), items) == ""
    assert len(list(spent.iterdir())) > len(points) / 2
    quotes.take()


@pytest.mark.long
def test_a_session_outlives_its_worker(project: Path, quotes: Quotes, there: list[str], tmp_path: Path) -> None:
    """The fetch workers are stopped in turn, so that another takes the session over, then killed: one login."""
    theirs = by_scrapy(copied("quotes", tmp_path, quotes), {"login": {}})["login"]
    quotes.take()
    quotes.latency_s = 0.3
    try:
        run = QuotesRun(project, "login", tmp_path, *there).start("--workers", "fetch=2")
        for page, worker, number in (
            ("/page/3/", "fetch-0", signal.SIGTERM),
            ("/page/5/", "fetch-1", signal.SIGTERM),
            ("/page/7/", "fetch", signal.SIGKILL),
        ):
            until(partial(_is_asked, quotes, page), f"{page} behind the login")
            for name, pid in workers(run.data).items():
                if name.startswith(worker):
                    os.kill(pid, number)
        code, summary, err = run.end()
    finally:
        quotes.latency_s = 0.0
    assert (code, summary["reason"]) == (0, "finished"), err
    assert differing(run.items(), theirs) == ""
    assert _paths(quotes)["POST 127.0.0.1/login"] == 1
