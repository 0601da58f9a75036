"""What the outputs of a worker share of the log: crawl.items is read once for all; garbage becomes dead letters."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from crawlog.schemas import control, items
from crawlog.schemas.control import Command
from crawlog.schemas.dead import DeadLetter
from crawlog.streams.cluster import LogIdentity, consumer_config, is_transient, log_bounds
from crawlog.streams.log import Producer, Topics, is_log_end, read_error, read_records, send_letter

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

MOST = 1_000  # Records taken at a time


class ItemRecord(NamedTuple):
    """A record of crawl.items."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None

    @property
    def job(self) -> str:
        """The job in its key `JOB URL`, or in its value where the key names none; empty for garbage."""
        named, space, _ = (self.key or b"").partition(b" ")
        if space:
            return named.decode("utf-8", "replace")
        with suppress(ValueError):
            return items.decode(self.value).job
        return ""

    @property
    def is_sound(self) -> bool:
        """Whether its value is an item record."""
        with suppress(ValueError):
            items.decode(self.value)
            return True
        return False


class ItemsLog:
    """Single records, dead letters and commands.

    Args:
        identity: Of crawl.items.

    Attributes:
        topic: Full name of crawl.items.
    """

    def __init__(self, settings: "Settings", identity: LogIdentity, producer: Producer) -> None:
        self._names = Topics(settings.kafka.prefix)
        self.settings = settings
        self.identity = identity
        self.topic = self._names.items
        self._producer = producer

    async def bury(self, dead: list[DeadLetter]) -> None:
        """Send dead letters, and wait for their acknowledgement."""
        for letter in dead:
            log.warning("dead_letter", partition=letter.partition, offset=letter.offset, error=letter.error)
            send_letter(self._producer.send, self._names.dead, letter)
        await self._acknowledged()

    async def stop_job(self, job: str, reason: str) -> None:
        """Stop a job, as its spider asks, and wait for the acknowledgement."""
        command = Command("stop", job=job, at=time.time(), reason=reason)
        self._producer.send(self._names.control, control.encode(command), key=control.key(command), partition=0)
        await self._acknowledged()

    async def _acknowledged(self) -> None:
        while self._producer.outstanding:
            self._producer.poll()
            await asyncio.sleep(0.002)

    async def original(self, partition: int, offset: int) -> bytes | None:
        """The value of a record of crawl.items; None if the log no longer has it."""
        return await asyncio.to_thread(self._read, partition, offset)

    def _read(self, partition: int, offset: int) -> bytes | None:
        first, _ = log_bounds(self.settings, self.topic, [partition])[partition]
        records = read_records(self.settings, self.topic, partition, offset, offset + 1) if offset >= first else ()
        return next((record.value() for record in records), None)


class ItemsReader:
    """Reads all partitions of crawl.items with one plain consumer, from any offsets. Its calls block: use a thread.

    Attributes:
        at: By partition, the offset before which all records were handled.
    """

    def __init__(self, settings: "Settings", topic: str) -> None:
        self.at: dict[int, int] = {}
        self._settings = settings
        self._topic = topic
        self._consumer: Consumer | None = None
        self._told: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether it reads."""
        return self._consumer is not None

    def seek(self, offsets: Mapping[int, int]) -> None:
        """Read on from these offsets."""
        if self._consumer is None:
            self._consumer = Consumer(consumer_config(self._settings) | {"enable.partition.eof": False})
        self._consumer.assign([TopicPartition(self._topic, at, offset) for at, offset in offsets.items()])
        self.at = dict(offsets)

    def take(self, wait_s: float) -> list[ItemRecord]:
        """The records that are there; waits for the first one only.

        Raises: EngineError: the log cannot be read there.
        """
        assert self._consumer is not None
        first = self._consumer.poll(wait_s)
        if first is None:
            return []
        found = []
        for record in (first, *self._consumer.consume(MOST - 1, 0)):
            error = record.error()
            if error is None:
                found.append(ItemRecord(record.partition() or 0, record.offset() or 0, record.key(), record.value()))
                self._told = None
            elif not is_log_end(error):
                if not is_transient(error):
                    raise read_error(record, self._settings)
                self._tell(error)
        return found

    def _tell(self, error: KafkaError) -> None:
        """Log an error that passes, once until records come again: else nobody knows why outputs stand still."""
        if self._told != error.code():
            self._told = error.code()
            log.warning("items_not_read", topic=self._topic, error=error.str(), then="the client tries again")

    def passed(self, records: Iterable[ItemRecord]) -> None:
        """These records were handled."""
        for record in records:
            self.at[record.partition] = record.offset + 1

    def close(self) -> None:
        """Read no more."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
