"""What modules with routes use: `add` a route with its role, the app's keys, and a thread for work that blocks."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from aiohttp import web

from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView
    from crawlog.streams.hosts import HostReader
    from crawlog.streams.settings import Settings

Role = Literal["read", "operate", "deploy"]
ROLES: tuple[Role, ...] = get_args(Role)  # Each may do what the earlier ones may, too

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

THREADS = 8  # Commands that run at a time

# Deploys that run at a time, in threads of their own: each runs code of others, as long as it may take.
UPLOAD_THREADS = 2

SUBMIT_THREADS = 4  # Submissions that run at a time, in threads of their own too: each may load a deployed spider

LOGIN_THREADS = 2  # Passwords that are looked at at a time

WAITING = 64  # Commands that may wait for a thread; further requests are told to come again

BODY_BYTES = 1 << 20  # Largest body of a request

UPLOAD_BYTES = 64 << 20  # Largest body of a request that deploys a project

T = TypeVar("T")


class ServiceRoute(NamedTuple):
    """A route.

    Attributes:
        method: `*` for a handler of all methods.
        role: That its user needs; None for a route that is open to all.
        is_upload: Whether a body of `UPLOAD_BYTES` is taken.
        runs_code: Whether its command may run code of others.
    """

    method: str
    path: str
    role: Role | None
    is_upload: bool = False
    runs_code: bool = False


class TooMuchWork(Exception):
    """Too many commands wait for a thread."""


class Work:
    """Threads for commands, which block."""

    def __init__(self, threads: int, name: str) -> None:
        self._count = threads
        self._threads = ThreadPoolExecutor(threads, name)
        self._under_way = 0

    async def do(self, command: Callable[..., T], *args: Any) -> T:
        """Runs a command in a thread.

        Raises: TooMuchWork: too many wait.
        """
        if self._under_way >= self._count + WAITING:
            raise TooMuchWork
        self._under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, command, *args)
        finally:
            self._under_way -= 1

    def close(self) -> None:
        """Takes no more commands; those under way may end."""
        self._threads.shutdown(wait=False, cancel_futures=True)


SETTINGS: "web.AppKey[Settings]" = web.AppKey("settings")
FLEET: "web.AppKey[FleetView]" = web.AppKey("fleet")
HOSTS: "web.AppKey[HostReader]" = web.AppKey("hosts")
WORK: web.AppKey[Work] = web.AppKey("work", Work)
UPLOADS: web.AppKey[Work] = web.AppKey("uploads", Work)
SUBMITS: web.AppKey[Work] = web.AppKey("submits", Work)
LOGINS: web.AppKey[Work] = web.AppKey("logins", Work)
ROUTES: web.AppKey[dict[tuple[str, str], ServiceRoute]] = web.AppKey("routes", dict)  # By method and canonical path

USER: "web.RequestKey[str]" = web.RequestKey("user", str)
ROLE: "web.RequestKey[Role]" = web.RequestKey("role")
BELOW: "web.RequestKey[str]" = web.RequestKey("prefix", str)
# What the guards note of a request: its user's name and role, the path below which a proxy serves us, and whether its
# answer has begun.
BEGUN: "web.RequestKey[asyncio.Event]" = web.RequestKey("begun", asyncio.Event)


def add(
    app: web.Application,
    method: str,
    path: str,
    handler: Handler,
    role: Role | None,
    *,
    is_upload: bool = False,
    runs_code: bool = False,
) -> None:
    """Adds a route; GET answers HEAD, too.

    Args:
        role: None for a route that is open to all.
        is_upload, runs_code: As `ServiceRoute` has them.
    """
    for one in ("GET", "HEAD") if method == "GET" else (method,):
        route = app.router.add_route(one, path, handler)
        assert route.resource is not None
        app[ROUTES][one, route.resource.canonical] = ServiceRoute(one, path, role, is_upload, runs_code or is_upload)


def check_routes(app: web.Application) -> None:
    """Refuses an app with a route that was not added by `add`: nobody decided who may use it.

    Raises: Misconfigured: there is one.
    """
    for route in app.router.routes():
        place = route.resource.canonical if route.resource else ""
        if (route.method, place) not in app[ROUTES]:
            raise Misconfigured(f"the route {route.method} {place} of the service has no role; add it with routing.add")


def route_of(request: web.Request) -> ServiceRoute | None:
    """The route of a request; None if there is none."""
    resource = request.match_info.route.resource
    if resource is None:
        return None
    routes = request.app[ROUTES]
    return routes.get((request.method, resource.canonical)) or routes.get(("*", resource.canonical))


async def in_thread(request: web.Request, command: Callable[..., T], *args: Any) -> T:
    """Runs a command, which blocks, in a thread; too many waiting ones give 503."""
    route = route_of(request)
    work = WORK
    if route is not None and route.runs_code:
        work = UPLOADS if route.is_upload else SUBMITS
    return await request.app[work].do(command, *args)


def fleet_of(request: web.Request) -> "FleetView":
    return request.app[FLEET]


def user_of(request: web.Request) -> str:
    return str(request.get(USER, ""))


def role_of(request: web.Request) -> Role:
    """The role of the user or token."""
    role: Role = request.get(ROLE, "read")
    return role


def is_part(request: web.Request) -> bool:
    """Whether only the block `live` is wanted: for a refresh, or as a part of another page."""
    return request.headers.get("HX-Request") == "true"


def prefix_of(request: web.Request) -> str:
    """The path below which a proxy serves us; links begin with it."""
    return str(request.get(BELOW, ""))
