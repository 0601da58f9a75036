"""When a partition's progress is told."""

import asyncio
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from crawlog.agents import progress
from crawlog.agents.progress import Reporter, ReportPace
from crawlog.schemas.progress import IDLE, JobCounts, Progress, decode
from crawlog.streams.fetch import reported_jobs
from tests.support.fetching import Log


def report(offset: int, queued: int = 0, partition: int = 0) -> Progress:
    """A report of the fetch stage."""
    return Progress("fetch-0", "fetch", partition, 0.0, offset=offset, jobs={"j": JobCounts(queued=queued)})


def test_the_first_report_is_told_at_once() -> None:
    """A worker is visible as soon as it has a partition."""
    assert ReportPace().due([report(5)], 100.0) == [report(5)]


def test_what_moves_is_told_once_a_second() -> None:
    """No matter how fast it moves."""
    pace = ReportPace()
    told = [now for i in range(16) if pace.due([report(i)], now := i / 5)]
    assert told == [0.0, 1.0, 2.0, 3.0]


def test_what_came_to_rest_is_told_at_the_next_look() -> None:
    """The same state twice in a row, and not what was told last."""
    pace = ReportPace()
    assert pace.due([report(1, queued=9)], 0.0)
    assert not pace.due([report(2)], 0.2)
    assert pace.due([report(2)], 0.4)
    assert not pace.due([report(2)], 0.6)


@pytest.mark.parametrize(("queued", "times"), [(3, [0.0, 1.0, 2.0, 3.0, 4.0]), (0, [0.0, 2.0, 4.0])])
def test_what_rests_is_told_every_second_and_without_urls_every_other(queued: int, times: list[float]) -> None:
    """A fresh report says that the worker lives."""
    pace = ReportPace()
    told = [now for i in range(21) if pace.due([report(7, queued)], now := i / 5)]
    assert told == times


def test_partitions_are_told_together() -> None:
    """Each send wakes the broker and every reader; those that came to rest at different times would be told apart."""
    pace = ReportPace()
    assert pace.due([report(1), report(1, partition=1)], 0.0)
    assert not pace.due([report(1), report(2, partition=1)], 0.2)
    assert pace.due([report(1), report(2, partition=1)], 0.4) == [report(2, partition=1)]
    assert len(pace.due([report(1), report(2, partition=1)], 2.0)) == 2
    assert not pace.due([report(1), report(2, partition=1)], 2.4)
    assert len(pace.due([report(1), report(2, partition=1)], 4.0)) == 2


def test_a_partition_that_comes_back_is_told_at_once() -> None:
    """What was told before it moved to another worker says nothing."""
    pace = ReportPace()
    assert pace.due([report(1), report(4, partition=1)], 0.0)
    assert not pace.due([report(1)], 0.2)
    assert pace.due([report(1), report(4, partition=1)], 0.4) == [report(4, partition=1)]


async def test_what_others_spend_while_a_failed_look_rests_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy worker whose report failed once would be silent for most of a minute."""

    def failing(look: int) -> None:
        if look == 1:
            asyncio.get_running_loop().call_soon(spend)
            raise OSError

    def spend() -> None:
        until_s = time.thread_time() + 0.3
        while time.thread_time() < until_s:
            pass

    with capture_logs():  # a traceback in colours costs as much
        assert max(await rests(failing, monkeypatch)) < 0.3 * progress.SHARE / 2


async def test_a_worker_that_was_stopped_in_a_look_is_heard_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It rests by the CPU that a look took, not by the time: a crawl's end would wait for its reports for minutes."""

    def stopped(look: int) -> None:
        if look == 1:
            time.sleep(1.0)

    assert max(await rests(stopped, monkeypatch)) < 1.0 * progress.SHARE / 2


async def rests(look: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a worker that looks so means to rest, until it looks for the third time; its log is in memory."""
    looks, meant, looked = 0, list[float](), asyncio.Event()

    def reports() -> list[Progress]:
        nonlocal looks
        looks += 1
        if looks > 2:
            looked.set()
        look(looks)
        return []

    async def rest(for_s: float) -> None:
        meant.append(for_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(progress, "Producer", Log)
    monkeypatch.setattr(progress, "asyncio", SimpleNamespace(sleep=rest, to_thread=asyncio.to_thread))
    reporting = asyncio.create_task(Reporter(an_app(reports)).run())
    await looked.wait()
    reporting.cancel()
    return meant


def an_app(reports: Callable[[], list[Progress]]) -> Any:
    """A parse worker, as far as its reporter needs it."""
    topics = SimpleNamespace(progress="p")
    named: dict[str, Any] = {"worker_name": "w", "stage": "parse", "sink_name": "", "crash_reason": None}
    return SimpleNamespace(crawl=None, topics=topics, reports=reports, check_readiness=lambda _: "", **named)


@pytest.mark.parametrize(("crash", "told"), [(None, "stopped by a signal"), (KeyError("/secret"), "crashed: KeyError")])
def test_the_last_report_of_a_worker_has_the_reason_of_its_end(crash: Exception | None, told: str) -> None:
    """No text of an error, which may have a path."""
    sent, app = Told(), an_app(list)
    app.crash_reason = crash
    Reporter(app)._send_last(cast("Any", sent))
    assert [(one.idle_stage, one.pid, one.ended) for one in sent.reports] == [("parse", os.getpid(), told)]


def test_a_worker_without_partitions_reports_itself_every_other_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would see it. Its pages go on counting when it gets a partition."""
    told, clock, there = Told(), [0.0], list[Progress]()
    monkeypatch.setattr(progress, "time", SimpleNamespace(time=lambda: 5.0, monotonic=lambda: clock[0]))
    reporter = Reporter(an_app(lambda: there))
    for second in range(5):
        clock[0] = float(second)
        reporter._send(cast("Any", told))
    there.append(Progress("w", "parse", 3, 5.0, pages=7))
    for second in (5, 6):
        clock[0] = float(second)
        reporter._send(cast("Any", told))
        there.clear()
    places = [(one.stage, one.partition, one.idle_stage, one.pages) for one in told.reports]
    assert places == [(IDLE, -1, "parse", 0)] * 3 + [("parse", 3, "", 7), (IDLE, -1, "parse", 7)]
    assert (told.reports[-1].pid, told.reports[-1].started > 0) == (os.getpid(), True)


class Told:
    """A producer that keeps what is sent."""

    outstanding = 0

    def __init__(self) -> None:
        self.reports: list[Progress] = []

    def poll(self) -> None:
        """Nothing to do."""

    def flush(self, _timeout_s: float) -> None:
        """Nothing to wait for."""

    def send(self, _topic: str, value: bytes, **_: Any) -> None:
        """Keeps a report."""
        report = decode(value)
        assert report is not None
        self.reports.append(report)


def test_very_many_changed_jobs_do_not_move_the_offset_before_all_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader takes an offset for a word on all jobs; it would think that those of the next record had not changed."""
    monkeypatch.setattr(reported_jobs, "MOST_JOBS", 2)
    monkeypatch.setattr(reported_jobs, "ROTATED", 2)
    app = SimpleNamespace(worker_name="w", topics=SimpleNamespace(progress="p"))
    reporter = Reporter(cast("Any", app))
    jobs = {f"job{number}": JobCounts(folded=1) for number in range(5)}
    records = list(reporter._records(Progress("w", "fetch", 0, 1.0, offset=9, jobs=jobs)))
    assert [(record.offset, len(record.jobs)) for record in records] == [(0, 2), (0, 2), (9, 1)]
    assert [(record.piece, record.pieces) for record in records] == [(0, 3), (1, 3), (2, 3)]
    (again,) = reporter._records(Progress("w", "fetch", 0, 1.0, offset=9, jobs=jobs))
    assert (len(again.jobs), again.is_partial) == (2, True)
