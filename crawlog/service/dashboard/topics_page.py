"""Topics and groups: sizes, lag, how far each stage has come in each partition, and records as people read them."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from aiohttp import web

from crawlog.commands.shown_records import MOST_RECORDS, ShownRecord, TopicRecords
from crawlog.schemas import pages
from crawlog.service.api_topics import RecordsQuery, TopicView, records_of, topics_of
from crawlog.service.endpoint import call_of
from crawlog.service.routing import fleet_of, in_thread
from crawlog.streams.fleet import PlaceView
from crawlog.streams.log import TOPIC_KINDS

from .charts import last_hour
from .layout import NavEntry, add_page, page
from .lists import Column, Filter, Listed, listed, query_of

NAV = (NavEntry("Topics and groups", "/ui/topics"),)

TOPICS: tuple[Column[TopicView], ...] = (
    Column("name", "Topic", lambda one: one.name),
    Column("records", "Records", lambda one: one.records, "number"),
    Column("size", "Size", lambda one: one.size_bytes or 0, "number"),
    Column("lag", "Lag", lambda one: sum(one.lag.values()), "number"),
    Column("partitions", "Partitions", lambda one: len(one.partitions), "number minor"),
    Column("in_sync", "In sync", lambda one: one.in_sync - one.replicas, "number minor"),
    Column("key", "Key", None, "minor"),
    Column("kept", "Kept", None, "minor"),
)

PLACES: tuple[Column[PlaceView], ...] = (
    Column("stage", "Group", lambda one: one.stage),
    Column("partition", "Partition", lambda one: one.partition, "number"),
    Column("worker", "Worker", lambda one: one.worker),
    Column("lag", "Lag", lambda one: one.lag, "number"),
    Column("passed", "Passed", lambda one: one.passed, "number minor"),
    Column("kept", "Committed", lambda one: one.kept, "number minor"),
    Column("end", "End", lambda one: one.end, "number minor"),
    Column("reported", "Reported", lambda one: one.reported_at, "number minor"),
)

CHARTS = (("Lag over the last hour", "records", {name: name for name in ("fetch.lag", "parse.lag", "sink.lag")}),)

STAGES = Filter("stage", "Group", [("", "all"), *((stage, stage) for stage in ("fetch", "parse", "sink"))])


class GroupLag(NamedTuple):
    """A stage's lag over all partitions; `worst` is the partition that is furthest behind."""

    stage: str
    lag: int
    worst: PlaceView


class RecordPlaces(NamedTuple):
    """Offsets that links of a page of records lead to; None where there is nothing further."""

    earlier: int | None
    later: int | None


def routes(app: web.Application) -> None:
    """Adds the pages."""
    add_page(app, "/ui/topics", _topics)
    add_page(app, "/ui/topics/groups", _groups)
    add_page(app, "/ui/topics/records", _records)


async def _topics(request: web.Request) -> web.StreamResponse:
    rows, places, charts = await asyncio.gather(
        in_thread(request, topics_of, call_of(request)),
        in_thread(request, fleet_of(request).places),
        last_hour(request, CHARTS),
    )
    prefix = rows[0].name.removesuffix(TOPIC_KINDS[0].name) if rows else ""
    topics, groups = topics_page(rows, request.query), lags_of(places)
    return page(request, "topics.html", topics=topics, groups=groups, charts=charts, cut=len(prefix))


async def _groups(request: web.Request) -> web.StreamResponse:
    places = await in_thread(request, fleet_of(request).places)
    inputs = {one.stage: one.name for one in TOPIC_KINDS if one.stage}
    return page(request, "groups.html", places=groups_page(places, request.query), inputs=inputs)


async def _records(request: web.Request) -> web.StreamResponse:
    given = {name: value for name, value in request.query.items() if value.strip()}
    topic = given.pop("topic", TOPIC_KINDS[0].name)
    query = msgspec.convert(given, RecordsQuery, strict=False)
    found = await in_thread(request, records_of, call_of(request, query=query, topic=topic))
    names = [one.name for one in TOPIC_KINDS]
    return page(
        request, "records.html", found=found, names=names, given=query, links=links_of(found), urls=urls_of(found)
    )


def topics_page(rows: Sequence[TopicView], given: Mapping[str, str]) -> Listed[TopicView]:
    """The topics that an address names."""
    return listed(rows, query_of(given, TOPICS), TOPICS, text=lambda one: f"{one.name} {one.key}")


def groups_page(places: Sequence[PlaceView], given: Mapping[str, str]) -> Listed[PlaceView]:
    """The places that an address names, by stage and partition where it names no order."""
    return listed(
        places,
        query_of(given, PLACES, (STAGES,)),
        PLACES,
        (STAGES,),
        text=lambda one: f"{one.stage} {one.worker}",
        fits=lambda one, _, stage: one.stage == stage,
    )


def lags_of(places: Sequence[PlaceView]) -> list[GroupLag]:
    """The lag of each stage."""
    stages = list(dict.fromkeys(one.stage for one in places))
    own = [[one for one in places if one.stage == stage] for stage in stages]
    return [GroupLag(of[0].stage, sum(one.lag for one in of), max(of, key=lambda one: one.lag)) for of in own]


def links_of(found: TopicRecords) -> RecordPlaces:
    """Where the pages before and behind begin."""
    earlier = max(found.start - MOST_RECORDS, found.first) if found.start > found.first else None
    return RecordPlaces(earlier, found.next if found.next < found.end else None)


def urls_of(found: TopicRecords) -> dict[int, str]:
    """The URL of each record of crawl.pages, by offset."""
    return {one.offset: url for one in found.records if found.topic == "pages" and (url := _url(one))}


def _url(record: ShownRecord) -> str:
    try:
        return pages.decode(record.headers.get(pages.HEADER, "").encode()).url
    except ValueError:
        return ""
