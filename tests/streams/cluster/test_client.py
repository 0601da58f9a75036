"""Questions to a cluster whose first answers pass."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from crawlog.streams.cluster import client
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.errors import EngineError
from crawlog.streams.log.producer import CommandProducer
from crawlog.streams.log.provision import partition_count
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from tests.support.garbage import uncollected
from tests.support.living_clients import living_clients

NOWHERE = Settings(kafka=Kafka(bootstrap="127.0.0.1:1"))


@dataclass
class Starting(Consumer):
    """A consumer of a broker that just started: its first answers are errors."""

    errors: list[int]

    def offsets_for_times(self, asked: Sequence[TopicPartition], *_: object) -> list[TopicPartition]:
        """An error for all, or the same place for each."""
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop()))
        return [TopicPartition(one.topic, one.partition, 7) for one in asked]

    def list_topics(self, *_: object) -> None:
        """What the cluster consists of, which nobody looks at."""


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE]
)
def test_a_broker_that_starts_is_asked_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives places only once it has loaded its partitions; `why` and `dead` ask it at once."""
    monkeypatch.setattr(client, "AGAIN_S", 0.0)
    assert client.partition_edges(Starting([code] * 3), "t", [0, 1]) == {0: (7, 7), 1: (7, 7)}


def test_nobody_is_asked_for_the_ends_of_no_partition() -> None:
    """A worker that owns none restores none, and goes on to follow what others own."""
    assert client.partition_edges(Starting([KafkaError._INVALID_ARG]), "t", []) == {}


def test_a_full_disk_of_the_broker_is_named() -> None:
    """It is no matter of address, credentials or permissions."""
    admin = Admin(NOWHERE)
    said = str(admin._failed(KafkaException(KafkaError(KafkaError.KAFKA_STORAGE_ERROR))))
    assert "disk is full" in said


def test_an_error_that_stays_is_raised() -> None:
    """Who may not read the topic is told so at once."""
    with pytest.raises(KafkaException):
        client.partition_edges(Starting([KafkaError.TOPIC_AUTHORIZATION_FAILED]), "t", [0])


@pytest.mark.parametrize("use", [Admin, lambda settings: CommandProducer(settings, "test"), partition_count])
def test_a_client_ends_with_the_last_reference_to_it(use: Callable[[Settings], object]) -> None:
    """The service makes some for each command; each one has threads and connections. Nor does an error keep it."""
    with uncollected():
        before = living_clients()
        with suppress(EngineError):
            use(NOWHERE)
        assert living_clients().keys() <= before.keys()
