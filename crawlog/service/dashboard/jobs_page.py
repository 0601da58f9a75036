"""The page of all jobs."""

from collections.abc import Mapping

from aiohttp import web

from crawlog.jobs.changes import listed_jobs
from crawlog.service.routing import fleet_of, in_thread
from crawlog.streams.fleet import FleetView, JobView

from .layout import NavEntry, add_page, page
from .lists import Column, Filter, Listed, listed, query_of

NAV = (NavEntry("Jobs", "/ui/jobs"),)

COLUMNS: tuple[Column[JobView], ...] = (
    Column("name", "Job", lambda job: job.name),
    Column("state", "State", lambda job: job.state),
    Column("spider", "Spider", lambda job: job.spider, "minor"),
    Column("pages", "Pages", lambda job: job.counts.fetched, "number"),
    Column("queued", "Queued", lambda job: job.counts.queued, "number"),
    Column("failed", "Failed", lambda job: job.counts.failed + job.counts.refused, "number minor"),
    Column("dead", "Dead letters", lambda job: job.dead, "number minor"),
    Column("submitted", "Submitted", lambda job: job.submitted_at, "number minor"),
)

STATES = ("pending", "waiting", "running", "watching", "paused", "stopped", "finished", "failed", "cancelled")

FILTERS = (Filter("state", "State", [("", "all states"), *((state, state) for state in STATES)]),)


def routes(app: web.Application) -> None:
    """Adds the page."""
    add_page(app, "/ui/jobs", _jobs)


async def _jobs(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, jobs_page, fleet_of(request), dict(request.query))
    return page(request, "jobs.html", jobs=found)


def jobs_page(fleet: FleetView, given: Mapping[str, str]) -> Listed[JobView]:
    """The jobs that an address names, the last submitted first where it names no order."""
    query = query_of(given, COLUMNS, FILTERS)
    return listed(
        listed_jobs(fleet),
        query,
        COLUMNS,
        FILTERS,
        text=lambda job: f"{job.name} {job.spider} {job.by}",
        fits=lambda job, _, state: job.state == state,
    )
