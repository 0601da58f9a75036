"""What Prometheus reads of a fleet, and that rules and dashboard ask for metrics that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from crawlog.schemas import control
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.progress import TOOK_S, ExitFigures, JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.service.metrics import MOST_ENDED, MOST_OPEN, Scrapes
from crawlog.streams.fleet import FleetState, FleetStatus, StageView
from crawlog.streams.fleet.fleet_state import exits_of
from crawlog.streams.settings.settings import Settings

DOCKER = Path(__file__).parent.parent.parent.parent / "docker"
PROMTOOL = shutil.which("promtool")
NEEDS_PROMTOOL = "promtool is not installed (Debian: the package prometheus)"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Fleet:
    """A view of a fleet that a test tells of."""

    def __init__(self) -> None:
        self.state = FleetState()
        self.lag = 7

    def job(self, name: str, state: JobStateName = "running", ended_at: float = 0.0) -> None:
        """A job's record, and its end."""
        told: list[control.Control] = [JobCopy(name, JobSpec(state=state, changed_at=ended_at))]
        if ended_at:
            told.append(Finished(name, at=ended_at, counts=JobCounts(fetched=3)))
        for record in told:
            self.state.hear(control.key(record), record)

    def report(self, at: float = 100.0, pid: int = 1, started: float = 90.0, **jobs: JobCounts) -> None:
        """A report of the fetch worker."""
        took = [2, *[0] * (len(TOOK_S) - 1), 1]
        exits = {"berlin": ExitFigures(7, bans=2, bytes=900, median_s=0.25, rests_at=1)}
        told = Progress("fetch-0", "fetch", 0, at, pid=pid, jobs=jobs, took=took, took_s=40.5, started=started)
        told.exits = exits
        self.state.report(told, at)

    def look(self, question: Callable[[FleetState], Any]) -> Any:
        """As a view."""
        return question(self.state)

    def status(self) -> FleetStatus:
        """As a view."""
        stages = tuple(StageView(name, 1, self.lag) for name in ("fetch", "parse", "sink"))
        exits = tuple(exits_of(self.state, 100.0))
        return FleetStatus(tuple(self.state.jobs()), tuple(self.state.workers(100.0)), stages, (), exits, dead=2)


def scraped(fleet: Fleet, scrapes: Scrapes | None = None) -> str:
    """The text that Prometheus gets."""
    body, content_type = (scrapes or scrapes_of(fleet)).answer("")
    assert content_type.startswith("text/plain")
    return body.decode()


def scrapes_of(fleet: Fleet) -> Scrapes:
    """Answers of a new service."""
    return Scrapes(cast("Any", fleet), Settings())


def samples(text: str) -> Samples:
    """By name and labels."""
    found = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return {(one.name, frozenset(one.labels.items())): one.value for one in found}


def value(told: Samples, name: str, **labels: str) -> float:
    """One sample."""
    return told[name, frozenset(labels.items())]


@pytest.fixture
def fleet() -> Fleet:
    """A worker, a job that goes on, one that has ended."""
    fleet = Fleet()
    fleet.job("going")
    fleet.job("gone", "finished", 50.0)
    counts = JobCounts(fetched=5, failed=1, queued=9, paused=2, in_flight=3, held=4, retried=6, statuses={"403": 4})
    counts.bytes = 700
    fleet.report(going=counts, gone=JobCounts(fetched=3))
    return fleet


def test_a_fleet_is_told_in_prometheus_words(fleet: Fleet) -> None:
    """Counts of jobs, durations, lag, frontier, dead letters and workers."""
    told = samples(scraped(fleet))
    assert value(told, "crawlog_pages_total", job="going", outcome="fetched") == 5
    assert value(told, "crawlog_pages_total", job="gone", outcome="fetched") == 3
    assert value(told, "crawlog_responses_total", job="going", status="403") == 4
    assert value(told, "crawlog_body_bytes_total", job="going") == 700
    assert value(told, "crawlog_rows_total", job="going") == 0
    assert value(told, "crawlog_fetch_seconds_bucket", worker="fetch-0", le="0.005") == 2
    assert value(told, "crawlog_fetch_seconds_bucket", worker="fetch-0", le="30.0") == 2
    assert value(told, "crawlog_fetch_seconds_bucket", worker="fetch-0", le="+Inf") == 3
    assert value(told, "crawlog_fetch_seconds_sum", worker="fetch-0") == 40.5
    assert value(told, "crawlog_exit_requests_total", worker="fetch-0", exit="berlin") == 7
    assert value(told, "crawlog_exit_bans_total", worker="fetch-0", exit="berlin") == 2
    assert value(told, "crawlog_exit_median_seconds", worker="fetch-0", exit="berlin") == 0.25
    assert value(told, "crawlog_exit_resting_hosts", worker="fetch-0", exit="berlin") == 1
    assert value(told, "crawlog_exit_resting", worker="fetch-0", exit="berlin") == 0
    assert value(told, "crawlog_lag_records", group="crawlog-parse", stage="parse") == 7
    assert value(told, "crawlog_frontier_urls", state="held") == 4
    assert value(told, "crawlog_frontier_urls", state="in_flight") == 3
    assert value(told, "crawlog_jobs", state="finished") == 1
    assert value(told, "crawlog_dead_letters_total") == 2
    assert (value(told, "crawlog_workers", stage="fetch"), value(told, "crawlog_workers", stage="sink")) == (1, 0)


def test_a_new_process_of_a_worker_is_a_restart(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same process at a later scrape is none."""
    monkeypatch.setattr("crawlog.service.metrics.KEPT_S", -1.0)
    scrapes = scrapes_of(fleet)
    for _ in range(2):
        told = samples(scraped(fleet, scrapes))
        assert value(told, "crawlog_worker_restarts_total", stage="fetch", worker="fetch-0") == 0
    fleet.report(at=101.0, pid=2, started=95.0)
    told = samples(scraped(fleet, scrapes))
    assert value(told, "crawlog_worker_restarts_total", stage="fetch", worker="fetch-0") == 1


def test_counts_that_are_too_low_are_left_out(fleet: Fleet) -> None:
    """A counter that falls would be added once more when it rises again."""
    fleet.state.report(Progress("fetch-1", "fetch", 1, 100.0, pid=2, jobs={"k": JobCounts()}, is_partial=True), 100.0)
    jobs = {dict(labels).get("job") for _, labels in samples(scraped(fleet))}
    assert jobs == {None, "gone"}


def test_the_number_of_labels_is_bounded() -> None:
    """However many jobs there are; the last ended ones are told."""
    fleet = Fleet()
    for number in range(MOST_OPEN + 20):
        fleet.job(f"going{number}")
    for number in range(MOST_ENDED + 20):
        fleet.job(f"gone{number}", "finished", 50.0 + number)
    jobs = {dict(labels)["job"] for name, labels in samples(scraped(fleet)) if name == "crawlog_pages_total"}
    gone = {job for job in jobs if job.startswith("gone")}
    assert len(jobs - gone) == MOST_OPEN
    assert gone == {f"gone{number}" for number in range(20, MOST_ENDED + 20)}


def test_a_job_may_have_any_name() -> None:
    """Quotes, markup and line breaks are escaped."""
    fleet = Fleet()
    fleet.job('<b>"x"\\\n')
    assert value(samples(scraped(fleet)), "crawlog_retries_total", job='<b>"x"\\\n') == 0


def test_rules_and_dashboard_ask_for_metrics_that_there_are(fleet: Fleet) -> None:
    """And the dashboard is one that Grafana can import."""
    names = {name for name, _ in samples(scraped(fleet))}
    dashboard = json.loads((DOCKER / "grafana-dashboard.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked += (DOCKER / "alerts.yaml").read_text()
    assert set(re.findall(r"\bcrawlog_\w+", asked)) <= names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_prometheus_keeps_the_label_job_of_the_metrics(fleet: Fleet) -> None:
    """By default it gives that name to the scrape configuration, and alerts and dashboard would tell of no job."""
    (scrape,) = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
    assert any("job" in dict(labels) for _, labels in samples(scraped(fleet)))
    assert scrape["honor_labels"] is True


@pytest.mark.skipif(PROMTOOL is None, reason=NEEDS_PROMTOOL)
def test_promtool_takes_metrics_and_rules(fleet: Fleet) -> None:
    """Names, types and help texts follow Prometheus' conventions."""
    assert PROMTOOL is not None
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=scraped(fleet), text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    checked = subprocess.run(
        [PROMTOOL, "check", "rules", str(DOCKER / "alerts.yaml")], text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
