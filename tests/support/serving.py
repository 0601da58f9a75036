"""A service over a fleet that is only told, asked through its middlewares."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from crawlog.schemas.control import Control, key
from crawlog.service.process import make_app
from crawlog.service.routing import Handler
from crawlog.streams.dead_letters import Letter
from crawlog.streams.fleet import FleetState, FleetStatus, FleetView, JobView
from crawlog.streams.settings import Settings, load

Client = TestClient[web.Request, web.Application]

OWN_TOKEN = "token-of-the-folder"


def service_settings(**service: Any) -> Settings:
    """Settings of the service by name."""
    return load({f"service.{name}": value for name, value in service.items()}, environ={})


def told_fleet(*records: Control, letters: Sequence[Letter] = ()) -> FleetView:
    """A view of a fleet without workers.

    Args:
        records: Of crawl.control.
    """
    state = FleetState()
    for record in records:
        state.hear(key(record), record, time.time())

    def job(name: str) -> JobView | None:
        return state.job(name)

    return cast(
        "FleetView",
        SimpleNamespace(
            job=job,
            jobs=state.jobs,
            stages=list,
            lost=list,
            status=lambda: FleetStatus((), (), ()),
            look=lambda ask: ask(state),
            letters=SimpleNamespace(by_job=lambda _: Counter(), all=lambda: list(letters)),
            wait_until=lambda *_: True,
        ),
    )


@contextlib.asynccontextmanager
async def served(
    settings: Settings, handler: Handler | None = None, fleet: FleetView | None = None
) -> AsyncIterator[Client]:
    """A client of the service.

    Args:
        handler: Answers in place of the handlers of all routes.
    """
    app = make_app(settings, fleet or told_fleet(), OWN_TOKEN)
    if handler is not None:
        for route in app.router.routes():
            if route.resource is not None and not route.resource.canonical.startswith("/healthz"):
                route._handler = handler  # type: ignore[assignment]  # an aiohttp handler is a coroutine function
    async with TestClient(TestServer(app)) as client:
        yield client


async def reached(_: web.Request) -> web.StreamResponse:
    """A handler that says that a request came through."""
    await asyncio.sleep(0)
    return web.Response(text="reached")
