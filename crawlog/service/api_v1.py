"""`/api/v1`: all endpoints, and their OpenAPI 3.1 description, made of their types, at `/api/v1/openapi.json`."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

import crawlog
from crawlog.jobs.request import JobRequest
from crawlog.jobs.schedules import ScheduleRequest

from . import api_control, api_fleet, api_hosts, api_items, api_jobs, api_schedules, api_topics, api_try, api_watch
from .answers import ErrorBody
from .api_try import TryBody
from .endpoint import BASE, ApiEndpoint, handler_of
from .routing import add

ENDPOINTS: tuple[ApiEndpoint, ...] = (
    *api_jobs.ENDPOINTS,
    *api_items.ENDPOINTS,
    *api_fleet.ENDPOINTS,
    *api_hosts.ENDPOINTS,
    *api_topics.ENDPOINTS,
    *api_control.ENDPOINTS,
    *api_schedules.ENDPOINTS,
    *api_try.ENDPOINTS,
    *api_watch.ENDPOINTS,
)


def routes(app: web.Application) -> None:
    """Adds them."""
    api_items.prepare(app)
    for endpoint in ENDPOINTS:
        kind = kind_of(endpoint)
        add(app, endpoint.method, BASE + endpoint.path, handler_of(endpoint), endpoint.role, **kind)
    described = msgspec.json.encode(description(ENDPOINTS))

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=described, content_type="application/json")

    add(app, "GET", f"{BASE}/openapi.json", openapi, "read")


def kind_of(endpoint: ApiEndpoint) -> dict[str, bool]:
    """`is_upload` and `runs_code` of an endpoint's route."""
    return {"is_upload": endpoint.body is bytes, "runs_code": endpoint.body in (JobRequest, ScheduleRequest, TryBody)}


# Statuses of errors; their body is an ErrorBody, but that of 401, which is text.
ERRORS = {
    400: "the request is wrong",
    401: "no valid credentials",
    403: "the role does not suffice, or a page of another site asks",
    404: "there is no such thing",
    405: "not this method",
    406: "no answer of this media type",
    409: "not in this state",
    413: "the body is too large",
    415: "not this media type",
    421: "not a name of the service",
    429: "too many requests",
    503: "the log does not answer, or too many commands wait",
}

OF_ALL = (400, 401, 403, 421, 429, 503)  # Errors of every endpoint

PLACE = "#/components/schemas/{name}"

# Schemas of names in paths; others are texts.
NAMES: dict[str, dict[str, Any]] = {
    "job": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"},
    "schedule": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"},
    "offset": {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
}


def description(endpoints: Iterable[ApiEndpoint]) -> dict[str, Any]:
    """The whole description."""
    endpoints = list(endpoints)
    types: list[Any] = [ErrorBody]
    for one in endpoints:
        types += [kind for kind in (one.query, one.body, one.answer) if kind not in (None, bytes)]
    schemas, components = msgspec.json.schema_components(types, ref_template=PLACE)
    known = {repr(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(BASE + one.path, {})[one.method.lower()] = _operation(one, known, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "crawlog",
            "version": crawlog.__version__,
            "description": "Jobs of a crawl, its results, its fleet and its log.",
        },
        "security": [{"basic": []}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(one: ApiEndpoint, known: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"{(\w+)(?::[^}]*)?}", one.path)
    operation: dict[str, Any] = {
        "summary": one.summary,
        "operationId": f"{one.method.lower()}{re.sub(r'[^a-z]+', '_', one.path.lower())}".rstrip("_"),
        "x-role": one.role,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": NAMES.get(name, {"type": "string"})}
            for name in names
        ]
        + _query(one, components),
        "responses": _responses(one, known, has_names=bool(names)),
    }
    if one.body is bytes:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    elif one.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": known[repr(one.body)]}},
        }
    return operation


def _query(one: ApiEndpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    described = components[one.query.__name__]
    required = described.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in described["properties"].items()
    ]


def _responses(one: ApiEndpoint, known: dict[str, Any], *, has_names: bool) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "done"}
    if one.media == ("application/json",):
        good["content"] = {"application/json": {"schema": known[repr(one.answer)]}}
    else:
        good["content"] = {
            media: {"schema": known[repr(one.answer)] if media == "application/json" else {"type": "string"}}
            for media in one.media
        }
    body = {"application/json": {"schema": known[repr(ErrorBody)]}}
    statuses = {*OF_ALL, *one.errors, *((404,) if has_names else ()), *((413, 415) if one.body is not None else ())}
    responses: dict[str, Any] = {str(one.status): good}
    for status in sorted(statuses):
        content = {"text/plain": {"schema": {"type": "string"}}} if status == 401 else body
        responses[str(status)] = {"description": ERRORS[status], "content": content}
    return responses
