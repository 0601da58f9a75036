"""Reading from a broker that gives nothing, errors, or its records late."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from crawlog.agents.parse.stored_bodies import Bodies
from crawlog.schemas.pages import PageMeta
from crawlog.streams.errors import DamagedLog, EngineError
from crawlog.streams.log import read as reading
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.restore import Restorer


class Failing:
    """A consumer of a broker that is away: what it gives are errors that pass, one after the other."""

    def __init__(self, *_: object) -> None:
        self.since = time.monotonic()

    def poll(self, _timeout_s: float) -> Message:
        """An error."""
        if time.monotonic() - self.since > 30:
            pytest.fail("it reads on after a hundred times its patience")
        time.sleep(0.01)
        return Message(topic="t", partition=0, error=KafkaError(KafkaError._TRANSPORT))

    def consume(self, *_: object) -> list[Message]:
        """No more of them for now."""
        return []

    def assignment(self) -> list[TopicPartition]:
        """Nothing that the broker would answer for."""
        return []

    def offsets_for_times(self, asked: Sequence[TopicPartition], *_: object) -> list[TopicPartition]:
        """Ten records."""
        return [TopicPartition(one.topic, one.partition, 0 if one.offset == -2 else 10) for one in asked]

    def position(self, asked: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Nothing was read."""
        return [TopicPartition(one.topic, one.partition, 0) for one in asked]

    def assign(self, _places: object) -> None:
        """Nothing."""

    unassign = close = lambda _: None


def restored(settings: Settings) -> None:
    """A partition of ten records is restored."""
    partition: Any = SimpleNamespace(number=0, offset=0, last_hash=0)
    Restorer(settings, "t").restore([partition], lambda *_: None, lambda _: pytest.fail("nothing was read"))


@pytest.mark.parametrize(
    "read",
    [
        lambda settings: list(reading.read_records(settings, "t", 0, 0, 10)),
        lambda settings: list(reading.read_partitions(settings, "t", {0: (0, 10)})),
        lambda settings: Bodies(settings, "t").read({(0, 5): PageMeta("http://a.com/", "j", same_as=(0, 3))}),
        restored,
    ],
    ids=["read", "read_partitions", "bodies", "restore"],
)
def test_errors_alone_are_no_progress(read: Callable[[Settings], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads is told after a while, and may begin anew; each of them seemed to be news of the broker."""
    monkeypatch.setattr(reading, "CLUSTER_TIMEOUT_S", 0.3)
    for module in ("streams.log.read", "streams.state.restore", "agents.parse.stored_bodies"):
        monkeypatch.setattr(f"crawlog.{module}.Consumer", Failing)
    with pytest.raises(EngineError, match="nothing"):
        read(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))


class Stuck(Failing):
    """A consumer of a broker that says that it has records and gives none: it cannot read its own file."""

    def assignment(self) -> list[TopicPartition]:
        """What is read."""
        return [TopicPartition("t", 0)]


def test_a_broker_that_has_records_and_gives_none_has_a_damaged_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients wait in silence for a record, or lose their connections, for ever."""
    monkeypatch.setattr(reading, "CLUSTER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(reading, "CONFIRM_S", 0.3)
    monkeypatch.setattr(reading, "Consumer", Stuck)
    with pytest.raises(DamagedLog, match=r"t\[0\] cannot be read at offset 0: the broker gives no record there"):
        list(reading.read_records(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")), "t", 0, 0, 10))


class Slow(Failing):
    """A consumer that has its next record only for who waits for it."""

    def __init__(self, *_: object) -> None:
        self.offset = 0

    def poll(self, timeout_s: float) -> Message | None:  # type: ignore[override]  # nothing, or a record
        """One record a call."""
        if not timeout_s:
            return None
        self.offset += 1
        return Message(topic="t", partition=0, offset=self.offset - 1)


def test_who_takes_long_over_a_record_may_wait_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or was stopped in between: it is no silence of the broker."""
    monkeypatch.setattr(reading, "CLUSTER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(reading, "Consumer", Slow)
    settings = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))
    offsets = []
    for record in reading.read_records(settings, "t", 0, 0, 3):
        offsets.append(record.offset())
        time.sleep(0.1)
    assert offsets == [0, 1, 2]
