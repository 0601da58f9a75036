"""The fleet as Scrapyd's API and pages see it: jobs in Scrapyd's states, deployed versions, commands.

FleetView, commands (each in a thread) ─► ScrapydFleet ─► scrapyd (API), pages
"""

import asyncio
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from aiohttp import web

from crawlog.commands import projects
from crawlog.jobs.changes import cancel_job
from crawlog.jobs.schedules import follow_project
from crawlog.streams.errors import EngineError, InvalidState
from crawlog.streams.fleet import JobView
from crawlog.streams.jobs import traits
from crawlog.streams.printable import shown_time

from .api_fleet import schedule_stays
from .routing import FLEET, SETTINGS, SUBMITS, UPLOADS, WORK, TooMuchWork

if TYPE_CHECKING:
    from crawlog.jobs.request import JobRequest
    from crawlog.schemas.log_lines import LogLine
    from crawlog.streams.fleet import FleetState

Stand = Literal["pending", "running", "finished"]  # Scrapyd's states

NO_PROJECT = "default"  # Project and spider that are shown for jobs without one

# Ours to Scrapyd's; every other state is an end.
_STANDS: dict[str, Stand] = {
    "pending": "pending",
    "waiting": "pending",
    "running": "running",
    "paused": "running",
    "watching": "running",
}


class ScrapydJob(msgspec.Struct, frozen=True):
    """A job as Scrapyd shows it.

    Attributes:
        submitted, started, ended: UTC epoch seconds; 0 if unknown, or not yet.
        settings: Scrapy's settings that it was scheduled with.
    """

    id: str
    project: str
    spider: str
    stand: Stand
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    args: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[str, str] = msgspec.field(default_factory=dict)


SEEN_S = 5.0  # How long a new job may take to come into the live view, seconds

ROWS = 1_000  # Items that are read at a time

LINES = 10_000  # Lines of a log that are shown, the last ones

SUMS = 1_000  # Jobs whose stats are kept, those that were asked for first go first

End = tuple[str, int, int, float]  # A job's end: name, epoch, revision, time

T = TypeVar("T")


class ScrapydFleet:
    """The fleet of the service's log. Its methods raise CrawlError, whose message goes to the client."""

    def __init__(self, app: web.Application) -> None:
        self._app = app
        self._settings = app[SETTINGS]
        self._sums: OrderedDict[End, asyncio.Future[dict[str, float]]] = OrderedDict()

    @property
    def node(self) -> str:
        return socket.gethostname()

    async def jobs(self) -> list[ScrapydJob]:
        return await self._do(self._app[FLEET].look, _jobs)

    async def job(self, name: str) -> ScrapydJob | None:
        return self._app[FLEET].look(lambda state: _job(state, name))

    async def projects(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Deployed projects: the spiders of each version, the newest last."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for one in await self._do(projects.versions, self._settings):
            found.setdefault(one.project, {})[one.version] = one.spiders
        return found

    async def submit(self, wanted: "JobRequest", by: str) -> None:
        """Submits a job, and waits until the view shows it. If its spider cannot be made, it has failed, as there."""
        from crawlog.jobs.submit import submit

        await self._app[SUBMITS].do(partial(submit, keeps_broken=True), self._settings, wanted, by)
        await self._seen(lambda state: state.copy(wanted.job) is not None)

    async def cancel(self, job: str, by: str) -> None:
        """Ends a job for good, and waits until the view shows it. One that has finished meanwhile stays so."""
        with suppress(InvalidState):
            await self._do(cancel_job, self._settings, job, by)
        await self._seen(lambda state: (found := _job(state, job)) is None or found.stand == "finished")

    async def add_version(self, project: str, version: str, egg: bytes, by: str) -> int:
        """Deploys a version; returns how many spiders it has."""
        deployed = await self._app[UPLOADS].do(projects.deploy, self._settings, egg, project, version, by)
        await self._app[UPLOADS].do(follow_project, self._settings, project, schedule_stays)
        return len(deployed.spiders)

    async def delete(self, project: str, version: str | None, by: str) -> None:
        """Hides a version, or the whole project."""
        if version is None:
            await self._do(projects.delete_project, self._settings, project, by)
        else:
            await self._do(projects.delete_version, self._settings, project, version, by)

    async def lines(self, job: str) -> AsyncIterator["LogLine"]:
        """The last lines that were logged about a job, and those that tell its end."""
        from crawlog.commands.job_logs import job_log_lines

        for line in await self._do(job_log_lines, self._settings, job, None, LINES):
            yield line
        for line in await self._closing(job):
            yield line

    async def _closing(self, name: str) -> list["LogLine"]:
        """As `closing_lines`. Tools read the logs of all jobs again and again: what is summed is kept.

        Unless the job's end is not noted: pages may be in flight then, or still to be parsed.
        """
        from crawlog.jobs.job_closing import closing_lines, named, page_stats, unread

        job, is_noted = self._app[FLEET].look(lambda state: (state.job(name), _has_end(state, name)))
        if job is None or not traits(job.state).ended:
            return []
        end = job.name, job.epoch, job.rev, job.ended_at
        if end not in self._sums:
            reading = asyncio.ensure_future(self._do(page_stats, self._settings, self._app[FLEET], job))
            reading.add_done_callback(partial(self._keep_if_read, end, is_noted=is_noted))
            self._sums[end] = reading  # whoever asks meanwhile waits for the same
        try:
            sums = await asyncio.shield(self._sums[end])
        except EngineError as error:
            return [unread(error), *closing_lines(job, {})]
        except TooMuchWork:
            return closing_lines(job, {})
        return closing_lines(job, named(job, sums))

    def _keep_if_read(self, end: End, reading: "asyncio.Future[dict[str, float]]", *, is_noted: bool) -> None:
        if reading.cancelled() or reading.exception() is not None or not is_noted:
            self._sums.pop(end, None)
        while len(self._sums) > SUMS:
            self._sums.popitem(last=False)

    async def rows(self, job: str) -> AsyncIterator[bytes]:
        """The job's items so far, as JSON lines."""
        from crawlog.commands.items import items_of

        cursor, is_end = "", False
        while not is_end:
            page = await self._do(items_of, self._settings, job, cursor, ROWS)
            cursor, is_end = page.cursor, page.is_end
            yield b"".join(bytes(row.item) + b"\n" for row in page.rows)

    async def _seen(self, holds: "Callable[[FleetState], bool]") -> None:
        await self._do(self._app[FLEET].wait_until, holds, SEEN_S)

    async def _do(self, command: Callable[..., T], *args: Any) -> T:
        return await self._app[WORK].do(command, *args)


def _jobs(state: "FleetState") -> list[ScrapydJob]:
    return [job for name in state.names() if (job := _job(state, name)) is not None]


def _job(state: "FleetState", name: str) -> ScrapydJob | None:
    copy, view = state.copy(name), state.job(name)
    return scrapyd_job(view, dict(copy.spec.scrapy)) if copy is not None and view is not None else None


def _has_end(state: "FleetState", name: str) -> bool:
    copy = state.copy(name)
    return copy is not None and state.end(copy) is not None


def scrapyd_job(view: JobView, settings: dict[str, str] | None = None) -> ScrapydJob:
    """A job of ours as Scrapyd shows it."""
    stand = _STANDS.get(view.state, "finished")
    started = view.started_at or view.submitted_at
    return ScrapydJob(
        view.name,
        view.code.project if view.code else NO_PROJECT,
        view.spider or NO_PROJECT,
        stand,
        view.submitted_at,
        0.0 if stand == "pending" else started,
        (view.ended_at or started) if stand == "finished" else 0.0,
        view.args,
        settings or {},
    )


def local_time(at: float) -> str:
    """A moment as Scrapyd writes it in JSON: this machine's time, with microseconds."""
    return shown_time(at, None).strftime("%Y-%m-%d %H:%M:%S.%f")  # Scrapyd's API has local times
