"""The page of all jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aiohttp import web

from crawlog.jobs.changes import NOT_STARTED, listed_jobs
from crawlog.service.api_watch import alerts_of
from crawlog.service.routing import fleet_of, in_thread
from crawlog.service.watch import Alert, ended_badly
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
    Column("rows", "Rows", lambda job: job.rows or 0, "number minor"),
    Column("pace", "Pages a minute", lambda job: job.pace.pages, "number minor"),
    Column("failed", "Failed", lambda job: job.counts.failed + job.counts.refused, "number minor"),
    Column("dead", "Dead letters", lambda job: job.dead, "number minor"),
    Column("submitted", "Submitted", lambda job: job.submitted_at, "number minor"),
)

STATES = ("pending", "waiting", "running", "watching", "paused", "stopped", "finished", "failed", "cancelled")

GOOD = frozenset({"running", "finished", "watching"})

LOOK = frozenset({"paused", "waiting"})


def chip_of(job: JobView, alerts: Sequence[Alert]) -> tuple[str, str]:
    """A job's state as a word in a colour: green only if nothing about it needs a look.

    Args:
        alerts: Those about it.
    """
    if job.state == "failed" or any(one.severity == "critical" for one in alerts):
        return job.state, "bad"
    is_odd = job.dead or job.state in LOOK or job.reason == NOT_STARTED or any(one.error for one in job.outputs)
    if is_odd or alerts or (job.state == "finished" and any(ended_badly(job))):
        return job.state, "look"
    return job.state, "good" if job.state in GOOD else "idle"


def alerts_by_job(app: web.Application) -> Mapping[str, list[Alert]]:
    """The alerts that are raised about jobs; an empty list for other jobs."""
    found = defaultdict[str, list[Alert]](list)
    for one in alerts_of(app):
        if one.kind == "job":
            found[one.subject].append(one)
    return found


FILTERS = (Filter("state", "State", [("", "all states"), *((state, state) for state in STATES)]),)


def routes(app: web.Application) -> None:
    """Adds the page."""
    add_page(app, "/ui/jobs", _jobs)


async def _jobs(request: web.Request) -> web.StreamResponse:
    found = await in_thread(request, jobs_page, fleet_of(request), dict(request.query))
    return page(request, "jobs.html", jobs=found, chip_of=chip_of, alerts=alerts_by_job(request.app))


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
