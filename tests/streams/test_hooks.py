"""Which calls at the ends of jobs are due, and what they hold."""

import json
from typing import Any

import msgspec
import pytest

from crawlog.schemas.control import Control, Finished, HookNote, JobCopy, OutputNote, key
from crawlog.schemas.job_orders import JobFlow, OutputSpec
from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import JobSpec
from crawlog.streams.hooks import MOST_CALLS, HookCall, hook_calls, signature
from crawlog.streams.jobs import ControlState

URL = "https://a.example/done"
JOB = JobCopy(
    "j",
    JobSpec(
        rev=3,
        state="finished",
        by="ann",
        at=5.0,
        outputs=(OutputSpec("rows.csv"), OutputSpec("more.csv", required=False)),
        flow=JobFlow(on_finish=(URL, "mail")),
    ),
)
END = Finished("j", 9.0, rev=3, dead=2, counts=JobCounts(fetched=7))
MADE = OutputNote("j", "rows.csv", 10.0, rev=3, rows=7, place="/srv/rows.csv")


def control(*records: Control) -> ControlState:
    """The state of crawl.control after these records."""
    state = ControlState()
    for record in records:
        state.take(key(record), record)
    return state


@pytest.mark.parametrize(
    ("records", "due"),
    [
        ([JOB], []),
        ([JOB, END], []),  # its output is not made yet
        ([JOB, END, msgspec.structs.replace(MADE, rev=2)], []),
        ([JOB, END, MADE], [URL, "mail"]),
        ([JOB, END, msgspec.structs.replace(MADE, error="disk full")], [URL, "mail"]),
        ([JOB, END, MADE, HookNote("j", URL, 11.0, rev=3, tries=1)], ["mail"]),
        ([JOB, END, MADE, HookNote("j", URL, 11.0, rev=3, tries=1, next_at=13.0, error="500")], [URL, "mail"]),
        ([JOB, END, MADE, HookNote("j", URL, 11.0, rev=3, tries=32, error="500")], ["mail"]),  # given up
        ([JOB, END, MADE, HookNote("j", URL, 8.0, rev=2, tries=1)], [URL, "mail"]),  # of an earlier end
        ([JobCopy("j", msgspec.structs.replace(JOB.spec, state="cancelled")), END], [URL, "mail"]),
        ([JobCopy("j", msgspec.structs.replace(JOB.spec, rev=4, state="running")), END, MADE], []),
        ([JobCopy("j", msgspec.structs.replace(JOB.spec, flow=None)), END, MADE], []),
        ([], []),
    ],
)
def test_a_call_is_due_once_the_outputs_of_an_end_are_there_and_until_it_is_taken(
    records: list[Control], due: list[str]
) -> None:
    """One for each end, by epoch and revision."""
    assert [one.target for one in hook_calls(control(*records), "j")] == due


def test_a_call_holds_the_end_and_no_path() -> None:
    """Of optional outputs, what is known by then."""
    call, _ = hook_calls(control(JOB, END, MADE), "j")
    told = json.loads(call.body)
    assert told.pop("counts") == {"fetched": 7, "redirected": 0, "failed": 0, "refused": 0}
    assert told == {
        "job": "j",
        "epoch": 0,
        "revision": 3,
        "state": "finished",
        "reason": "",
        "submitted_at": 5.0,
        "ended_at": 9.0,
        "by": "ann",
        "dead": 2,
        "outputs": [{"name": "rows.csv", "state": "complete", "rows": 7, "error": ""}],
    }
    assert call.id == "j/0/3"


def test_a_run_names_its_targets_itself() -> None:
    """Its record has none, so that no worker calls one before the files of the command are made."""
    plain = JobCopy("j", msgspec.structs.replace(JOB.spec, flow=None, outputs=()))
    assert [one.target for one in hook_calls(control(plain, END), "j", ["mail"])] == ["mail"]


def test_a_call_that_fails_is_made_again_for_more_than_a_day() -> None:
    """The pauses double up to an hour; then it is given up, with the error on record."""
    state, now, pauses = control(JOB, END, MADE), 0.0, list[float]()
    while (call := next((one for one in hook_calls(state, "j") if one.target == URL), None)) is not None:
        now = max(now, call.at)
        note = call.note("it answered 500\n", now)
        pauses.append(note.next_at - now)
        state.take(key(note), note)
    assert (len(pauses), pauses[:4], pauses[-1]) == (MOST_CALLS, [2.0, 4.0, 8.0, 16.0], -now)
    assert 20 * 3600 < now < 48 * 3600
    assert (note.error, note.next_at) == ("it answered 500", 0.0)


def test_a_call_that_was_taken_is_over() -> None:
    """Whatever failed before."""
    (call,) = hook_calls(control(JOB, END, MADE), "j", [URL])
    note: Any = HookCall(JOB, URL, 4, 0.0, call.body).note("", 50.0)
    assert (note.tries, note.next_at, note.error, note.at) == (5, 0.0, "", 50.0)


def test_the_signature_is_that_of_rfc_4231() -> None:
    """Test case 2."""
    digest = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert signature("Jefe", b"what do ya want for nothing?") == f"sha256={digest}"
