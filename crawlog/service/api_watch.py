"""What the service sees over time: series of its history, and alerts."""

import sqlite3
import time
from typing import Annotated

import msgspec
from aiohttp import web

from .answers import AnswerError, as_json
from .endpoint import ApiCall, ApiEndpoint
from .routing import in_thread
from .watch import FLEET_SERIES, HISTORY, JOB_SERIES, WATCHER, Alert, SeriesAnswer


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which series.

    Attributes:
        series: Names with commas between them; empty for all. Of the fleet: `fetch.rate`, `fetch.lag` and so on for
            `parse` and `sink` (records or pages a second, records), `pages` and `rows` (a minute), `queued`,
            `running` (jobs), `workers`, `dead`. Of a job, all a minute: `pages`, `rows`, `2xx`, `3xx`, `4xx`, `5xx`.
        job: A job; empty for the fleet.
        last_s: From so long ago, seconds.
        since: From then on, UTC epoch seconds; in place of `last_s`.
    """

    series: Annotated[str, msgspec.Meta(max_length=500)] = ""
    job: Annotated[str, msgspec.Meta(max_length=100)] = ""
    last_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] = 3_600.0
    since: Annotated[float, msgspec.Meta(ge=0, le=1e11)] | None = None


def series_of(app: web.Application, names: str, job: str, since: float, now: float) -> SeriesAnswer:
    """Series of the app's history.

    Raises: AnswerError: there is no such series, or no history.
    """
    known = JOB_SERIES if job else FLEET_SERIES
    wanted = list(dict.fromkeys(filter(None, names.split(",")))) or list(known)
    if unknown := [name for name in wanted if name not in known]:
        raise AnswerError(400, f"no series {unknown[0]!r:.60}\nThere are: {', '.join(known)}.")
    history = app.get(HISTORY)
    if history is None:
        raise AnswerError(503, "the service keeps no history\nIts log tells why: `no_history`.")
    try:
        return history.series(wanted, since, now, job)
    except sqlite3.Error as error:
        raise AnswerError(503, f"the history cannot be read: {error}") from None


async def _history(request: web.Request, call: ApiCall) -> web.StreamResponse:
    query, now = call.query, time.time()
    since = now - query.last_s if query.since is None else query.since
    return as_json(await in_thread(request, series_of, request.app, query.series, query.job, since, now))


async def _alerts(request: web.Request, _: ApiCall) -> web.StreamResponse:
    return as_json(alerts_of(request.app))


def alerts_of(app: web.Application) -> list[Alert]:
    """The alerts that the app has raised."""
    return app[WATCHER].raised if WATCHER in app else []


ENDPOINTS = (
    ApiEndpoint(
        "GET", "/history", "read", "Rates and lag over time", SeriesAnswer, query=HistoryQuery, stream=_history
    ),
    ApiEndpoint("GET", "/alerts", "read", "What needs a look: alerts that are raised", list[Alert], stream=_alerts),
)
