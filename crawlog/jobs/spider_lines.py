"""What the spider of a run prints and logs, read from crawl.logs as it comes, for the terminal."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from crawlog.commands.job_logs import LOST, lines_of
from crawlog.streams.errors import EngineError
from crawlog.streams.log import Topics, consumer_config, log_end

if TYPE_CHECKING:
    from crawlog.jobs.live import View
    from crawlog.streams.settings import Settings

BATCH = 100  # Records taken at a time: the terminal is not worth more of a look

# `LogLine.source` of a worker's line about `close_spider` or `closed`: no count or row shows that it raised.
CLOSE_FAILED = "pipelines_close_failed"

LAST_S = 0.5  # How long the last lines are waited for


class SpiderLines:
    """The lines of one job from now on. They are worth less than the crawl: no error of them ends it."""

    def __init__(self, settings: "Settings", job: str, shown: "View") -> None:
        self._job, self._shown = job, shown
        self._topic = Topics(settings.kafka.prefix).logs
        self._consumer: Consumer | None = None
        with suppress(EngineError):
            self._next = log_end(settings, self._topic)
            self._begin(settings)

    def _begin(self, settings: "Settings") -> None:
        self._kafka = settings.kafka
        self._consumer = Consumer(consumer_config(settings))
        self._consumer.assign([TopicPartition(self._topic, 0, self._next)])

    def poll(self, settings: "Settings", wait_s: float = 0.0) -> None:
        """Show the lines that are there. The settings are another broker's once it was started again."""
        if self._consumer is None:
            return
        if settings.kafka != self._kafka:
            self.close()
            self._begin(settings)
        records = [one for one in self._consumer.consume(BATCH, wait_s) if one.error() is None]
        lines = [line for record in records for line in lines_of(record, self._job, 0.0)]
        told = [line.text for line in lines if line.source in ("", LOST)]
        told += [f"{line.source}: {line.text}" for line in lines if line.source == CLOSE_FAILED]
        if told:
            self._shown.say(*told)
        if records:
            self._next = (records[-1].offset() or 0) + 1

    def finish(self, settings: "Settings") -> None:
        """Show the last lines, which workers send when they stop; then close."""
        if self._consumer is None:
            return
        until_s = time.monotonic() + LAST_S
        with suppress(EngineError, KafkaException):
            end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), LAST_S)[1]
            while self._next < end and time.monotonic() < until_s:
                self.poll(settings, 0.05)
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
