"""Lines of a job, read from crawl.logs: what its spider printed, and what workers said about it.

`job_log_lines` returns those that are there, `follow_job_log` those that come, and `SpiderLines` shows those that come
while a command follows the job.
"""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition

from crawlog.outcome import counted
from crawlog.schemas import log_lines
from crawlog.schemas.log_lines import LogLine
from crawlog.streams import engine
from crawlog.streams.cluster import consumer_config, log_bounds, log_end, offset_at
from crawlog.streams.control import read_control
from crawlog.streams.errors import EngineError, UnknownName
from crawlog.streams.line_rate import LineRate
from crawlog.streams.log import Topics, read_records

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

LIMIT = 1_000  # Lines given, the newest ones, if the caller does not say how many

LOST = "lines_lost"  # `LogLine.source` of a line that stands for lines that were left out

BATCH = 100  # Records taken at a time: the terminal is not worth more of a look

SHOWN_S, SHOWN_BURST = 50.0, 450  # Lines that a terminal shows a second, and at once: all of one spider process

# `LogLine.source` of a worker's line about `close_spider` or `closed`: no count or row shows that it raised.
CLOSE_FAILED = "pipelines_close_failed"

LAST_S = 0.5  # How long the last lines are waited for

POLL_S = 0.5  # Longest wait for the next record while following, seconds


def lines_end(settings: "Settings") -> int:
    """The end of crawl.logs now. Raises: EngineError: the cluster does not answer."""
    return log_end(settings, Topics(settings.kafka.prefix).logs)


def job_log_lines(
    settings: "Settings", job: str, since: float | None = None, limit: int = LIMIT, upto: int | None = None
) -> list[LogLine]:
    """The newest lines of a job that are in the log now, the oldest first.

    Of a later epoch lines from before its submission are left out; see `ControlState.since`.

    Args:
        since: Leaves out older lines; UTC epoch seconds.
        upto: Offset of crawl.logs at which to stop; None for its end.

    Raises: EngineError: the cluster does not answer.
    """
    topics = Topics(settings.kafka.prefix)
    control = read_control(settings, topics)
    copy = control.job(job)
    since = max(since or 0.0, control.since(copy) if copy is not None else 0.0)
    first, end = log_bounds(settings, topics.logs, [0])[0]
    end = end if upto is None else upto
    start = max(first, offset_at(settings, topics.logs, 0, int(since * 1000), end)) if since else first
    lines: deque[LogLine] = deque(maxlen=limit)
    for record in read_records(settings, topics.logs, 0, start, end):
        lines.extend(lines_of(record, job, since))
    return list(lines)


def follow_job_log(settings: "Settings", job: str, start: int) -> Generator[LogLine | None]:
    """Lines of a job from an offset of crawl.logs on, without end; None each time nothing new came for a moment.

    A line's own time may be older: it waited for others, or its machine has another clock. Close the generator to end.
    """
    is_local = engine.is_at(settings.run.data, settings.kafka.bootstrap)
    while True:
        with closing(_records(settings, start)) as records:
            for record in records:
                if record is not None:
                    start = (record.offset() or 0) + 1
                    yield from lines_of(record, job, 0.0)
                    continue
                yield None
                if is_local and (now := _again(settings)) is not settings:
                    settings = now
                    break


def _again(settings: "Settings") -> "Settings":
    """As `engine.again`; the same settings while the engine is being started."""
    with suppress(EngineError):
        return engine.again(settings, settings.run.data)
    return settings


def _records(settings: "Settings", start: int) -> Generator["Message | None"]:
    """Records of crawl.logs from an offset on, without end; None each time nothing new came for a moment."""
    consumer = Consumer(consumer_config(settings))
    try:
        consumer.assign([TopicPartition(Topics(settings.kafka.prefix).logs, 0, start)])
        while True:
            record = consumer.poll(POLL_S)
            if record is None or record.error() is None:
                yield record
            else:
                time.sleep(POLL_S)
    finally:
        consumer.close()


def lines_of(record: "Message", job: str, since: float) -> Iterator[LogLine]:
    """The lines of a job in a record of crawl.logs, without those that are older; one stands for those left out."""
    if record.key() != job.encode():
        return
    try:
        told = log_lines.decode(record.value())
    except ValueError:
        return
    if told.lost:
        at = told.lines[0].at if told.lines else record.timestamp()[1] / 1000
        yield LogLine(at, f"{counted(told.lost, 'line')} of {told.worker} left out", "warning", LOST)
    yield from (line for line in told.lines if line.at >= since)


def unknown_job(name: str) -> UnknownName:
    """The error that names a job which is not there."""
    return UnknownName(f"there is no job {name!r:.120} in the log; `crawlog jobs` names those that there are.")


class SpiderLines:
    """The lines of one job from now on. They are worth less than the crawl: no error of them ends it."""

    def __init__(self, settings: "Settings", job: str, say: Callable[..., None]) -> None:
        self._job, self._say = job, say
        self._topic = Topics(settings.kafka.prefix).logs
        self._rate, self._left_out = LineRate(SHOWN_S, SHOWN_BURST, time.monotonic()), 0
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
        if shown := list(self._bounded(told)):
            self._say(*shown)
        if records:
            self._next = (records[-1].offset() or 0) + 1

    def _bounded(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            if not self._rate.has_room(time.monotonic()):
                self._left_out += 1
                continue
            yield from self._told_left_out()
            self._rate.use()
            yield line

    def _told_left_out(self) -> Iterator[str]:
        """A line in place of those that were left out."""
        if self._left_out:
            yield f"({counted(self._left_out, 'line')} not shown here: `crawlog jobs logs {self._job}`)"
            self._left_out = 0

    def finish(self, settings: "Settings") -> None:
        """Show the last lines, which workers send when they stop; then close."""
        if self._consumer is None:
            return
        until_s = time.monotonic() + LAST_S
        with suppress(EngineError, KafkaException):
            end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), LAST_S)[1]
            while self._next < end and time.monotonic() < until_s:
                self.poll(settings, 0.05)
        if told := list(self._told_left_out()):
            self._say(*told)
        self.close()

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
