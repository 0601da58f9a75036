"""Keeps an eye on crawl.pages for the worker that writes it: back-pressure, and trimming what is old and parsed.

Reads the commits of crawlog-parse and where the partitions end, once a second, in a thread of its own. Back-pressure
goes by how far parse has come, which a commit's metadata says: pages put aside there hold back the offset, not what
came behind them, and what parse has in hand it bounds itself. Trimming goes by the offset: deletes records (never by
time alone) that are parsed and older than `log.pages_keep_days`, once in ten minutes.
"""

import asyncio
import time
from collections.abc import Collection

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from crawlog.streams.fetch import Pressure
from crawlog.streams.log import (
    commit_metadata,
    consumer_config,
    kafka_config,
    partition_edges,
    reached_offset,
    stage_group,
)
from crawlog.streams.settings import Settings

log = structlog.get_logger()

LOOK_S = 1.0
TRIM_S = 600.0
ANSWER_S = 10.0


class PagesLog:
    """What is known of the partitions of crawl.pages that this worker writes to.

    Attributes:
        lows: Where they begin, as of the last look.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self.pressure = Pressure(settings.log.max_unparsed_mb << 20)
        self.lows: dict[int, int] = {}
        self._settings = settings
        self._topic = topic
        self._consumer: Consumer | None = None
        self._trimmed_at = time.monotonic()

    async def look(self, partitions: Collection[int]) -> None:
        """Learn how far the partitions, those that are ours, are parsed; a silent broker changes nothing."""
        self.pressure.keep(partitions)
        try:
            found = await asyncio.to_thread(self._look, list(partitions))
        except KafkaException as error:
            log.debug("pages_unknown", error=str(error))
            return
        for number, (so_far, end) in found.items():
            self.pressure.parsed(number, so_far, end)
        self.pressure.looked(time.monotonic())

    def _look(self, numbers: list[int]) -> dict[int, tuple[int, int]]:
        """How far parse has come, and where the partitions end."""
        if not numbers:
            return {}
        if self._consumer is None:
            self._consumer = Consumer(consumer_config(self._settings, group=stage_group(self._settings, "parse")))
        consumer = self._consumer
        places = [TopicPartition(self._topic, number) for number in numbers]
        found, parsed = {}, {}
        committed = consumer.committed(places, ANSWER_S)
        held = partition_edges(consumer, self._topic, numbers)  # after it, so that no commit is behind the end
        for place in committed:
            low, end = held[place.partition]
            self.lows[place.partition] = low
            parsed[place.partition] = max(place.offset, low)
            found[place.partition] = (max(min(reached_offset(place.offset, commit_metadata(place)), end), low), end)
        if time.monotonic() - self._trimmed_at > TRIM_S:
            self._trimmed_at = time.monotonic()
            try:
                self._trim(consumer, parsed)
            except KafkaException as error:
                log.warning("pages_not_trimmed", error=str(error), then="crawl.pages grows; tried again in 10 minutes")
        return found

    def _trim(self, consumer: Consumer, parsed: dict[int, int]) -> None:
        keep_ms = int(self._settings.log.pages_keep_days * 86_400_000)
        before_ms = int(time.time() * 1000) - keep_ms
        times = [TopicPartition(self._topic, number, before_ms) for number in parsed]
        cut = []
        for place in consumer.offsets_for_times(times, ANSWER_S):
            until = min(place.offset, parsed[place.partition]) if place.offset >= 0 else parsed[place.partition]
            cut.append(TopicPartition(self._topic, place.partition, until))
        admin = AdminClient(kafka_config(self._settings))
        for future in admin.delete_records(cut).values():
            future.result()

    def close(self) -> None:
        """Release the connection."""
        if self._consumer is not None:
            self._consumer.close()
