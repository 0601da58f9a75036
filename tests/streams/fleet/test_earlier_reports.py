"""A view that goes back to earlier reports, without a broker."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

from crawlog.schemas import control, progress
from crawlog.schemas.control import JobCopy
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.schemas.urls import JobSpec
from crawlog.streams.fleet import FleetView, fleet_view
from crawlog.streams.fleet import tail as tails
from crawlog.streams.log import Topics
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka

TOPICS = Topics("crawl.")


class Log(Consumer):
    """The job `j` in two partitions, and their reports. It is the consumer, too."""

    def __init__(self) -> None:
        copy = JobCopy("j", JobSpec())
        self.said = [Message(topic=TOPICS.control, partition=0, key=control.key(copy), value=control.encode(copy))]
        self.reports: list[Message] = []
        self.next = 0
        self.report(0, fetched=1, age_s=1000.0)
        self.report(1, fetched=2)

    def report(self, partition: int, fetched: int, age_s: float = 0.0) -> None:
        """A worker reports."""
        told = Progress("w", "fetch", partition, 1.0, pid=7, jobs={"j": JobCounts(fetched=fetched)})
        at = 1, int((time.time() - age_s) * 1000)
        value, offset = progress.encode(told), len(self.reports)
        self.reports.append(Message(topic=TOPICS.progress, partition=0, offset=offset, value=value, timestamp=at))

    def consume(self, *_: object) -> list[Message]:
        """All that is there."""
        told, self.said, self.next = [*self.said, *self.reports[self.next :]], [], len(self.reports)
        return told

    def assign(self, places: list[TopicPartition]) -> None:
        """Begin there."""
        for place in places:
            if place.topic == TOPICS.progress:
                self.next = len(self.reports) if place.offset == OFFSET_END else place.offset

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """Read on from there."""
        self.assign(places)

    def incremental_unassign(self, *_: object) -> None:
        """Read no more."""

    def bounds(self, _: object, topic: str, __: object) -> dict[int, tuple[int, int]]:
        """The first and the next offset."""
        return {0: (0, len(self.reports) if topic == TOPICS.progress else 1)}

    def first_since(self, _: object, __: str, ___: int, since_ms: int, end: int) -> int:
        """The offset of the first report since a time."""
        return next((at for at, one in enumerate(self.reports[:end]) if one.timestamp()[1] >= since_ms), end)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """The log of each view of the test."""
    made = Log()
    urls = SimpleNamespace(topics={TOPICS.urls: SimpleNamespace(partitions=(0, 1))})
    fakes: dict[str, Any] = {
        "Admin": lambda _: SimpleNamespace(metadata=lambda _: urls),
        "log_bounds": made.bounds,
        "offset_at": made.first_since,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(fleet_view, name, fake)
    monkeypatch.setattr(tails, "Consumer", lambda _: made)
    return made


def counted(view: FleetView) -> tuple[int, bool]:
    """The fetched pages of the job, and whether these are all."""
    (job,) = view.jobs()
    return job.counts.fetched, job.is_counted


def test_a_view_has_the_earlier_report_of_a_partition(log: Log) -> None:
    """It goes back until it has the counts of all partitions."""
    view = FleetView(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
    view.catch_up()
    assert counted(view) == (3, True)
    log.report(0, fetched=5)
    view.poll(0)
    assert counted(view) == (7, True)


def test_a_view_without_time_to_go_back_says_that_counts_are_too_low(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not fail, and goes on where it had read to; they are whole when the partition is reported."""
    monkeypatch.setattr(fleet_view, "FURTHER_S", -1.0)
    view = FleetView(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
    view.catch_up()
    assert (counted(view), log.next) == ((2, False), 2)
    log.report(0, fetched=5)
    view.poll(0)
    assert counted(view) == (7, True)


def test_damage_on_the_way_back_leaves_what_the_view_knows(log: Log) -> None:
    """What an earlier report had said is not known."""
    log.reports[0] = Message(topic=TOPICS.progress, partition=0, error=KafkaError(KafkaError._BAD_MSG))
    view = FleetView(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
    view.catch_up()
    assert counted(view) == (2, False)
