"""Which lines go to crawl.logs, and how many."""

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from crawlog.agents import job_lines
from crawlog.agents.job_lines import BURST, LINES_S, WORKER_BURST, JobLines
from crawlog.schemas.log_lines import MAX_LINE, MAX_LINES, LogLine, encode
from crawlog.streams import logs


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def texts(lines: JobLines) -> dict[str, list[str]]:
    """The lines that wait, by job."""
    found = dict[str, list[str]]()
    for record in lines.take():
        found.setdefault(record.job, []).extend(line.text for line in record.lines)
    return found


def test_an_event_is_about_the_job_that_it_names() -> None:
    """Others are the worker's own, such as an error of the producer of these lines: no loop."""
    lines = JobLines("parse-0", "parse")
    lines.heard({"event": "page_failed", "level": "error", "job": "j", "url": "http://a.test/", "error": "x y"})
    lines.heard({"event": "kafka_unreachable", "level": "warning"})
    lines.heard({"event": "odd", "job": 7})
    (record,) = lines.take()
    (line,) = record.lines
    assert (record.job, record.worker, record.stage) == ("j", "parse-0", "parse")
    assert (line.text, line.level, line.source, line.url) == (
        "error=x y",
        "error",
        "page_failed",
        "http://a.test/",
    )
    assert not lines.take()


def test_what_a_spider_printed_is_the_line_itself() -> None:
    """With the level that Python's logging wrote."""
    lines = JobLines("parse-0", "parse")
    for line in ("hello", "2026-01-01 00:00:00 [quotes] WARNING: slow"):
        lines.heard({"event": job_lines.PRINTED, "job": "j", "spider": "s.py", "line": line})
    (record,) = lines.take()
    assert [(line.text, line.level, line.source) for line in record.lines] == [
        ("hello", "info", ""),
        ("2026-01-01 00:00:00 [quotes] WARNING: slow", "warning", ""),
    ]


def test_a_job_that_writes_much_loses_lines_and_the_next_record_says_how_many() -> None:
    """Other jobs lose none."""
    now = Time()
    lines = JobLines("parse-0", "parse", now)
    for number in range(BURST + 10):
        lines.add("loud", LogLine(1.0, str(number)))
    lines.add("quiet", LogLine(1.0, "heard"))
    records = lines.take()
    assert sum(len(record.lines) for record in records if record.job == "loud") == BURST
    assert sum(record.lost for record in records) == 10
    assert [record.lines[0].text for record in records if record.job == "quiet"] == ["heard"]
    now.now = 1.0
    for number in range(BURST):
        lines.add("loud", LogLine(1.0, str(number)))
    assert len(texts(lines)["loud"]) == LINES_S


def test_a_worker_holds_a_bounded_number_of_lines_while_the_broker_is_away() -> None:
    """Of however many jobs."""
    lines = JobLines("parse-0", "parse")
    for number in range(2 * WORKER_BURST):
        lines.add(f"job{number % 50}", LogLine(1.0, "x"))
    records = lines.take(10**9)
    assert sum(len(record.lines) for record in records) <= WORKER_BURST
    assert sum(len(record.lines) + record.lost for record in records) == 2 * WORKER_BURST


def test_records_are_small() -> None:
    """However long the lines are."""
    lines = JobLines("parse-0", "parse")
    for _ in range(BURST):
        lines.heard({"event": "page_failed", "job": "j", "exception": "trace " * MAX_LINE})
    records = lines.take()
    assert sum(len(record.lines) for record in records) == BURST <= MAX_LINES
    assert max(len(encode(record)) for record in records) < 1 << 20


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """In place of standard error, from `configure` on; the logs are set back afterwards."""
    err, listeners = io.StringIO(), list(logs._listeners)
    handlers, level = logging.root.handlers[:], logging.root.level
    yield err
    logs._listeners[:] = listeners
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    structlog.reset_defaults()


def test_a_log_of_json_has_one_object_a_line(written: io.StringIO) -> None:
    """Of crawlog and of libraries, errors with their traceback, whatever the fields hold."""
    with contextlib.redirect_stderr(written):
        logs.configure("info", "json", worker="fetch-0", stage="fetch")
    structlog.get_logger().warning("odd\nevent", job="j", url="http://a.test/", offset=7, what={1: object})
    logging.getLogger("faust").error("of %s", "faust")
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        structlog.get_logger().exception("failed")
    first, second, third = map(json.loads, written.getvalue().splitlines())
    assert [*first][:5] == ["time", "level", "event", "worker", "stage"]
    assert (first["event"], first["job"], first["offset"], first["worker"]) == ("odd\nevent", "j", 7, "fetch-0")
    assert (second["event"], second["level"], second["stage"]) == ("of faust", "error", "fetch")
    assert "broken\nin two" in third["exception"]


@pytest.mark.parametrize("level", ["warning", "error"])
def test_lines_of_jobs_are_heard_however_little_is_shown(written: io.StringIO, level: str) -> None:
    """`jobs logs` of a job said that it has no lines, although its spider had printed errors."""
    heard = list[str]()
    logs.listen(lambda event: heard.append(event["event"]))
    with contextlib.redirect_stderr(written):
        logs.configure(level)
    structlog.get_logger().debug("more", job="j")
    structlog.get_logger().info("spider_printed", job="j")
    assert heard == ["spider_printed"]
    assert not written.getvalue()


def test_a_listener_hears_events_and_cannot_break_the_log(written: io.StringIO) -> None:
    """Nor does it change what is logged."""
    heard = list[dict[str, Any]]()
    logs.listen(lambda event: heard.append(dict(event)))
    logs.listen(lambda event: event["nothing"].nobody())
    with contextlib.redirect_stderr(written):
        logs.configure("info")
    structlog.get_logger().info("said", job="j")
    assert [(event["event"], event["job"]) for event in heard] == [("said", "j")]
    assert written.getvalue().endswith("info said job=j\n")
