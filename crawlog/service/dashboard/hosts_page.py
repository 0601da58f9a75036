"""Hosts and exits: every host of the fleet, the worst first; one host with its commands; the exits of fetch workers."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from aiohttp import web

from crawlog.schemas.control import Command
from crawlog.service.api_hosts import known_host
from crawlog.service.routing import HOSTS, fleet_of, in_thread
from crawlog.streams.fleet import ExitView, FleetView
from crawlog.streams.hosts import HOST_RESTS, KINDS, HostKind, HostPage, HostSort, HostTable, ListedHost
from crawlog.streams.jobs import FREE, Commands

from .layout import NavEntry, add_page, page
from .lists import PER_PAGE, Column, Filter, Listed, ListQuery, listed, paged, query_of

NAV = (NavEntry("Hosts", "/ui/hosts"), NavEntry("Exits", "/ui/exits"))


def _by_table(_: ListedHost) -> None:
    """The table sorts by itself."""


COLUMNS: tuple[Column[ListedHost], ...] = (
    Column("host", "Host", _by_table),
    Column("worst", "State", _by_table),
    Column("queued", "Queued", _by_table, "number"),
    Column("left", "Needs", _by_table, "number minor"),
    Column("rate", "A minute", _by_table, "number minor"),
    Column("results", "Results", None, "minor"),
    Column("delay", "Delay", _by_table, "number minor"),
    Column("next", "Next request", _by_table, "number minor"),
    Column("exit", "Exit", None, "minor"),
    Column("age", "Figures", _by_table, "number minor"),
)

FILTERS = (Filter("kind", "State", [("", "all hosts"), *((kind, kind) for kind in KINDS)]),)


class ExitRow(NamedTuple):
    """An exit of a worker.

    Attributes:
        command: That keeps it from serving, on all workers.
    """

    view: ExitView
    command: Command | None


EXITS: tuple[Column[ExitRow], ...] = (
    Column("name", "Exit", lambda row: row.view.name),
    Column("worker", "Worker", lambda row: row.view.worker, "minor"),
    Column("state", "State", lambda row: row.view.figures.rests_s, "number"),
    Column("requests", "Requests", lambda row: row.view.figures.requests, "number"),
    Column("flying", "In flight", lambda row: row.view.figures.in_flight, "number minor"),
    Column("bans", "Bans", lambda row: row.view.figures.bans, "number"),
    Column("failures", "Failures", lambda row: row.view.figures.failures, "number minor"),
    Column("hosts", "Rests at hosts", lambda row: row.view.figures.rests_at, "number minor"),
    Column("median", "Median", lambda row: row.view.figures.median_s, "number minor"),
    Column("bytes", "Bytes", lambda row: row.view.figures.bytes, "number minor"),
)


def routes(app: web.Application) -> None:
    """Adds the pages."""
    add_page(app, "/ui/hosts", _hosts)
    add_page(app, "/ui/hosts/{host}", _host)
    add_page(app, "/ui/exits", _exits)


async def _hosts(request: web.Request) -> web.StreamResponse:
    values = await in_thread(request, hosts_page, request.app[HOSTS].table, dict(request.query))
    return page(request, "hosts.html", **values)


async def _host(request: web.Request) -> web.StreamResponse:
    name = request.match_info["host"]
    values = await in_thread(request, host_page, request.app[HOSTS].table, fleet_of(request), name)
    return page(request, "host.html", **values)


async def _exits(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, exits_page, fleet_of(request), dict(request.query), time.time())
    return page(request, "exits.html", exits=found)


def hosts_page(table: HostTable, given: Mapping[str, str]) -> dict[str, Any]:
    """The hosts that an address names, the worst first where it names no order."""
    query = query_of(given, COLUMNS, FILTERS)
    found = _found(table, query)
    if not found.hosts and found.total:  # an old link to a page behind the last one
        query = query._replace(page=-(-found.total // PER_PAGE))
        found = _found(table, query)
    hosts = paged(found.hosts, found.total, query, COLUMNS, FILTERS, is_cut=True)
    return {"hosts": hosts, "counts": found.counts, "is_complete": found.is_complete, "rests": HOST_RESTS}


def _found(table: HostTable, query: ListQuery) -> HostPage:
    kind = cast("HostKind | None", query.chosen.get("kind"))  # one of the filter's options
    sort = cast("HostSort", query.sort or "worst")  # or the name of a column
    first = (query.page - 1) * PER_PAGE
    return table.page(kind, query.text, sort, first, PER_PAGE, is_down=query.is_down if query.sort else None)


def host_page(table: HostTable, fleet: FleetView, name: str) -> dict[str, Any]:
    """One host, and the commands for it.

    Raises: AnswerError: there are no figures of it.
    """
    found = known_host(table, name)
    commands = fleet.look(lambda state: state.control.commands.in_force)
    mine = [one for one in commands if one.host and Commands([one]).of_host(name) != FREE]
    return {"one": found, "commands": mine, "rests": HOST_RESTS}


def exits_page(fleet: FleetView, given: Mapping[str, str], now: float) -> Listed[ExitRow]:
    """The exits that an address names, by worker and requests where it names no order.

    Args:
        now: UTC epoch seconds.
    """
    given_now = fleet.look(lambda state: state.control.commands.of_exits)
    commands = {one.exit: one for one in given_now if not one.is_over(now)}
    rows = [ExitRow(one, commands.get(one.name)) for one in fleet.status().exits]
    return listed(rows, query_of(given, EXITS), EXITS, text=lambda row: f"{row.view.name} {row.view.worker}")
