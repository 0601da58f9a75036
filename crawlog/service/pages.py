"""Scrapyd's plain pages: jobs with their buttons, logs and items. Plain HTML, without scripts.

ScrapydFleet ─► rows ─► templates beside this file, which escape all that they are given
           └──► lines of a log, items: plain text, as they come
"""

import re
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crawlog.schemas.log_lines import GOES_ON, LogLine
from crawlog.streams.printable import escaped

from .access import is_allowed
from .routing import ROLE, Handler, add, prefix_of
from .scrapyd import SCRAPYD, by_stand, file_path
from .scrapyd_fleet import ScrapydJob, Stand, local_time

# Columns of the page of jobs; ScrapydWeb reads them by their order.
HEADINGS = ("Project", "Spider", "Job", "PID", "Start", "Runtime", "Finish", "Log", "Items", "Cancel")

_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b")  # How a line begins that Python's `logging` has made


class PageJob(NamedTuple):
    """A job on the page.

    Attributes:
        log, items: Paths of its files; empty for a pending job, which has none.
        can_cancel: Whether it has a button.
    """

    project: str
    spider: str
    job: str
    start: str = ""
    runtime: str = ""
    finish: str = ""
    log: str = ""
    items: str = ""
    can_cancel: bool = False


class FolderEntry(NamedTuple):
    """A folder's or file's line in a listing.

    Attributes:
        modified: Time of its last known change.
    """

    name: str
    modified: str
    kind: str
    is_folder: bool = False


def job_rows(jobs: list[ScrapydJob], now: float) -> list[tuple[str, list[PageJob]]]:
    """The rows by state, as Scrapyd orders them.

    Args:
        now: UTC epoch seconds.
    """
    stands: tuple[Stand, ...] = ("pending", "running", "finished")
    return [(stand.capitalize(), [_row(job, now) for job in by_stand(jobs, stand)]) for stand in stands]


def _row(job: ScrapydJob, now: float) -> PageJob:
    if job.stand == "pending":
        return PageJob(job.project, job.spider, job.id, can_cancel=True)
    is_finished = job.stand == "finished"
    return PageJob(
        job.project,
        job.spider,
        job.id,
        start=_seconds(job.started),
        runtime=runtime((job.ended if is_finished else now) - job.started),
        finish=_seconds(job.ended) if is_finished else "",
        log=file_path(job, "logs"),
        items=file_path(job, "items"),
        can_cancel=not is_finished,
    )


def runtime(seconds: float) -> str:
    """A duration as Scrapyd writes it: `0:01:05`, `1 day, 2:00:00`."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    before = f"{days} day{'s' if days > 1 else ''}, " if days else ""
    return f"{before}{hours}:{minutes:02}:{rest:02}"


def children(jobs: list[ScrapydJob], kind: Literal["logs", "items"], folder: list[str]) -> list[FolderEntry]:
    """What a folder holds: projects, spiders of a project, or files of a spider's jobs.

    Args:
        folder: Names of project and spider, as far as they are given.
    """
    newest: dict[str, float] = {}
    for job in jobs:
        place = [job.project, job.spider]
        if job.stand == "pending" or place[: len(folder)] != folder:
            continue
        name = f"{job.id}.{'log' if kind == 'logs' else 'jl'}" if len(folder) == len(place) else place[len(folder)]
        newest[name] = max(newest.get(name, 0.0), job.ended or job.started)
    is_folder = len(folder) < len(("project", "spider"))
    kind_of = "[Directory]" if is_folder else "[text/plain]"
    return [FolderEntry(name, local_time(at)[:16], kind_of, is_folder) for name, at in sorted(newest.items())]


def _seconds(at: float) -> str:
    return local_time(at)[:19]


def log_text(line: LogLine) -> str:
    """A line of a log as Scrapy writes it, which ScrapydWeb's parser reads; control characters are escaped.

    What a spider logs comes as it was logged, with its own time; a line that goes on with the one before has none.
    """
    if line.level == GOES_ON or (not line.source and _LOGGED.match(line.text)):
        return escaped(line.text)
    url = f" ({line.url})" if line.url and line.url not in line.text else ""
    return f"{_seconds(line.at)} [{escaped(line.source) or 'crawlog'}] {line.level.upper()}: {escaped(line.text + url)}"


FOLDER = Path(__file__).parent  # Of the templates

# What a browser may load and do on a page: its stylesheet, and its forms. No script runs, whatever a page shows.
POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; sandbox {}"

PART_BYTES = 1 << 16  # Text that is sent at a time

Kind = Literal["logs", "items"]


def routes(app: web.Application) -> None:
    """Adds the pages."""
    for path, handler in _Pages().paths().items():
        add(app, "GET", path, handler, "read")


class _Pages:
    """The pages; their fleet is the app's."""

    def __init__(self) -> None:
        loader = FileSystemLoader(FOLDER)
        self._templates = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.filters["segment"] = partial(quote, safe="")
        self._templates.filters["one_line"] = escaped
        self._style = (FOLDER / "pages.css").read_text()

    def paths(self) -> dict[str, Handler]:
        """The handlers by path."""
        paths: dict[str, Handler] = {"/jobs": self._jobs, "/pages.css": self._css}
        kinds: tuple[Kind, ...] = ("logs", "items")
        for kind in kinds:
            for depth in range(3):
                folder = f"/{kind}" + "".join(f"/{{{name}:[^/]+}}" for name in ("project", "spider")[:depth])
                paths |= {end: partial(self._listing, kind) for end in (folder, f"{folder}/")}
            paths[f"{folder}/{{file:[^/]+}}"] = partial(self._file, kind)
        return paths

    # ------------------------------------------------------------------ pages

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        groups = job_rows(await request.app[SCRAPYD].jobs(), time.time())
        role = request.get(ROLE)
        may_cancel = role is None or is_allowed(role, "operate")
        return self._page(request, "pages_jobs.html", headings=HEADINGS, groups=groups, may_cancel=may_cancel)

    async def _css(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=self._style, content_type="text/css", charset="utf-8")

    async def _listing(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """A folder: projects, spiders of a project, files of a spider."""
        folder = [request.match_info[name] for name in ("project", "spider") if name in request.match_info]
        path = "/".join(("", kind, *(quote(part, safe="") for part in folder), ""))
        if not request.rel_url.raw_path.endswith("/"):
            raise web.HTTPFound(prefix_of(request) + path)
        entries = children(await request.app[SCRAPYD].jobs(), kind, folder)
        if folder and not entries:
            raise _not_found()
        shown = "/".join(("", kind, *folder, ""))
        return self._page(request, "pages_listing.html", path=shown, entries=entries)

    async def _file(self, kind: Kind, request: web.Request) -> web.StreamResponse:
        """A job's log or items, as they come from the log."""
        job = await self._of_path(kind, request)
        if kind == "logs":
            return await _sent(request, _encoded(request.app[SCRAPYD].lines(job.id)))
        return await _sent(request, request.app[SCRAPYD].rows(job.id))

    async def _of_path(self, kind: Kind, request: web.Request) -> ScrapydJob:
        """The job whose file a path names."""
        name, dot, suffix = request.match_info["file"].rpartition(".")
        job = await request.app[SCRAPYD].job(name) if dot and suffix == ("log" if kind == "logs" else "jl") else None
        place = request.match_info["project"], request.match_info["spider"]
        if job is None or (job.project, job.spider) != place or job.stand == "pending":
            raise _not_found()
        return job

    def _page(self, request: web.Request, template: str, **values: Any) -> web.Response:
        text = self._templates.get_template(template).render(prefix=prefix_of(request), **values)
        headers = {"Content-Security-Policy": POLICY.format("allow-forms allow-same-origin")}
        return web.Response(text=text, content_type="text/html", charset="utf-8", headers=headers)


async def _sent(request: web.Request, parts: AsyncIterator[bytes]) -> web.StreamResponse:
    """Plain text, part by part. The first part is there before the answer begins, so that an error has its status."""
    first = await anext(parts, b"")
    headers = {"Content-Security-Policy": POLICY.format(""), "Content-Type": "text/plain; charset=utf-8"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(first)
        async for part in parts:
            await response.write(part)
    await response.write_eof()
    return response


async def _encoded(lines: AsyncIterator[LogLine]) -> AsyncIterator[bytes]:
    part = bytearray()
    async for line in lines:
        part += log_text(line).encode() + b"\n"
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _not_found() -> web.HTTPException:
    return web.HTTPNotFound()
