"""Scrapy's spiders by Scrapy and by crawlog: equal multisets of items. The measure is Scrapy itself."""

import os
import re
from pathlib import Path

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.settings.browser import find_browser
from crawlog.streams.settings.settings import Settings
from tests.support.both import Items, by_scrapy, copied, differing, without
from tests.support.cases import OWN, PROJECTS
from tests.support.crawls import there
from tests.support.quotes import Quotes, quotes
from tests.support.quotes_runs import QuotesRun
from tests.support.walking import walk

__all__ = ["quotes", "there"]  # fixtures

pytestmark = [pytest.mark.slow]


class Baseline:
    """What Scrapy gives, each project run once, when it is first asked for."""

    def __init__(self, folder: Path, site: Quotes) -> None:
        self._folder, self._site = folder, site
        self._items: dict[str, dict[str, Items]] = {}
        self.projects: dict[str, Path] = {}

    def of(self, name: str) -> dict[str, Items]:
        """The items of each spider of a project."""
        if name not in self._items:
            self.projects[name] = copied(name, self._folder, self._site)
            spiders = {spider: case.arguments for spider, case in PROJECTS[name].items()}
            self._items[name] = by_scrapy(self.projects[name], spiders)
        return self._items[name]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes) -> Baseline:
    """By Scrapy, for this module."""
    return Baseline(tmp_path_factory.mktemp("projects"), quotes)


@pytest.mark.parametrize("project", PROJECTS)
def test_scrapy_gives_what_the_table_says(project: str, baseline: Baseline) -> None:
    """A spider that gave nothing would be equal to another that gives nothing."""
    counts = {name: items.total() for name, items in baseline.of(project).items()}
    assert counts == {name: case.items for name, case in PROJECTS[project].items()}


def test_the_page_of_the_docs_lists_every_spider() -> None:
    """With the number of its items."""
    page = (Path(__file__).parents[2] / "docs" / "same-as-scrapy.md").read_text()
    listed = {name: int(items) for name, items in re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", page, re.MULTILINE)}
    assert listed == {name: case.items for cases in PROJECTS.values() for name, case in cases.items()}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory, quotes: Quotes) -> Path:
    """The file of crawlog's own spiders for this site."""
    return copied("own", tmp_path_factory.mktemp("own"), quotes) / "site.py"


@pytest.mark.parametrize("name", OWN)
def test_a_spider_of_crawlogs_own_class_gives_the_same(name: str, own: Path, baseline: Baseline) -> None:
    """In its real child, with a loop of the test in place of the crawl."""
    walked = walk(f"{own}:{name}", {})
    assert differing(without(walked.items), baseline.of("quotes")[OWN[name]]) == ""
    assert (walked.errors, walked.warnings) == ([], [])


@pytest.fixture
def chromium() -> None:
    """Skips where there is no browser."""
    try:
        find_browser(Settings())
    except Misconfigured as error:
        pytest.skip(str(error).replace("\n", " "))


@pytest.mark.broker
@pytest.mark.parametrize(("name", "pages"), [("Rendered", 3), ("RenderedDelayed", 1)])
def test_a_rendered_page_gives_what_its_script_has(
    name: str, pages: int, chromium: None, own: Path, baseline: Baseline, there: list[str], tmp_path: Path
) -> None:
    """A browser runs the script, from which Scrapy's spider reads the same quotes."""
    sandbox = "true" if os.geteuid() else "false"
    run = QuotesRun(own.parent, f"{own}:{name}", tmp_path, *there, "-s", f"render.sandbox={sandbox}").start()
    code, _, err = run.end()
    assert code == 0, err
    assert run.items().total() == 10 * pages
    assert not run.items() - baseline.of("quotes")["script"]
