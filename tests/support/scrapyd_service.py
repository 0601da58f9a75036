"""Scrapyd's API and pages over a fleet that only remembers what it was told, served in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import requests
from aiohttp import web

from crawlog.jobs.request import JobRequest
from crawlog.schemas.log_lines import LogLine
from crawlog.service.process import make_app
from crawlog.service.scrapyd import SCRAPYD
from crawlog.service.scrapyd_fleet import ScrapydJob
from crawlog.streams.settings.sources import load

LIMIT_S = 20.0

TOKEN = "t0ken"
"""Of the data folder."""


@dataclass
class ToldFleet:
    """A fleet that remembers.

    Attributes:
        told: What it was asked to do, in order.
        error: Raised by everything that it is asked to do.
    """

    node: str = "node"
    all_jobs: dict[str, ScrapydJob] = field(default_factory=dict)
    all_projects: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    told: list[object] = field(default_factory=list)
    logged: list[LogLine] = field(default_factory=list)
    items: list[bytes] = field(default_factory=list)
    error: Exception | None = None

    async def jobs(self) -> list[ScrapydJob]:
        """All jobs."""
        return list(self.all_jobs.values())

    async def job(self, name: str) -> ScrapydJob | None:
        """One job."""
        return self.all_jobs.get(name)

    async def projects(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Deployed projects."""
        return self.all_projects

    async def submit(self, wanted: JobRequest, by: str) -> None:
        """Notes it; the job is pending."""
        self._note((wanted, by))
        place = (wanted.job, wanted.project, wanted.spider)
        settings = dict(wanted.scrapy)
        self.all_jobs[wanted.job] = ScrapydJob(*place, "pending", 1.0, args=wanted.args, settings=settings)

    async def cancel(self, job: str, by: str) -> None:
        """Notes it; the job is finished."""
        self._note(("cancel", job, by))
        self.all_jobs[job] = msgspec.structs.replace(self.all_jobs[job], stand="finished", started=2.0, ended=3.0)

    async def add_version(self, project: str, version: str, egg: bytes, by: str) -> int:
        """Notes it; the version is the newest."""
        self._note(("add", project, version, len(egg), by))
        versions = self.all_projects.setdefault(project, {})
        versions.pop(version, None)
        versions[version] = ("one", "two")
        return 2

    async def delete(self, project: str, version: str | None, by: str) -> None:
        """Notes it; they are gone."""
        self._note(("delete", project, version, by))
        kept = self.all_projects.pop(project)
        left = {name: spiders for name, spiders in kept.items() if version not in {None, name}}
        if left:
            self.all_projects[project] = left

    async def lines(self, job: str) -> AsyncIterator[LogLine]:
        """The same for every job."""
        self.told.append(("lines", job))
        for line in self.logged:
            yield line

    async def rows(self, job: str) -> AsyncIterator[bytes]:
        """The same for every job."""
        self.told.append(("rows", job))
        for item in self.items:
            yield item

    def _note(self, what: object) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(what)


@contextlib.contextmanager
def served(fleet: ToldFleet, **settings: object) -> Iterator[str]:
    """The address of the service with all its guards, while it runs; its token is TOKEN.

    Args:
        settings: By dotted name, its dots as two underscores.
    """
    loop = asyncio.new_event_loop()
    ready: list[int] = []
    is_ready, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        app = make_app(load(dict(named), environ={}), None, TOKEN)  # type: ignore[arg-type]  # no handler here looks at it
        app[SCRAPYD] = fleet  # type: ignore[misc]  # it has the same methods
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.append(runner.addresses[0][1])
        is_ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert is_ready.wait(LIMIT_S)
    try:
        yield f"http://127.0.0.1:{ready[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()


def ask(method: str, url: str, **more: Any) -> requests.Response:
    """A request with the service's token; redirects are followed."""
    wanted: dict[str, Any] = {"auth": ("", TOKEN), "timeout": LIMIT_S} | more
    return requests.request(method, url, **wanted)
