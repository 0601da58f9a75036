"""Scrapyd's plain pages: jobs with their buttons, logs and items. Plain HTML, without scripts.

ScrapydFleet ─► rows (pages_rows) ─► templates beside this file, which escape all that they are given
           └──► lines of a log, items: plain text, as they come
"""

import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crawlog.schemas.log_lines import LogLine
from crawlog.streams.printable import escaped

from .access import is_allowed
from .pages_rows import HEADINGS, children, job_rows, log_text
from .routing import ROLE, Handler, add, prefix_of
from .scrapyd import SCRAPYD
from .scrapyd_fleet import ScrapydJob

FOLDER = Path(__file__).parent
"""Of the templates."""

POLICY = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; sandbox {}"
"""What a browser may load and do on a page: its stylesheet, and its forms. No script runs, whatever a page shows."""

PART_BYTES = 1 << 16
"""Text that is sent at a time."""

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
        paths: dict[str, Handler] = {"/": self._home, "/jobs": self._jobs, "/pages.css": self._css}
        kinds: tuple[Kind, ...] = ("logs", "items")
        for kind in kinds:
            for depth in range(3):
                folder = f"/{kind}" + "".join(f"/{{{name}:[^/]+}}" for name in ("project", "spider")[:depth])
                paths |= {end: partial(self._listing, kind) for end in (folder, f"{folder}/")}
            paths[f"{folder}/{{file:[^/]+}}"] = partial(self._file, kind)
        return paths

    # ------------------------------------------------------------------ pages

    async def _home(self, request: web.Request) -> web.StreamResponse:
        projects = sorted(await request.app[SCRAPYD].projects())
        return self._page(request, "pages_home.html", projects=projects, host=request.host)

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
