"""How a run continues the job that its log has: as it is, changed, or again."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents.seed import scope_names
from crawlog.jobs.job_in_log import JobInLog
from crawlog.jobs.run_request import RunRequest
from crawlog.schemas.control import NO_EPOCH, Finished, JobCopy
from crawlog.schemas.job_orders import CodeRef, OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import Misconfigured
from crawlog.streams.job_spec import resolve_spec
from crawlog.streams.jobs import ControlState
from crawlog.streams.settings import Settings

REQUEST = RunRequest(seeds=["http://shop.example/"])
ENDED = Finished(REQUEST.name(), 1.0, rev=44)
OF_SUBMIT: dict[str, Any] = {
    "rev": 44,
    "by": "ann",
    "at": 1.0,
    "changed_at": 2.0,
    "outputs": (OutputSpec("rows.csv"),),
    "items": (0,) * 8,
    "priority": 5,
    "code": CodeRef("shop", "1", "00" * 32),
}


def submitted(**others: Any) -> JobCopy:
    """The record of `submit` for the job of `REQUEST`."""
    assert REQUEST.source is not None
    spec = resolve_spec(Settings(), REQUEST.of_spider(), scope_names(REQUEST.source, Settings().scope.kind))
    return JobCopy(REQUEST.name(), msgspec.structs.replace(spec, **OF_SUBMIT | others))


def continued(
    known: JobCopy, end: Finished | None = None, request: RunRequest = REQUEST, engine: object = None
) -> JobInLog:
    """The job as a run takes it up."""
    supervisor = SimpleNamespace(settings=Settings(), engine=engine)
    job = JobInLog(request, request.name(), supervisor, lambda _: None)  # type: ignore[arg-type]  # that alone is read
    job._go_on(known, end)
    return job


@pytest.mark.parametrize(
    ("state", "end"),
    [("finished", ENDED), ("stopped", msgspec.structs.replace(ENDED, reason="operator")), ("paused", None)],
)
def test_a_run_takes_a_job_of_submit_as_it_is(state: str, end: Finished | None) -> None:
    """What `submit` alone writes into a record is no other setting."""
    known = submitted(state=state)
    job = continued(known, end)
    assert (job.copy, job.is_changed, job.is_anew, job.end) == (known, False, False, end)


def test_a_run_with_other_settings_keeps_what_submit_wrote() -> None:
    """Outputs, code and priority stay with the job."""
    copy = continued(submitted(state="paused", max_depth=3)).copy
    assert copy is not None
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
    monkeypatch.setattr("crawlog.streams.control.has_workers", lambda _, stage: stage == "sink" and has_sink)
    job = continued(known, end, engine=object() if is_local else None)
    with pytest.raises(Misconfigured, match=r"rows\.csv\.\n`crawlog up` goes on") if is_refused else nullcontext():
        job.check_outputs()


@pytest.mark.parametrize(
    ("asked", "state"), [(REQUEST, "deleted"), (RunRequest(REQUEST.seeds, fresh=True), "finished")]
)
def test_a_job_that_begins_again_is_submitted_now(asked: RunRequest, state: str) -> None:
    """Lines and dead letters from before are not its own."""
    copy = continued(submitted(state=state), ENDED, asked).copy
    assert copy is not None
    assert (copy.epoch, copy.spec.state, copy.after) == (1, "running", 0 if state == "deleted" else NO_EPOCH)
    assert ControlState().since(copy) == copy.spec.at > OF_SUBMIT["at"]
    assert ControlState().since(submitted()) == 0.0
