"""Projects: deployed code with its versions and spiders; deploy by upload, delete, revoke."""

from collections.abc import Iterable
from itertools import groupby

from aiohttp import web

from crawlog.commands.projects import Deployed, ProjectVersion, Removed, versions
from crawlog.outcome import counted
from crawlog.service.routing import SETTINGS, in_thread
from crawlog.streams.errors import UnknownName

from . import forms
from .layout import NavEntry, add_page, page
from .lists import Column, listed, query_of

NAV = (NavEntry("Projects", "/ui/projects"),)

Project = list[ProjectVersion]  # The newest version last

COLUMNS: tuple[Column[Project], ...] = (
    Column("name", "Project", lambda one: one[-1].project),
    Column("version", "Newest version"),
    Column("spiders", "Spiders", lambda one: len(one[-1].spiders), "number"),
    Column("versions", "Versions", len, "number minor"),
    Column("at", "Deployed", lambda one: one[-1].at, "number"),
    Column("by", "By", lambda one: one[-1].by, "minor"),
)

VERSIONS: tuple[Column[ProjectVersion], ...] = (
    Column("version", "Version", lambda one: one.version),
    Column("at", "Deployed", lambda one: one.at, "number"),
    Column("by", "By", lambda one: one.by, "minor"),
    Column("spiders", "Spiders", lambda one: len(one.spiders)),
    Column("size", "Size", lambda one: one.size, "number minor"),
    Column("key", "Signed by", lambda one: one.key, "minor"),
)


def routes(app: web.Application) -> None:
    """Adds the pages."""
    add_page(app, "/ui/projects", _projects)
    add_page(app, "/ui/projects/{project}", _project)
    forms.RESULTS["PUT", "/projects/{project}/versions/{version}"] = _deployed
    forms.RESULTS["DELETE", "/projects/{project}"] = _removed


async def _projects(request: web.Request) -> web.StreamResponse:
    known = by_project(await in_thread(request, versions, request.app[SETTINGS]))
    found = listed(known, query_of(request.query, COLUMNS), COLUMNS, text=_text)
    return page(request, "projects.html", found=found)


def by_project(known: Iterable[ProjectVersion]) -> list[Project]:
    """Versions, which come by project, the newest last, as projects."""
    return [list(group) for _, group in groupby(known, lambda one: one.project)]


def _text(project: Project) -> str:
    return " ".join((project[-1].project, *project[-1].spiders))


async def _project(request: web.Request) -> web.StreamResponse:
    name = request.match_info["project"]
    known = await in_thread(request, versions, request.app[SETTINGS], name)
    if not known:
        raise UnknownName(f"there is no project {name!r:.130}\nThe page Projects lists those that there are.")
    rows = listed(known[::-1], query_of(request.query, VERSIONS), VERSIONS, text=lambda one: one.version)
    return page(request, "project.html", newest=known[-1], found=rows)


def _deployed(one: Deployed) -> str:
    refused = "" if one.is_trusted else "; workers here do not run it, as its key is not trusted"
    return f"{one.project} {one.version} is deployed with {counted(len(one.spiders), 'spider')}{refused}"


def _removed(one: Removed) -> str:
    pinned = f"; {', '.join(one.pinned[:5])} still need the code, which stays for them" if one.pinned else ""
    return f"{counted(len(one.versions), 'version')} deleted{pinned}"
