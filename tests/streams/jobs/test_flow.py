"""Which job waits for which: what becomes of it when they end, and circles."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas.control import Control, Finished, JobCopy, OutputNote, key
from crawlog.schemas.job_orders import JobFlow, JobStateName
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.fleet import FleetState
from crawlog.streams.jobs import OPERATOR, ControlState, DueOrder, Dues, FleetReports, Flow, FollowedJobs
from crawlog.streams.jobs.flow import FollowedFlow

LAST = JobFlow(("a", "group:night"))


def copy(name: str, state: JobStateName = "running", reason: str = "", flow: JobFlow | None = None) -> JobCopy:
    """A job's record."""
    return JobCopy(name, JobSpec(rev=3, state=state, reason=reason, flow=flow))


def waiting(name: str, *after: str, **flow: Any) -> JobCopy:
    """A job that waits."""
    return copy(name, "waiting", flow=JobFlow(after, **flow))


def end(name: str, rev: int = 3) -> Finished:
    """The end of a job's present revision, or of another one."""
    return Finished(name, 1.0, rev=rev, counts=JobCounts())


def due(*records: Control) -> tuple[str, str] | None:
    """State and reason of the order that is due for the job `last`, when all records are read."""
    known = FollowedJobs()
    for record in records:
        known.take(record)
    dues = Dues(known)
    open_jobs = [one for one in known.open.values() if one.job == "last"]
    orders = [one for _ in range(2) for one in dues.of_open(open_jobs, FleetReports(), lambda _: (0,))]
    if not orders:
        return None
    (order,) = orders  # once, however often it looks
    assert isinstance(order, DueOrder)
    return order.state, order.reason


@pytest.mark.parametrize(
    ("state", "reason", "has_end", "plain", "any_end"),
    [
        ("running", "", False, None, None),
        ("paused", "", False, None, None),
        ("finished", "", False, None, None),  # its outputs are not complete
        ("finished", "", True, ("running", ""), ("running", "")),
        ("stopped", "max_pages", True, ("running", ""), ("running", "")),
        ("stopped", "closespider_timeout", True, ("running", ""), ("running", "")),
        ("stopped", OPERATOR, True, None, ("running", "")),  # `resume` may let it go on
        ("cancelled", "", True, ("failed", "after a: cancelled"), ("running", "")),
        ("failed", "", True, ("failed", "after a: failed"), ("running", "")),
        ("deleted", "", False, ("failed", "after a: deleted"), ("running", "")),
    ],
)
def test_each_end_of_a_job_has_a_meaning_for_the_next(
    state: JobStateName, reason: str, plain: tuple[str, str], any_end: tuple[str, str], *, has_end: bool
) -> None:
    """It runs after a good end; `--after-any` takes any."""
    ends = [end("a")] if has_end else []
    assert due(copy("a", state, reason), *ends, waiting("last", "a")) == plain
    assert due(copy("a", state, reason), *ends, waiting("last", "a", after_any=True)) == any_end


def test_the_last_job_waits_for_all_of_a_group() -> None:
    """Also for one that joins it later; an end of an earlier revision is none."""
    first, second = (copy(name, "finished", flow=JobFlow(group="night")) for name in ("n1", "n2"))
    last = waiting("last", "group:night")
    assert due(last) is None  # the group has no job yet
    assert due(first, last, end("n1")) == ("running", "")
    assert due(first, second, last, end("n1")) is None
    assert due(first, second, last, end("n1"), end("n2", rev=2)) is None
    assert due(first, second, last, end("n1"), end("n2")) == ("running", "")
    assert due(copy("n1", "deleted", flow=JobFlow(group="night")), second, last, end("n2")) == ("running", "")


def test_a_job_that_waits_is_released_by_a_record_that_comes_later() -> None:
    """A look without a new record compares nothing again."""
    known = FollowedJobs()
    flow = FollowedFlow(known)
    for record in (copy("a"), waiting("last", "a")):
        known.take(record)
    assert [flow.release("last"), flow.release("last")] == [None, None]
    known.take(copy("a", "finished"))
    assert flow.release("last") is None
    known.take(end("a"))
    assert flow.release("last") == ""
    assert flow.release("gone") is None


def test_a_waiting_job_is_shown_with_what_it_waits_for() -> None:
    """At most three names."""
    state = FleetState()
    for record in (
        *(copy(f"a{number}") for number in range(5)),
        waiting("last", *(f"a{number}" for number in range(5))),
    ):
        state.hear(key(record), record)
    view = state.job("last")
    assert view is not None
    assert (view.state, view.reason) == ("waiting", "after a0, a1, a2 and 2 more")


FED = JobFlow(feeds=("a:url", "a:next"))


@pytest.mark.parametrize(
    ("records", "is_feeding"),
    [
        ([copy("a")], True),
        ([copy("a", "finished"), end("a")], True),  # its last rows are on their way
        ([copy("a", "finished"), OutputNote("a", "feed:last:0", 1.0, rev=3)], True),  # no end of this revision yet
        ([copy("a", "finished"), end("a"), OutputNote("a", "feed:last:0", 1.0, rev=3)], False),
        ([copy("a", "finished"), end("a"), OutputNote("a", "feed:last:0", 1.0, rev=2)], True),
        ([copy("a", "finished"), end("a"), OutputNote("a", "feed:last:1", 1.0, rev=3)], True),  # of another epoch
        ([copy("a", "finished"), end("a"), OutputNote("a", "feed:last:0", 1.0, rev=3, error="away")], True),
        ([copy("a", "stopped", OPERATOR), end("a"), OutputNote("a", "feed:last:0", 1.0, rev=3)], True),
        ([copy("a", "cancelled")], False),
        ([copy("a", "deleted")], False),
    ],
)
def test_a_job_is_fed_until_the_rows_of_the_other_are_all_seeds(records: list[Control], *, is_feeding: bool) -> None:
    """Until then it does not finish, though nothing is queued; then it does, also if no row gave a seed."""
    known = FollowedJobs()
    for record in (copy("last", flow=FED), *records):
        known.take(record)
    reports, dues = FleetReports(), Dues(known)
    for report in (
        Progress("fetch-0", "fetch", 0, 1.0, offset=4, jobs={"last": JobCounts(folded=1)}),
        Progress("parse-0", "parse", 0, 1.0, offset=1),
    ):
        reports.take(report)
    ends = {"fetch": (4,), "parse": (1,), "sink": (3,)}
    open_jobs = [one for one in known.open.values() if one.job == "last"]
    found = [one for _ in range(3) for one in dues.of_open(open_jobs, reports, ends.__getitem__)]
    assert [one.state for one in found if isinstance(one, DueOrder)] == ([] if is_feeding else ["finished"])


@pytest.mark.parametrize(
    ("job", "flow", "circle"),
    [
        ("x", JobFlow(("a",)), ()),
        ("a", JobFlow(("a",)), ("a", "a")),
        ("a", JobFlow(("c",)), ("a", "c", "b", "a")),  # begun again with --fresh
        ("x", JobFlow(("group:g",), group="g"), ("x", "x")),
        ("x", JobFlow(("last",), group="g"), ("x", "last", "x")),  # `last` waits for the group
        ("x", JobFlow(("gone", "group:none")), ()),
        ("a", JobFlow(feeds=("c:url",)), ("a", "c", "b", "a")),  # its own URLs would be its seeds
    ],
)
def test_a_job_never_waits_for_itself(job: str, flow: JobFlow, circle: tuple[str, ...]) -> None:
    """Whatever lies between."""
    control = ControlState()
    for record in (copy("a"), waiting("b", "a"), waiting("c", "b"), waiting("last", "group:g")):
        control.take(key(record), record)
    assert Flow(control).cycle(job, flow) == circle


@given(st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=8))
def test_jobs_that_were_not_refused_have_no_circle(wanted: list[list[int]]) -> None:
    """All of them come to their end, in some order."""
    control, taken = ControlState(), dict[str, set[str]]()
    for number, after in enumerate(wanted):
        flow, name = JobFlow(tuple(f"j{one}" for one in after)), f"j{number}"
        if not Flow(control).cycle(name, flow):
            record = copy(name, "waiting", flow=flow)
            control.take(key(record), record)
            taken[name] = set(flow.after)
    while taken:
        ready = [name for name, after in taken.items() if not after & taken.keys()]
        assert ready
        for name in ready:
            del taken[name]
