"""The last lines of a job's log, for spiders of Scrapy's as Scrapy writes them."""

import re
from types import SimpleNamespace

import pytest

from crawlog.jobs import job_closing
from crawlog.jobs.job_closing import closing_lines, named
from crawlog.service.pages import log_text
from crawlog.service.scrapyd_fleet import local_time
from crawlog.streams.fleet import FleetView, JobView, OutputView
from crawlog.streams.settings.settings import Settings


def job(state: str, reason: str = "") -> JobView:
    """A job of two minutes."""
    return JobView("j", state, reason=reason, submitted_at=1_000_000_000.0, ended_at=1_000_000_120.5)


def test_a_job_that_goes_on_has_none() -> None:
    """Its stats are not all there."""
    assert [closing_lines(job(state), {"a": 1}) for state in ("pending", "running", "paused")] == [[]] * 3


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("finished", "", "finished"),
        ("stopped", "max_pages", "max_pages"),
        ("stopped", "closespider_itemcount", "closespider_itemcount"),
        ("stopped", "operator", "shutdown"),
        ("cancelled", "", "shutdown"),
        ("failed", "ImportError: no module", "failed"),
    ],
)
def test_why_it_ended_is_told_as_scrapy_does(state: str, reason: str, told: str) -> None:
    """A signal ends Scrapyd's jobs that are cancelled."""
    assert [line.text for line in closing_lines(job(state, reason), {})] == [f"Spider closed ({told})"]


@pytest.mark.parametrize(
    ("stats", "told"),
    [({}, [("job_ended", "reason=finished")]), ({"a": 1.0}, [("scrapy.core.engine", "Spider closed (finished)")])],
)
def test_only_the_log_of_a_spider_of_scrapys_ends_in_scrapys_words(
    monkeypatch: pytest.MonkeyPatch, stats: dict[str, float], told: list[tuple[str, str]]
) -> None:
    """Pages of other spiders change no stats."""
    monkeypatch.setattr(FleetView, "read", lambda _: SimpleNamespace(job=lambda _: job("finished")))
    monkeypatch.setattr(job_closing, "page_stats", lambda *_: stats)
    assert [(line.source, line.text) for line in job_closing.last_lines(Settings(), "j")][-1:] == told


def test_stats_are_dumped_as_scrapy_dumps_them() -> None:
    """With times and the reason, whatever the spider named them; tools read them from the text of the log."""
    lines = closing_lines(job("finished"), {"response_received_count": 3.0, "x\n'y": 0.5})
    text = "\n".join(log_text(line) for line in lines)
    at = re.escape(local_time(1_000_000_120.5)[:19])
    found = re.fullmatch(
        rf"{at} \[scrapy.core.engine\] INFO: Closing spider \(finished\)\n"
        rf"{at} \[scrapy.statscollectors\] INFO: Dumping Scrapy stats:\n"
        r"(\{.*\})\n"
        rf"{at} \[scrapy.core.engine\] INFO: Spider closed \(finished\)",
        text,
        re.DOTALL,
    )
    assert found, text
    assert found[1].splitlines() == [
        "{'elapsed_time_seconds': 120.5,",
        " 'finish_reason': 'finished',",
        " 'finish_time': datetime.datetime(2001, 9, 9, 1, 48, 40, 500000, tzinfo=datetime.timezone.utc),",
        " 'response_received_count': 3,",
        " 'start_time': datetime.datetime(2001, 9, 9, 1, 46, 40, tzinfo=datetime.timezone.utc),",
        """ "x\\n'y": 0.5}""",
    ]


def test_times_of_no_calendar_are_shown_within_one() -> None:
    """Anybody who can write to the log may have written them; the log was an error then."""
    forged = JobView("j", "finished", submitted_at=-1e18, ended_at=1e18)
    text = "".join(line.text for line in closing_lines(forged, {"a": 1}))
    assert ("datetime.datetime(1970, 1, 1, " in text, "datetime.datetime(9999, " in text) == (True, True)


def test_what_pipelines_counted_joins_once_whatever_the_outputs() -> None:
    """All outputs of a job share them."""
    outputs = (OutputView("a", "writing"), OutputView("b", "complete", stats={"kept": 2, "<max>depth": 5}))
    view = JobView("j", "finished", outputs=outputs)
    assert named(view, {"kept": 1, "<max>depth": 3}) == {"depth": 5, "kept": 3}
