"""Stored pages of a Scrapy job, parsed again and piped again: changed code, and no request that was sent before."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.both import Items, by_scrapy, copied, differing
from tests.support.crawls import there
from tests.support.processes import crawlog, done
from tests.support.quotes import Quotes, quotes
from tests.support.quotes_runs import QuotesRun

__all__ = ["quotes", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def changed(path: Path, old: str, new: str) -> None:
    """Change a project's code."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


class Replayed:
    """A project of pipelines, which is crawled, changed, and replayed."""

    def __init__(self, site: Quotes, folder: Path, there: list[str]) -> None:
        self.site = site
        self.project = copied("shop", folder, site)
        self.spiders = self.project / "shopbot" / "spiders" / "offers.py"
        self.pipelines = self.project / "shopbot" / "pipelines.py"
        self._folder, self._there = folder, there
        self._crawl = QuotesRun(self.project, "offers", folder / "run", *there, "--job", "offers")
        self._measures = 0

    def run(self) -> tuple[Items, Counter[str]]:
        """Its items, and what the site was asked for."""
        self.site.take()
        code, summary, err = self._crawl.start().end()
        assert (code, summary["dead"]) == (0, 0), err
        return self._crawl.items(), self.site.take()

    def replay(self, group: str) -> None:
        """Of the whole log."""
        words = ("--group", group, "--job", "offers", "--to-earliest", "--execute", "--data", self._crawl.data)
        done(crawlog("replay", *words, *self._there, cwd=self.project))

    def theirs(self) -> Items:
        """By Scrapy, with the code as it is now."""
        self._measures += 1
        folder = self._folder / f"measure{self._measures}"
        folder.mkdir()
        twin = folder / "shop"
        twin.symlink_to(self.project)
        return by_scrapy(twin, {"offers": {}})["offers"]


@pytest.fixture
def offers(quotes: Quotes, there: list[str], tmp_path: Path) -> Replayed:
    """The shop's project."""
    return Replayed(quotes, tmp_path, there)


MORE = """
        if "more" not in response.url:
            yield response.follow(response.url.partition("?")[0] + "/more", self.parse_item)
"""


@pytest.mark.long
def test_replays_run_changed_code_over_stored_pages(offers: Replayed) -> None:
    """Unchanged code gives the same rows: a `seen` set does not meet its own items.

    A changed pipeline asks for nothing, a changed callback for its new pages alone.
    """
    items, asked = offers.run()
    assert differing(items, offers.theirs()) == ""

    offers.replay("parse")
    again, nothing = offers.run()
    assert differing(again, items) == ""
    assert nothing == Counter()

    changed(offers.pipelines, 'if not ItemAdapter(item).get("price")', 'if ItemAdapter(item)["name"] == "saw"')
    offers.replay("sink")
    piped, nothing = offers.run()
    assert nothing == Counter()
    assert differing(piped, offers.theirs()) == ""
    assert piped != items

    changed(offers.spiders, '"#item_name::text")', '"#item_id::text, #additional_data::text")')
    changed(offers.spiders, "def parse_item(self, response):\n", f"def parse_item(self, response):{MORE}")
    offers.replay("parse")
    parsed, new = offers.run()
    assert differing(parsed, offers.theirs()) == ""
    assert not new.keys() & asked.keys()
    assert len(new) == new.total() == 5  # of five things; a middleware drops what is asked of the pliers
