"""Records as people read them: those of a topic from a place on, decoded, without secrets.

crawl.…, partition, offset or time ─► at most 20 records ─► key, headers and value as text, 64 KiB of each

Whoever may only look is shown less: of commands, letters and code nothing, of headers and requests what is harmless.
"""

from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import pages, urls
from crawlog.streams.cluster import log_bounds, offset_at
from crawlog.streams.coded_pages import page_of
from crawlog.streams.errors import UnknownName
from crawlog.streams.html import charset
from crawlog.streams.log import TOPIC_KINDS, Topics, partition_count, read_records, record_headers
from crawlog.streams.printable import HIDDEN
from crawlog.streams.redaction import for_readers, shown_found, shown_page, shown_result

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

MOST_RECORDS = 20  # Records that are shown at a time

SHOWN_BYTES = 64 << 10  # Of each value and header; a page may have 8 MiB

# Topics whose values a user who may only look is not shown: settings of jobs, records of any kind, code.
CLOSED = frozenset({"control", "dead", "code"})


class ShownRecord(msgspec.Struct, frozen=True):
    """A record of a topic.

    Attributes:
        at: When the log got it, UTC epoch seconds.
        value: Decoded; that of a page is its body, unpacked.
        size_bytes: Of the value as it lies in the log; None for a tombstone.
        is_cut: Whether `value` is only the beginning.
    """

    offset: int
    at: float
    key: str
    headers: dict[str, str]
    value: str
    size_bytes: int | None
    is_cut: bool = False


class TopicRecords(msgspec.Struct, frozen=True):
    """Records of a partition.

    Attributes:
        first, end: The partition's first offset and its next one.
        start: The offset from which `records` were read; compaction may have removed some.
        next: The offset behind them.
    """

    topic: str
    partition: int
    partitions: int
    first: int
    end: int
    start: int
    next: int
    records: list[ShownRecord]


def topic_records(
    settings: "Settings",
    topic: str,
    partition: int = 0,
    offset: int | None = None,
    at_ms: int | None = None,
    *,
    to_reader: bool = False,
) -> TopicRecords:
    """Records of a partition, from an offset or a time on; without either the last ones.

    Args:
        topic: Without its prefix: `urls`, `pages` …
        at_ms: UTC epoch milliseconds.
        to_reader: Whether they are for a user who may only look.

    Raises: UnknownName: there is no such topic or partition. EngineError: the broker does not answer.
    """
    kind = next((one for one in TOPIC_KINDS if one.name == topic), None)
    if kind is None:
        raise UnknownName(f"there is no topic {topic!r:.60}; there are: {', '.join(one.name for one in TOPIC_KINDS)}")
    count = partition_count(settings) if kind.split else 1
    if not 0 <= partition < count:
        raise UnknownName(f"{topic} has no partition {partition}: it has {count}, from 0 to {count - 1}")
    name: str = getattr(Topics(settings.kafka.prefix), topic)
    first, end = log_bounds(settings, name, [partition])[partition]
    if at_ms is not None:
        offset = offset_at(settings, name, partition, at_ms, end)
    start = min(max(end - MOST_RECORDS if offset is None else offset, first), end)
    with closing(read_records(settings, name, partition, start, end)) as records:
        found = [
            shown_record(topic, one, settings.body_room, to_reader=to_reader) for one in islice(records, MOST_RECORDS)
        ]
    behind = found[-1].offset + 1 if found else end
    return TopicRecords(topic, partition, count, first, end, start, behind, found)


def shown_record(topic: str, record: "Message", most: int, *, to_reader: bool) -> ShownRecord:
    """A record of a topic.

    Args:
        most: Limit of a page's body, unpacked; a larger one is shown as it came.
    """
    headers, value = record_headers(record), record.value()
    if to_reader and topic in CLOSED:
        shown = {name: HIDDEN for name, _ in headers}
        text = "" if value is None else HIDDEN
    else:
        shown = {name: (header_for_reader if to_reader else shown_header)(name, content) for name, content in headers}
        text = _text(topic, headers, value, most, to_reader=to_reader)
    size = None if value is None else len(value)
    cut = {name: content[:SHOWN_BYTES] for name, content in shown.items()}
    at, key = record.timestamp()[1] / 1000, (record.key() or b"").decode("utf-8", "replace")
    return ShownRecord(
        record.offset() or 0, at, key[:SHOWN_BYTES], cut, text[:SHOWN_BYTES], size, len(text) > SHOWN_BYTES
    )


def _text(topic: str, headers: list[tuple[str, bytes]], value: bytes | None, most: int, *, to_reader: bool) -> str:
    """A value as text; JSON with line breaks."""
    if value is None or topic == "code":
        return ""
    if topic == "pages":
        body = plain_value(value, headers, most) or b""
        return charset.decode(body[: 2 * SHOWN_BYTES], "")[1]
    if topic == "urls":
        value = value_for_reader(value, is_page=False) if to_reader else without_secrets(value)
    with suppress(msgspec.DecodeError):
        value = msgspec.json.format(value or b"", indent=2)
    return (value or b"").decode("utf-8", "replace")


def plain_value(value: bytes | None, headers: list[tuple[str, bytes]], most: int) -> bytes | None:
    """A value; that of a page unpacked, if it can be."""
    with suppress(ValueError):
        _, body = page_of(pages.meta_in(headers), value, headers, most)
        return body or value
    return value


def shown_header(name: str, value: bytes) -> str:
    """A header of a record as text; that of a page without the secrets of its request."""
    if name == pages.HEADER:
        with suppress(ValueError):
            meta = pages.decode(value)
            if meta.request is not None or meta.headers:
                value = msgspec.json.encode(shown_page(meta))
    return value.decode("utf-8", "replace")


def without_secrets(value: bytes | None) -> bytes | None:
    """A value; that of founds without the secrets of their requests, that of dones without those of cookies."""
    with suppress(ValueError):
        record = urls.decode(value)
        if any(found.request is not None for found in record.urls or ()):
            told = msgspec.to_builtins(msgspec.structs.replace(record, urls=None))
            return msgspec.json.encode({**told, "urls": [shown_found(found) for found in record.urls or ()]})
        if any(result.cookies for result in record.results or ()):
            told = msgspec.to_builtins(msgspec.structs.replace(record, results=None))
            return msgspec.json.encode({**told, "results": [shown_result(one) for one in record.results or ()]})
    return value


def header_for_reader(name: str, value: bytes) -> str:
    """A header of a record; one that is not crawlog's may hold anything."""
    if name == pages.HEADER:
        with suppress(ValueError):
            return msgspec.json.encode(for_readers(shown_page(pages.decode(value)))).decode()
    return value.decode("latin-1") if name == pages.CODING else HIDDEN


def value_for_reader(value: bytes | None, is_page: bool) -> bytes | None:
    """The body of a page, founds and dones. Any other record may hold secrets where nobody looks for them."""
    if value is None or is_page:
        return value
    with suppress(ValueError):
        record = urls.decode(value)
        if record.spec is None and (record.urls or record.results):
            founds = [for_readers(shown_found(one)) for one in record.urls or ()]
            dones = [shown_result(one) for one in record.results or ()]
            return msgspec.json.encode({"job": record.job, "epoch": record.epoch, "urls": founds, "results": dones})
    return f"{HIDDEN} ({len(value):,} bytes)".encode()
