"""The way of a page through parse: what it waits for, when it is done, old bodies."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from crawlog.agents.parse import spider_pages
from crawlog.agents.parse.guard import Guard
from crawlog.agents.parse.stage import MAX_UNDONE
from crawlog.schemas import control, pages
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.errors import OffsetFell
from crawlog.streams.parse import parsed_of
from crawlog.streams.parse.waiting import HELD_LOOKS
from crawlog.streams.spiders import CallResult, SpiderFacts
from crawlog.streams.spiders.page import Parsed
from tests.support.parsing import HTML, NAMES, PAGE, Stage, buried, links, spider_job, told

if TYPE_CHECKING:
    from crawlog.agents.sandbox import Trial


def test_a_page_is_done_when_all_its_outputs_are_in_the_log() -> None:
    """Not before: a crash at any point reads it again."""
    stage = Stage()
    stage.take(links("x"))
    stage.log.acknowledge()
    assert stage.done == []
    stage.stage.flush()
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_pages_are_done_in_offset_order() -> None:
    """A later page waits for an earlier one."""
    stage = Stage()
    stage.take(links("x"))
    stage.take(b"")
    stage.log.acknowledge(NAMES.items)
    assert stage.done == []
    stage.stage.flush()
    stage.log.acknowledge()
    assert stage.done == [(3, 2)]


def test_an_offset_that_does_not_rise_is_damage() -> None:
    """A byte of a batch's first offset was changed, which no CRC covers: its records stand before earlier ones."""
    stage = Stage()
    stage.take(links("x"))
    stage.take(links("y"))
    with pytest.raises(OffsetFell, match=r"pages\[3\] cannot be read at offset 1: its offset is not above 1"):
        stage.take(links("z"), 1)


def test_a_page_that_a_replay_passes_over_is_done_at_once() -> None:
    """It gives nothing and counts as nothing; those behind it are parsed, in their order."""
    stage = Stage()
    stage.passed = {0, 1}
    stage.take(links("x"))
    stage.take(links("x"), rev=9)
    assert stage.done == [(3, 1), (3, 2)]
    assert (stage.log.records, stage.stage.pages, stage.stage.undone) == ([], 0, 0)
    stage.take(links("x"))
    stage.stage.flush()
    stage.log.acknowledge()
    assert (stage.done[-1], stage.stage.pages) == ((3, 3), 1)


def test_a_page_waits_for_its_jobs_revision() -> None:
    """And holds back what comes after it."""
    stage = Stage()
    stage.take(b"", rev=2)
    stage.take(b"", rev=1)
    stage.log.acknowledge()
    assert stage.done == []
    stage.learn(JobSpec(rev=2, scope=ScopeSpec(names=("a.test",))))
    stage.log.acknowledge()
    assert stage.done == [(3, 2)]


def test_pages_of_a_deleted_job_are_done_without_a_trace() -> None:
    """The one that waited, those that come later, and not those of a new job of its name."""
    stage = Stage()
    stage.take(links("x"), rev=9)
    stage.learn(JobSpec(rev=9, state="deleted"))
    stage.take(links("y"), rev=1)
    stage.learn(JobSpec(scope=ScopeSpec(names=("a.test",))), epoch=1)
    stage.take(links("z"), rev=8)
    stage.take(links("new"), epoch=1)
    stage.stage.flush()
    stage.log.acknowledge()
    assert [found.url for found in stage.founds()] == ["http://a.test/new"]
    assert (buried(stage), stage.done[-1]) == ([], (3, 4))


@pytest.mark.parametrize("waits", ["aside", "trial", "body"])
def test_a_page_whose_job_is_deleted_while_it_waits_is_done(waits: str) -> None:
    """It gives nothing, and its worker goes on."""
    stage = Stage(guard=Guard(trial=cast("Trial", object())))
    body = b"" if waits == "body" else b"<div>" * 20_000 if waits == "trial" else links("x")
    stage.take(body, aside=waits == "aside", same_as=(3, 0) if waits == "body" else None)
    assert (len(stage.stage.aside), len(stage.stage.untried), len(stage.stage.bodiless)).count(1) == 1
    stage.learn(JobSpec(rev=9, state="deleted"))
    if waits == "aside":
        stage.stage.parse_aside(body)
    elif waits == "trial":
        stage.stage.tried(body, "")
    else:
        stage.stage.body_came((3, 0), None, b"")
    assert (stage.log.records, stage.done) == ([], [(3, 1)])


@pytest.mark.parametrize("parse", ["yield {}", "raise ValueError('no')"])
def test_a_page_whose_job_is_deleted_while_it_waits_for_its_spider_is_done(tmp_path: Path, parse: str) -> None:
    """It gives no row and no dead letter."""
    stage = Stage(job=spider_job(tmp_path, parse))
    spiders = stage.stage.spiders
    assert spiders is not None
    spiders.may_go = lambda: False
    stage.take(links("x"))
    assert (spiders.count, stage.done) == (1, [])
    stage.learn(JobSpec(rev=9, state="deleted"))
    spiders.may_go = lambda: True
    spiders.tend()
    assert (stage.log.records, stage.done, spiders.count) == ([], [(3, 1)], 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_page_of_an_earlier_epoch_does_not_close_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Pages of the time before `--fresh` may still wait for the spider that has closed the job."""

    def closing(result: CallResult, facts: SpiderFacts, meta: PageMeta) -> Parsed:
        return parsed_of(result, facts, meta)._replace(closes="enough")

    monkeypatch.setattr(spider_pages, "parsed_of", closing)
    stage = Stage(job=spider_job(tmp_path, "yield {}"))
    stage.learn(spider_job(tmp_path, "yield {}"), epoch=1)
    stage.take(links("x"), epoch=epoch)
    commands = [
        control.decode(record.key, record.value) for record in stage.log.records if record.topic == NAMES.control
    ]
    assert commands == [control.Command("stop", job="j", reason="enough")] * epoch
    assert len(stage.log.values(NAMES.items)) == 1


@pytest.mark.parametrize(
    ("revisions", "runs"),
    [
        ([(0, "running")], 1),
        ([(0, "paused"), (0, "running")], 1),
        ([(0, "stopped")], 1),
        ([(0, "stopped"), (0, "running")], 2),
        ([(0, "finished"), (0, "running"), (0, "running")], 2),
        ([(0, "deleted"), (1, "running")], 2),
        ([(1, "running")], 2),
        ([(1, "paused"), (1, "running")], 2),
    ],
)
def test_a_job_that_begins_anew_or_goes_on_after_its_end_has_a_new_process(
    tmp_path: Path, revisions: list[tuple[int, JobStateName]], runs: int
) -> None:
    """The old one has reached the limits of CLOSESPIDER_*, and would close the job at once. No page brings it back."""
    job = spider_job(tmp_path, "yield {}")
    stage = Stage(job=job)
    stage.take(links("x"))
    for number, (epoch, state) in enumerate(revisions):
        stage.learn(msgspec.structs.replace(job, rev=2 + number, state=state), epoch=epoch)
    last = revisions[-1][0]
    for rev, epoch in ((2, last), (1, last), (2, last)):
        stage.take(links("x"), rev=rev, epoch=epoch)
    assert (len(stage.children), stage.children[-1].ref.epoch) == (runs, last)


def test_the_same_record_in_a_new_epoch_has_a_new_process(tmp_path: Path) -> None:
    """A rewind of the crawl may write it so. Pages of both epochs come mixed, and share the new process."""
    job = spider_job(tmp_path, "yield {}")
    stage = Stage(job=job)
    stage.take(links("x"))
    stage.learn(job, epoch=1)
    for epoch in (1, 0, 1, 0):
        stage.take(links("x"), epoch=epoch)
    assert [child.ref.epoch for child in stage.children] == [0, 1]


def test_nobody_deletes_the_job_of_bare_records() -> None:
    """Its pages would be done without a trace for ever."""
    stage = Stage()
    stage.stage.learn(control.JobCopy("default", JobSpec(rev=5, state="deleted")))
    stage.take(links("x"), job="default")
    assert len(told(stage)) == 1


def test_a_page_waits_for_its_jobs_epoch() -> None:
    """Revisions of an earlier epoch may be greater."""
    stage = Stage(job=JobSpec(rev=900, scope=ScopeSpec(names=("a.test",))))
    stage.take(b"", rev=7, epoch=1)
    assert stage.done == []
    stage.learn(JobSpec(rev=7, scope=ScopeSpec(names=("a.test",))), epoch=1)
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_page_of_a_job_that_nobody_knows_holds_nothing_up_for_ever() -> None:
    """In the end it is a dead letter; one of an unknown revision goes by the newest known one."""
    stage = Stage()
    stage.take(b"", job="nobody")
    stage.take(links("x"), rev=9)
    for _ in range(HELD_LOOKS - 1):
        stage.stage.look_after_held()
    assert stage.log.records == []
    stage.stage.look_after_held()
    assert buried(stage) == [(0, "UnknownJob: crawl.control has no job 'nobody'")]
    assert [found.url for found in stage.founds()] == ["http://a.test/x"]
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_what_is_given_up_is_not_done() -> None:
    """Late acknowledgements of pages of an earlier assignment say nothing."""
    stage = Stage()
    stage.take(b"")
    stage.stage.give_up()
    stage.take(b"", offset=0)
    early, late = stage.log.unacknowledged
    early.on_delivery(0, 0)
    assert stage.done == []
    late.on_delivery(0, 0)
    assert stage.done == [(3, 1)]


def test_too_many_pages_without_an_acknowledgement_are_enough() -> None:
    """Then no more are taken."""
    stage = Stage()
    for _ in range(MAX_UNDONE):
        assert not stage.stage.is_full
        stage.take(b"")
    assert stage.stage.is_full
    stage.log.acknowledge()
    assert not stage.stage.is_full


def test_a_page_that_was_not_modified_is_parsed_with_the_old_ones_body() -> None:
    """Its row has its own status and the rest of the old page; its links are found in the new epoch."""
    stage, old = Stage(), links("x") + b"<title>T</title>"
    stage.learn(JobSpec(rev=2, scope=ScopeSpec(names=("a.test",))), epoch=1)
    at = stage.take(http=304, same_as=(3, 7), content_type="", epoch=1, fetched_at=9.0)
    stage.take(links("y"))
    assert len(stage.log.values(NAMES.items)) == 1, "the next page did not wait"
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML, fetched_at=1.0), old)
    row = stage.row()
    assert (row["status"], row["title"], row["links"], row["fetched_at"]) == (304, "T", 1, 9.0)
    assert row["sha256"] == hashlib.sha256(old).hexdigest()
    stage.stage.flush()
    assert {found.url for found in stage.founds()} == {"http://a.test/x", "http://a.test/y"}
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done[-1] == (3, 2)


def test_a_page_that_was_not_modified_is_buried_without_the_old_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: sent back to its place it asks for the old body again, and for all that was said of it."""
    stage = Stage()

    def failing(*_: Any) -> Parsed:
        raise ValueError("never")

    monkeypatch.setattr("crawlog.streams.parse.job.parse_page", failing)
    at = stage.take(http=304, same_as=(3, 7), content_type="")
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML), links("x"))
    [letter] = [record for record in stage.log.records if record.topic == NAMES.dead]
    assert not letter.value
    assert pages.decode(dict(letter.headers)[pages.HEADER]).same_as == (3, 7)
    stage.log.acknowledge()
    assert stage.done == [(3, at + 1)]


def test_a_page_whose_old_body_is_gone_is_fetched_once_more() -> None:
    """It gives no row; it is done when the log has the URL again."""
    stage = Stage()
    at = stage.take(http=304, same_as=(3, 7), depth=2)
    stage.stage.body_came((3, at), None, b"")
    stage.stage.flush()
    assert [(found.url, found.depth, found.again) for found in stage.founds()] == [(PAGE, 2, "not_modified")]
    assert stage.log.values(NAMES.items) == []
    assert stage.done == []
    stage.log.acknowledge()
    assert stage.done == [(3, at + 1)]


def test_a_body_that_comes_after_the_partition_went_is_dropped() -> None:
    """Whoever has the partition asks for it again."""
    stage = Stage()
    at = stage.take(http=304, same_as=(3, 7))
    stage.stage.give_up()
    stage.stage.body_came((3, at), PageMeta(PAGE, "j", http=200, content_type=HTML), links("x"))
    assert stage.log.records == []


def test_what_names_sitemaps_is_no_page_that_was_parsed() -> None:
    """Fetch counts it as none either: `run` would tell of pages that were stored before."""
    stage = Stage()
    stage.take(b"http://a.test/map.xml", url="http://a.test/robots.txt", kind="robots", content_type="text/plain")
    stage.take(b"http://a.test/1", url="http://a.test/map.xml", kind="sitemap", content_type="text/plain")
    stage.take(links("x"))
    assert stage.stage.pages == 2


def test_what_robots_txt_refuses_is_no_page_that_was_parsed() -> None:
    """Its record is for the errback of its request; the count of the run has no refused URL either."""
    stage = Stage()
    stage.take(b"", http=None, error="robots", request=RequestRecord(errback="failed"))
    stage.take(b"", http=None, error="dns", request=RequestRecord(errback="failed"))
    assert (stage.stage.pages, stage.stage.parsed) == (1, {"j": 1})
