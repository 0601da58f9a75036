"""Schedules: their next and last runs, the runs of one, a calendar of the next day; add, pause, resume, run, remove."""

from collections.abc import Mapping
from itertools import groupby
from math import inf
from typing import Any

import msgspec
from aiohttp import web

from crawlog.jobs.schedules import (
    HOUR_S,
    NextRun,
    ScheduleCalendar,
    ScheduleView,
    list_schedules,
    next_runs,
    present_schedules,
    run_calendar,
    show_schedule,
)
from crawlog.service.api_schedules import runs_of
from crawlog.service.routing import fleet_of, in_thread
from crawlog.streams.fleet import FleetState, FleetView, JobView

from . import forms
from .layout import NavEntry, add_page, page
from .lists import Column, Filter, Listed, listed, query_of
from .words import moment

NAV = (NavEntry("Schedules", "/ui/schedules"),)

COLUMNS: tuple[Column[ScheduleView], ...] = (
    Column("name", "Schedule", lambda one: one.name),
    Column("times", "Times", None, "minor"),
    Column("next", "Next run", lambda one: inf if one.next_at is None else one.next_at),
    Column("last", "Last run", lambda one: one.last_at or 0, "number"),
    Column("jobs", "Its jobs"),
    Column("skipped", "Left out", lambda one: one.skipped, "number minor"),
)

FILTERS = (
    Filter(
        "state", "State", [("", "all states"), ("active", "active"), ("paused", "paused"), ("error", "with an error")]
    ),
)

RUNS: tuple[Column[JobView], ...] = (
    Column("submitted", "Begun", lambda one: one.submitted_at),
    Column("name", "Job", lambda one: one.name),
    Column("state", "State", lambda one: one.state),
    Column("pages", "Pages", lambda one: one.counts.fetched, "number"),
    Column("failed", "Failed", lambda one: one.counts.failed + one.counts.refused, "number minor"),
    Column("took", "Took", lambda one: max(0.0, one.ended_at - one.submitted_at), "number minor"),
)

NEXT = 10  # Planned times on the page of a schedule

CALENDAR_H = 24


def routes(app: web.Application) -> None:
    """Adds the pages."""
    add_page(app, "/ui/schedules", _schedules)
    add_page(app, "/ui/schedules/{schedule}", _schedule)
    add_page(app, "/ui/calendar", _calendar)
    forms.RESULTS["POST", "/schedules"] = _added
    forms.RESULTS["POST", "/schedules/{schedule}/run"] = _begun


async def _schedules(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, schedules_page, fleet_of(request), dict(request.query))
    return page(request, "schedules.html", found=found, given=request.query)


def schedules_page(fleet: FleetView, given: Mapping[str, str]) -> Listed[ScheduleView]:
    """The schedules that an address names, by name where it names no order."""
    known = fleet.look(lambda state: list_schedules(state.control))
    return listed(known, query_of(given, COLUMNS, FILTERS), COLUMNS, FILTERS, text=_text, fits=_fits)


def _text(one: ScheduleView) -> str:
    return f"{one.name} {one.submit.project} {one.submit.spider} {one.by}"


def _fits(one: ScheduleView, _: str, state: str) -> bool:
    return bool(one.error) if state == "error" else one.paused == (state == "paused")


async def _schedule(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, _shown, fleet_of(request), request.match_info["schedule"], dict(request.query))
    return page(request, "schedule.html", **found)


def _shown(fleet: FleetView, name: str, given: Mapping[str, str]) -> dict[str, Any]:
    def look(state: FleetState) -> dict[str, Any]:
        one = show_schedule(state.control, name)
        planned = [] if one.paused else next_runs(state.control, name, NEXT)
        return {"one": one, "planned": planned, "runs": runs_of(state, name)}

    found = fleet.look(look)
    submit = msgspec.json.format(msgspec.json.encode(found["one"].submit)).decode()
    runs = listed(found["runs"], query_of(given, RUNS), RUNS, text=lambda job: f"{job.name} {job.state}")
    return found | {"runs": runs, "submit": submit}


async def _calendar(request: web.Request) -> web.StreamResponse:
    known = fleet_of(request).look(lambda state: present_schedules(state.control))
    found = await in_thread(request, run_calendar, known, CALENDAR_H * HOUR_S)
    return page(request, "calendar.html", found=found, hours=by_hour(found))


def by_hour(found: ScheduleCalendar) -> list[tuple[int, list[NextRun]]]:
    """The runs of each hour (UTC) that has some."""
    return [(hour, list(runs)) for hour, runs in groupby(found.runs, lambda run: run.at // HOUR_S * HOUR_S)]


def _added(view: ScheduleView) -> str:
    return f"schedule {view.name} runs next at {moment(view.next_at or 0.0)}"


def _begun(run: NextRun) -> str:
    return f"a run of {run.schedule} begins now: {', '.join(run.jobs[:3])}"
