"""`/healthz`: the process answers. `/readyz`: the log answers, too. Both are open, and say nothing else."""

import asyncio
import time
from typing import TYPE_CHECKING

from aiohttp import web

from crawlog.streams.errors import EngineError

from .answers import as_json
from .routing import FLEET, add

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView

LOOK_S = 1.0
"""Time that a look at the log counts, seconds."""


def routes(app: web.Application) -> None:
    """Adds them."""
    app[READY] = LogHealth()
    add(app, "GET", "/healthz", _healthz, None)
    add(app, "GET", "/readyz", _readyz, None)


async def _healthz(_: web.Request) -> web.Response:
    return as_json({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    if not await request.app[READY].look(request.app[FLEET]):
        return as_json({"status": "the log does not answer"}, 503)
    return as_json({"status": "ok"})


class LogHealth:
    """Whether the log answers: anybody may ask, so one look serves all for a while."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._at = -LOOK_S
        self._is_ready = False

    async def look(self, fleet: "FleetView") -> bool:
        """Whether it answers, or did a moment ago."""
        async with self._looking:
            if time.monotonic() - self._at >= LOOK_S:
                self._is_ready = await asyncio.to_thread(_answers, fleet)
                self._at = time.monotonic()
            return self._is_ready


READY: web.AppKey[LogHealth] = web.AppKey("ready", LogHealth)


def _answers(fleet: "FleetView") -> bool:
    try:
        fleet.stages()
    except EngineError:
        return False
    return True
