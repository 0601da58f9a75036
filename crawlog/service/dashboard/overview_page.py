"""Overview: the stages with rate and lag, and the jobs that run."""

from aiohttp import web

from crawlog.service.routing import add, fleet_of, in_thread, prefix_of

from .layout import NavEntry, add_page, page

NAV = (NavEntry("Overview", "/ui/"),)


def routes(app: web.Application) -> None:
    """Adds the page; the service's root leads to it."""
    add(app, "GET", "/", _root, "read")
    add(app, "GET", "/ui", _root, "read")
    add_page(app, "/ui/", _overview)


async def _root(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound(f"{prefix_of(request)}/ui/")


async def _overview(request: web.Request) -> web.StreamResponse:
    fleet = await in_thread(request, fleet_of(request).status)
    running = [job for job in fleet.jobs if job.state in ("running", "pending", "paused")]
    return page(request, "overview.html", fleet=fleet, running=running[:20])
