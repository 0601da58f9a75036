"""Pages that lie as they came: parse unpacks each once, under its guard, and ends it as it ends a plain one."""

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest
from backports import zstd
from structlog.testing import capture_logs

from crawlog.agents.parse.guard import Guard
from crawlog.agents.sandbox.trial import Trial
from crawlog.schemas import pages
from crawlog.schemas.pages import CODING
from crawlog.schemas.requests import RequestRecord
from crawlog.schemas.urls import JobSpec, ScopeSpec
from crawlog.streams.parse.waiting import HELD_LOOKS
from crawlog.streams.settings.machine import Parse
from crawlog.streams.spiders import Bounds
from tests.support.parsing import HTML, NAMES, PAGE, Message, Noted, Stage, buried, links

BODY = b"<title>T</title>" + links("x", "y")
GZIP = gzip.compress(BODY, mtime=0)
PACKS: dict[str, Any] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "gzip, br": lambda body: brotli.compress(gzip.compress(body)),
}


def letter(stage: Stage) -> tuple[bytes | None, dict[str, bytes]]:
    """Value and headers of the one dead letter."""
    [record] = [one for one in stage.log.records if one.topic == NAMES.dead]
    return record.value, dict(record.headers)


@pytest.mark.parametrize("coding", PACKS)
def test_a_page_in_a_coding_gives_what_the_plain_one_gives(coding: str) -> None:
    """Row, digest and links."""
    plain, coded = Stage(), Stage()
    plain.take(BODY, fetched_at=7.0)
    coded.take(PACKS[coding](BODY), fetched_at=7.0, coding=coding, limit=1000)
    for stage in (plain, coded):
        stage.stage.flush()
        stage.log.acknowledge()
        assert stage.done == [(3, 1)]
    assert coded.row() == plain.row()
    assert coded.row()["sha256"] == hashlib.sha256(BODY).hexdigest()
    assert coded.founds() == plain.founds()
    assert coded.log.values(NAMES.items) == plain.log.values(NAMES.items)


@pytest.mark.parametrize(
    ("body", "limit", "error"),
    [
        (GZIP, len(BODY) - 1, "too_large"),
        (gzip.compress(bytes(8 << 20)), 1 << 20, "too_large"),
        (b"<p>plain", 1000, "bad_encoding"),
        (GZIP[:-8] + bytes(8), 1000, "bad_encoding"),
    ],
)
def test_a_body_that_must_not_be_kept_is_a_row_with_its_reason(body: bytes, limit: int, error: str) -> None:
    """The page ends like one that fetch did not keep: no dead letter, no links, and it is not put aside."""
    stage = Stage()
    stage.take(body, aside=True, coding="gzip", limit=limit)
    row = stage.row()
    assert (row["status"], row["error"], row["sha256"], row["title"], row["links"]) == (200, error, None, None, 0)
    stage.log.acknowledge()
    assert (stage.founds(), buried(stage), stage.done) == ([], [], [(3, 1)])


@pytest.mark.parametrize("coding", ["gzip", "x-gzip"])
def test_a_sitemap_that_unpacks_to_more_than_a_page_may_have_lists_all_its_urls(coding: str) -> None:
    """Sitemaps have a limit of their own."""
    body = "".join(f"<url><loc>/{number}</loc></url>" for number in range(9)).encode()
    stage = Stage()
    stage.take(gzip.compress(body), coding=coding, limit=100, kind="sitemap", content_type="application/xml")
    stage.stage.flush()
    assert [found.url for found in stage.founds()] == [f"http://a.test/{number}" for number in range(9)]


def test_a_sitemap_without_a_body_is_told() -> None:
    """Its URLs are missing, and it has no row that says so."""
    stage = Stage()
    with capture_logs() as logs:
        stage.take(brotli.compress(bytes(1000)), coding="br", limit=100, kind="sitemap")
    told = {"event": "sitemap_unread", "job": "j", "url": PAGE, "error": "too_large", "log_level": "warning"}
    assert told in logs


def test_the_worker_has_a_limit_of_its_own() -> None:
    """Whatever a record says of itself. A row would replace the good one of a worker with more room."""
    stage = Stage(guard=Guard(Bounds(size_bytes=len(BODY) - 1)))
    stage.take(GZIP, coding="gzip", limit=40_000_000)
    value, headers = letter(stage)
    assert (value, headers[CODING], stage.log.values(NAMES.items)) == (GZIP, b"gzip", [])
    assert b"set kafka.max_record_bytes to 40262144 for parse" in headers["error"]
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


@pytest.mark.parametrize(("room", "limit"), [(len(BODY), 1 << 60), (len(BODY) - 1, len(BODY) - 1)])
def test_a_page_that_fits_or_is_too_large_for_its_own_limit_has_its_row(room: int, limit: int) -> None:
    """No setting of this worker changes it."""
    stage = Stage(guard=Guard(Bounds(size_bytes=room)))
    stage.take(GZIP, coding="gzip", limit=limit)
    assert (stage.row()["error"] or "", buried(stage)) == ("" if room == len(BODY) else "too_large", [])


def test_a_page_that_was_not_modified_is_a_dead_letter_where_its_old_body_finds_no_room() -> None:
    """A replay of it asks no server."""
    stage = Stage(guard=Guard(Bounds(size_bytes=9)))
    at = stage.take(http=304, same_as=(3, 7))
    stage.stage.body_came((3, at), pages.PageMeta(PAGE, "j", http=200, limit=100), b"")
    stage.stage.flush()
    [(_, error)] = buried(stage)
    assert "kafka.max_record_bytes" in error
    assert (stage.founds(), stage.log.values(NAMES.items)) == ([], [])


def test_a_page_that_waits_for_its_job_waits_as_it_came() -> None:
    """It is unpacked when its job is known; if nobody knows it, it is a dead letter as it came."""
    stage = Stage()
    stage.take(GZIP, rev=2, coding="gzip", limit=1000)
    assert (stage.stage.look_after_held(), stage.log.records) == (True, [])
    stage.learn(JobSpec(rev=2, scope=ScopeSpec(names=("a.test",))))
    assert stage.row()["title"] == "T"
    stage.take(GZIP, job="nobody", coding="gzip")
    for _ in range(HELD_LOOKS):
        stage.stage.look_after_held()
    value, headers = letter(stage)
    assert (value, headers[CODING]) == (GZIP, b"gzip")


def test_a_page_put_aside_counts_with_its_unpacked_bytes() -> None:
    """They are what memory holds."""
    stage = Stage()
    stage.take(GZIP, aside=True, coding="gzip")
    assert stage.stage.aside.size_bytes == len(BODY)
    stage.stage.parse_aside(b"")
    assert stage.row()["title"] == "T"


def test_a_page_for_a_trial_is_unpacked_once() -> None:
    """Refused, it is a dead letter with its plain body, and without the header of a coding."""
    stage, body = Stage(guard=Guard(trial=Trial(Parse()))), b"<p>" * 5000
    stage.take(gzip.compress(body), coding="gzip")
    assert stage.stage.untried.first is not None
    assert stage.stage.untried.first.body == body
    stage.stage.tried(body, "too_complex: told so")
    value, headers = letter(stage)
    assert (value, headers["error"], CODING in headers) == (body, b"too_complex: told so", False)


def test_a_dead_letter_can_be_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the page, plain: parsed again, it gives its row."""
    stage = Stage()

    def failing(*_: Any) -> None:
        raise ValueError("never")

    with monkeypatch.context() as patched:
        patched.setattr("crawlog.streams.parse.job.parse_page", failing)
        stage.take(GZIP, coding="gzip", limit=1000)
    value, headers = letter(stage)
    assert (value, CODING in headers) == (BODY, False)
    again = Stage()
    again.take(value or b"", url=pages.decode(headers[pages.HEADER]).url)
    assert again.row()["title"] == "T"


def test_the_page_that_is_unpacked_is_on_record_and_keeps_its_deaths() -> None:
    """Only a parsed page is forgotten: else one that kills its workers after it is unpacked would never end."""
    notes = Noted()
    stage = Stage(guard=Guard(notes=notes))
    stage.take(GZIP, coding="gzip")
    assert notes.said == ["touch 3:0", "lift 3:0", "touch 3:0", "release 3:0"]


def test_a_page_that_killed_its_workers_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is buried as it came."""
    monkeypatch.setattr("crawlog.agents.parse.page_steps.page_of", None)
    stage = Stage(guard=Guard(notes=Noted(at_0="give_up")))
    stage.take(GZIP, coding="gzip")
    value, headers = letter(stage)
    assert (value, headers[CODING]) == (GZIP, b"gzip")
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


def test_a_page_that_cannot_be_unpacked_for_lack_of_memory_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it came: sent back it may have its row."""

    def short(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("crawlog.agents.parse.page_steps.page_of", short)
    notes = Noted()
    stage = Stage(guard=Guard(notes=notes))
    stage.take(GZIP, coding="gzip")
    value, headers = letter(stage)
    assert (value, headers[CODING], headers["error"]) == (GZIP, b"gzip", b"MemoryError: ")
    assert notes.said[-1] == "release 3:0"
    stage.log.acknowledge()
    assert stage.done == [(3, 1)]


SPIDER = """
from crawlog import Spider

class S(Spider):
    def parse(self, response):
        yield {"title": response.css("title::text").get()}

    def lost(self, failure):
        yield {"lost": True}
"""


@pytest.mark.parametrize(("body", "row"), [(GZIP, {"title": "T"}), (b"no gzip", {"lost": True})])
def test_a_spider_sees_the_plain_page_or_a_failure(tmp_path: Path, body: bytes, row: dict[str, Any]) -> None:
    """A page that cannot be unpacked goes to the errback of its request."""
    (tmp_path / "s.py").write_text(SPIDER)
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), spider=f"{tmp_path / 's.py'}:S"))
    request = RequestRecord(errback="lost")
    meta = pages.PageMeta(PAGE, "j", http=200, content_type=HTML, request=request, id=5)
    stage.stage.take(Message(3, 0, b"a.test", body, pages.headers(meta, "gzip")))
    assert stage.row() == row


@pytest.mark.parametrize(("body", "limit"), [(GZIP, 9), (b"no gzip", 1000)])
def test_a_page_that_cannot_be_unpacked_is_a_dead_letter_as_it_came(tmp_path: Path, body: bytes, limit: int) -> None:
    """Sent back it fails for the same reason; without its body and its coding it would be an empty page."""
    (tmp_path / "s.py").write_text(SPIDER.replace('yield {"lost": True}', "raise ValueError"))
    stage = Stage(job=JobSpec(scope=ScopeSpec(names=("a.test",)), spider=f"{tmp_path / 's.py'}:S"))
    spiders = stage.stage.spiders
    assert spiders is not None
    spiders.may_go = lambda: False
    meta = pages.PageMeta(PAGE, "j", http=200, limit=limit, request=RequestRecord(errback="lost"), id=5)
    stage.stage.take(Message(3, 0, b"a.test", body, pages.headers(meta, "gzip")))
    assert spiders.size_bytes == len(body)
    spiders.may_go = lambda: True
    spiders.tend()
    value, headers = letter(stage)
    assert (value, headers[CODING], spiders.size_bytes) == (body, b"gzip", 0)
