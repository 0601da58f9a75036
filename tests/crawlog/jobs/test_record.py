"""How a run continues the job that its log has: as it is, changed, or again."""

from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.jobs.record import RecordPlan, Wanted
from crawlog.jobs.request import JobRequest, LocalParts, job_name
from crawlog.jobs.run_checks import check_outputs
from crawlog.jobs.submit import wanted_of
from crawlog.jobs.writer import JobWriter
from crawlog.schemas.control import NO_EPOCH, Finished, JobCopy
from crawlog.schemas.job_orders import CodeRef, OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.jobs import ControlState
from crawlog.streams.settings import Settings

REQUEST = JobRequest(urls=("http://shop.example/",))
NAME = job_name(REQUEST.urls)
ENDED = Finished(NAME, 1.0, rev=44)
OF_SUBMIT: dict[str, Any] = {
    "rev": 44,
    "by": "ann",
    "at": 1.0,
    "changed_at": 2.0,
    "outputs": (OutputSpec("rows.csv"),),
    "items": (0,) * 8,
    "priority": 7,
    "code": CodeRef("shop", "1", "00" * 32),
}


def asked(request: JobRequest = REQUEST) -> Wanted:
    """The job as a run asks for it."""
    with ExitStack() as opened:
        return wanted_of(Settings(), request, LocalParts(request.urls), print, opened, may_change=True)


def submitted(**others: Any) -> JobCopy:
    """The record of `submit` for the job of `REQUEST`."""
    spec = asked().spec(Settings(), None, print)
    assert spec.scope.names == ("shop.example",)
    return JobCopy(NAME, msgspec.structs.replace(spec, **OF_SUBMIT | others))


def continued(known: JobCopy, end: Finished | None = None, request: JobRequest = REQUEST) -> JobWriter:
    """The job as a run takes it up."""
    writer = JobWriter(SimpleNamespace(settings=Settings(), producer=None), asked(request), print)
    writer.end = end
    writer._decide(known)
    return writer


@pytest.mark.parametrize(
    ("state", "end"),
    [("finished", ENDED), ("stopped", msgspec.structs.replace(ENDED, reason="operator")), ("paused", None)],
)
def test_a_run_takes_a_job_of_submit_as_it_is(state: str, end: Finished | None) -> None:
    """What `submit` alone writes into a record is no other setting."""
    known = submitted(state=state)
    job = continued(known, end)
    assert (job.plan, job.end) == (RecordPlan("keep", known), end)


def test_a_run_with_other_settings_keeps_what_submit_wrote() -> None:
    """Outputs, code and priority stay with the job."""
    plan = continued(submitted(state="paused", max_depth=3)).plan
    assert plan is not None
    step, copy = plan
    assert step == "change"
    kept = {name: getattr(copy.spec, name) for name in OF_SUBMIT}
    assert (copy.spec.max_depth, copy.spec.state, kept) == (None, "running", OF_SUBMIT | {"rev": 45})
    assert {name for name, value in OF_SUBMIT.items() if value == getattr(JobSpec(), name)} == set()


@pytest.mark.parametrize(
    ("known", "end", "is_local", "has_sink", "is_refused"),
    [
        (submitted(), None, True, True, True),
        (submitted(), None, False, False, True),
        (submitted(), None, False, True, False),
        (submitted(outputs=(OutputSpec("rows.csv", required=False),)), None, True, False, False),
        (submitted(state="finished"), ENDED, True, False, False),
        (submitted(state="cancelled"), None, True, False, False),
    ],
)
def test_a_run_refuses_a_job_that_would_wait_for_outputs_that_nobody_writes(
    monkeypatch: pytest.MonkeyPatch,
    known: JobCopy,
    end: Finished | None,
    is_local: bool,
    has_sink: bool,
    is_refused: bool,
) -> None:
    """On a local engine only `up` has a sink worker for them; on a cluster there may be one."""
    monkeypatch.setattr("crawlog.jobs.run_checks.has_workers", lambda _, stage: stage == "sink" and has_sink)
    supervisor: Any = SimpleNamespace(settings=Settings(), engine=object() if is_local else None)
    plan = continued(known, end).plan
    assert plan is not None
    with pytest.raises(Misconfigured, match=r"rows\.csv\.\n`crawlog up` goes on") if is_refused else nullcontext():
        check_outputs(supervisor, plan.copy, end)


@pytest.mark.parametrize(
    ("request_", "state"), [(REQUEST, "deleted"), (JobRequest(urls=REQUEST.urls, fresh=True), "finished")]
)
def test_a_job_that_begins_again_is_submitted_now(request_: JobRequest, state: str) -> None:
    """Lines and dead letters from before are not its own."""
    plan = continued(submitted(state=state), ENDED, request_).plan
    assert plan is not None
    copy = plan.copy
    assert (copy.epoch, copy.spec.state, copy.after) == (1, "running", 0 if state == "deleted" else NO_EPOCH)
    assert ControlState().since(copy) == copy.spec.at > OF_SUBMIT["at"]
    assert ControlState().since(submitted()) == 0.0
