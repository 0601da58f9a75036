"""Export and paging of a job's rows: from a log that no worker reads."""

import csv
import errno
import json
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs

import msgspec
import pytest

from crawlog.commands import export
from crawlog.commands.export import export_job
from crawlog.commands.items import ItemRow, cursors_behind, items_of
from crawlog.schemas import dead, items, pages
from crawlog.schemas.control import Finished
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.urls import DEFAULT_JOB, JobSpec
from crawlog.service.items_tail import Tailed
from crawlog.streams.cluster.client import log_bounds, log_identity
from crawlog.streams.control import write_control, write_job
from crawlog.streams.errors import EngineError, Misconfigured, UnknownName
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics, partition_count
from crawlog.streams.log.read import read_partitions
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.formats import Csv, StandardOutput
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.warc import PageArchiver
from tests.support.warcs import META, urls

pytestmark = pytest.mark.broker


@pytest.fixture
def partitions() -> int:
    """Few: most of such a test's time goes into the making of topics."""
    return 2


class Log:
    """A crawl's log, written by a test."""

    def __init__(self, settings: Settings) -> None:
        ensure_topics(settings)
        self.settings = settings
        self.topics = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self.count = partition_count(settings)

    def job(self, name: str, **spec: object) -> None:
        """A job's record."""
        write_job(self.settings, self.producer, self.topics, name, msgspec.structs.replace(JobSpec(), **spec))

    def row(self, n: int, job: str = "j", host: str = "a.example", *, page: int = 0, raw: bytes = b"") -> None:
        """A record with one row of the URL number n."""
        url = f"http://{host}/{n}"
        item = raw or b'{"n": %d, "page": %d}' % (n, page)
        record = ItemsRecord(job, url, (0, page or n), [msgspec.Raw(item)], raw=bool(raw))
        key = items.key(job, url)
        self.producer.send(self.topics.items, items.encode(record), key=key, partition=n % self.count)
        assert self.producer.flush(30)

    def ends(self) -> tuple[int, ...]:
        """The ends of crawl.items."""
        bounds = log_bounds(self.settings, self.topics.items, list(range(self.count)))
        return tuple(end for _, (_, end) in sorted(bounds.items()))

    def end(self, name: str, reason: str = "finished", rev: int = 0) -> None:
        """The note that a job ended."""
        end = Finished(name, time.time(), reason=reason, items=self.ends(), rev=rev)
        write_control(self.producer, self.topics, [end])


@pytest.fixture
def log(cluster: Settings, tmp_path: Path) -> Log:
    """With topics."""
    run = cluster.run.model_copy(update={"data": tmp_path / "data"})
    return Log(cluster.model_copy(update={"run": run}))


def test_a_job_under_way_gives_a_partial_file_and_a_finished_one_the_file(log: Log, tmp_path: Path) -> None:
    """In the format of FILE; a URL that was parsed again has its newest row; nothing else is left behind."""
    out = tmp_path / "out"
    out.mkdir()
    log.job("j")
    for n in range(8):
        log.row(n)
    log.row(3, page=90)
    log.row(4, job="other")
    log.producer.send(log.topics.items, b"garbage", key=b"j x", partition=0)
    made = export_job(log.settings, "j", str(out / "rows.csv"))
    assert (made.is_complete, made.rows, made.output) == (False, 8, str(out / "rows.csv.partial"))
    assert made.state == "running"
    rows = list(csv.DictReader((out / "rows.csv.partial").read_text().splitlines()))
    assert {int(row["n"]): int(row["page"]) for row in rows} == {n: 90 if n == 3 else 0 for n in range(8)}
    log.end("j")
    lost = dead.DeadLetter(log.topics.pages, 0, 9, "parse", "ValueError: no", job="j")
    log.producer.send(log.topics.dead, b"", partition=0, headers=lost.headers())
    assert log.producer.flush(30)
    made = export_job(log.settings, "j", str(out / "rows.csv"))
    assert (made.is_complete, made.rows, made.state, made.dead) == (True, 8, "finished", 1)
    assert [path.name for path in out.iterdir()] == ["rows.csv"]
    assert not log.settings.run.data.exists(), "it works away from the data folder"


def test_the_pages_of_a_job_are_exported_as_warc_files(log: Log, tmp_path: Path) -> None:
    """Whole whenever it is given; the next export goes on. A job without all headers has none, and a held one waits."""
    folder, spec = tmp_path / "warc", JobSpec(full_headers=True)
    log.job("j", full_headers=True, at=time.time())
    log.job("bare")

    def page(number: int) -> None:
        meta = msgspec.structs.replace(META, job="j", url=f"http://a.example/{number}")
        headers = pages.headers(meta)
        log.producer.send(log.topics.pages, b"%d" % number, key=b"a.example", partition=0, headers=headers)
        assert log.producer.flush(30)

    page(1)
    made = export_job(log.settings, "j", f"warc:{folder}")
    assert (made.is_complete, made.rows, made.output, made.state) == (False, 1, f"warc:{folder}", "running")
    page(2)
    held = PageArchiver(log.settings, sink_of("j", f"warc:{folder}"), spec)
    with closing(held), pytest.raises(Misconfigured, match="another process writes the archive of j"):
        export_job(log.settings, "j", f"warc:{folder}")
    log.end("j")
    made = export_job(log.settings, "j", f"warc:{folder}", follow=True)
    assert (made.is_complete, made.rows, urls(folder)) == (True, 2, {"1": 1, "2": 1})
    with pytest.raises(Misconfigured, match=r"pages\.headers=full"):
        export_job(log.settings, "bare", f"warc:{folder}")


def test_a_stopped_job_stays_partial_and_an_unknown_one_is_named(log: Log, tmp_path: Path) -> None:
    """Its rows are not all rows; the service answers 404 for the other one."""
    log.job("j", state="cancelled", rev=2)
    log.row(1)
    log.end("j", "cancelled")
    made = export_job(log.settings, "j", str(tmp_path / "rows.json"), follow=True)
    assert (made.is_complete, made.state) == (False, "cancelled")
    assert json.loads((tmp_path / "rows.json.partial").read_text()) == [{"n": 1, "page": 0}]
    with pytest.raises(UnknownName, match=r"no job k in the log; there are: j"):
        export_job(log.settings, "k", str(tmp_path / "rows.json"))


def test_a_job_that_its_spider_closed_gives_the_file_whatever_reason_it_gave(log: Log, tmp_path: Path) -> None:
    """Scrapy's own reason for `raise CloseSpider()` is `cancelled`, which is one of our states too."""
    log.job("j", state="stopped", reason="cancelled", rev=2)
    log.row(1)
    log.end("j", "cancelled")
    made = export_job(log.settings, "j", str(tmp_path / "rows.json"))
    assert (made.is_complete, made.state, made.reason) == (True, "stopped", "cancelled")


def test_a_job_that_the_operator_stopped_is_partial(log: Log, tmp_path: Path) -> None:
    """Its queue was not fetched."""
    log.job("j", state="stopped", reason="operator", rev=2)
    log.row(1)
    log.end("j", "operator")
    made = export_job(log.settings, "j", str(tmp_path / "rows.json"))
    assert (made.is_complete, made.rows, made.output) == (False, 1, str(tmp_path / "rows.json.partial"))


def test_a_job_that_finished_and_goes_on_paused_is_partial(log: Log, tmp_path: Path) -> None:
    """The end is that of an older revision."""
    log.job("j", state="finished", rev=2)
    log.row(1)
    log.end("j", rev=2)
    log.job("j", rev=3)
    log.job("j", state="paused", rev=4)
    made = export_job(log.settings, "j", str(tmp_path / "rows.jsonl"))
    assert (made.is_complete, made.state, made.output) == (False, "paused", str(tmp_path / "rows.jsonl.partial"))


def test_rows_of_bare_records_are_exported(log: Log, tmp_path: Path) -> None:
    """Their job has no record, and never ends."""
    log.row(1, DEFAULT_JOB)
    log.row(2, "j")
    made = export_job(log.settings, DEFAULT_JOB, str(tmp_path / "rows.json"))
    assert (made.is_complete, made.state, made.rows) == (False, "running", 1)
    assert json.loads((tmp_path / "rows.json.partial").read_text()) == [{"n": 1, "page": 0}]


def test_a_partial_file_that_a_crawl_writes_is_not_replaced(log: Log, tmp_path: Path) -> None:
    """It would begin again from the log's start."""
    log.job("j")
    own = SinkSpec("j", str(tmp_path / "rows.jsonl"))
    with SinkState(log.settings.run.data, own, None), pytest.raises(Misconfigured, match=r"a crawl writes .* now"):
        export_job(log.settings, "j", own.output)


@pytest.mark.parametrize("how", [{}, {"state": "stopped", "reason": "max_pages", "rev": 2}])
def test_following_waits_for_the_end(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """A row that comes meanwhile is in the file. A limit is reached long before the end where parse is behind."""
    monkeypatch.setattr(export, "END_S", 0.0)
    log.job("j", **how)
    log.row(1)

    def then(_line: str) -> None:
        if log.ends() == ends:
            log.row(2)
            log.end("j", how.get("reason", "finished"), how.get("rev", 0))

    ends = log.ends()
    made = export_job(log.settings, "j", str(tmp_path / "rows.jsonl"), follow=True, say=then)
    assert (made.is_complete, made.rows) == (True, 2)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_that_ends_the_following_leaves_the_rows_so_far(log: Log, tmp_path: Path, end: BaseException) -> None:
    """Ctrl-C, or a SIGTERM."""
    log.job("j")
    log.row(1)

    def stop(_line: str) -> None:
        raise end

    left: list[export.Exported] = []
    with pytest.raises(type(end)):
        export_job(log.settings, "j", str(tmp_path / "rows.jsonl"), follow=True, say=stop, left=left.append)
    assert left == [export.Exported("j", str(tmp_path / "rows.jsonl.partial"), 1, is_complete=False, state="running")]
    assert json.loads((tmp_path / "rows.jsonl.partial").read_text()) == {"n": 1, "page": 0}


def test_a_job_that_is_deleted_while_it_is_followed_leaves_the_rows_so_far(log: Log, tmp_path: Path) -> None:
    """The log does not give them again: no command knows the job any more."""
    log.job("j")
    log.row(1)

    def delete(_line: str) -> None:
        log.job("j", state="deleted", rev=1)

    with pytest.raises(Misconfigured, match="there is no job j"):
        export_job(log.settings, "j", str(tmp_path / "rows.jsonl"), follow=True, say=delete)
    assert json.loads((tmp_path / "rows.jsonl.partial").read_text()) == {"n": 1, "page": 0}


@pytest.mark.parametrize("output", ["rows.csv", "-"])
def test_a_sink_that_fails_is_no_bug_of_ours(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """A plug-in's class may: for a file, or for a store."""
    log.job("j")
    log.row(1)

    def fail(*_: object) -> None:
        raise KeyError("price")

    monkeypatch.chdir(tmp_path)
    for kind in (Csv, StandardOutput):
        monkeypatch.setattr(kind, "write", fail)
    with pytest.raises(Misconfigured, match=r"its sink, .* failed: KeyError: 'price'"):
        export_job(log.settings, "j", output)
    assert not list(tmp_path.glob("rows*"))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("output", "where", "fails", "error"),
    [
        ("rows.csv", "rows.csv", "os.fsync", FULL),
        ("rows.csv", "rows.csv", "os.pwrite", FULL),
        ("rows.csv", "rows.csv", "crawlog.streams.state.Rocks.apply", Exception(f"IO error: {FULL.strerror}: 4.log")),
        ("-", "standard output", "crawlog.streams.sink.formats.StandardOutput.write", FULL),
        ("-", tempfile.gettempdir(), "os.pwrite", FULL),
    ],
    ids=["file", "folder", "database", "output", "temporary"],
)
def test_a_full_disk_is_told_with_its_place_and_the_way_on(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, where: str, fails: str, error: Exception
) -> None:
    """The rows may be gathered on another disk than they are written to."""
    log.job("j")
    log.row(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fails, Mock(side_effect=error))
    with pytest.raises(EngineError) as caught:
        export_job(log.settings, "j", output)
    place, then = str(caught.value).split("\n")
    assert place == f"{tmp_path / where if output != '-' else where}: No space left on device"
    assert then == "Free some room there, and run the same command again: all rows are in the log."
    assert not list(tmp_path.glob("*rows*"))


def test_items_of_a_job_with_pipelines_are_exported_as_scraped_while_it_goes_on(log: Log, tmp_path: Path) -> None:
    """Their values are plain, without the spider's classes. Behind its end its FILE has the pipelines' rows."""
    log.job("j", pipelines=True)
    log.row(1, raw=b'{"$item": {"$object": ["shop:Book", {"price": {"$decimal": "1.50"}, "tags": {"$set": ["a"]}}]}}')
    assert export_job(log.settings, "j", str(tmp_path / "rows.jsonl")).as_scraped
    assert json.loads((tmp_path / "rows.jsonl.partial").read_text()) == {"price": "1.50", "tags": ["a"]}
    assert item(items_of(log.settings, "j").rows[0]) == {"price": "1.50", "tags": ["a"]}
    log.end("j")
    sink, topic = SinkSpec("j", "none:", pipelines=True), log.topics.items
    with SinkState(log.settings.run.data, sink, log_identity(log.settings, topic)) as state:
        [record] = read_partitions(log.settings, topic, {1: (0, 1)})  # the row number 1
        state.fold([(1, 0, entry(record.value(), sink, raw=True))])
        assert state.made is not None
        state.made.take([(state.made.blocks()[0], [b'{"price":2}'])])
        state.made.closed()
    made = export_job(log.settings, "j", str(tmp_path / "rows.json"))
    assert (made.is_complete, made.rows, made.as_scraped) == (True, 1, False)
    assert json.loads((tmp_path / "rows.json").read_text()) == [{"price": 2}]


def item(row: ItemRow) -> dict[str, Any]:
    """The item of a row."""
    found: dict[str, Any] = json.loads(bytes(row.item))
    return found


BAD_ITEMS = (b"1", b"[{}]", b'"x"', b'{"a": "\xff"}')


def test_rows_that_a_stranger_wrote_break_no_line_and_no_answer(log: Log) -> None:
    """A row is a JSON object on one line, as in a sink's file; a record with anything else has none."""
    log.job("j")
    log.row(0, raw=b'{"a": 1,\n\n"b": "<script>"}')
    wrong = [(number, is_raw, item) for number, item in enumerate(BAD_ITEMS, 1) for is_raw in (False, True)]
    texts = [(0, False, b'{"a": 1,\n\r\n"b": "\xe2\x80\xa8"}'), *wrong]
    for number, is_raw, text in texts:
        record = ItemsRecord("j", f"http://b.example/{number}/{is_raw}", (0, 1), [msgspec.Raw(text)], raw=is_raw)
        log.producer.send(log.topics.items, items.encode(record), key=items.key("j", record.url), partition=1)
        assert Tailed(1, 0, record, 0).rows() == [] or number == 0
    assert log.producer.flush(30)
    assert [bytes(row.item) for row in read_all(log, 100)] == [b'{"a":1,"b":"<script>"}', b'{"a":1,"b":"\\u2028"}']


def read_all(log: Log, limit: int, host: str | None = None) -> list[ItemRow]:
    """All rows, page by page."""
    rows: list[ItemRow] = []
    cursor, is_end = "", False
    while not is_end:
        page = items_of(log.settings, "j", cursor, limit, host)
        assert len(page.rows) <= limit
        rows, cursor, is_end = rows + page.rows, page.cursor, page.is_end
    return rows


def test_pages_of_rows_have_each_row_once_and_begin_at_the_jobs_place(log: Log) -> None:
    """Whatever their size; a record's rows may lie on two pages; the cursor goes on when rows are added."""
    log.row(100)  # before the job was submitted
    log.job("j", items=log.ends())
    for n in range(7):
        log.row(n, host="b.example" if n % 2 else "a.example")
    many = ItemsRecord("j", "http://a.example/7", (0, 7), [msgspec.Raw(b'{"n": %d}' % n) for n in (7, 8, 9)])
    log.producer.send(log.topics.items, items.encode(many), key=items.key("j", many.url), partition=0)
    assert log.producer.flush(30)
    for limit in (1, 2, 5, 100):
        numbers = [item(row)["n"] for row in read_all(log, limit)]
        assert sorted(numbers) == list(range(10))
    assert {item(row)["n"] for row in read_all(log, 2, "b.example")} == {1, 3, 5}
    page = items_of(log.settings, "j", limit=100)
    assert {row.page for row in page.rows} >= {(0, 1), (0, 7)}
    log.row(10)
    assert [item(row)["n"] for row in items_of(log.settings, "j", page.cursor).rows] == [10]


@pytest.mark.parametrize("limit", [2, *(pytest.param(limit, marks=pytest.mark.long) for limit in (3, 100))])
def test_the_cursor_behind_a_row_gives_those_after_it(log: Log, limit: int) -> None:
    """For each row of a page: within a record too, and of a page that begins within one."""
    log.job("j")
    for part, numbers in enumerate(((0, 1, 2), (3,), (4, 5), (), (6, 7, 8, 9))):
        raw = [msgspec.Raw(b'{"n": %d}' % n) for n in numbers]
        record = ItemsRecord("j" if raw else "k", f"http://a.example/{part}", (0, part), raw)
        log.producer.send(
            log.topics.items, items.encode(record), key=items.key(record.job, record.url), partition=part % 2
        )
    assert log.producer.flush(30)
    cursor, given, is_end = "", list[int](), False
    while not is_end:
        page = items_of(log.settings, "j", cursor, limit)
        for row, behind in zip(page.rows, cursors_behind(page, cursor), strict=True):
            given.append(item(row)["n"])
            later = [item(one)["n"] for one in items_of(log.settings, "j", behind).rows]
            assert sorted([*given, *later]) == list(range(10))
        cursor, is_end = page.cursor, page.is_end


def test_a_cursor_within_a_record_goes_into_a_url_as_it_is(log: Log) -> None:
    """A blank would be left of `+`."""
    log.job("j")
    many = ItemsRecord("j", "http://a.example/7", (0, 7), [msgspec.Raw(b'{"n": %d}' % n) for n in (7, 8, 9)])
    log.producer.send(log.topics.items, items.encode(many), key=items.key("j", many.url), partition=0)
    assert log.producer.flush(30)
    cursor = items_of(log.settings, "j", limit=2).cursor
    assert parse_qs(f"cursor={cursor}") == {"cursor": [cursor]}
    assert [item(row)["n"] for row in items_of(log.settings, "j", cursor).rows] == [9]


def test_a_cursor_of_something_else_is_refused(log: Log) -> None:
    """With a message, and not as an offset."""
    log.job("j")
    for cursor in ("x", "1", "-1", "1.2.3.4.5.6.7.8.9", "1-1-1", ".".join(["1-1+1"] * log.count)):
        with pytest.raises(Misconfigured, match="is no cursor"):
            items_of(log.settings, "j", cursor)


def test_a_cursor_behind_the_end_of_the_log_is_refused(log: Log) -> None:
    """It is of a log that was made anew, or cut: rows up to there would be missing."""
    log.job("j")
    log.row(0)
    at_end = items_of(log.settings, "j").cursor
    assert items_of(log.settings, "j", at_end).rows == []
    with pytest.raises(Misconfigured, match="is no cursor"):
        items_of(log.settings, "j", at_end.replace("1", "2"))
