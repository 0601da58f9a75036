"""Overview: what needs a look, the stages with rate and lag over the last hour, and the jobs that run."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from aiohttp import web

from crawlog.outcome import left_text
from crawlog.service.routing import add, fleet_of, in_thread, prefix_of
from crawlog.service.watch import WATCHER, Alert
from crawlog.streams.fleet import FleetStatus, FleetView, JobView, StageView

from .charts import last_hour
from .layout import NavEntry, add_page, page

NAV = (NavEntry("Overview", "/ui/"),)

MOST_JOBS = 20  # Jobs that run and are shown

MOST_ALERTS = 20  # Alerts that are shown before the others are folded

OLD_S = 60.0  # Age from which a look of the watch is too old to say that nothing needs a look

CHARTS = (
    ("Rate of each stage, last hour", "a second", {"fetch.rate": "fetch", "parse.rate": "parse", "sink.rate": "items"}),
    ("Lag of each stage, last hour", "records", {"fetch.lag": "frontier", "parse.lag": "parse", "sink.lag": "items"}),
    ("Pages and rows, last hour", "a minute", {"pages": "pages", "rows": "rows"}),
)


class RiverStage(NamedTuple):
    """A stage of the river.

    Attributes:
        stage: Whose workers it is, as commands name it; empty for one that is not paused by itself.
        view: What it is paused by and who works for it.
        figures: Label, and value with its filter of words.
    """

    title: str
    stage: str
    does: str
    view: StageView
    figures: Sequence[tuple[str, float, str]]


def routes(app: web.Application) -> None:
    """Adds the page; the service's root leads to it."""
    add(app, "GET", "/", _root, "read")
    add(app, "GET", "/ui", _root, "read")
    add_page(app, "/ui/", _overview)


async def _root(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(f"{prefix_of(request)}/ui/")


async def _overview(request: web.Request) -> web.StreamResponse:
    values = await in_thread(request, overview, fleet_of(request))
    watcher, now = request.app.get(WATCHER), time.time()
    values["alerts"] = alerts = watcher.raised if watcher is not None else []
    values["looked_at"] = looked_at = watcher.looked_at if watcher is not None else 0.0
    values |= {"is_old": now - looked_at > OLD_S, "most_alerts": MOST_ALERTS, "left_text": left_text, "link": link}
    values["troubled"] = {one.subject for one in alerts if one.kind == "job"}
    values["charts"] = await last_hour(request, CHARTS)
    return page(request, "overview.html", **values)


def overview(fleet: FleetView) -> dict[str, Any]:
    """The river, the jobs that run, and how many more there are."""
    status = fleet.status()
    going = [job for job in status.jobs if job.state in ("running", "pending", "paused", "waiting")]
    busy = sorted(going, key=_turn)
    return {"river": river(status), "jobs": busy[:MOST_JOBS], "more": max(len(busy) - MOST_JOBS, 0)}


def _turn(job: JobView) -> tuple[bool, float, float]:
    return job.state != "running", -job.pace.pages, -job.submitted_at


def river(status: FleetStatus) -> list[RiverStage]:
    """The stages through which a URL goes."""
    counts = [job.counts for job in status.jobs]
    queued, held, flying = (sum(getattr(one, name) for one in counts) for name in ("queued", "held", "in_flight"))
    stages = {one.stage: one for one in status.stages}
    rows = sum(job.pace.rows for job in status.jobs)
    none = StageView("", 0, 0)
    fetch, parse, sink = (stages.get(name, none) for name in ("fetch", "parse", "sink"))
    waiting = [("queued", queued, "count"), ("held", held, "count"), ("to fold", fetch.lag, "count")]
    asked = [("pages a second", fetch.pages_per_s, "rate"), ("in flight", flying, "count")]
    parsed = [("pages a second", parse.pages_per_s, "rate"), ("pages behind", parse.lag, "count")]
    written = [("rows a minute", rows, "rate"), ("records behind", sink.lag, "count")]
    return [
        RiverStage("Frontier", "", "URLs that wait for their turn", none, waiting),
        RiverStage("Fetch", "fetch", "requests", fetch, asked),
        RiverStage("Parse", "parse", "links and rows of pages", parse, parsed),
        RiverStage("Items", "sink", "outputs", sink, written),
    ]


def link(alert: Alert) -> str:
    """The page, below the prefix, that shows what an alert is about; empty if none does."""
    name = quote(alert.subject, safe="")
    if alert.rule == "dead_letters":
        return f"/ui/dead?job={name}"
    return {"job": f"/ui/jobs/{name}", "worker": f"/ui/workers?q={name}", "stage": "/ui/workers"}.get(alert.kind, "")
