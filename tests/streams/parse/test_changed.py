"""What has changed on a page since it was parsed before."""

import json
from pathlib import Path
from typing import Any

import pytest

from crawlog.schemas import items, urls
from crawlog.schemas.pages import PageMeta, Was
from crawlog.schemas.urls import GONE, JobSpec, PageChange, RecrawlRules, ScopeSpec
from crawlog.streams.html import changed_by
from crawlog.streams.parse.changed import fields_of
from crawlog.streams.spiders.page import Parsed
from tests.support.parsing import NAMES, PAGE, Stage, links, spider_job

RECUR = RecrawlRules(60.0)
ROW = 5 << 16


def recurring(**changes: Any) -> Stage:
    """A stage whose job fetches its URLs again."""
    return Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), recrawl=RECUR, **changes))


def parsed(stage: Stage, body: bytes, was: Was | None, **meta: Any) -> tuple[items.ItemsRecord, list[PageChange]]:
    """The item record of a page that comes, and what the state learns of it."""
    stage.take(body, was=was, row=ROW, **meta)
    stage.log.acknowledge(NAMES.items, NAMES.changes)
    stage.stage.flush()
    record = items.decode(stage.log.values(NAMES.items)[-1])
    found = [urls.decode(value).changes or [] for value in stage.log.values(NAMES.urls)]
    stage.log.acknowledge()
    return record, [change for changes in found for change in changes][-1:]


def test_a_page_of_another_job_has_no_change_and_costs_no_record() -> None:
    """Its record is as it was before there were changes."""
    stage = Stage()
    record, changes = parsed(stage, b"<p>x", None)
    assert (record.change, record.was, changes, stage.log.values(NAMES.changes)) == ("", None, [], [])
    assert b"change" not in stage.log.values(NAMES.items)[0]


def test_pages_are_new_changed_same_and_gone_and_each_record_but_same_is_in_crawl_changes() -> None:
    """By the page's own record of what it was, so that a replay gives the same."""
    stage, was = recurring(), Was()
    said: list[tuple[str, bool]] = []
    answers = ((b"", 404), (b"<p>1", 200), (b"<p>2", 200), (b"<p>2", 200), (b"", 404), (b"", 410), (b"<p>2", 200))
    for body, http in answers:
        record, (change,) = parsed(stage, body, was, http=http, fetched_at=float(len(said)))
        said.append((record.change, record.was is not None))
        was = Was(change.digest, change.item)
    kinds = [("same", False), ("new", False), ("changed", True), ("same", False), ("gone", True), ("gone", False)]
    assert said == [*kinds, ("new", False)]
    copies = [items.decode(value).change for value in stage.log.values(NAMES.changes)]
    assert copies == ["new", "changed", "gone", "new"]
    assert was.digest != GONE


def test_an_unchanged_answer_gives_no_record_for_the_state() -> None:
    """A 304 is `same` by its done alone."""
    _, (change,) = parsed(recurring(), b"<p>1", Was())
    stage = recurring()
    stage.take(b"", was=Was(change.digest, change.item), row=ROW, http=304, same_as=(3, 9))
    stage.stage.body_came((3, 0), PageMeta(PAGE, "j", http=200, content_type="text/html"), b"<p>1")
    stage.log.acknowledge()
    assert [items.decode(value).change for value in stage.log.values(NAMES.items)] == ["same"]
    assert [value for value in stage.log.values(NAMES.urls) if urls.decode(value).changes] == []
    assert stage.done == [(3, 1)]


def test_an_answer_that_does_not_say_changes_nothing() -> None:
    """A 503 is no change of the page."""
    record, changes = parsed(recurring(), b"down", Was(7, (0, 1)), http=503)
    assert (record.change, changes) == ("", [])


def test_a_page_without_items_has_changed_if_its_links_have(tmp_path: Path) -> None:
    """A list of links must not come later and later because it has no items of its own."""
    spec = spider_job(
        tmp_path, "for name in response.css('a::attr(href)').getall(): yield Request(name)", recrawl=RECUR
    )
    digests = []
    for names in (("a", "b"), ("b", "a"), ("a", "b", "c")):
        record, (change,) = parsed(Stage(job=spec), links(*names), Was())
        assert (record.change, change.item) == ("same", None)
        digests.append(change.digest)
    assert digests[0] == digests[1] != digests[2]


def test_fields_that_are_ignored_are_no_change(tmp_path: Path) -> None:
    """Such as the time at which an item was scraped."""
    parse = "import time\nyield {'title': response.text, 'at': time.time_ns()}"
    digests = {}
    for ignore in ((), ("at",)):
        rules = RecrawlRules(60.0, ignore=ignore)
        spec = spider_job(tmp_path, parse, recrawl=rules)
        digests[ignore] = {parsed(Stage(job=spec), b"<p>1", Was())[1][0].digest for _ in range(2)}
    assert (len(digests[()]), len(digests[("at",)])) == (2, 1)


def test_a_page_is_done_once_the_log_has_its_item_its_copy_and_its_change() -> None:
    """Else a kill would leave a row that the state does not know."""
    stage = recurring()
    stage.take(b"<p>1", was=Was(), row=ROW)
    for topics in ((NAMES.items,), (NAMES.changes,)):
        stage.log.acknowledge(*topics)
        stage.stage.flush()
        assert stage.done == []
    (change,) = urls.decode(stage.log.values(NAMES.urls)[-1]).changes or []
    assert (change.row, change.page, change.item) == (ROW, 0, (0, 0))
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_sitemap_names_known_urls_again_with_their_lastmod_in_a_job_that_fetches_again() -> None:
    """Known ones too: they may be due earlier by it, or later. A date is its end."""
    sitemap = b"<urlset><url><loc>/x</loc><lastmod>2026-01-01</lastmod></url><url><loc>/y</loc></url></urlset>"
    day = 1_767_225_600.0
    for stage, times in ((Stage(), 1), (recurring(), 2)):
        for _ in range(2):
            stage.take(sitemap, url="http://a.test/sitemap.xml", kind="sitemap", content_type="text/xml")
            stage.stage.flush()
            stage.log.acknowledge()
        found = [(one.url, one.lastmod) for one in stage.founds()]
        lastmod = (day + 86_400) * (times == 2)
        assert found == [("http://a.test/x", lastmod), ("http://a.test/y", 0.0)] * times


def test_a_request_with_an_itag_or_an_age_is_sent_again_for_a_known_url(tmp_path: Path) -> None:
    """Pyspider's way to say which version a list names."""
    parse = "for tag in 'ab': yield Request('/x', itag=tag + response.text)"
    parse += "\nyield Request('/y', age='1h')\nyield Request('/z')"
    stage = Stage(job=spider_job(tmp_path, parse, recrawl=RECUR))
    for version in (b"1", b"2"):
        stage.take(version)
        stage.stage.flush()
        stage.log.acknowledge()
    names = [(one.url[-1], one.itag, one.age) for one in stage.founds()]
    again = [("y", "", 3600.0)]
    assert names == [("x", "a1", 0.0), *again, ("z", "", 0.0), ("x", "a2", 0.0), *again]


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2026-01-01T10:00:00Z", 1_767_261_600.0),
        ("2026-01-01", 1_767_225_600.0 + 86_400),
        ("2025-12", 1_764_547_200.0 + 31 * 86_400),
        ("2025", 1_735_689_600.0 + 366 * 86_400),
        ("soon", 0.0),
        ("abcd", 0.0),
        ("", 0.0),
    ],
)
def test_a_lastmod_is_the_time_by_which_the_page_had_changed(written: str, at: float) -> None:
    """A date has no time: a page that was fetched on that day may have changed after that."""
    assert changed_by(written) == at


@pytest.mark.parametrize(
    "item", [{"a": 1, "b": 2}, {"$object": ["m.Item", {"a": 1, "b": 2}]}], ids=["row", "as scraped"]
)
def test_the_fields_of_an_item_are_those_of_its_object(item: Any) -> None:
    """Items of jobs with pipelines are as scraped."""
    assert fields_of(json.dumps(item).encode(), ("b",)) == {"a": 1}
    assert Parsed([], []).items == []
