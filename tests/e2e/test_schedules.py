"""Schedules on real workers: each planned time has one job, whose rows are whole, although coordinators die."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from crawlog.schemas import control
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.schedules import JobSchedule
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import read_control
from crawlog.streams.crash_points import POINTS, VARIABLE
from crawlog.streams.log import Topics, read_records
from crawlog.streams.schedules import run_names
from crawlog.streams.settings.settings import Settings
from tests.support.crawls import Numbered, data, site, there
from tests.support.processes import crawlog, done, ended, until

__all__ = ["data", "site", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

STEPS = [name for name in POINTS if name.startswith("schedule.")]
RUNS = 5
PRIVATE = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0", "-s", "robots.obey=false"]


def created(cluster: Settings) -> dict[str, set[float]]:
    """By job, the times at which it was created, of all its records in crawl.control."""
    topic, found = Topics(cluster.kafka.prefix).control, defaultdict[str, set[float]](set)
    for record in read_records(cluster, topic, 0, *log_bounds(cluster, topic, [0])[0]):
        one = control.decode(record.key(), record.value())
        if isinstance(one, JobCopy):
            found[one.job].add(one.spec.at)
    return found


def test_each_planned_time_has_one_job_while_coordinators_die(
    site: Numbered, data: Path, there: list[str], cluster: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 before the planned time is noted, between note and jobs, and between the jobs and their note."""
    spent = tmp_path / "spent"
    spent.mkdir()
    monkeypatch.setenv(VARIABLE, " ".join([str(spent), *(f"{name}:1" for name in STEPS)]))
    done(crawlog("up", "--data", data, *there, *PRIVATE))
    monkeypatch.delenv(VARIABLE)
    of_run = ["submit", f"{site.origin}/1", "--depth", "0", "-o", "rows.jsonl", *PRIVATE]
    rule = ["--every", "1s", "--catch-up", "all", "--overlap", "queue"]
    done(crawlog("schedule", "add", "s", *rule, "--data", data, *there, "--", *of_run))
    topics = Topics(cluster.kafka.prefix)
    (one,) = read_control(cluster, topics).of(JobSchedule)
    planned = [run_names(one, one.since + number)[0] for number in range(1, RUNS + 1)]

    def finished() -> set[str]:
        return {end.job for end in read_control(cluster, topics).of(Finished) if end.reason == "finished"}

    until(lambda: finished() >= set(planned), "the ends of the first runs")
    assert {file.name for file in spent.iterdir()} == set(STEPS)
    found = created(cluster)
    assert [job for job in sorted(found) if job <= planned[-1]] == planned
    assert {len(times) for times in found.values()} == {1}
    done(crawlog("schedule", "remove", "s", "--data", data, *there))
    for job in planned:
        (file,) = data.rglob(f"{job}/rows.jsonl")
        assert [json.loads(line)["url"] for line in file.read_text().splitlines()] == [f"{site.origin}/1"]
    code, _, _ = ended(crawlog("schedule", "pause", "s", "--data", data, *there))
    assert code == 2
