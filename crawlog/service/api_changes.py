"""Changes of jobs: pause, resume, stop, cancel, delete; planned stops of workers."""

from collections.abc import Callable
from typing import Literal

import msgspec

from crawlog.commands.fleet_workers import order_worker
from crawlog.jobs.changes import cancel_job, delete_job, pause_job, resume_job, stop_job
from crawlog.jobs.submit import HELD
from crawlog.streams.fleet import FleetState, JobView, WorkerView

from .api_jobs import SEEN_S, known_job
from .endpoint import ApiCall, ApiEndpoint


class Removal(msgspec.Struct, frozen=True):
    """What was deleted."""

    name: str
    state: str = "deleted"


def _changed(change: Callable[..., JobView]) -> Callable[[ApiCall], JobView]:
    def does(call: ApiCall) -> JobView:
        view = change(call.settings, known_job(call), call.user)
        call.fleet.wait_until(lambda state: _shows(state, view), SEEN_S)
        return view

    return does


def _shows(state: FleetState, changed: JobView) -> bool:
    """Whether the live view has a job as a command left it, or as a later one did."""
    found = state.job(changed.name)
    if found is None or (found.epoch, found.rev) > (changed.epoch, changed.rev):
        return True
    is_same = (found.epoch, found.rev) == (changed.epoch, changed.rev)
    return is_same and (found.state in HELD) == (changed.state in HELD)  # `resume` may end a command alone


def _delete(call: ApiCall) -> Removal:
    name = known_job(call)
    delete_job(call.settings, name, call.user)
    call.fleet.wait_until(lambda state: state.copy(name) is None, SEEN_S)
    return Removal(name)


def _action(name: str, summary: str, change: Callable[..., JobView]) -> ApiEndpoint:
    return ApiEndpoint("POST", f"/jobs/{{job}}/{name}", "operate", summary, JobView, _changed(change), errors=(409,))


def _ordered(action: Literal["drain", "stop"]) -> Callable[[ApiCall], WorkerView]:
    def does(call: ApiCall) -> WorkerView:
        return order_worker(call.settings, call.path["worker"], action, call.user)

    return does


def _planned(action: Literal["drain", "stop"], summary: str) -> ApiEndpoint:
    path = f"/workers/{{worker}}/{action}"
    return ApiEndpoint("POST", path, "operate", summary, WorkerView, _ordered(action), errors=(409,))


ENDPOINTS = (
    _planned("stop", "End a worker's process; its supervisor starts another one"),
    _planned("drain", "End a worker's process; `crawlog up` starts no other one"),
    _action("pause", "Pause a job: no further request is made", pause_job),
    _action("resume", "Let a paused or stopped job go on", resume_job),
    _action("stop", "Stop a job: its outputs stay partial, its queue stays", stop_job),
    _action("cancel", "Cancel a job for good", cancel_job),
    ApiEndpoint("DELETE", "/jobs/{job}", "operate", "Delete a job", Removal, _delete, errors=(409,)),
)
