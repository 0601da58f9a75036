"""Topics: offsets, sizes and lag; how far each stage has come; records as people read them."""

from typing import Annotated

import msgspec

from crawlog.commands.shown_records import TopicRecords, topic_records
from crawlog.streams.cluster import Admin
from crawlog.streams.fleet import PlaceView
from crawlog.streams.groups import known_sink_groups, offsets
from crawlog.streams.log import topic_rows

from .api_control import LogOffset
from .endpoint import ApiCall, ApiEndpoint


class TopicView(msgspec.Struct, frozen=True):
    """A topic.

    Attributes:
        partitions: First and next offset of each.
        records: At most; compaction may have removed some.
        size_bytes: On disk; null where the log is on another machine.
        lag: Records not yet committed, by consumer group.
        in_sync: The fewest replicas of a partition that have all records.
    """

    name: str
    partitions: list[tuple[int, int]]
    records: int
    key: str
    kept: str
    size_bytes: int | None
    lag: dict[str, int]
    replicas: int
    in_sync: int


class RecordsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where: an offset, or a time as `2026-01-31T14:00`, UTC without a zone; without either the last records."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    offset: LogOffset | None = None
    at: Annotated[str, msgspec.Meta(max_length=40)] = ""


def topics_of(call: ApiCall) -> list[TopicView]:
    """The topics, in the order of the log's table."""
    admin = Admin(call.settings)
    rows = topic_rows(admin, known_sink_groups(admin))
    return [
        TopicView(
            *(row.name, row.places, row.records, row.key, row.kept, row.size_bytes, row.lag, row.replicas, row.in_sync)
        )
        for row in rows
    ]


def _places(call: ApiCall) -> list[PlaceView]:
    return call.fleet.places()


def records_of(call: ApiCall) -> TopicRecords:
    """The records that a call names by topic, partition and place."""
    query: RecordsQuery = call.query
    at_ms = offsets.moment_ms(query.at, "at") if query.at else None
    place = query.partition, query.offset, at_ms
    return topic_records(call.settings, call.path["topic"], *place, to_reader=call.role == "read")


_ONE = "/topics/{topic}/records"

ENDPOINTS = (
    ApiEndpoint("GET", "/topics", "read", "Topics with their offsets, sizes and lag", list[TopicView], topics_of),
    ApiEndpoint("GET", _ONE, "read", "20 records of a topic", TopicRecords, records_of, query=RecordsQuery),
    ApiEndpoint("GET", "/groups", "read", "What each stage has passed of each partition", list[PlaceView], _places),
)
