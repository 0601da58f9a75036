"""URL: its life in the log as a timeline, its stored page in a frame, its rows and what changed in them.

/ui/url?url=… ─► `url_story`, as `crawlog why` has it ─► timeline, states, actions
/ui/stored/PARTITION:OFFSET ─► a page of crawl.pages, in a frame
"""

from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from crawlog.commands.one_page import place_of, stored_at
from crawlog.commands.page_changes import differences
from crawlog.commands.why import Story
from crawlog.service.api_jobs import WhyQuery, url_story
from crawlog.service.endpoint import ApiCall, call_of
from crawlog.service.routing import SETTINGS, in_thread
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.fold import Event
from crawlog.streams.jobs import Orders
from crawlog.streams.parse import fields_of, ignored
from crawlog.streams.url import Places

from .frames import page_frame
from .layout import NavEntry, add_page, page

NAV = (NavEntry("URL", "/ui/url"),)

OF_JOBS = ("job", "rewind")  # Kinds of events that concern all URLs of a job

KINDS = {"dead": "bad", "page": "good", "items": "good", "rewind": "look"}  # Colours of events


class ShownEvent(NamedTuple):
    """An event of the timeline.

    Attributes:
        place: PARTITION:OFFSET of a page in the log; empty for other events.
        rows: Of an event of items, as JSON.
        changes: By field the value before and after, where rows differ from those before.
    """

    event: Event
    place: str
    rows: list[str]
    changes: list[dict[str, tuple[str, str]]]


class ShownUrl(NamedTuple):
    """A URL.

    Attributes:
        host: As commands name it: `scheme://name:port`.
        orders: Commands in force for the host.
        jobs: Those that know the URL, by name.
        newest: Place of its newest page; empty if the log has none.
    """

    story: Story
    host: str
    orders: Orders
    jobs: dict[str, JobView]
    events: list[ShownEvent]
    newest: str


def routes(app: web.Application) -> None:
    """Adds the page and the frame."""
    add_page(app, "/ui/url", _url)
    add_page(app, "/ui/stored/{place}", _stored)


async def _url(request: web.Request) -> web.StreamResponse:
    given = {name: request.query.get(name, "").strip() for name in ("url", "job")}
    if not given["url"]:
        return page(request, "url.html", given=given, shown=None, kinds=KINDS)
    query = msgspec.convert(given, WhyQuery)
    shown = await in_thread(request, shown_url, call_of(request, query=query))
    return page(request, "url.html", given=given, shown=shown, kinds=KINDS)


async def _stored(request: web.Request) -> web.StreamResponse:
    place = place_of(request.match_info["place"])
    return page_frame(await in_thread(request, stored_at, request.app[SETTINGS], *place))


def shown_url(call: ApiCall) -> ShownUrl:
    """The URL of a `WhyQuery`."""
    story = url_story(call)
    host = Places(1).of(story.url).host
    names = {state.job for state in story.states}

    def look(state: FleetState) -> tuple[Orders, dict[str, JobView], dict[str, Any]]:
        views = {name: view for name in names if (view := state.job(name)) is not None}
        copies = {name: copy.spec for name in names if (copy := state.copy(name)) is not None}
        return state.control.commands.of_host(host), views, copies

    orders, jobs, specs = call.fleet.look(look)
    without = {name: ignored(spec) for name, spec in specs.items()}
    events, before = list[ShownEvent](), dict[str, list[bytes]]()
    of_url = {event.job for event in story.events if event.kind not in OF_JOBS} | {""}
    for event in story.events:
        if event.kind in OF_JOBS and event.job not in of_url:
            continue
        rows = [msgspec.json.encode(row) for row in event.detail.get("items", ())] if event.kind == "items" else []
        changes = _changes(before.get(event.job, []), rows, without.get(event.job, ())) if _is_change(event) else []
        if event.kind == "items":
            before[event.job] = rows
        texts = [msgspec.json.format(row, indent=2).decode() for row in rows]
        events.append(ShownEvent(event, _place(event), texts, changes))
    newest = next((one.place for one in reversed(events) if one.place), "")
    return ShownUrl(story, host, orders, jobs, events, newest)


def _is_change(event: Event) -> bool:
    return event.kind == "items" and event.detail.get("change") == "changed"


def _place(event: Event) -> str:
    """Where the page of an event is; empty if it is no page that can be shown."""
    meta = event.detail.get("meta") if event.kind == "page" else None
    return f"{event.partition}:{event.offset}" if meta and not meta.get("error") else ""


def _changes(old: list[bytes], new: list[bytes], without: Any) -> list[dict[str, tuple[str, str]]]:
    found = differences([fields_of(row, without) for row in old], [fields_of(row, without) for row in new])
    return [{name: (_text(was), _text(now)) for name, (was, now) in one.items()} for one in found]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "–" if value is None else msgspec.json.encode(value).decode()
