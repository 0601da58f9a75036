"""When a job may end, as far as anybody can know."""

from typing import Any

import pytest

from crawlog.schemas.control import JobCopy, key
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec, RequestRules
from crawlog.streams.fleet import EndEstimate, FleetState, JobPace
from crawlog.streams.fleet.estimate import estimate

MANY = JobCounts(queued=300)
QUICK = JobPace(120.0, over_s=60.0)


@pytest.mark.parametrize(
    ("counts", "pace", "queues", "delay_s", "wanted"),
    [
        (MANY, QUICK, (), 1.0, EndEstimate(150.0)),
        (MANY, QUICK, (100, 50), 1.0, EndEstimate(150.0)),
        (MANY, QUICK, (200, 180, 50), 1.0, EndEstimate(200.0, 2)),
        (MANY, QUICK, (200,), 0.0, EndEstimate(150.0)),
        (MANY, JobPace(), (200,), 1.0, None),
        (MANY, JobPace(120.0, over_s=5.0), (), 1.0, None),
        (JobCounts(), QUICK, (), 1.0, None),
        (JobCounts(queued=300, paused=1), QUICK, (), 1.0, None),
        (JobCounts(queued=300, needs={"network.allow_private": 1}), QUICK, (), 1.0, None),
    ],
)
def test_the_pace_or_the_longest_queues_decide(
    counts: JobCounts, pace: JobPace, queues: tuple[int, ...], delay_s: float, wanted: EndEstimate | None
) -> None:
    """No number is better than a wrong one."""
    assert estimate(counts, pace, queues, delay_s) == wanted


@pytest.mark.parametrize("rules", [None, RequestRules(), RequestRules(per_host=0)])
def test_a_record_that_names_no_delay_is_shown(rules: RequestRules | None) -> None:
    """The workers' settings hold then, which the log does not have."""
    state = FleetState()
    copy = JobCopy("j", JobSpec(requests=rules))
    state.hear(key(copy), copy)
    for at, done in ((0.0, 0), (10.0, 50), (30.0, 100)):
        counts = JobCounts(fetched=done, queued=300)
        state.report(
            Progress("f", "fetch", 0, at, pid=1, jobs={"j": counts}, hosts=[("a.example", 9, 1.0)]), 100.0 + at
        )
    view = state.job("j")
    assert view is not None
    assert view.left is not None
    assert view.left.hosts == 0


@pytest.mark.parametrize(
    ("others", "hosts"), [({}, 1), ({"other": JobCounts(queued=1)}, 0), ({"other": JobCounts()}, 1)]
)
def test_queues_count_where_no_other_job_has_urls(others: dict[str, Any], hosts: int) -> None:
    """A report has the queues of all jobs together."""
    state = FleetState()
    copy = JobCopy("j", JobSpec(requests=RequestRules(delay_s=4.0, per_host=2)))
    state.hear(key(copy), copy)
    for at, done in ((0.0, 0), (10.0, 50), (30.0, 100)):
        counts = JobCounts(fetched=done, queued=300)
        queues = [("slow.example", 250, 1.0)]
        state.report(Progress("f", "fetch", 0, at, pid=1, jobs={"j": counts, **others}, hosts=queues), 100.0 + at)
    view = state.job("j")
    assert view is not None
    assert view.left is not None
    assert (view.left.hosts, view.left.left_s >= 500.0) == (hosts, hosts == 1)
