"""How a job is shown that waits, is fed, and has its end posted."""

import pytest

from crawlog.cli.fleet_text import hook_text, job_details
from crawlog.schemas.control import Control, Finished, HookNote, JobCopy, OutputNote, key
from crawlog.schemas.job_orders import JobFlow
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import JobSpec
from crawlog.streams.fleet import FleetState, JobView

FLOW = JobFlow(after=("lists",), after_any=True, group="night", feeds=("lists:url",), on_finish=("mail",))
JOB = JobCopy("j", JobSpec(rev=3, state="finished", flow=FLOW))
END = Finished("j", 9.0, rev=3, counts=JobCounts())


def shown(*records: Control) -> JobView:
    """The job of these records, beside the one that feeds it."""
    state = FleetState()
    for record in (JobCopy("lists", JobSpec(rev=2)), JOB, *records):
        state.hear(key(record), record)
    view = state.job("j")
    assert view is not None
    return view


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([], "mail: waiting for the end"),
        ([END, HookNote("j", "mail", 1.0, rev=2, tries=1)], "mail: waiting for the end"),  # of an earlier end
        ([END, HookNote("j", "mail", 1.0, rev=3, tries=1)], "mail: taken"),
        ([END, HookNote("j", "mail", 1.0, rev=3, tries=3)], "mail: taken after 3 calls"),
        (
            [END, HookNote("j", "mail", 1.0, rev=3, tries=1, next_at=60.0, error="code 1")],
            "mail: not taken after 1 call, again at 1970-01-01 00:01:00; code 1",
        ),
        ([END, HookNote("j", "mail", 1.0, rev=3, tries=32, error="code 1")], "mail: failed after 32 calls; code 1"),
    ],
)
def test_a_call_is_shown_with_what_became_of_it(records: list[Control], text: str) -> None:
    """Its last error stays, with the time of the next call."""
    assert [hook_text(one) for one in shown(*records).hooks] == [text]


def test_a_job_is_shown_with_all_that_connects_it() -> None:
    """What it came after, its group, its feed with the rows of the other job, and its calls."""
    lines = job_details(shown(END, OutputNote("lists", "feed:j:0", 1.0, rev=2, rows=7, worker="sink-0")))
    found = {line.split()[0]: line for line in lines if line.split()[0] in ("after", "group", "fed", "on")}
    assert found["after"].endswith("lists (however they end)")
    assert found["group"].endswith("night")
    assert found["fed"].endswith("lists:url: complete, 7 rows")
    assert found["on"].endswith("mail: waiting for the end")
