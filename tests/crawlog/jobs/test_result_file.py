"""FILE lacks no row whose record crawl.items lost: the row is made again, or FILE stays partial."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog import outcome
from crawlog.cli import summary_text
from crawlog.jobs.result_file import ResultFile
from crawlog.jobs.run import Run
from crawlog.jobs.summary import Summary
from crawlog.schemas import items
from crawlog.schemas import urls as u
from crawlog.schemas.items import ItemsRecord
from crawlog.schemas.progress import JobCounts
from crawlog.streams.jobs import Finish
from crawlog.streams.log.client import LogIdentity
from crawlog.streams.log.sink_groups import SinkSpec
from crawlog.streams.log.topics import Topics
from crawlog.streams.recovery import power_cut
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink import finish, lose
from crawlog.streams.sink.batch import entry
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from tests.support.kept_log import KeptLog

NAMES = Topics(Settings().kafka.prefix)
URLS = ["http://a.test/kept", "http://a.test/lost"]


class Supervised:
    """A supervisor whose workers answer at once: what is asked for again is refused, or is a page with a row."""

    def __init__(self, data: Path, sink: SinkSpec, log: KeptLog, *, is_refused: bool) -> None:
        self.settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": data})})
        self.picture = SimpleNamespace(of=lambda _: [SimpleNamespace(lost=True)], forget=lambda _: None)
        self.asked = 0
        self._data, self._sink, self._log, self._is_refused = data, sink, log, is_refused

    def stop_stage(self, _: str) -> None:
        """It has stopped."""

    def go(self, *_: object) -> None:
        """It has started."""

    def parse_again(self, gone: Any, back: dict[int, int]) -> None:
        """Each found is fetched."""
        assert back == {}
        self.asked += power_cut.fetch_again(self.settings, gone)
        for one in gone:
            fetched(self._log, one.result.url, None if self._is_refused else 2)
            if not self._is_refused:
                fold(self._data, self._sink, one.result.url, 2)


def fetched(log: KeptLog, url: str, page: int | None) -> None:
    """A done."""
    at = None if page is None else (0, page)
    result = u.Result(url, 0, "refused" if page is None else "fetched", page=at)
    log.write(NAMES.urls, u.encode(u.UrlsRecord(job="j", results=[result])))


def fold(data: Path, sink: SinkSpec, url: str, page: int) -> None:
    """The sink reads the items of a page."""
    kept = entry(items.encode(ItemsRecord("j", url, (0, page), [msgspec.Raw(b"{}")])), sink)
    with SinkState(data, sink, LogIdentity("cluster", "topic")) as state:
        state.fold([(0, state.meta.offsets.get(0, 0), kept)])


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_row_that_cannot_be_made_again_leaves_file_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """Item and page are gone, and robots.txt now disallows the URL: exit code 5, and each later run asks in vain."""
    log, sink = KeptLog(), sink_of("j", str(tmp_path / "rows.jsonl"))
    log.serve(monkeypatch, "crawlog.streams.recovery.newest_pages", power_cut.__name__, finish.__name__)
    monkeypatch.setattr(finish, "partition_count", lambda _: 1)
    for page, url in enumerate(URLS):
        fetched(log, url, page)
        log.write(NAMES.pages)
    log.delete(NAMES.pages)
    fold(tmp_path, sink, URLS[0], 0)
    with SinkState(tmp_path, sink, None) as state:
        lose(state, {0: range(1, 2)})
    supervisor: Any = Supervised(tmp_path, sink, log, is_refused=is_refused)
    run: Any = object.__new__(Run)
    run.file = ResultFile(sink, supervisor, SimpleNamespace(tell=lambda: None), pytest.fail)  # type: ignore[arg-type]  # as much as is needed
    run.summary = Summary("j", reason="finished", output=sink.output)
    run.whole, run._vain_checks = SimpleNamespace(holds=lambda _: True, missing=(), was_damaged=False), 0
    run.planting, run._seeded, run._shown = SimpleNamespace(lost=tuple), (1,), SimpleNamespace(close=lambda: None)
    run.job = SimpleNamespace(order=SimpleNamespace(dumps_stats=False))
    run._follow = lambda *_: Finish("j", (1,), with_sink=True, passed={"sink": (2,)}, counts=JobCounts(fetched=2))
    for name in ("_count_losses", "_await_end", "_record", "_sum_stats", "_count_late_losses"):
        setattr(run, name, lambda *_: None)
    run._end(None, None)
    assert supervisor.asked == 1
    assert Path(sink.output).exists() is not is_refused
    assert run.file.partial() == (sink.partial(tmp_path) if is_refused else None)
    assert summary_text.exit_code(run.summary) == (outcome.DIFFERENT if is_refused else outcome.FINISHED)
    told = "\n".join(summary_text.lines(run.summary))
    assert (f"lost the rows of 1 page, which could not be fetched or parsed again: {URLS[1]}; --fresh" in told) is (
        is_refused
    )
