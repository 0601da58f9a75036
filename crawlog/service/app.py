"""The service's app: the middlewares in their order, and the modules that have routes."""

from importlib import import_module
from typing import TYPE_CHECKING

from aiohttp import web

from .access import ACCOUNTS, WRONG, WRONG_AT_ONCE, WRONG_PER_S, Accounts, access
from .answers import errors
from .doors import AT_WORK, Rates, under_way
from .guards import AT_ONCE, NAMES, PER_S, REACHED, REQUESTS, guards, is_reached, names_of, say_headers
from .routing import (
    BODY_BYTES,
    FLEET,
    LOGIN_THREADS,
    LOGINS,
    ROUTES,
    SETTINGS,
    SUBMIT_THREADS,
    SUBMITS,
    THREADS,
    UPLOAD_THREADS,
    UPLOADS,
    WORK,
    Work,
    check_routes,
)

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView
    from crawlog.streams.settings import Settings

# Modules of this folder with routes; each has a function `routes(app)`. A new one is a name here.
MODULES = ("api_v1", "metrics", "scrapyd", "pages")


def make_app(settings: "Settings", fleet: "FleetView", own_token: str) -> web.Application:
    """The app.

    Args:
        settings: With the address of the log.
        own_token: The token of the data folder.

    Raises: Misconfigured: a route has no role.
    """
    app = web.Application(middlewares=[under_way, errors, guards, access], client_max_size=BODY_BYTES)
    app[SETTINGS] = settings
    app[FLEET] = fleet
    app[WORK] = Work(THREADS, "command")
    app[UPLOADS] = Work(UPLOAD_THREADS, "deploy")
    app[SUBMITS] = Work(SUBMIT_THREADS, "submit")
    app[LOGINS] = Work(LOGIN_THREADS, "login")
    app[ROUTES] = {}
    app[AT_WORK] = set()
    app[ACCOUNTS] = Accounts(settings, own_token)
    app[WRONG] = Rates(WRONG_PER_S, WRONG_AT_ONCE)
    app[REQUESTS] = Rates(PER_S, AT_ONCE)
    app[NAMES] = names_of(settings)
    app[REACHED] = is_reached(settings)
    app.on_response_prepare.append(say_headers)
    app.on_cleanup.append(_end_work)
    for name in MODULES:
        import_module(f".{name}", __package__).routes(app)
    check_routes(app)
    return app


async def _end_work(app: web.Application) -> None:
    for work in (WORK, UPLOADS, SUBMITS, LOGINS):
        app[work].close()
