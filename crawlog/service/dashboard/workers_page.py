"""Workers: those of all machines by stage, each machine's sums, and the processes that ended in the last hour."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from crawlog.outcome import partitions
from crawlog.service.routing import fleet_of, in_thread
from crawlog.streams.fleet import FleetView, LostWorker, StageView, WorkerView

from .layout import NavEntry, add_page, page
from .lists import Column, Filter, Listed, listed, query_of

NAV = (NavEntry("Workers", "/ui/workers"),)

STAGES = ("fetch", "parse", "sink", "start", "exit")

MOST_HOSTS = 100  # Machines that the filter offers, at most; the search finds further ones


class WorkerRow(NamedTuple):
    """A worker.

    Attributes:
        lost: Processes of its name that ended in the last hour, the last one first.
    """

    view: WorkerView
    lost: Sequence[LostWorker]


class GroupSums(NamedTuple):
    """The workers of a stage, or of a machine."""

    name: str
    workers: int
    pages_per_s: float
    cpu: float
    rss: int
    paused: int
    versions: Sequence[str]
    lag: int | None = None


WORKERS: tuple[Column[WorkerRow], ...] = (
    Column("name", "Worker", lambda row: row.view.id),
    Column("stage", "Stage", lambda row: row.view.stage),
    Column("host", "Machine", lambda row: row.view.host, "minor"),
    Column("state", "State", lambda row: _state(row.view)),
    Column("partitions", "Partitions", lambda row: len(row.view.partitions), "number minor"),
    Column("pages", "Pages/s", lambda row: row.view.pages_per_s, "number"),
    Column("cpu", "CPU", lambda row: row.view.cpu, "number"),
    Column("rss", "Memory", lambda row: row.view.rss, "number minor"),
    Column("version", "Version", lambda row: row.view.version, "minor"),
    Column("started", "Started", lambda row: row.view.started_at, "number minor"),
    Column("restarts", "Restarts", lambda row: len(row.lost), "number minor"),
)

MACHINES: tuple[Column[GroupSums], ...] = (
    Column("host", "Machine", lambda row: row.name),
    Column("workers", "Workers", lambda row: row.workers, "number"),
    Column("paused", "Paused", lambda row: row.paused, "number minor"),
    Column("pages", "Pages/s", lambda row: row.pages_per_s, "number"),
    Column("cpu", "CPU", lambda row: row.cpu, "number"),
    Column("rss", "Memory", lambda row: row.rss, "number"),
    Column("version", "Version", lambda row: list(row.versions), "minor"),
)

LOST: tuple[Column[LostWorker], ...] = (
    Column("name", "Worker", lambda one: one.id),
    Column("stage", "Stage", lambda one: one.stage, "minor"),
    Column("host", "Machine", lambda one: one.host, "minor"),
    Column("reason", "Reason", lambda one: one.reason),
    Column("lost", "Ended", lambda one: one.lost_at, "number"),
    Column("pid", "Process", lambda one: one.pid, "number minor"),
)

OF_LOST = (
    Filter("name", "Its name", [("", "all"), ("gone", "no other process came"), ("back", "another process came")]),
)


def routes(app: web.Application) -> None:
    """Adds the page and its two further views."""
    add_page(app, "/ui/workers", _workers)
    add_page(app, "/ui/workers/machines", _machines)
    add_page(app, "/ui/workers/lost", _lost)


async def _workers(request: web.Request) -> web.StreamResponse:
    values = await in_thread(request, workers_page, fleet_of(request), dict(request.query))
    return page(request, "workers.html", **values)


async def _machines(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, fleet_of(request).workers)
    return page(request, "machines.html", machines=machines_page(found, dict(request.query)))


async def _lost(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, fleet_of(request).lost)
    return page(request, "lost.html", lost=lost_page(found, dict(request.query)))


def workers_page(fleet: FleetView, given: Mapping[str, str]) -> dict[str, Any]:
    """The workers that an address names, by stage and name where it names no order; and what stands above them."""
    workers, lost = fleet.workers(), fleet.lost()
    ended: dict[tuple[str, str], list[LostWorker]] = {}
    for one in lost:
        ended.setdefault((one.stage, one.id), []).append(one)
    rows = [WorkerRow(one, ended.get((one.stage, one.id), ())) for one in workers]
    hosts = sorted({one.host for one in workers})[:MOST_HOSTS]
    filters = (
        Filter("stage", "Stage", [("", "all"), *((stage, stage) for stage in STAGES)]),
        Filter("state", "State", [("", "all"), *((state, state) for state in ("works", "paused", "trouble"))]),
        Filter("host", "Machine", [("", "all"), *((host, host) for host in hosts if host)]),
    )
    query = query_of(given, WORKERS, filters)
    return {
        "workers": listed(
            rows,
            query,
            WORKERS,
            filters,
            text=lambda row: f"{row.view.id} {row.view.host} {row.view.trouble}",
            fits=lambda row, name, value: _has(row.view, name) == value,
        ),
        "groups": groups_of(workers, fleet.stages()),
        "gone": [one for one in lost if one.is_bad],
        "state": _state,
        "partitions": partitions,
    }


def groups_of(workers: Sequence[WorkerView], stages: Iterable[StageView]) -> list[GroupSums]:
    """The sums of each stage that has workers, or is to have some."""
    lags = {one.stage: one.lag for one in stages}
    present = [stage for stage in STAGES if stage in lags or any(one.stage == stage for one in workers)]
    return [_sums(stage, [one for one in workers if one.stage == stage], lags.get(stage)) for stage in present]


def machines_page(workers: Sequence[WorkerView], given: Mapping[str, str]) -> Listed[GroupSums]:
    """The machines that an address names."""
    hosts = sorted({one.host for one in workers})
    rows = [_sums(host, [one for one in workers if one.host == host]) for host in hosts]
    return listed(rows, query_of(given, MACHINES), MACHINES, text=lambda row: f"{row.name} {' '.join(row.versions)}")


def lost_page(lost: Sequence[LostWorker], given: Mapping[str, str]) -> Listed[LostWorker]:
    """The processes that an address names, the last one that ended first where it names no order."""
    return listed(
        lost,
        query_of(given, LOST, OF_LOST),
        LOST,
        OF_LOST,
        text=lambda one: f"{one.id} {one.host} {one.reason}",
        fits=lambda one, _, value: one.is_replaced == (value == "back"),
    )


def _sums(name: str, workers: Sequence[WorkerView], lag: int | None = None) -> GroupSums:
    return GroupSums(
        name,
        len(workers),
        sum(one.pages_per_s for one in workers),
        sum(one.cpu for one in workers),
        sum(one.rss for one in workers),
        sum(one.paused or one.is_held for one in workers),
        sorted({one.version for one in workers if one.version}),
        lag,
    )


def _has(view: WorkerView, name: str) -> str:
    """What a filter goes by."""
    return {"stage": view.stage, "state": _state(view), "host": view.host}[name]


def _state(view: WorkerView) -> str:
    return "trouble" if view.trouble else "paused" if view.paused or view.is_held else "works"
