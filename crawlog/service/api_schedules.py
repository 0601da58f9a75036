"""Schedules: list, add, change; their next times."""

from collections.abc import Callable
from typing import Annotated

import msgspec

from crawlog.jobs import schedules
from crawlog.jobs.schedules import NextRun, ScheduleCalendar, ScheduleRequest, ScheduleView
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.settings import Settings

from .api_jobs import SEEN_S, Limit, Offset, Removal
from .endpoint import ApiCall, ApiEndpoint


class SchedulesPage(msgspec.Struct, frozen=True):
    """All schedules, by name."""

    schedules: list[ScheduleView]


class NextQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many planned times, of which schedule; of all without a name."""

    name: Annotated[str, msgspec.Meta(max_length=100)] = ""
    limit: Limit = 10


class NextPage(msgspec.Struct, frozen=True):
    """The next planned times (UTC epoch seconds), with the names of the jobs."""

    runs: list[NextRun]


class RunsPage(msgspec.Struct, frozen=True):
    """Jobs of a schedule's runs that the log still has, the last one first; `total` counts all."""

    jobs: list[JobView]
    total: int


class RunsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs of the runs."""

    offset: Offset = 0
    limit: Limit = 100


class CalendarQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far ahead, hours."""

    hours: Annotated[int, msgspec.Meta(ge=1, le=168)] = 24


def _list(call: ApiCall) -> SchedulesPage:
    return SchedulesPage(call.fleet.look(lambda state: schedules.list_schedules(state.control)))


def _add(call: ApiCall) -> ScheduleView:
    wanted: ScheduleRequest = call.body
    view = schedules.add_schedule(call.settings, wanted, call.user)
    call.fleet.wait_until(lambda state: _paused(state, wanted.name) is False, SEEN_S)
    return view


def _show(call: ApiCall) -> ScheduleView:
    return call.fleet.look(lambda state: schedules.show_schedule(state.control, call.path["schedule"]))


def _next(call: ApiCall) -> NextPage:
    query: NextQuery = call.query
    return NextPage(call.fleet.look(lambda state: schedules.next_runs(state.control, query.name, query.limit)))


def _calendar(call: ApiCall) -> ScheduleCalendar:
    known = call.fleet.look(lambda state: schedules.present_schedules(state.control))
    return schedules.run_calendar(known, call.query.hours * schedules.HOUR_S)


def _runs(call: ApiCall) -> RunsPage:
    query: RunsQuery = call.query
    found = call.fleet.look(lambda state: runs_of(state, call.path["schedule"]))
    return RunsPage(found[query.offset : query.offset + query.limit], len(found))


def runs_of(state: FleetState, schedule: str) -> list[JobView]:
    """The jobs of a schedule's runs, the last one first.

    Raises: UnknownName: there is no such schedule.
    """
    schedules.show_schedule(state.control, schedule)
    by = f"schedule {schedule}"
    names = [name for name in state.names() if (copy := state.copy(name)) is not None and copy.spec.by == by]
    found = [view for name in names if (view := state.job(name)) is not None]
    return sorted(found, key=lambda one: (-one.submitted_at, one.name))


def _run(call: ApiCall) -> NextRun:
    return schedules.run_schedule(call.settings, call.path["schedule"])


def _remove(call: ApiCall) -> Removal:
    name = call.path["schedule"]
    schedules.remove_schedule(call.settings, name)
    call.fleet.wait_until(lambda state: _paused(state, name) is None, SEEN_S)
    return Removal(name)


def _changed(change: Callable[[Settings, str], ScheduleView]) -> Callable[[ApiCall], ScheduleView]:
    def does(call: ApiCall) -> ScheduleView:
        view = change(call.settings, call.path["schedule"])
        call.fleet.wait_until(lambda state: _paused(state, view.name) == view.paused, SEEN_S)
        return view

    return does


def _paused(state: FleetState, name: str) -> bool | None:
    """Whether the live view shows a schedule as paused; None if it has none of that name."""
    one = schedules.known_schedule(state.control, name)
    return None if one is None else one.paused


def _action(name: str, summary: str, change: Callable[[Settings, str], ScheduleView]) -> ApiEndpoint:
    return ApiEndpoint("POST", f"/schedules/{{schedule}}/{name}", "operate", summary, ScheduleView, _changed(change))


ENDPOINTS = (
    ApiEndpoint("GET", "/schedules", "read", "Schedules by name", SchedulesPage, _list),
    ApiEndpoint(
        "POST",
        "/schedules",
        "operate",
        "Add a schedule",
        ScheduleView,
        _add,
        body=ScheduleRequest,
        status=201,
        errors=(409,),
    ),
    ApiEndpoint("GET", "/next-runs", "read", "The next planned times", NextPage, _next, query=NextQuery, errors=(404,)),
    ApiEndpoint("GET", "/calendar", "read", "Planned runs by time", ScheduleCalendar, _calendar, query=CalendarQuery),
    ApiEndpoint("GET", "/schedules/{schedule}", "read", "A schedule", ScheduleView, _show),
    ApiEndpoint("GET", "/schedules/{schedule}/runs", "read", "Jobs of its runs", RunsPage, _runs, query=RunsQuery),
    _action("pause", "Plan nothing more until `resume`", schedules.pause_schedule),
    _action("resume", "Plan again; times of the pause are not made up for", schedules.resume_schedule),
    ApiEndpoint(
        "POST", "/schedules/{schedule}/run", "operate", "Begin a run now", NextRun, _run, status=202, errors=(409,)
    ),
    ApiEndpoint("DELETE", "/schedules/{schedule}", "operate", "Remove a schedule; its jobs stay", Removal, _remove),
)
