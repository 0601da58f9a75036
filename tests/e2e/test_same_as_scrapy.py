"""Spiders of crawlog's own class give what Scrapy's give by Scrapy, page for page of the training site.

Scrapy's spiders by the adapter are in tests/streams/spiders/scrapy/, by whole crawls in `python -m bench as_scrapy`.
"""

import os
import re
from pathlib import Path

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.browser import find_browser
from crawlog.streams.settings.sources import load
from tests.support.both import by_scrapy, copied, digest_of, noted, without
from tests.support.cases import OWN, PROJECTS
from tests.support.crawls import there
from tests.support.quotes import Quotes, quotes
from tests.support.quotes_runs import QuotesRun
from tests.support.walking import walk

__all__ = ["quotes", "there"]  # fixtures

pytestmark = [pytest.mark.slow]


def test_the_page_of_the_docs_lists_every_spider() -> None:
    """With the number of its items."""
    page = (Path(__file__).parents[2] / "docs" / "scrapy.md").read_text()
    page = page.partition("## Spiders that run by Scrapy and by crawlog\n")[2]
    listed = {name: int(items) for name, items in re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", page, re.MULTILINE)}
    assert listed == {name: case.items for cases in PROJECTS.values() for name, case in cases.items()}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes) -> Path:
    """The file of crawlog's own spiders for this site."""
    return copied("own", tmp_path_factory.mktemp("own"), quotes) / "site.py"


@pytest.mark.parametrize("name", OWN)
def test_a_spider_of_crawlogs_own_class_gives_the_same(name: str, own: Path, quotes: Quotes) -> None:
    """In its real child, with a loop of the test in place of the crawl. What Scrapy gives is noted."""
    walked = walk(f"{own}:{name}", {})
    assert digest_of(without(walked.items), quotes) == noted("quotes")[OWN[name]]
    assert (walked.errors, walked.warnings) == ([], [])


@pytest.fixture
def chromium() -> None:
    """Skips where there is no browser."""
    try:
        find_browser(load({"render.sandbox": os.geteuid() != 0}))
    except Misconfigured as error:
        pytest.skip(str(error).replace("\n", " "))


@pytest.mark.broker
@pytest.mark.parametrize(
    ("name", "pages"),
    [
        ("Rendered", 3),
        pytest.param("Scrolled", 10, marks=pytest.mark.long),
        pytest.param("RenderedDelayed", 1, marks=pytest.mark.long),
    ],
)
def test_a_rendered_page_gives_what_its_script_has(
    name: str, pages: int, chromium: None, own: Path, quotes: Quotes, there: list[str], tmp_path: Path
) -> None:
    """A browser runs the script, from which Scrapy's spider reads the same quotes; scrolled, it has all hundred."""
    sandbox = "true" if os.geteuid() else "false"
    run = QuotesRun(own.parent, f"{own}:{name}", tmp_path, *there, "-s", f"render.sandbox={sandbox}").start()
    code, _, err = run.end()
    assert code == 0, err
    assert run.items().total() == 10 * pages
    scrapys = by_scrapy(copied("quotes", tmp_path, quotes), {"script": {}})
    assert not run.items() - scrapys["script"]
