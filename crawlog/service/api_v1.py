"""`/api/v1`: all endpoints, and their description at `/api/v1/openapi.json`."""

import msgspec
from aiohttp import web

from crawlog.jobs.request import Submission

from . import api_changes, api_code, api_control, api_fleet, api_items, api_jobs
from .endpoint import BASE, ApiEndpoint, handler_of
from .openapi import description
from .routing import add

ENDPOINTS: tuple[ApiEndpoint, ...] = (
    *api_jobs.ENDPOINTS,
    *api_changes.ENDPOINTS,
    *api_items.ENDPOINTS,
    *api_fleet.ENDPOINTS,
    *api_control.ENDPOINTS,
    *api_code.ENDPOINTS,
)


def routes(app: web.Application) -> None:
    """Adds them."""
    api_items.prepare(app)
    for endpoint in ENDPOINTS:
        kind = {"is_upload": endpoint.body is bytes, "runs_code": endpoint.body is Submission}
        add(app, endpoint.method, BASE + endpoint.path, handler_of(endpoint), endpoint.role, **kind)
    described = msgspec.json.encode(description(ENDPOINTS))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    add(app, "GET", f"{BASE}/openapi.json", openapi, "read")
