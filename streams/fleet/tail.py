"""Follows crawl.control, crawl.progress and other topics of one partition with one plain consumer.

    crawl.control ──► ControlRecord ─┐      bytes that cannot be decoded ─► BadRecord
    crawl.progress ─► Report ────────┼─►    the end of a topic ───────────► AtEnd
    another topic ──► Message ───────┘      lost place, damage, no access ► ReadFault

Each report replaces an older one, so behind a fault of crawl.progress reading goes on at its end. Of the other topics
no record may be missed: their reader decides what a fault means.
"""

import time
from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from crawlog.schemas import control, progress
from crawlog.schemas.control import JOINS, Control
from crawlog.schemas.progress import Progress
from crawlog.streams.cluster import BROKER_AWAY, DAMAGE_CODES, DENIED_CODES, BrokerLogin, consumer_config, weak_callback
from crawlog.streams.log import Topics, is_log_end, read_error

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

BATCH = 500  # Records taken at a time; a worker sends at most one report per second and partition

# After this time without a report, reading goes on at the end: a broker returns nothing from behind file damage.
SILENT_S = 10.0


class ControlRecord(NamedTuple):
    """A record of crawl.control.

    Attributes:
        record: None for a tombstone.
        at: Its time in the log, UTC epoch seconds.
    """

    key: bytes
    record: Control | None
    at: float


class Report(NamedTuple):
    """A record of crawl.progress.

    Attributes:
        at: Its time in the log, UTC epoch seconds.
    """

    report: Progress
    at: float
    offset: int


class BadRecord(NamedTuple):
    """A record that cannot be decoded, and the error."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    error: str


class AtEnd(NamedTuple):
    """All records of a topic were read."""

    topic: str


class ReadFault(NamedTuple):
    """An error in place of a record.

    Attributes:
        error: DamagedLog, AccessDenied, or KafkaException for a lost place.
        is_lost: Whether retention or compaction removed the place where reading was to go on.
    """

    topic: str
    error: Exception
    is_lost: bool


Item = ControlRecord | Report | Message | BadRecord | AtEnd | ReadFault


class Tail:
    """Reads partition 0 of some topics from given offsets on, until closed. The broker may be away meanwhile.

    Args:
        places: By topic, the first offset, or OFFSET_BEGINNING, OFFSET_END.
        login: Returns a new user and password when the cluster is away or refuses those of the settings.
        joins: Whether joins are taken; there may be a million.
        batch: Records taken at a time. A poll gathers so many for as long as it may wait.
        fetch_wait_ms: How long the broker may hold a request for the next record.

    Attributes:
        next: By topic, the offset behind the last record that was read.
        at_end: Topics whose end was met since reading began there.
    """

    def __init__(
        self,
        settings: "Settings",
        places: Mapping[str, int],
        login: BrokerLogin | None = None,
        *,
        joins: bool = False,
        batch: int = BATCH,
        fetch_wait_ms: int = 500,
    ) -> None:
        names = Topics(settings.kafka.prefix)
        self._settings = settings
        self._control, self._progress = names.control, names.progress
        self._login = login
        self._joins = joins
        self._batch = batch
        self._is_away = False
        self._reported_at = time.monotonic() if self._progress in places else inf
        self.next = {topic: max(offset, 0) for topic, offset in places.items()}
        self.at_end: set[str] = set()
        config = {
            "error_cb": weak_callback(self._error),
            "enable.partition.eof": True,
            "fetch.wait.max.ms": fetch_wait_ms,
        }
        self._consumer = Consumer(consumer_config(settings) | config)
        self._consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in places.items()])

    def poll(self, wait_s: float) -> list[Item]:
        """What has come, within `wait_s`."""
        items = [item for record in self._consumer.consume(self._batch, wait_s) for item in self._items(record)]
        if time.monotonic() - self._reported_at > SILENT_S:
            self.go_to(self._progress, OFFSET_END)  # needs no request: the broker may be away
        if self._is_away and self._login is not None:
            self._is_away = False
            self._consumer.set_sasl_credentials(*self._login())
        return items

    def go_to(self, topic: str, offset: int) -> None:
        """Reads a topic on from there. A place that was lost cannot be sought: librdkafka answers with _STATE."""
        self._consumer.incremental_unassign([TopicPartition(topic, 0)])
        self._consumer.incremental_assign([TopicPartition(topic, 0, offset)])
        self.at_end.discard(topic)
        if offset >= 0:
            self.next[topic] = offset
        if topic == self._progress:
            self._reported_at = time.monotonic()

    def pause(self, topic: str) -> None:
        """Reads no more of a topic until `go_on`."""
        self._consumer.pause([TopicPartition(topic, 0)])
        if topic == self._progress:
            self._reported_at = inf

    def go_on(self, topic: str) -> None:
        """Reads a paused topic on."""
        self._consumer.resume([TopicPartition(topic, 0)])
        if topic == self._progress:
            self._reported_at = time.monotonic()

    def has_read(self, ends: Mapping[str, int]) -> bool:
        """Whether topics were read up to these offsets; compaction may have left no record just before them."""
        return all(topic in self.at_end or self.next[topic] >= end for topic, end in ends.items())

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()

    def _items(self, record: Message) -> Iterator[Item]:
        topic, error = record.topic() or "", record.error()
        if error is not None:
            yield from self._met(record, topic, error)
            return
        self.next[topic] = (record.offset() or 0) + 1
        if topic == self._progress:
            self._reported_at = time.monotonic()
        try:
            item = self._decoded(record, topic)
        except Exception as failure:  # noqa: BLE001  # whatever its bytes are, one record ends no reader
            why = str(failure) if isinstance(failure, ValueError) else f"{type(failure).__name__}: {failure}"
            item = BadRecord(topic, record.offset() or 0, record.key(), record.value(), why)
        if item is not None:
            yield item

    def _decoded(self, record: Message, topic: str) -> Item | None:
        """The record by its topic; None for what is left out, and for the tombstone of a report. Raises: ValueError."""
        key, value, at = record.key(), record.value(), record.timestamp()[1] / 1000
        if topic == self._control:
            is_left_out = not self._joins and key is not None and key.startswith(JOINS)
            return None if is_left_out else ControlRecord(key or b"", control.decode(key, value), at)
        if topic != self._progress:
            return record
        report = progress.decode(value)
        if value and report is None:
            raise ValueError("no report of progress")
        return Report(report, at, record.offset() or 0) if report is not None else None

    def _met(self, record: Message, topic: str, error: KafkaError) -> Iterator[AtEnd | ReadFault]:
        """What an error means; nothing for one after which librdkafka tries again."""
        if is_log_end(error):
            self.at_end.add(topic)
            yield AtEnd(topic)
            return
        is_lost = error.code() == KafkaError._AUTO_OFFSET_RESET
        if not is_lost and error.code() not in DAMAGE_CODES | DENIED_CODES:
            return
        if topic == self._progress and error.code() not in DENIED_CODES:
            self.go_to(topic, OFFSET_END)
        yield ReadFault(topic, KafkaException(error) if is_lost else read_error(record, self._settings), is_lost)

    def _error(self, error: KafkaError) -> None:
        self._is_away |= error.code() in BROKER_AWAY
