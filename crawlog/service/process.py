"""The service's process: `crawlog up` starts it beside the workers, `crawlog worker service` alone.

It listens, notes address, port and token in `run/service.json`, and ends at SIGTERM. What it knows comes from the log,
so a killed one is simply started again.
"""

import asyncio
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import structlog
from aiohttp import web

from crawlog.processes.folder import ServiceNote, note_service, own_token
from crawlog.streams import exit_codes, files
from crawlog.streams.errors import CrawlError, EngineError, Misconfigured
from crawlog.streams.hosts import HostReader
from crawlog.streams.readiness import notify

from .access import ACCOUNTS, WRONG, WRONG_AT_ONCE, WRONG_PER_S, Accounts, access, check_reach
from .answers import errors
from .doors import AT_WORK, FILES, Rates, serving, under_way
from .guards import AT_ONCE, NAMES, PER_S, REACHED, REQUESTS, guards, is_reached, names_of, say_headers
from .routing import (
    BODY_BYTES,
    FLEET,
    HOSTS,
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
MODULES = ("api_v1", "metrics", "scrapyd", "pages", "dashboard")


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
    app[HOSTS] = HostReader(settings)
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


log = structlog.get_logger()

LOST_READ_S = 60.0  # How long the reports of the hour before the service may be read, seconds

PORTS = 100  # Ports that are tried, from `service.port` on


def serve(load: "Callable[[], Settings]", told: Callable[[ServiceNote], None] | None = None) -> NoReturn:
    """Serves until SIGTERM or SIGINT; does not return.

    Args:
        load: Loads the settings; an error in them becomes the last words.
        told: Is called once it listens.
    """
    from crawlog.streams import logs

    os.umask(files.OTHERS)
    try:
        settings = load()
        logs.configure(settings.log.level, settings.log.format, worker="service", stage="service")
        check_reach(settings)
        asyncio.run(_serve(settings, told))
    except CrawlError as error:
        logs.configure("error")
        log.critical("service_refused", error=str(error))
        exit_codes.say(error)
        raise SystemExit(exit_codes.code_of(error)) from None
    os._exit(0)  # a command in a thread may wait for the broker


async def _serve(settings: "Settings", told: Callable[[ServiceNote], None] | None) -> None:
    from crawlog.streams.fleet import FleetView

    from . import watch

    files.want_open(FILES)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    data = settings.run.data
    fleet = await asyncio.to_thread(lambda: FleetView(settings).start())
    threading.Thread(target=_read_lost, args=(fleet,), name="lost-workers", daemon=True).start()
    token = own_token(data)
    listening = _listening(settings.service.address, settings.service.port)
    app = make_app(settings, fleet, token)
    watch.prepare(app, settings, fleet)
    app[HOSTS].start()
    async with serving(app, listening):
        note = ServiceNote(settings.service.address, listening.getsockname()[1], os.getpid(), token)
        await asyncio.to_thread(note_service, data, note)
        log.info("serving", url=note.url)
        notify("READY=1")  # to systemd; probes ask /readyz
        if told:
            told(note)
        await stop.wait()
        log.info("stopping")
    app[HOSTS].close()
    await asyncio.to_thread(fleet.close)


def _read_lost(fleet: "FleetView") -> None:
    """Reads which workers ended in the hour before the service began; the pages need not wait for it."""
    with suppress(EngineError):
        fleet.read_lost(LOST_READ_S)


def _listening(address: str, port: int) -> socket.socket:
    """A socket on the port, or on the next free one.

    Raises: Misconfigured: the address cannot be listened on.
    """
    for tried in range(port, port + (PORTS if port else 1)):
        if tried > 65_535:
            break
        try:
            family, kind, proto, _, place = socket.getaddrinfo(
                address, tried, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, proto)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                listening.close()
                continue
            raise Misconfigured(
                f"the service cannot listen on {address}:{tried}: {error.strerror or error}.\n"
                "Set service.address and service.port, or service.enabled=false."
            ) from None
        return listening
    raise Misconfigured(
        f"the service finds no free port on {address} from {port} on.\nSet service.port, or service.enabled=false."
    )
