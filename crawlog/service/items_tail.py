"""One tail of crawl.items for all clients that follow a job: it keeps the newest records, and clients take from it.

    crawl.items ─► one consumer in a thread ─► the newest records ─► client, from its cursor on
                                                    └─ older than these: the client reads the log (`items_of`) first

A slow client costs no memory: what it has not taken is read from the log again.
"""

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from crawlog.commands.items import ItemRow
from crawlog.schemas import items
from crawlog.streams.cluster import DAMAGE_CODES, consumer_config, log_bounds
from crawlog.streams.errors import EngineError
from crawlog.streams.log import Topics, partition_count
from crawlog.streams.sink import plain_rows

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

log = structlog.get_logger()

MOST_RECORDS = 5_000
MOST_BYTES = 16 << 20  # Of the newest records that are kept

POLL_S = 0.2  # Longest wait of the thread for the next record, seconds


class Tailed(NamedTuple):
    """A record with rows."""

    partition: int
    offset: int
    record: items.ItemsRecord
    size: int

    def rows(self) -> list[ItemRow]:
        """Its rows; none of a record whose items are no rows, which the sink sends to crawl.dead."""
        one, at = self.record, (self.partition, self.offset)
        with contextlib.suppress(ValueError):
            return [ItemRow(one.url, one.page, at, row) for row in plain_rows(one)]
        return []


class ItemsTail:
    """The newest records of crawl.items."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._topic = Topics(settings.kafka.prefix).items
        self._records: deque[Tailed] = deque()
        self._size = 0
        self._from: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()

    def start(self) -> None:
        """Begins at the end of the log; a second call does nothing. Blocks."""
        with self._lock:
            if self.is_running:
                return
            self._records.clear()  # it died of an error: clients read the log up to here
            self._size = 0
            numbers = list(range(partition_count(self._settings)))
            bounds = log_bounds(self._settings, self._topic, numbers)
            self._from = {number: end for number, (_, end) in bounds.items()}
            self._next = dict(self._from)
            self._thread = threading.Thread(target=self._run, name="items-tail", daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread reads; an error ends it."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Ends the thread, and wakes the clients."""
        self._stop.set()
        self._more.set()

    @property
    def is_closed(self) -> bool:
        return self._stop.is_set()

    def after(self, places: dict[int, int]) -> list[Tailed] | None:
        """The kept records from these offsets on; None if the log has to be read up to them first."""
        with self._lock:
            if any(places[number] < first for number, first in self._from.items()):
                return None
            return [one for one in self._records if one.offset >= places[one.partition]]

    async def wait(self, timeout_s: float) -> None:
        """Waits for more records."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), timeout_s)

    def _run(self) -> None:
        consumer = Consumer(consumer_config(self._settings))
        try:
            consumer.assign([TopicPartition(self._topic, number, at) for number, at in self._from.items()])
            while not self._stop.is_set():
                records = consumer.consume(500, POLL_S)
                if records and self._take(records):
                    self._loop.call_soon_threadsafe(self._wake)
        except Exception as error:
            log.exception("items_untailed", error=repr(error))
        finally:
            consumer.close()

    def _take(self, records: "list[Message]") -> bool:
        with self._lock:
            for record in records:
                value, error = record.value(), record.error()
                if error is not None and error.code() in {KafkaError._AUTO_OFFSET_RESET, *DAMAGE_CODES}:
                    raise EngineError(f"{self._topic} cannot be read on: {error.str()}")
                if error is not None or value is None:
                    continue
                with contextlib.suppress(ValueError):
                    one = items.decode(value)
                    self._records.append(Tailed(record.partition() or 0, record.offset() or 0, one, len(value)))
                    self._size += len(value)
            while self._records and (len(self._records) > MOST_RECORDS or self._size > MOST_BYTES):
                gone = self._records.popleft()
                self._size -= gone.size
                self._from[gone.partition] = max(self._from[gone.partition], gone.offset + 1)
        return True

    def _wake(self) -> None:
        more, self._more = self._more, asyncio.Event()
        more.set()
