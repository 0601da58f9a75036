"""Changes of jobs over HTTP: the next request sees them."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.commands.control import Given
from crawlog.commands.recrawl import Recrawl, RecrawlChoice
from crawlog.jobs.update import JobUpdate
from crawlog.schemas.control import Command, Control, JobCopy, key
from crawlog.schemas.urls import JobSpec
from crawlog.service import api_control, api_jobs
from crawlog.service.api_jobs import _changed
from crawlog.service.endpoint import ApiCall
from crawlog.streams.fleet import FleetState
from crawlog.streams.settings import Settings

RUNNING = JobCopy("j", JobSpec(rev=3))
HOLD = Command("pause", job="j", at=5.0)


class Late:
    """A live view that reads the next record of the log only when it is waited for.

    Args:
        known: Records that it has read.
        log: Those behind them.
    """

    def __init__(self, *known: Control, log: list[Control]) -> None:
        self.state = FleetState()
        self.log = log
        for record in known:
            self.state.hear(key(record), record)
        self.job = self.state.job

    def wait_until(self, holds: Callable[[FleetState], bool], _: float) -> bool:
        """Reads until it holds."""
        while not holds(self.state) and self.log:
            record = self.log.pop(0)
            self.state.hear(key(record), record)
        return holds(self.state)

    def call(self, body: object = None) -> ApiCall:
        """A request for the job."""
        fleet: Any = self
        return ApiCall(Settings(), fleet, {"job": "j"}, None, body, "")


def state_after(*records: Control) -> Any:
    """The job as a command sees it in the log."""
    return Late(*records, log=[]).job("j")


@pytest.mark.parametrize(
    ("known", "written"),
    [
        ([RUNNING], JobCopy("j", JobSpec(rev=4, state="paused"))),
        ([RUNNING], JobCopy("j", JobSpec(rev=4, state="cancelled"))),
        ([RUNNING, HOLD], Command("resume", job="j", at=6.0)),
    ],
)
def test_a_change_is_answered_when_the_next_request_sees_it(known: list[Control], written: Control) -> None:
    """A program that paused a job and looked at it half a second later saw it running."""
    changed, late = state_after(*known, written), Late(*known, log=[written, JobCopy("k", JobSpec())])
    answer = _changed(lambda *_: changed)(late.call())
    assert late.job("j") == answer == changed
    assert len(late.log) == 1


@pytest.mark.parametrize("later", [JobCopy("j", JobSpec(rev=9)), JobCopy("j", JobSpec(rev=9, state="deleted"))])
def test_a_change_that_another_one_followed_is_not_waited_for(later: JobCopy) -> None:
    """Nothing is read behind the other one."""
    changed = state_after(JobCopy("j", JobSpec(rev=4, state="paused")))
    late = Late(RUNNING, log=[later, JobCopy("k", JobSpec())])
    assert _changed(lambda *_: changed)(late.call()) == changed
    assert len(late.log) == 1


def test_a_command_is_answered_when_the_next_request_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a change of the job is."""
    monkeypatch.setattr(
        api_control, "control", SimpleNamespace(wanted=lambda *_: HOLD, give=lambda *_: Given(HOLD, True, True))
    )
    late = Late(RUNNING, log=[HOLD])
    api_control._order(late.call(api_control.CommandBody("pause", job="j")))
    assert state_after(RUNNING, HOLD) == late.job("j")


def test_an_update_gives_a_job_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is answered when the next request sees it, as other changes are."""
    written = JobCopy("j", JobSpec(rev=4, priority=8))
    late, given = Late(RUNNING, log=[written]), list[object]()

    def update(_: Settings, *words: object) -> Any:
        given.extend(words)
        return state_after(written)

    monkeypatch.setattr(api_jobs, "update_job", update)
    assert api_jobs._update(late.call(JobUpdate(priority=8))).priority == 8
    assert given == ["j", JobUpdate(priority=8), ""]
    assert late.job("j") == state_after(written)


def test_a_retry_over_http_chooses_as_the_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `execute` it only counts; an age counts from the request on."""
    asked: list[tuple[str, RecrawlChoice, bool]] = []

    def recrawled(_: Settings, job: str, choice: RecrawlChoice, *, execute: bool, report: object) -> Recrawl:
        asked.append((job, choice, execute))
        return Recrawl(job, not execute)

    monkeypatch.setattr(api_jobs, "recrawl", recrawled)
    before, late = time.time(), Late(RUNNING, log=[])
    assert api_jobs.retried(late.call(api_jobs.RetryBody(failed=True, statuses=("403",)))).is_plan
    assert not api_jobs.retried(late.call(api_jobs.RetryBody(older_than_s=60, execute=True))).is_plan
    (_, failed, _), (job, old, is_done) = asked
    assert failed == RecrawlChoice(failed=True, statuses=("403",))
    assert old.before is not None
    assert (job, is_done, before - 60 <= old.before <= time.time() - 60) == ("j", True, True)
