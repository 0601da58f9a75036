"""What Scrapyd's API and pages need of the fleet, and a job as Scrapyd shows it.

FleetView, commands ─► scrapyd_commands ─► ScrapydFleet ─► scrapyd_calls (API), pages
"""

from collections.abc import AsyncIterator
from typing import Literal, NamedTuple, Protocol

import msgspec

from crawlog.schemas.log_lines import LogLine
from crawlog.streams.fleet import JobView
from crawlog.streams.printable import shown_time

Stand = Literal["pending", "running", "finished"]
"""Scrapyd's states."""

NO_PROJECT = "default"
"""Project and spider that are shown for jobs without one."""

_STANDS: dict[str, Stand] = {"pending": "pending", "running": "running", "paused": "running", "watching": "running"}
"""Ours to Scrapyd's; every other state is an end."""


class ScrapydVersion(NamedTuple):
    """A version of a project.

    Attributes:
        spiders: Names of its spiders.
    """

    name: str
    spiders: tuple[str, ...]


class ScrapydOrder(msgspec.Struct, frozen=True):
    """A job to be submitted.

    Attributes:
        job: Its name.
        settings: Scrapy's settings, as text.
        args: Arguments of the spider.
        by: The user.
    """

    job: str
    project: str
    spider: str
    version: str
    priority: float = 0.0
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    args: dict[str, str] = msgspec.field(default_factory=dict)
    by: str = ""


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


class ScrapydFleet(Protocol):
    """The fleet behind the API. Its methods raise CrawlError, whose message goes to the client."""

    @property
    def node(self) -> str:
        """Name of this machine."""

    async def jobs(self) -> list[ScrapydJob]:
        """All jobs."""

    async def job(self, name: str) -> ScrapydJob | None:
        """One job."""

    async def projects(self) -> dict[str, list[ScrapydVersion]]:
        """Deployed projects with their versions, the newest last."""

    async def submit(self, order: ScrapydOrder) -> None:
        """Submits a job."""

    async def cancel(self, job: str, by: str) -> None:
        """Ends a job for good."""

    async def add_version(self, project: str, version: str, egg: bytes, by: str) -> int:
        """Deploys a version; returns how many spiders it has."""

    async def delete(self, project: str, version: str | None, by: str) -> None:
        """Hides a version, or the whole project."""

    def lines(self, job: str) -> AsyncIterator[LogLine]:
        """The lines that were logged about a job."""

    def rows(self, job: str) -> AsyncIterator[bytes]:
        """The job's items so far, as JSON lines."""


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
