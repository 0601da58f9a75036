"""Projects with scrapy-playwright through the log: as Scrapy gives them with the same Chromium, and killed twice."""

import os
from pathlib import Path

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.browser import find_browser
from crawlog.streams.settings.sources import load
from tests.support.both import by_scrapy, copied, differing, digest_of, noted
from tests.support.cases import BROWSER
from tests.support.crawls import there
from tests.support.quotes import Quotes, quotes
from tests.support.quotes_runs import QuotesRun

__all__ = ["quotes", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SANDBOX = ("-s", f"render.sandbox={'true' if os.geteuid() else 'false'}")
"""Chromium has no sandbox when root starts it."""


@pytest.fixture(scope="module", autouse=True)
def chromium() -> None:
    """Skips where there is no browser, or no scrapy-playwright."""
    pytest.importorskip("scrapy_playwright")
    try:
        find_browser(load({"render.sandbox": os.geteuid() != 0}))
    except Misconfigured as error:
        pytest.skip(str(error).replace("\n", " "))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes) -> Path:
    """The project, for this site."""
    return copied("browser", tmp_path_factory.mktemp("project"), quotes)


@pytest.mark.long
@pytest.mark.parametrize("name", ["login", "click", "scroll"])
def test_a_project_with_scrapy_playwright_gives_the_same(
    name: str, project: Path, quotes: Quotes, there: list[str], tmp_path: Path
) -> None:
    """A form is filled and sent, and its session is that of the pages behind it; what Scrapy gives is noted."""
    code, summary, err = QuotesRun(project, name, tmp_path, *there, *SANDBOX).start().end()
    quotes.take()
    assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
    assert summary["rows"] == BROWSER[name].items
    run = QuotesRun(project, name, tmp_path)
    assert digest_of(run.items(), quotes) == noted("browser")[name]


@pytest.mark.long
@pytest.mark.parametrize("name", BROWSER)
def test_two_kills_of_everything_give_the_same_as_scrapy(
    name: str, project: Path, quotes: Quotes, tmp_path: Path
) -> None:
    """Browser, workers and broker die while a page is being clicked through; that page is asked for again."""
    theirs = by_scrapy(copied("browser", tmp_path, quotes), {name: {}})[name]
    quotes.take()
    quotes.latency_s = 0.05
    try:
        run = QuotesRun(project, name, tmp_path, *SANDBOX)
        for more in (6, 5):
            run.start().reaches(quotes, len(quotes.asked) + more)
            run.kill_all()
        code, summary, err = run.start().end()
    finally:
        quotes.latency_s = 0.0
        quotes.take()
    assert (code, summary["reason"], summary["dead"]) == (0, "finished", 0), err
    assert differing(run.items(), theirs) == ""
