"""Feeds a job from the rows of another one: a store whose place is crawl.urls.

    SinkState.changes ─► URLs in fields of the rows ─► founds in crawl.urls, acknowledged ─► the position, in a file

A kill between the last two sends the same seeds again; the job knows them. The position lies beside the state that the
rows come from: where another worker has made its own state, all rows come again.
"""

import platform
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import log_lines
from crawlog.schemas.job_orders import FEED, feed_name
from crawlog.schemas.log_lines import LogLine, LogLines
from crawlog.schemas.urls import MAX_URL_BYTES, FoundUrl, UrlsRecord, encode
from crawlog.streams import files
from crawlog.streams.control import known_job
from crawlog.streams.errors import EngineError, RetryLater
from crawlog.streams.log import Producer, Topics, partition_count
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.stores import Feed, RowChanges, Store
from crawlog.streams.url import Canonicaliser, Places

from .sower import SeedBatch, SeedBatches

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.streams.settings import Settings

ANSWER_S = 60.0  # Longest wait for the acknowledgement of seeds, seconds

SHOWN = 10  # Fields of a row without the field that are named, at most


class FeedPosition(msgspec.Struct):
    """How far a feed is.

    Attributes:
        serial: Of the state that the number is of.
        seeds: URLs that were sent.
        bad: Values that are not URLs, and rows without the field.
        example: One of them, in words.
    """

    serial: str = ""
    number: int = 0
    seeds: int = 0
    bad: int = 0
    example: str = ""


def feed_sink(source: SinkSpec, job: str, epoch: int, fields: tuple[str, ...]) -> SinkSpec:
    """The sink that feeds a job from fields of the rows of `source`."""
    output = f"{feed_name(job, epoch)} {msgspec.json.encode(fields).decode()}"
    return msgspec.structs.replace(source, output=output, is_store=True)


class JobFeed(Store):
    """See the module.

    Args:
        spec: As `feed_sink` makes it.
    """

    def __init__(self, spec: SinkSpec, settings: "Settings") -> None:
        super().__init__(spec)
        name, _, fields = spec.output.partition(" ")
        _, self._job, epoch = name.split(":")
        self._epoch = int(epoch)
        self._fields = msgspec.json.decode(fields, type=tuple[str, ...])
        self._settings = settings
        self._topics = Topics(settings.kafka.prefix)
        self._file: Path = settings.run.data / "sinks" / f"{spec.id}.feed.json"
        self._producer: Producer | None = None
        self._position = FeedPosition()

    @property
    def place(self) -> str:
        """The job that it feeds."""
        return f"job {self._job}"

    def check(self) -> None:
        """Nothing: the job was there when the feed was asked for."""

    def open(self, feed: Feed) -> int:
        """As `Store.open`; it fences nobody, as a found that comes twice changes nothing."""
        self.close()
        copy = known_job(self._settings, self._topics, self._job)
        if copy is None or copy.spec.state == "deleted" or copy.epoch != self._epoch:
            raise RetryLater(f"job {self._job}, which is fed, was deleted or has begun again", 1.0)
        self._canonical = Canonicaliser(copy.spec.canonical).canonical
        self._place = Places(partition_count(self._settings)).of
        self._producer = Producer(self._settings, f"feed-{self._job}")
        try:
            self._position = msgspec.json.decode(self._file.read_bytes(), type=FeedPosition)
        except (OSError, ValueError):
            self._position = FeedPosition()
        if self._position.serial != feed.serial:
            self._position = FeedPosition(feed.serial)
        return self._position.number

    def write(self, changes: RowChanges) -> None:
        """As `Store.write`. Raises: EngineError: the founds were not acknowledged in time."""
        batches = SeedBatches()
        for found in self._founds(changes):
            if batch := batches.add(found, self._place(found.url)):
                self._send(batch)
        for batch in batches.rest():
            self._send(batch)
        if self._producer is None or not self._producer.flush(ANSWER_S):
            raise EngineError(f"the seeds of job {self._job} were not acknowledged within {ANSWER_S:.0f} s")
        self._position.number = changes.end
        files.write(self._file, msgspec.json.encode(self._position))

    def finish(self) -> None:
        """Write into the job's log which rows gave no seed."""
        at = self._position
        if at.bad and self._producer is not None:
            text = f"{at.seeds:,} seeds of the rows of job {self.spec.job}; {at.bad:,} gave none, such as {at.example}"
            lines = (LogLine(time.time(), text, "warning", "feed"),)
            record = log_lines.encode(LogLines(self._job, platform.node(), "sink", lines, self._epoch))
            self._producer.send(self._topics.logs, record, key=self._job.encode(), partition=0)
            self._producer.flush(ANSWER_S)

    def close(self) -> None:
        """Let the producer go."""
        self._producer = None

    def _founds(self, changes: RowChanges) -> Iterator[FoundUrl]:
        """The seeds of rows; a relative URL is one of the row's page."""
        for one in changes.keys:
            for row in one.rows():
                for field in self._fields:
                    value = row.get(field)
                    for url in value if isinstance(value, list) else [value]:
                        try:
                            found = FoundUrl(self._canonical(_url(url), one.url))
                        except ValueError:
                            has = "" if field in row else f" ({', '.join(list(row)[:SHOWN])})"
                            self._skip(f"{field} = {url!r:.200}{has}")
                        else:
                            self._position.seeds += 1
                            yield found

    def _skip(self, example: str) -> None:
        self._position.bad += 1
        self._position.example = self._position.example or example

    def _send(self, batch: SeedBatch) -> None:
        assert self._producer is not None
        record = encode(UrlsRecord(self._job, self._epoch, urls=batch.urls))
        self._producer.send(self._topics.urls, record, key=batch.key, partition=batch.partition)


def _url(value: object) -> str:
    """The text of a URL. Raises: ValueError: it is none."""
    if not isinstance(value, str) or len(value) > MAX_URL_BYTES:
        raise ValueError
    return value.strip()


def is_feed(spec: SinkSpec) -> bool:
    """Whether a sink feeds a job; no output of a record or of a setting has such a name."""
    return spec.output.startswith(FEED)
