"""How fast jobs go, and that a kept view of a job is the one that would be made."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Command, Control, Finished, JobCopy, OutputNote, key
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.progress import JobCounts, JobRemarks, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.fleet import FleetState, JobPace

OUTPUTS = (OutputSpec("rows.csv"),)
RECORDS: tuple[Control, ...] = (
    JobCopy("a", JobSpec(outputs=OUTPUTS)),
    JobCopy("a", JobSpec(rev=5, outputs=OUTPUTS), epoch=1),
    JobCopy("b", JobSpec(state="paused")),
    JobCopy("b", JobSpec(state="deleted"), epoch=1),
    Command("stop", job="a"),
    Command("resume", job="a"),
    Finished("a", at=9.0, counts=JobCounts(fetched=7)),
    OutputNote("a", "rows.csv", 1.0, rev=1, rows=4),
)


def report(stage: str = "fetch", partition: int = 0, pid: int = 1, **fields: Any) -> Progress:
    """A report of a worker."""
    return Progress(f"{stage}-0", stage, partition, 0.0, pid=pid, **fields)


def pages(count: int, epoch: int = 0, **fields: Any) -> Progress:
    """A report of a partition with so many pages of job `a`."""
    return report(jobs={"a": JobCounts(fetched=count, epoch=epoch)}, **fields)


def rows(count: int, epoch: int = 0, **fields: Any) -> Progress:
    """A report of a parse worker with so many rows of job `a`."""
    return report("parse", remarks={"a": JobRemarks(epoch, rows=count)}, **fields)


@pytest.mark.parametrize(
    ("reports", "now", "pace"),
    [
        ([(0, pages(500))], 10, JobPace()),
        ([(0, pages(500)), (10, pages(520))], 30, JobPace(48.0)),
        (
            [(0, pages(500)), (10, pages(520)), (10, pages(100, partition=1)), (20, pages(110, partition=1))],
            30,
            JobPace(72),
        ),
        ([(0, pages(500)), (10, pages(520)), (200, pages(530))], 200, JobPace(120.0)),
        ([(0, pages(500)), (10, pages(520)), (60, pages(520, pid=2)), (60, pages(550, pid=2))], 60, JobPace(54.5)),
        ([(0, pages(500)), (30, pages(6, epoch=1))], 30, JobPace(72.0)),
        ([(0, report()), (30, pages(6))], 30, JobPace(72.0)),
        ([(0, report(is_partial=True)), (30, pages(6))], 30, JobPace()),
        ([(0, pages(500)), (30, pages(400))], 30, JobPace()),
        ([(0, rows(500)), (10, rows(500)), (30, rows(515))], 30, JobPace(0.0, 180.0)),
        ([(0, rows(500)), (10, rows(2, pid=2)), (30, rows(5, pid=2))], 30, JobPace(0.0, 36.0)),
        ([(50, pages(0)), (20, pages(10)), (55, pages(20))], 60, JobPace(60.0)),
    ],
)
def test_a_pace_is_what_reports_added_in_the_last_minute(
    reports: list[tuple[float, Progress]], now: float, pace: JobPace
) -> None:
    """A first report, and an older process's, count from before; another owner of a partition goes on in its fold. What
    a job that rested adds at first took a report's time.
    """
    state = FleetState()
    for at, one in reports:
        state.report(one, at + 1_000.0)
    found = state.paces.of("a", now + 1_000.0)
    assert (found.pages, found.rows) == (pace.pages, pace.rows)


REPORTS = st.builds(
    report,
    st.just("fetch"),
    st.integers(0, 1),
    st.integers(1, 2),
    jobs=st.dictionaries(
        st.sampled_from("ab"),
        st.builds(JobCounts, fetched=st.integers(0, 3), queued=st.integers(0, 1), epoch=st.integers(0, 1)),
    ),
    is_partial=st.booleans(),
    gone=st.lists(st.sampled_from("ab"), max_size=1),
)
OTHERS = st.one_of(
    st.builds(rows, st.integers(0, 3), st.integers(0, 1), parsed=st.just({"a": 1})),
    st.builds(
        report,
        st.just("sink"),
        sink=st.just("fleet"),
        rows=st.dictionaries(st.just("a"), st.tuples(st.integers(0, 1), st.integers(0, 3))),
        waiting=st.sampled_from([{}, {"a": {"rows.csv": 3}}]),
    ),
)


@given(st.lists(st.one_of(REPORTS, OTHERS, st.sampled_from(RECORDS)), max_size=30))
def test_a_kept_view_of_a_job_is_the_one_that_would_be_made(taken: list[Progress | Control]) -> None:
    """Whatever comes between two looks."""
    kept, looked_once = FleetState(), FleetState()
    for number, one in enumerate(taken):
        for state in (kept, looked_once):
            if isinstance(one, Progress):
                state.report(copy.deepcopy(one), number * 10.0)  # a state changes the reports that it has
            else:
                state.hear(key(one), one, number * 10.0)
        kept.jobs()
    assert kept.jobs() == looked_once.jobs()


@pytest.mark.parametrize(
    ("records", "reported", "shown"),
    [
        ([], {}, None),
        ([], {"a": (0, 3)}, 3),
        ([], {"a": (1, 3)}, None),
        ([RECORDS[1]], {"a": (0, 3)}, None),
        ([OutputNote("a", "rows.csv", 1.0, rev=1, rows=4)], {"a": (0, 3)}, 4),
        ([OutputNote("a", "rows.csv", 1.0, rev=1, rows=0)], {}, 0),
        ([OutputNote("a", "rows.csv", 1.0, rev=1, error="no space")], {"a": (0, 3)}, 3),
    ],
)
def test_the_rows_of_a_job_are_those_of_its_outputs(
    records: list[Control], reported: dict[str, tuple[int, int]], shown: int | None
) -> None:
    """As noted, or as their workers report them; those of another epoch do not count."""
    state = FleetState()
    for one in (RECORDS[0], *records):
        state.hear(key(one), one)
    state.report(report("sink", sink="of a run", rows=reported), 1.0)
    view = state.job("a")
    assert view is not None
    assert view.rows == shown
