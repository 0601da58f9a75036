"""The dashboard: pages at `/ui/` that show the fleet and change it, through the functions of `/api/v1`.

GET /ui/… ─► a page's module: views of FleetView, rows by lists ─► layout: template, or its block `live` for a refresh
POST /ui/do/… ─► forms: token of the form, fields as the body of an endpoint of /api/v1 ─► back to the page, with a note

    layout    head, navigation, roles, notes; `page` renders a template
    lists     search, filter, sorting and paging of rows, all by the server
    forms     each changing endpoint of /api/v1 as the target of a form
    charts    a series as SVG, which uPlot replaces where scripts run
    frames    a stored page in a sandboxed frame
    overview_page, jobs_page …    a page each

A page is a module with `routes(app)` and `NAV`, its place in `MODULES`, and a template. Pages work without scripts:
htmx only repeats what a link or a reload does.
"""

from importlib import import_module

from aiohttp import web

# Modules with pages, in the order of the navigation.
MODULES = (
    "overview_page",
    "jobs_page",
    "job_page",
    "try_page",
    "url_page",
    "workers_page",
    "hosts_page",
    "topics_page",
    "dead_page",
    "replay_page",
    "projects_page",
    "schedules_page",
    "settings_page",
)


def routes(app: web.Application) -> None:
    """Adds all pages, the targets of forms, and the files that pages load."""
    from . import forms, layout

    pages = [import_module(f".{name}", __package__) for name in MODULES]
    layout.prepare(app, [entry for page in pages for entry in page.NAV])
    forms.routes(app)
    for page in pages:
        page.routes(app)
