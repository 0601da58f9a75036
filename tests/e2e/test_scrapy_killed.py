"""A Scrapy project through the log: with several workers, with everything killed three times, parsed again.

The measure is Scrapy itself, which is not killed.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

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


def test_three_kills_of_everything_give_the_same(
    project: Path, quotes: Quotes, theirs: tuple[Items, Counter[str]], tmp_path: Path
) -> None:
    """Supervisor, workers, children and broker; only what was in flight is asked for again."""
    items, asked = theirs
    quotes.latency_s = 0.15
    try:
        run = QuotesRun(project, SPIDER, tmp_path)
        for share in (0.2, 0.45, 0.7):
            run.start().reaches(quotes, int(share * asked.total()))
            run.kill_all()
        code, summary, err = run.start().end()
    finally:
        quotes.latency_s = 0.0
    assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
    assert differing(run.items(), items) == ""
    again = _paths(quotes) - asked
    assert again.total() <= 3 * len(again), again
    assert again.total() <= 12, again


def test_a_session_outlives_the_fetch_worker_that_logged_in(
    project: Path, quotes: Quotes, there: list[str], tmp_path: Path
) -> None:
    """It is killed once the login is answered; later the state is gone too. The site sees one login."""
    theirs = by_scrapy(copied("quotes", tmp_path, quotes), {"login": {}})["login"]
    quotes.take()
    quotes.latency_s = 0.2
    try:
        run = QuotesRun(project, "login", tmp_path, *there).start()
        until(lambda: any(one.path == "/page/3/" for one in list(quotes.asked)), "a page behind the login")
        for name, pid in workers(run.data).items():
            if name.startswith("fetch"):
                os.kill(pid, signal.SIGKILL)
        code, summary, err = run.end()
    finally:
        quotes.latency_s = 0.0
    assert (code, summary["reason"]) == (0, "finished"), err
    assert differing(run.items(), theirs) == ""
    assert _paths(quotes)["POST 127.0.0.1/login"] == 1
