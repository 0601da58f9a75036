"""The log, read with a plain consumer and plain JSON: nothing here is crawlog's."""

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.settings.settings import Settings

VERSION = 1
"""Of the records that are understood here."""

SILENCE_S = 30.0
"""A log that gives nothing for so long is not read any further, which is an error."""

POLL_S = 0.1
"""`consume` waits so long for a full batch."""


Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as it lies in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    at: float = 0.0

    @property
    def json(self) -> dict[str, Any] | None:
        """The value as a JSON object; None where it is none."""
        try:
            found = json.loads(self.value or b"")
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class Done(NamedTuple):
    """Outcome of an attempt, as crawl.urls has it."""

    partition: int
    offset: int
    job: str
    url: str
    status: str
    http: int | None
    attempt: int
    is_final: bool


def read(settings: Settings, topic: str, *, with_values: bool = True) -> list[Record]:
    """All records of a topic, partition by partition, in order.

    Raises: RuntimeError: the log cannot be read to its end.
    """
    consumer = Consumer(
        kafka_config(settings)
        | {
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=SILENCE_S).topics[topic].partitions
        ends = {partition: _bounds(consumer, topic, partition) for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        left = {partition: end for partition, (start, end) in ends.items() if end > start}
        return sorted(_records(consumer, left, with_values=with_values))
    finally:
        consumer.close()


def ends(settings: Settings, topic: str) -> dict[int, int]:
    """The next offset of each partition."""
    consumer = Consumer(kafka_config(settings) | {"group.id": "judge"})
    try:
        partitions = consumer.list_topics(topic, timeout=SILENCE_S).topics[topic].partitions
        return {partition: _bounds(consumer, topic, partition)[1] for partition in partitions}
    finally:
        consumer.close()


def _bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    until = time.monotonic() + SILENCE_S
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), SILENCE_S)
        except KafkaException:  # a broker that was started again may not lead its partitions yet
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _records(consumer: Consumer, left: dict[int, int], *, with_values: bool) -> Iterator[Record]:
    """Up to the ends that are given, by partition: a log that is written to may have no other."""
    heard = time.monotonic()
    while left:
        messages = consumer.consume(1000, POLL_S)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENCE_S:
            raise RuntimeError(f"nothing came from the log for {SILENCE_S:.0f} s")
        for message in messages:
            if _is_within(message, left):
                headers = {name: _text(value) for name, value in cast("Headers", message.headers() or [])}
                value = message.value() if with_values else None
                at = message.timestamp()[1] / 1000
                yield Record(message.partition() or 0, message.offset() or 0, message.key(), value, headers, at)


def _is_within(message: Message, left: dict[int, int]) -> bool:
    """Whether it is a record before its partition's end; a partition that ends is taken out of `left`."""
    error = message.error()
    if error is not None and error.name() != "_PARTITION_EOF":
        raise RuntimeError(f"the log cannot be read: {error}")
    partition = message.partition() or 0
    past = left.get(partition)
    if past is None:
        return False
    if error is not None or (message.offset() or 0) + 1 >= past:  # compaction may have taken the last records
        del left[partition]
    return error is None


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def dones(urls: list[Record]) -> Iterator[Done]:
    """Every result in crawl.urls, in the order of each partition."""
    for record in urls:
        content = record.json or {}
        for result in _entries(content, "results"):
            is_again = result.get("status") == "failed" and result.get("next_at", 0) > 0
            yield Done(
                record.partition,
                record.offset,
                str(content.get("job")),
                str(result.get("url")),
                str(result.get("status")),
                result.get("http"),
                int(result.get("attempt", 1)),
                not is_again,
            )


def newest_reports(progress: list[Record]) -> dict[int, dict[str, Any]]:
    """The newest report of each partition of crawl.urls; by the order of the topic, not by what reports say of time."""
    reports = (record.json or {} for record in progress)
    return {report["partition"]: report for report in reports if report.get("stage") == "fetch"}


def have_passed(progress: list[Record], ends: dict[int, int]) -> bool:
    """Whether the newest reports count everything before these ends of crawl.urls.

    A worker that was stopped and goes on reports once of partitions that have another owner. Until that owner's next
    report, this one is the newest.
    """
    newest = newest_reports(progress)
    return all(newest.get(partition, {}).get("offset", 0) >= end for partition, end in ends.items())


def _entries(content: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The list of objects by a name; none where something else stands there, or the version is not ours."""
    found = content.get(name)
    is_ours = content.get("v") == VERSION and isinstance(found, list)
    return [entry for entry in found or () if isinstance(entry, dict)] if is_ours else []


def offered(urls: list[Record], job: str) -> Iterator[tuple[int, str]]:
    """(partition, URL) of each found of a job, without forwarded records."""
    for record in urls:
        content = record.json or {}
        if content.get("job") == job and not content.get("fwd"):
            yield from ((record.partition, str(found.get("url"))) for found in _entries(content, "urls"))


def items(records: list[Record], job: str) -> Iterator[tuple[str, tuple[int, int], list[dict[str, Any]]]]:
    """(URL, page, rows) of each record of a job in crawl.items."""
    for record in records:
        content = record.json
        if content is not None and content.get("job") == job and "page" in content:
            partition, offset = content["page"]
            yield str(content["url"]), (partition, offset), _entries(content, "items")
