"""Readers whose position is lost, without a broker."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from crawlog.schemas import control
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import JobSpec
from crawlog.streams.fleet import DeadLetterReader, FleetView, fleet_view
from crawlog.streams.fleet import tail as tails
from crawlog.streams.log import Topics
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka

CONTROL = Topics("crawl.").control


class Told(Consumer):
    """A consumer that gives what a test says."""

    def __init__(self, *_: object) -> None:
        self.next: list[Message] = []
        self.began_at: list[int] = []

    def assign(self, *_: object) -> None:
        """Nothing is read."""

    def consume(self, *_: object) -> list[Message]:
        """What was told."""
        told, self.next = self.next, []
        return told

    def incremental_unassign(self, *_: object) -> None:
        """Read no more."""

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        """Read on from there."""
        self.began_at += [place.offset for place in places]


def job(name: str) -> Message:
    """A job's record."""
    copy = JobCopy(name, JobSpec())
    return Message(topic=CONTROL, partition=0, key=control.key(copy), value=control.encode(copy))


def error(code: int) -> Message:
    """What comes in place of a record."""
    return Message(topic=CONTROL, partition=0, error=KafkaError(code))


def test_a_view_that_lost_its_position_reads_all_of_control_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It showed no change any more. Meanwhile it shows the jobs that it knew; those deleted in between go then."""
    consumer = Told()
    fakes: dict[str, Any] = {
        "Admin": lambda _: SimpleNamespace(),
        "log_bounds": lambda *_: {0: (0, 0)},
        "offset_at": lambda *_: 0,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(fleet_view, name, fake)
    monkeypatch.setattr(tails, "Consumer", lambda _: consumer)
    view = FleetView(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))

    def names(records: Iterable[Message]) -> list[str]:
        consumer.next = list(records)
        view.poll(0)
        return [one.name for one in view.jobs()]

    assert names([job("j"), error(KafkaError._PARTITION_EOF)]) == ["j"]
    assert names([error(KafkaError._AUTO_OFFSET_RESET)]) == ["j"]
    assert consumer.began_at == [OFFSET_BEGINNING]
    assert names([job("k")]) == ["j"]
    assert names([error(KafkaError._PARTITION_EOF)]) == ["k"]
    assert names([job("l")]) == ["k", "l"]


def test_a_signal_between_two_dead_letters_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary of an interrupted run missed what its reader had taken from the consumer, and counted 0."""
    consumer, topic = Told(), Topics("crawl.").dead
    monkeypatch.setattr(tails, "Consumer", lambda _: consumer)
    letters = DeadLetterReader(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), "shop", 0)
    written = [Message(topic=topic, partition=0, offset=at) for at in range(3)]
    for at, one in enumerate(written):
        one.set_headers([("job", b"shop"), ("offset", b"%d" % at)])
    consumer.next, take = written, letters.tally.take
    taken: list[object] = []

    def interrupted(*given: Any) -> None:
        if taken:
            raise KeyboardInterrupt
        taken.append(given)
        take(*given)

    monkeypatch.setattr(letters.tally, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        letters.poll()
    assert consumer.began_at == [1]
    monkeypatch.setattr(letters.tally, "take", take)
    consumer.next = written[1:]
    letters.catch_up(3, 1.0)
    assert letters.tally.count == 3
