"""`crawlog jobs`: the jobs of a log, and changes of one. The HTTP service calls the same functions.

    crawl.control, crawl.progress ─► FleetView ─► JobView         pause, resume … ─► `apply_change`

A change is an order in crawl.urls, which the fetch worker that owns partition 0 takes or refuses: it is refused if the
job has changed since it was read. On a log without fetch workers the job's record is written at once.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from crawlog.commands.control import whoever
from crawlog.commands.job_logs import unknown_job
from crawlog.schemas.control import Command, JobCopy, key
from crawlog.schemas.job_orders import JobStateName, OutputSpec
from crawlog.schemas.urls import DEFAULT_JOB, JobSpec
from crawlog.streams.control import apply_change, known_job, remove_notes, settled_control, write_command
from crawlog.streams.errors import InvalidState, OrderRefused, UnknownName
from crawlog.streams.fleet import FleetState, FleetView, JobView, WorkerView, letters_of
from crawlog.streams.job_spec import job_values
from crawlog.streams.jobs import OPERATOR, OrderName, after, is_final, traits
from crawlog.streams.log import CommandProducer, Producer, Topics
from crawlog.streams.settings import Settings, known_keys, masked

from .record import BROKEN, is_full, way_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# Reason of a job that waits for its first requests.
NOT_STARTED = "no worker runs its `start`: `crawlog worker start` does"

TRIES = 3  # Tries to change a job while others change it


def list_jobs(settings: "Settings") -> "list[JobView]":
    """All jobs, the last submitted first, with the numbers of their open dead letters."""
    return listed_jobs(FleetView.read(settings))


def listed_jobs(view: "FleetView") -> "list[JobView]":
    """The same, from a view of the fleet."""
    dead = letters_of(view)
    return [msgspec.structs.replace(one, dead=dead[one.name]) for one in view.jobs()]


def check_job(settings: "Settings", name: str) -> None:
    """Raises: UnknownName: there is no such job."""
    if FleetView.read(settings).job(name) is None:
        raise unknown_job(name)


def show_job(settings: "Settings", name: str) -> "JobView":
    """One job, with the settings of its record and the number of its open dead letters.

    Raises: UnknownName: there is none.
    """
    return shown_job(FleetView.read(settings), name)


def shown_job(view: "FleetView", name: str) -> "JobView":
    """The same, from a view of the fleet. Raises: UnknownName: there is none."""
    found, copy = view.job(name), view.look(lambda state: state.copy(name))
    if found is None or copy is None:
        raise unknown_job(name)
    values = {key: masked(key, value) for key, value in job_values(copy.spec).items() if key in known_keys()}
    dead = letters_of(view)[name]
    workers = view.workers()
    reason = found.reason or (NOT_STARTED if lacks_start(found, workers) else "")
    held = () if traits(found.state).ended else tuple(one.id for one in workers if one.is_held)
    more = {"settings": msgspec.to_builtins(values), "dead": dead, "reason": reason, "paused_workers": held}
    return msgspec.structs.replace(found, **more)


def lacks_start(job: "JobView", workers: "Iterable[WorkerView]") -> bool:
    """Whether a job waits for its spider's `start`, and no process that runs those reports.

    Args:
        workers: Those that report; none tell nothing.
    """
    all_workers = list(workers)
    runs_starts = any(one.stage == "start" or one.supervisor for one in all_workers)  # `up` and `run` run them
    return job.is_starting and job.state == "pending" and bool(all_workers) and not runs_starts


def pause_job(settings: "Settings", name: str, by: str = "") -> "JobView":
    """Pauses a job: no URL of it is fetched until `resume_job`. Requests in flight end.

    Raises: UnknownName, InvalidState: it has ended. EngineError: no worker answers.
    """
    return _change(settings, name, "paused", by)


def resume_job(settings: "Settings", name: str, by: str = "") -> "JobView":
    """Lets a job go on that was paused or stopped; ends the operator's and its spider's commands for it, too.

    Raises: UnknownName, InvalidState: it has ended for good, or at its limit of pages. EngineError: no worker answers.
    """
    return _change(settings, name, "running", by)


def stop_job(settings: "Settings", name: str, by: str = "") -> "JobView":
    """Stops a job: its rows stay in FILE.partial, its queue stays, and `resume_job` lets it go on.

    Raises: UnknownName, InvalidState: it has ended. EngineError: no worker answers.
    """
    return _change(settings, name, "stopped", by, reason=OPERATOR)


def cancel_job(settings: "Settings", name: str, by: str = "") -> "JobView":
    """Cancels a job for good; what it has fetched stays.

    Raises: UnknownName: there is none. InvalidState: its rows are whole. EngineError: no worker answers.
    """
    return _change(settings, name, "cancelled", by)


def add_outputs(settings: "Settings", name: str, outputs: "Iterable[OutputSpec]", by: str = "") -> "JobView":
    """Gives a job further outputs; they are filled from the log. A finished job runs until they are complete.

    Raises: UnknownName: there is none. EngineError: no worker answers.
    """
    added = tuple(outputs)

    def with_added(spec: JobSpec) -> JobSpec:
        names = {one.name for one in spec.outputs}
        new = (one for one in added if one.name not in names)
        return msgspec.structs.replace(spec, outputs=(*spec.outputs, *new))

    return change_spec(settings, name, with_added, "outputs were added", by)


def refill_output(settings: "Settings", name: str, output: str, by: str = "") -> "JobView":
    """Has an output of a job emptied, and filled from the log again.

    Raises: UnknownName: there is no such job, or it has no such output. EngineError: no worker answers.
    """

    def refilled(spec: JobSpec) -> JobSpec:
        now = spec.outputs
        if output not in {one.name for one in now}:
            there = ", ".join(one.name for one in now) or "none"
            raise UnknownName(f"job {name} has no output {output}; its outputs are: {there}")
        new = (msgspec.structs.replace(one, fill=one.fill + 1) if one.name == output else one for one in now)
        return msgspec.structs.replace(spec, outputs=tuple(new))

    return change_spec(settings, name, refilled, "an output is filled again", by)


def change_spec(
    settings: "Settings", name: str, change: "Callable[[JobSpec], JobSpec]", reason: str, by: str
) -> "JobView":
    """Gives a job another record, in a new revision. A finished job runs again, so that its end is behind that.

    Args:
        change: The record that it shall have; its state may be another one.
        reason: Why a finished job runs again.

    Raises: UnknownName: there is none. EngineError: no worker answers.
    """
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-jobs")
    for tries_left in reversed(range(TRIES)):
        copy = settled_control(settings, producer, topics).job(name)
        if copy is None or copy.spec.state == "deleted":
            raise unknown_job(name)
        spec = change(copy.spec)
        if spec == copy.spec:
            return _view(settings, copy)
        state: JobStateName | None = spec.state if spec.state != copy.spec.state else None
        why = spec.reason
        if traits(copy.spec.state).done:
            state, why = "running", reason
        try:
            who = by or whoever()
            copy = apply_change(settings, producer, topics, copy, state=state, spec=spec, reason=why, by=who)
            return _view(settings, copy)
        except OrderRefused:  # another change came first: look at the job again
            if not tries_left:
                raise
    raise AssertionError


def delete_job(settings: "Settings", name: str, by: str = "") -> None:
    """Deletes a job: its rows of the frontier go, and its name may be taken again. Its pages stay until they expire.

    Again after a kill it completes what is left: a note that stays would be in force for a new job of the name.

    Raises: UnknownName: there is none. EngineError: no worker answers.
    """
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-jobs")
    copy = known_job(settings, topics, name)
    is_deleted = copy is not None and copy.spec.state == "deleted"
    if not is_deleted:
        _change(settings, name, "deleted", by)
    if not remove_notes(settings, producer, topics, name) and is_deleted:
        raise unknown_job(name)


_ORDERS: dict[JobStateName, OrderName] = {
    "paused": "pause",
    "running": "resume",
    "stopped": "stop",
    "cancelled": "cancel",
    "deleted": "delete",
}


def _change(settings: "Settings", name: str, state: JobStateName, by: str, reason: str = "") -> "JobView":
    if name == DEFAULT_JOB:
        raise InvalidState(f"{name} is the job of bare records, and takes no orders; `crawlog control` pauses it")
    for _ in range(TRIES - 1):
        with suppress(OrderRefused):  # another change came first: look at the job again
            return _view(settings, _ordered(settings, name, state, by, reason))
    return _view(settings, _ordered(settings, name, state, by, reason))


def _ordered(settings: "Settings", name: str, state: JobStateName, by: str, reason: str) -> JobCopy:
    """The job's record with the change. Raises: OrderRefused: it is not the one any more that was looked at."""
    topics, producer = Topics(settings.kafka.prefix), CommandProducer(settings, "crawlog-jobs")
    control = settled_control(settings, producer, topics)
    copy = control.job(name)
    if copy is None or copy.spec.state == "deleted":
        raise unknown_job(name)
    if copy.spec.state != state:
        _check(copy, state)
    if state == "running":
        _resume_commands(producer, topics, name, control.command(name))
    if copy.spec.state == state:
        return copy
    who, rev = by or whoever(), copy.spec.rev
    return apply_change(settings, producer, topics, copy, state=state, reason=reason, by=who, expects=rev)


def _check(copy: JobCopy, state: JobStateName) -> None:
    now = copy.spec.state
    if state == "running" and copy.spec.reason == BROKEN:
        raise InvalidState(
            f"job {copy.job} has nothing to go on with: its spider could not be made. Submit it anew: {way_on(copy)}"
            " lets it go on"
        )
    if state == "running" and is_full(copy.spec):
        raise InvalidState(
            f"job {copy.job} has the {copy.spec.max_pages} pages of its limit: {way_on(copy)} lets it go on"
        )
    if state == "cancelled" and now in ("finished", "stopped") and is_final(now, copy.spec.reason):
        raise InvalidState(f"job {copy.job} has ended, and its rows are whole: there is nothing to cancel")
    if after(_ORDERS[state], now) is not None:
        return
    fresh = "; `--fresh` of `run` or `submit` begins it again" if traits(now).ended else ""
    raise InvalidState(f"job {copy.job} is {now} and cannot become {state}{fresh}")


def _resume_commands(producer: "Producer", topics: "Topics", name: str, command: Command | None) -> None:
    """Ends the command in force for the job: `resume` means both kinds of pauses."""
    if command is not None and command.holds and command.action != "slow":
        write_command(producer, topics, Command("resume", job=name, at=time.time()))


def _view(settings: "Settings", copy: JobCopy) -> "JobView":
    if copy.spec.state != "deleted" and (found := FleetView.read(settings).job(copy.job)) is not None:
        return found
    state = FleetState()
    state.hear(key(copy), msgspec.structs.replace(copy, spec=msgspec.structs.replace(copy.spec, state="cancelled")))
    found = state.job(copy.job)
    assert found is not None
    return msgspec.structs.replace(found, state=copy.spec.state)
