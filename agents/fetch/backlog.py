"""Watches crawl.pages for the worker that writes it: measures back-pressure, and trims old parsed pages.

Once a second, a thread reads the commits of crawlog-parse and the end offsets of the partitions. Back-pressure uses the
position in the commit's metadata, not the committed offset: a page that waits in parse holds back the offset, although
parse has read on. Parse itself bounds how many pages wait there. Trimming uses the committed offset: every ten minutes
it deletes records that are parsed and older than `log.pages_keep_days`, never by time alone, and none where another
program has moved the group (`streams/recovery/parse_places.py`).
"""

import asyncio
import time
from collections.abc import Collection

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from crawlog.streams.cluster import commit_metadata, consumer_config, kafka_config, partition_edges
from crawlog.streams.fetch import Pressure
from crawlog.streams.groups import is_planned, reached_offset
from crawlog.streams.log import stage_group
from crawlog.streams.settings import Settings

log = structlog.get_logger()

LOOK_S = 1.0
TRIM_S = 600.0
ANSWER_S = 10.0


class PagesLog:
    """The partitions of crawl.pages that this worker writes to.

    Attributes:
        lows: Their first offsets at the last look.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self.pressure = Pressure(settings.log.max_unparsed_mb << 20)
        self.lows: dict[int, int] = {}
        self._settings = settings
        self._topic = topic
        self._consumer: Consumer | None = None
        self._trimmed_at = time.monotonic()

    async def look(self, partitions: Collection[int]) -> None:
        """Update how far our partitions are parsed. If the broker does not answer, nothing changes."""
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
        """By partition, the position of parse and the end offset."""
        if not numbers:
            return {}
        if self._consumer is None:
            self._consumer = Consumer(consumer_config(self._settings, group=stage_group(self._settings, "parse")))
        consumer = self._consumer
        places = [TopicPartition(self._topic, number) for number in numbers]
        found, parsed = {}, {}
        committed = consumer.committed(places, ANSWER_S)
        held = partition_edges(consumer, self._topic, numbers)  # read after the commits, so none is behind the end
        for place in committed:
            low, end = held[place.partition]
            self.lows[place.partition] = low
            metadata = commit_metadata(place)
            parsed[place.partition] = max(place.offset, low) if is_planned(metadata) else low
            found[place.partition] = (max(min(reached_offset(place.offset, metadata), end), low), end)
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
            if place.error is not None:  # its offset would say that all pages are older
                raise KafkaException(place.error)
            until = min(place.offset, parsed[place.partition]) if place.offset >= 0 else parsed[place.partition]
            cut.append(TopicPartition(self._topic, place.partition, until))
        admin = AdminClient(kafka_config(self._settings))
        for future in admin.delete_records(cut).values():
            future.result()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
