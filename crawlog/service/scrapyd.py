"""Scrapyd's own API over HTTP, so that `scrapyd-client`, `python-scrapyd-api` and ScrapydWeb work unchanged.

request ─► arguments (scrapyd_words) ─► endpoint (scrapyd_calls) ─► fleet (scrapyd_fleet) ─► JSON, a line

An error is status 200 with `"status": "error"`, as in Scrapyd: its clients read the message.
"""

import json
from http import HTTPStatus

import structlog
from aiohttp import web

from crawlog.streams.errors import CrawlError

from .routing import BODY_BYTES, UPLOAD_BYTES, Handler, TooMuchWork, add, prefix_of, user_of
from .scrapyd_calls import ENDPOINTS, Answer, Caller, Endpoint
from .scrapyd_fleet import ScrapydFleet
from .scrapyd_words import ScrapydError, arguments_of

log = structlog.get_logger()

SCRAPYD: web.AppKey[ScrapydFleet] = web.AppKey("scrapyd")


def routes(app: web.Application) -> None:
    """Adds the endpoints `/NAME.json`."""
    app[SCRAPYD] = ScrapydFleet(app)
    for name, endpoint in ENDPOINTS.items():
        is_upload = name == "addversion"
        for slashes in ("/", "//"):  # scrapyd-client adds one to the address, which ends with one in scrapy.cfg
            add(app, "*", f"{slashes}{name}.json", _handler(name, endpoint), endpoint.role, is_upload=is_upload)


def _handler(name: str, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "OPTIONS":
            return web.Response(status=HTTPStatus.NO_CONTENT, headers={"Allow": endpoint.allow})
        is_ok, answer = await _answer(name, endpoint, request)
        if is_ok and name == "cancel" and request.headers.get("Sec-Fetch-Mode") == "navigate":
            # a button of our page, pressed in a browser: back to the page
            raise web.HTTPSeeOther(f"{prefix_of(request)}/jobs")
        body = json.dumps(answer | {"node_name": request.app[SCRAPYD].node}).encode() + b"\n"
        return web.Response(body=body, content_type="application/json")

    return handle


async def _answer(name: str, endpoint: Endpoint, request: web.Request) -> tuple[bool, Answer]:
    try:
        if request.method != endpoint.method and (request.method, endpoint.method) != ("HEAD", "GET"):
            raise ScrapydError(f"UnsupportedMethod: Expected one of [b'HEAD', b'OPTIONS', b'{endpoint.method}']")
        given = await arguments_of(request, UPLOAD_BYTES if name == "addversion" else BODY_BYTES)
        answer = await endpoint.answer(Caller(request.app[SCRAPYD], given, user_of(request)))
        return True, answer | {"status": "ok"}
    except TooMuchWork:
        return False, {"status": "error", "message": "too many commands wait; try again in a second"}
    except (ScrapydError, CrawlError) as error:
        return False, {"status": "error", "message": str(error)}
    except Exception as error:
        log.exception("scrapyd_request_failed", endpoint=name)
        return False, {"status": "error", "message": f"{type(error).__name__}: see the service's log"}
