"""Lines about jobs from a worker to crawl.logs and back."""

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crawlog.agents.job_lines import BURST, MOST_OUTSTANDING, JobLines, LinesSender
from crawlog.commands import job_logs
from crawlog.commands.job_logs import (
    CLOSE_FAILED,
    LOST,
    SHOWN_BURST,
    SpiderLines,
    follow_job_log,
    job_log_lines,
    lines_end,
)
from crawlog.schemas.log_lines import LogLine
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import write_job
from crawlog.streams.log import Producer, Topics, ensure_topics
from crawlog.streams.settings.settings import Settings
from tests.support.fetching import Log


class Sender(LinesSender):
    """Of a worker that is nothing else.

    Attributes:
        lines: Those that wait.
    """

    def __init__(self, settings: Settings, producer: object = None) -> None:
        app = SimpleNamespace(crawl=settings, worker_name="parse-0", stage="parse")
        self.lines = JobLines("parse-0", "parse")
        super().__init__(cast("Any", app), self.lines)
        self._producer = cast("Any", producer)

    @property
    def has_producer(self) -> bool:
        """Whether one is open."""
        return self._producer is not None

    async def deliver(self) -> None:
        """All lines that wait, however long the broker takes."""
        await self.revoking(set())
        assert self._producer is not None
        assert self._producer.flush(20)


def test_a_worker_without_lines_has_no_producer() -> None:
    """An idle producer costs CPU."""
    sender = Sender(Settings())
    sender.send()
    assert not sender.has_producer


def test_a_broker_that_is_away_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records in flight are bounded; further lines wait, then are lost."""
    log = Log()
    log.outstanding = MOST_OUTSTANDING
    sender = Sender(Settings(), log)
    sender.lines.add("j", LogLine(1.0, "x"))
    sender.send()
    assert sender.lines.take()


@pytest.mark.broker
async def test_lines_of_a_job_are_read_from_the_log(cluster: Settings) -> None:
    """Those of this job alone, the newest, from some time on; lines that were left out are counted."""
    ensure_topics(cluster)
    sender = Sender(cluster)
    for number in range(BURST + 5):
        sender.lines.add("j", LogLine(100.0 + number, f"line {number}"))
    sender.lines.add("other", LogLine(1.0, "not this one"))
    await sender.deliver()
    lines = job_log_lines(cluster, "j")
    assert [line.text for line in lines if line.source != LOST] == [f"line {number}" for number in range(BURST)]
    assert [line.text for line in lines if line.source == LOST] == ["5 lines of parse-0 left out"]
    assert [line.text for line in job_log_lines(cluster, "j", limit=1)] == [f"line {BURST - 1}"]
    assert job_log_lines(cluster, "j", since=99.0 + BURST)[-1].text == f"line {BURST - 1}"
    assert not job_log_lines(cluster, "nobody")
    with contextlib.closing(follow_job_log(cluster, "other", 0)) as followed:
        assert next(line for line in followed if line is not None).text == "not this one"


@pytest.mark.broker
async def test_lines_of_a_deleted_job_are_not_those_of_the_next_one_of_its_name(cluster: Settings) -> None:
    """Their key is the same: the job's record says when it was submitted."""
    ensure_topics(cluster)
    sender = Sender(cluster)
    for at, text in ((100.0, "of the deleted one"), (201.0, "of the new one")):
        sender.lines.add("j", LogLine(at, text))
    await sender.deliver()
    write_job(cluster, Producer(cluster, "test"), Topics(cluster.kafka.prefix), "j", JobSpec(at=200.0), epoch=1)
    assert [line.text for line in job_log_lines(cluster, "j")] == ["of the new one"]


@pytest.mark.broker
async def test_a_run_shows_what_its_spider_prints_and_the_last_lines_at_its_end(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the lines of other jobs or of workers, and none from before."""
    monkeypatch.setattr(job_logs, "LAST_S", 60.0)
    ensure_topics(cluster)
    sender, said = Sender(cluster), list[str]()

    async def sent(*lines: LogLine, job: str = "j") -> None:
        for line in lines:
            sender.lines.add(job, line)
        await sender.deliver()

    await sent(LogLine(1.0, "before"))
    shown = SpiderLines(cluster, "j", lambda *lines: said.extend(lines))
    await sent(LogLine(1.0, "a page"), LogLine(1.0, "error=x", source="page_failed"), LogLine(1.0, "[own] INFO: two"))
    await sent(LogLine(1.0, "of another"), job="k")
    while not said:
        shown.poll(cluster, 0.1)
    assert said == ["a page", "[own] INFO: two"]
    await sent(LogLine(1.0, "closed"), LogLine(1.0, "error=OSError: x", source=CLOSE_FAILED))
    shown.finish(cluster)
    shown.finish(cluster)
    shown.poll(cluster)
    assert said[2:] == ["closed", "pipelines_close_failed: error=OSError: x"]


@pytest.mark.broker
async def test_a_spider_that_prints_in_a_loop_does_not_drown_the_terminal(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of however many workers the lines come; one line counts those that are not shown."""
    monkeypatch.setattr(job_logs, "LAST_S", 60.0)
    monkeypatch.setattr(job_logs, "SHOWN_S", 0.0)
    ensure_topics(cluster)
    sender, said = Sender(cluster), list[str]()
    shown = SpiderLines(cluster, "j", lambda *lines: said.extend(lines))
    for number in range(SHOWN_BURST + 50):
        sender.lines.add("j", LogLine(1.0, f"line {number}"))
    await sender.deliver()
    shown.finish(cluster)
    assert said == [f"line {n}" for n in range(SHOWN_BURST)] + ["(50 lines not shown here: `crawlog jobs logs j`)"]


@pytest.mark.broker
async def test_whoever_follows_misses_no_line_and_gets_none_twice(cluster: Settings) -> None:
    """A line's own time says nothing: it may have waited, or come from a machine whose clock is behind."""
    ensure_topics(cluster)
    sender = Sender(cluster)
    ends = []
    for text in ("before", "after"):
        sender.lines.add("j", LogLine(1.0, text))
        ends.append(lines_end(cluster))
        await sender.deliver()
    assert [line.text for line in job_log_lines(cluster, "j", upto=ends[1])] == ["before"]
    with contextlib.closing(follow_job_log(cluster, "j", ends[1])) as followed:
        assert next(line for line in followed if line is not None).text == "after"
