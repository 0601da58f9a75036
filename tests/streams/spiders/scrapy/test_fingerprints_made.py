"""Requests that earlier pages of a spider's process gave."""

import asyncio
from pathlib import Path

import pytest

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import CanonicalRules, JobSpec
from crawlog.streams.spiders import CallResult, PageCall, Runner, SpiderRef, load_runner
from crawlog.streams.spiders.scrapy.fingerprints_made import Earlier

SPIDER = """
import scrapy

class Links(scrapy.Spider):
    name = "links"

    def parse(self, response):
        for n, url in enumerate(response.text.split()):
            yield response.follow(url, dont_filter=url.endswith("again"))
        if "broken" in response.url:
            raise ValueError("no")
"""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """The spider, loaded."""
    file = tmp_path / "links.py"
    file.write_text(SPIDER)
    return load_runner(SpiderRef(f"{file}:Links", job="j", spec=JobSpec(canonical=CanonicalRules(verbatim=True))))


def page(runner: Runner, url: str, text: str, *, is_whole: bool = False) -> CallResult:
    """What the spider makes of a page."""
    meta = PageMeta(url, "j", http=200, content_type="text/html", id=len(url), request=RequestRecord())
    return asyncio.run(runner.page(PageCall(meta, text.encode(), is_whole)))


def test_a_request_that_an_earlier_page_gave_is_only_named(runner: Runner) -> None:
    """By its identity, without a record; another one is given whole."""
    [first] = page(runner, "http://a.com/", "/one").requests
    one, two = page(runner, "http://a.com/x", "/one /two").requests
    assert (first.is_known, one.is_known, two.is_known) == (False, True, False)
    assert (one.id, one.request) == (first.id, None)
    assert two.request is not None


STARTS = """
import scrapy

class Starts(scrapy.Spider):
    name = "starts"

    async def start(self):
        for n in range(1000):
            yield scrapy.Request(f"http://a.com/{n}")
"""


def test_a_part_of_start_remembers_its_own_requests_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part remembered all requests so far once more."""
    sizes: list[int] = []

    def add(_self: Earlier, fingerprints: set[int]) -> None:
        sizes.append(len(fingerprints))

    async def given(runner: Runner) -> int:
        return sum([len(part.requests) async for part in runner.start()])

    file = tmp_path / "starts.py"
    file.write_text(STARTS)
    monkeypatch.setattr(Earlier, "add", add)
    assert asyncio.run(given(load_runner(SpiderRef(f"{file}:Starts", job="j")))) == 1000
    assert len(sizes) > 1
    assert sum(sizes) == 1000


def test_a_worker_that_has_forgotten_gets_all_requests(runner: Runner) -> None:
    """It asks for the page once more."""
    page(runner, "http://a.com/", "/one")
    [one] = page(runner, "http://a.com/x", "/one", is_whole=True).requests
    assert not one.is_known
    assert one.request is not None


def test_an_unfiltered_request_is_given_each_time(runner: Runner) -> None:
    """Scrapy would send it again, too."""
    page(runner, "http://a.com/", "/again")
    [again] = page(runner, "http://a.com/x", "/again").requests
    assert not again.is_known


def test_requests_of_a_page_with_an_error_are_not_remembered(runner: Runner) -> None:
    """The page may be tried again, and then it must give them."""
    page(runner, "http://a.com/broken", "/one")
    [one] = page(runner, "http://a.com/x", "/one").requests
    assert not one.is_known
