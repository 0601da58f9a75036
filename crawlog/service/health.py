"""`/healthz`: the process answers. `/readyz`: the log answers, too. Both are open, and say nothing else."""

from aiohttp import web

from crawlog.streams.errors import EngineError

from .answers import as_json
from .routing import FLEET, TooMuchWork, add, in_thread


def routes(app: web.Application) -> None:
    """Adds them."""
    add(app, "GET", "/healthz", _healthz, None)
    add(app, "GET", "/readyz", _readyz, None)


async def _healthz(_: web.Request) -> web.Response:
    return as_json({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    try:
        await in_thread(request, request.app[FLEET].stages)
    except (EngineError, TooMuchWork):
        return as_json({"status": "the log does not answer"}, 503)
    return as_json({"status": "ok"})
