"""Which rows a sink lacks because their records were deleted before it read them; where rows of pipelines lie."""

import io
from pathlib import Path

import msgspec
import pytest

from crawlog.schemas import items
from crawlog.schemas import urls as u
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink import finish
from crawlog.streams.sink.batch import Entry, entry
from crawlog.streams.sink.finish import finalise, lacking, lose, pipeline_rows
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.url import hashed_to
from tests.support.kept_log import KeptLog

NAMES = Topics(Settings().kafka.prefix)
SITE = "http://a.test"
POST = 7
"""Identity of a request that is no plain GET."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> KeptLog:
    """A log of one partition."""
    made = KeptLog()
    made.serve(monkeypatch, "crawlog.streams.recovery.newest_pages", finish.__name__)
    monkeypatch.setattr(finish, "partition_count", lambda _: 1)
    return made


@pytest.fixture
def state(tmp_path: Path) -> SinkState:
    """The empty state of a sink of the job `j`."""
    return SinkState(tmp_path, SinkSpec("j", str(tmp_path / "rows.jsonl")), LogIdentity("cluster", "topic"))


def fetched(log: KeptLog, url: str, page: int | None, *, job: str = "j", request_id: int = 0) -> None:
    """A done of a URL, with its page or without one."""
    at = None if page is None else (0, page)
    result = u.Result(f"{SITE}/{url}", 0, "refused" if page is None else "fetched", page=at, id=request_id)
    log.write(NAMES.urls, u.encode(u.UrlsRecord(job=job, results=[result])))


def asked_again(log: KeptLog, url: str) -> None:
    """A found that queues a known URL."""
    log.write(NAMES.urls, u.encode(u.UrlsRecord("j", 0, urls=[u.FoundUrl(f"{SITE}/{url}", again="fetched")])))


def kept(url: str, page: int, request_id: int = 0) -> Entry:
    """The items of a page, as a sink keeps them."""
    record = ItemsRecord("j", f"{SITE}/{url}", (0, page), [msgspec.Raw(b"{}")], id=request_id)
    made = entry(items.encode(record), SinkSpec("j", "-"))
    assert made is not None
    return made


def test_a_page_lacks_rows_whose_items_the_sink_has_not(log: KeptLog, state: SinkState) -> None:
    """Neither of it nor of a later page of its request; a page that is a dead letter, or of another job, has none."""
    for page, url in enumerate(["none", "kept", "older", "asked", "dead"]):
        fetched(log, url, page)
    fetched(log, "older", 5)
    fetched(log, "other", 6, job="other")
    fetched(log, "form", 7, request_id=POST)
    fetched(log, "refused", None)
    asked_again(log, "asked")
    letter = {"topic": NAMES.pages, "partition": "0", "offset": "4"}
    headers = [(name, value.encode()) for name, value in letter.items()]
    log.write(NAMES.dead, headers=[*headers, ("topic", b"another header of the page")])
    lose(state, {0: range(4)})
    state.fold([(0, 4, kept("kept", 1)), (0, 5, kept("older", 2)), (0, 6, kept("form", 7, POST))])
    lacks = [(one.result.url, one.page, is_asked) for one, is_asked in lacking(Settings(), state)]
    assert lacks == [(f"{SITE}/none", 0, False), (f"{SITE}/asked", 3, True), (f"{SITE}/older", 5, False)]
    state.close()


def test_only_rows_of_the_partition_that_lost_records_can_lack(
    log: KeptLog, state: SinkState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of another partition may have no items at all."""
    monkeypatch.setattr(finish, "partition_count", lambda _: 8)
    for page in range(20):
        fetched(log, str(page), page)
    lose(state, {3: range(2)})
    of_partition = {f"{SITE}/{page}" for page in range(20) if hashed_to(items.key("j", f"{SITE}/{page}"), 8) == 3}
    assert {one.result.url for one, _ in lacking(Settings(), state)} == of_partition != set()
    state.close()


def test_a_sink_without_a_gap_lacks_nothing(log: KeptLog, state: SinkState) -> None:
    """Nothing is read."""
    fetched(log, "1", 0)
    assert lacking(Settings(), state) == []
    state.close()


def test_a_gap_is_noted_with_the_offset_behind_it(state: SinkState, tmp_path: Path) -> None:
    """In one write: a sink that is killed there still knows of it. A second gap is noted beside the first."""
    lose(state, {0: range(2, 4)})
    lose(state, {0: range(9, 12), 1: range(1)})
    state.close()
    with SinkState(tmp_path, state.sink, None) as again:
        assert again.meta.offsets == {0: 12, 1: 1}
        assert again.meta.gaps == [(0, 2, 4), (0, 9, 12), (1, 0, 1)]


LOG = LogIdentity("cluster", "topic")


def made_by_pipelines(data: Path, sink: SinkSpec, *, is_closed: bool = True) -> None:
    """A sink's state, with the row that the pipelines of its job made of one item."""
    with SinkState(data, sink, LOG) as state:
        record = ItemsRecord("j", f"{SITE}/a", (0, 0), [msgspec.Raw(b'{"n":1}')], raw=True)
        state.fold([(0, 0, entry(items.encode(record), sink, raw=True))])
        assert state.made is not None
        state.made.take([(state.made.blocks()[0], [b'{"n":2}'])])
        if is_closed:
            state.made.closed()


def found_rows(data: Path, job: SinkSpec, log: LogIdentity = LOG, end: int = 1) -> bytes | None:
    """The rows that are found for an export."""
    with pipeline_rows(data, job, log, {0: end}) as source:
        return None if source is None else b"".join(source.chunks())


@pytest.mark.parametrize("name", ["none:", "rows.jsonl", "rows.csv"])
def test_rows_of_pipelines_are_found_before_and_behind_the_end_of_their_output(tmp_path: Path, name: str) -> None:
    """A FILE of another form does not have them as they were made; and no look changes what is there."""
    sink = SinkSpec("j", name if name == "none:" else str(tmp_path / name), pipelines=True)
    job = SinkSpec("j", str(tmp_path / "export.csv"))
    made_by_pipelines(tmp_path, sink)
    assert [found_rows(tmp_path, job) for _ in range(2)] == [b'{"n":2}\n'] * 2
    assert finalise(tmp_path, sink, {0: 1}, io.BytesIO()) == 1
    expected = None if name == "rows.csv" else b'{"n":2}\n'
    assert [found_rows(tmp_path, job) for _ in range(2)] == [expected] * 2
    assert sink.partial(tmp_path).exists() == (name == "none:")


@pytest.mark.parametrize(
    ("job", "log", "end", "is_closed"),
    [
        (SinkSpec("other", "-"), LOG, 1, True),
        (SinkSpec("j", "-", epoch=1), LOG, 1, True),
        (SinkSpec("j", "-"), LogIdentity("cluster", "made again"), 1, True),
        (SinkSpec("j", "-"), LOG, 2, True),
        (SinkSpec("j", "-"), LOG, 1, False),
    ],
    ids=["job", "epoch", "log", "behind", "open"],
)
def test_rows_of_other_pipelines_and_unfinished_ones_are_not_found(
    tmp_path: Path, job: SinkSpec, log: LogIdentity, end: int, is_closed: bool
) -> None:
    """FILE of an export has all rows of the job's end, or the items as they were scraped."""
    made_by_pipelines(tmp_path, SinkSpec("j", "none:", pipelines=True), is_closed=is_closed)
    assert found_rows(tmp_path, job, log, end) is None


def test_rows_that_a_worker_has_open_are_not_found(tmp_path: Path) -> None:
    """It may write them."""
    sink = SinkSpec("j", "none:", pipelines=True)
    made_by_pipelines(tmp_path, sink)
    with SinkState(tmp_path, sink, LOG):
        assert found_rows(tmp_path, SinkSpec("j", "-")) is None
