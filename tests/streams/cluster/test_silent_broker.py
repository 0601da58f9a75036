"""A broker that takes requests and does not answer in time: librdkafka gives offsets that are none, and no error."""

from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from crawlog.streams.cluster.admin import LAST, Admin
from crawlog.streams.errors import EngineError
from crawlog.streams.recovery.marks import EndMark, Marks
from crawlog.streams.settings import Settings
from crawlog.streams.settings.machine import Kafka

SETTINGS = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))


class Client:
    """An admin client that is told the offset of all partitions."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def poll(self, _wait_s: float) -> None:
        """Nothing to report."""

    def list_topics(self, **_: object) -> SimpleNamespace:
        """No broker gives an address."""
        return SimpleNamespace(brokers={})

    def list_offsets(self, places: Iterable[TopicPartition], **_: object) -> dict[TopicPartition, Future[Any]]:
        """The same answer for each."""
        return {place: future(SimpleNamespace(offset=self.offset, leader_epoch=3)) for place in places}


def future(result: object) -> "Future[Any]":
    """One that is done."""
    done: Future[Any] = Future()
    done.set_result(result)
    return done


def test_its_ends_are_an_error_and_not_offsets() -> None:
    """A run that took them for ends would have passed all of them, and be finished."""
    admin = Admin(SETTINGS)
    place = TopicPartition("t", 0)
    admin.client = Client(7)  # type: ignore[assignment]  # as much as is asked
    assert admin.offsets([place], LAST) == {("t", 0): 7}
    admin.client = Client(OFFSET_INVALID)  # type: ignore[assignment]  # so too
    with pytest.raises(EngineError, match="Timed out"):
        admin.offsets([place], LAST)


def test_it_has_lost_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition would be fetched and parsed again from its beginning."""
    settings = SETTINGS.model_copy(update={"run": SETTINGS.run.model_copy(update={"data": tmp_path})})
    monkeypatch.setattr(Marks, "_load", lambda _: None)
    marks = Marks(settings, 2)
    (tmp_path / "run").mkdir()
    marks._admin.client = Client(9)  # type: ignore[assignment]  # so too
    assert marks.look() == []
    marks._admin.client = Client(OFFSET_INVALID)  # type: ignore[assignment]  # so too
    assert marks.look() == []
    assert marks.at(marks._topics[0], 0) == EndMark(9, 3)
