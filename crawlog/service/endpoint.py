"""An endpoint of /api/v1: its types are checked on the way in, and described by OpenAPI.

request ─► path, query and body as msgspec types, unknown fields refused ─► `does`, in a thread ─► its value as JSON
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import web

from .answers import AnswerError, as_json
from .routing import FLEET, HOSTS, SETTINGS, UPLOAD_BYTES, Handler, Role, in_thread, role_of, user_of

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView
    from crawlog.streams.hosts import HostTable
    from crawlog.streams.settings import Settings

BASE = "/api/v1"


class ApiCall(NamedTuple):
    """A request whose types were checked.

    Attributes:
        path: The names in the path.
        query, body: Of the endpoint's types; an upload's body is bytes.
        user: Who asks, for people.
        role: Of the user; one who may only look is shown less.
        hosts: Those of the fleet.
    """

    settings: "Settings"
    fleet: "FleetView"
    path: dict[str, str]
    query: Any
    body: Any
    user: str
    role: Role = "read"
    hosts: "HostTable | None" = None


class ApiEndpoint(NamedTuple):
    """An endpoint.

    Attributes:
        does: Runs in a thread; its value becomes the answer.
        summary: One line for the description.
        answer: The type of the value.
        query, body: Structs, or None. `bytes` for an upload.
        stream: Answers by itself instead of `does`; `media` are its types.
        errors: Statuses that it may have beside those of all endpoints.
    """

    method: str
    path: str
    role: Role
    summary: str
    answer: Any
    does: Callable[[ApiCall], Any] | None = None
    query: Any = None
    body: Any = None
    status: int = 200
    stream: Callable[[web.Request, ApiCall], Any] | None = None
    media: tuple[str, ...] = ("application/json",)
    errors: tuple[int, ...] = ()


def handler_of(endpoint: ApiEndpoint) -> Handler:
    """The handler of an endpoint."""

    async def handle(request: web.Request) -> web.StreamResponse:
        call = await _call(request, endpoint)
        if endpoint.stream is not None:
            response: web.StreamResponse = await endpoint.stream(request, call)
            return response
        assert endpoint.does is not None
        return as_json(await in_thread(request, endpoint.does, call), endpoint.status)

    return handle


async def _call(request: web.Request, endpoint: ApiEndpoint) -> ApiCall:
    query = body = None
    given = dict(request.query)
    if len(given) != len(request.query):
        raise AnswerError(400, "a name stands twice in the query")
    if endpoint.query is not None:
        query = msgspec.convert(given, endpoint.query, strict=False)
    elif given:
        raise AnswerError(400, f"unknown in the query: {', '.join(sorted(given))[:200]}")
    if endpoint.body is bytes:
        body = await _upload(request)
    elif endpoint.body is not None:
        if request.content_type != "application/json":
            raise AnswerError(415, "the body is no JSON\nSend Content-Type: application/json.")
        body = msgspec.json.decode(await request.read(), type=endpoint.body)
    return call_of(request, body, query)


def call_of(request: web.Request, body: Any = None, query: Any = None, **path: str) -> ApiCall:
    """A call of a function of /api/v1 by a request's user.

    Args:
        path: Names of the endpoint's path, beside those of the request's own.
    """
    app, names = request.app, dict(request.match_info) | path
    asks = user_of(request), role_of(request)
    return ApiCall(app[SETTINGS], app[FLEET], names, query, body, *asks, app[HOSTS].table)


async def _upload(request: web.Request) -> bytes:
    if request.content_type not in ("application/octet-stream", "application/zip"):
        raise AnswerError(415, "the body is no archive\nSend Content-Type: application/octet-stream.")
    content = await request.read()
    if not content:
        raise AnswerError(400, f"the body is empty; it is an archive of at most {UPLOAD_BYTES} bytes")
    return content
