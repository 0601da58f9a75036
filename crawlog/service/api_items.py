"""Rows of a job: page by page, as an NDJSON stream, and live as server-sent events."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web

from crawlog.commands.export import exported_job
from crawlog.commands.items import GIVEN, ItemRow, ItemsPage, cursors_behind, items_of

from .answers import AnswerError, as_json
from .api_jobs import Limit, known_job
from .endpoint import ApiCall, ApiEndpoint
from .items_tail import ItemsTail, Tailed
from .routing import in_thread

if TYPE_CHECKING:
    from crawlog.commands.export import ExportedJob

NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"

CURSOR = r"^[0-9.+ -]*$"

AT_ONCE = 500  # Rows read at a time for a stream

FOLLOWERS = 100  # Clients that follow at a time

ALIVE_S = 15.0  # Interval of the comments that keep a silent stream open, seconds

TAIL: web.AppKey["Tails"] = web.AppKey("tail")


class ItemsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rows: from `cursor` on (of the page before), of pages of `host`."""

    cursor: Annotated[str, msgspec.Meta(max_length=100_000, pattern=CURSOR)] = ""
    host: Annotated[str, msgspec.Meta(max_length=300)] = ""
    limit: Limit = 100


class LiveQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From which cursor on; the header Last-Event-ID is stronger. Without both from the first row on."""

    cursor: Annotated[str, msgspec.Meta(max_length=100_000, pattern=CURSOR)] = ""


class Tails:
    """The one tail, made for the first client; and the number of clients."""

    def __init__(self) -> None:
        self.followers = 0
        self._tail: ItemsTail | None = None

    async def get(self, request: web.Request, call: ApiCall) -> ItemsTail:
        """The tail, which runs."""
        if self._tail is None:
            self._tail = ItemsTail(call.settings)
        await in_thread(request, self._tail.start)
        return self._tail

    async def close(self, _: web.Application) -> None:
        """Ends it."""
        if self._tail is not None:
            self._tail.close()


async def _items(request: web.Request, call: ApiCall) -> web.StreamResponse:
    query: ItemsQuery = call.query
    job, host = known_job(call), query.host or None
    page = await in_thread(request, items_of, call.settings, job, query.cursor, query.limit, host)
    if NDJSON not in request.headers.get("Accept", ""):
        return as_json(page)
    response = web.StreamResponse(headers={"Content-Type": NDJSON})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    while True:
        await response.write(b"".join(bytes(row.item) + b"\n" for row in page.rows))
        if page.is_end:
            return response
        page = await in_thread(request, items_of, call.settings, job, page.cursor, AT_ONCE, host)


async def _live(request: web.Request, call: ApiCall) -> web.StreamResponse:
    tails = request.app[TAIL]
    job, cursor = known_job(call), request.headers.get("Last-Event-ID", call.query.cursor)
    response = web.StreamResponse(headers={"Content-Type": EVENTS})
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    if tails.followers >= FOLLOWERS:
        raise AnswerError(503, f"{FOLLOWERS} clients follow rows already\nEnd one of them, or read pages by a cursor.")
    tails.followers += 1
    try:
        await in_thread(request, items_of, call.settings, job, cursor, 1)  # refuses a wrong cursor
        now = await in_thread(request, exported_job, call.settings, job, "-")
        tail = await tails.get(request, call)
        await response.prepare(request)
        await _Follower(request, call, response, tail, now).follow(cursor)
    finally:
        tails.followers -= 1
    return response


class _Follower:
    """A client that gets rows as they come."""

    def __init__(
        self, request: web.Request, call: ApiCall, response: web.StreamResponse, tail: ItemsTail, now: "ExportedJob"
    ) -> None:
        self._request = request
        self._call = call
        self._response = response
        self._tail = tail
        self._now = now

    async def follow(self, cursor: str) -> None:
        """Gives the rows from a cursor on, until the client goes or the service ends."""
        with suppress(ConnectionResetError):  # it went while we wrote
            await self._follow(cursor)

    async def _follow(self, cursor: str) -> None:
        cursor = await self._from_log(cursor)
        while not self._tail.is_closed:
            if not self._tail.is_running:
                await in_thread(self._request, self._tail.start)
            places = _offsets(cursor)
            waiting = asyncio.ensure_future(self._tail.wait(ALIVE_S))  # before the look: nothing is missed
            await asyncio.sleep(0)
            found = self._tail.after(places)
            if found is None:
                waiting.cancel()
                cursor = await self._from_log(cursor)
            elif found:
                waiting.cancel()
                cursor = await self._give(found, places)
            else:
                await waiting
                await self._response.write(b":\n\n")

    async def _from_log(self, cursor: str) -> str:
        while True:
            page: ItemsPage = await in_thread(
                self._request, items_of, self._call.settings, self._now.copy.job, cursor, AT_ONCE
            )
            await self._response.write(_events(page, cursor) or b"id: " + page.cursor.encode() + b"\n\n")
            cursor = page.cursor
            if page.is_end or self._tail.is_closed:
                return cursor

    async def _give(self, found: list[Tailed], places: dict[int, int]) -> str:
        begun, rows = _cursor(places), list[ItemRow]()
        for one in found:
            record = one.record
            if self._now.spec.wants(record.job, record.epoch, record.page):
                rows += one.rows()
            places[one.partition] = one.offset + 1
        page = ItemsPage(self._now.copy.job, rows, _cursor(places), is_end=True)
        if rows:
            await self._response.write(_events(page, begun))
        return page.cursor


def _events(page: ItemsPage, begun: str) -> bytes:
    """The rows of a page that was read from a cursor on, each with the cursor that goes on behind it."""
    rows = zip(page.rows, cursors_behind(page, begun), strict=True)
    return b"".join(
        b"data: " + msgspec.json.encode(row) + b"\nid: " + behind.encode() + b"\n\n" for row, behind in rows
    )


def _cursor(places: dict[int, int]) -> str:
    return ".".join(str(place) for _, place in sorted(places.items()))


def _offsets(cursor: str) -> dict[int, int]:
    return {number: int(part.partition(GIVEN)[0]) for number, part in enumerate(cursor.split("."))}


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "/jobs/{job}/items",
        "read",
        "Rows of a job by a cursor; with Accept: application/x-ndjson all of them, a row a line",
        ItemsPage,
        query=ItemsQuery,
        stream=_items,
        media=("application/json", NDJSON),
    ),
    ApiEndpoint(
        "GET",
        "/jobs/{job}/items/live",
        "read",
        "Rows of a job as they come, as server-sent events; Last-Event-ID goes on",
        ItemsPage,
        query=LiveQuery,
        stream=_live,
        media=(EVENTS,),
    ),
)


def prepare(app: web.Application) -> None:
    """Gives the app its tail."""
    app[TAIL] = Tails()
    app.on_shutdown.append(app[TAIL].close)
