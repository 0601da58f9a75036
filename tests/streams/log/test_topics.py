"""The topics on a real broker: created once, verified always, described."""

import os
import re
import signal
import time
from typing import get_args

import pytest
from aiokafka.record import MemoryRecords
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not re-exported

from crawlog.streams.cluster import admin
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config, log_identity
from crawlog.streams.engine.engine import Engine
from crawlog.streams.errors import EngineError
from crawlog.streams.log import producer, provision, read, topics
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from tests.support.processes import until

pytestmark = pytest.mark.broker

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""In the attributes of a batch (KIP-98, KIP-110)."""


def changed(settings: Settings, **values: object) -> Settings:
    """Settings with some of the section `kafka` set."""
    return settings.model_copy(update={"kafka": settings.kafka.model_copy(update=values)})


def test_the_topics_are_created_once(cluster: Settings) -> None:
    """A second call finds them and changes nothing."""
    provision.ensure_topics(cluster)
    before = log_identity(cluster, Topics(cluster.kafka.prefix).urls)
    provision.ensure_topics(cluster)
    assert log_identity(cluster, Topics(cluster.kafka.prefix).urls) == before
    assert provision.partition_count(cluster) == cluster.kafka.partitions


def test_a_signal_that_comes_as_a_reader_is_left_early_is_heard(
    cluster: Settings, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A finalizer that closed the reader would drop it; each command reads the number of partitions first."""

    class Closing(Consumer):
        def close(self) -> None:
            super().close()
            os.kill(os.getpid(), signal.SIGINT)

    provision.ensure_topics(cluster)
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, ours))
    monkeypatch.setattr(read, "Consumer", Closing)
    with pytest.raises(KeyboardInterrupt):
        provision.partition_count(cluster)
    with pytest.raises(KeyboardInterrupt):
        read.record_at(cluster, Topics(cluster.kafka.prefix).control, 0, 0)


def test_another_number_of_partitions_is_refused(cluster: Settings) -> None:
    """The message names each topic and the number to pass."""
    provision.ensure_topics(cluster)
    with pytest.raises(
        EngineError, match=r"(?s)urls has 8 partitions, not 4: pass `-s kafka.partitions=8`.*pages.*items"
    ):
        provision.ensure_topics(changed(cluster, partitions=4))


def delete(settings: Settings, kinds: list[str]) -> None:
    """Deletes topics, as an operator does."""
    client, names = Admin(settings).client, [settings.kafka.prefix + kind for kind in kinds]
    for future in client.delete_topics(names, operation_timeout=30).values():
        future.result()
    while set(names) & set(client.list_topics(timeout=10).topics):
        time.sleep(0.02)  # the controller has answered, the broker tells of it a moment later


@pytest.mark.parametrize("gone", [["control"], ["control", "progress"]], ids="-".join)
def test_missing_topics_are_named_and_made(cluster: Settings, gone: list[str]) -> None:
    """The others stay as they are. Commands that only read name the missing ones at once."""
    provision.ensure_topics(cluster)
    before = log_identity(cluster, Topics(cluster.kafka.prefix).urls)
    delete(cluster, gone)
    names = ", ".join(cluster.kafka.prefix + kind for kind in gone)
    assert not provision.has_topics(cluster)
    with pytest.raises(EngineError, match=re.escape(f"has no topic {names}. `crawlog run`")):
        provision.partition_count(cluster)
    provision.ensure_topics(cluster)
    assert provision.has_topics(cluster)
    assert provision.partition_count(cluster) == 8
    assert log_identity(cluster, Topics(cluster.kafka.prefix).urls) == before


def test_topics_that_do_not_fit_are_told_before_others_are_made_beside_them(cluster: Settings) -> None:
    """Made first, these would have another number of partitions, and what the message says would not help."""
    name, client = Topics(cluster.kafka.prefix).urls, Admin(cluster).client
    made = NewTopic(name, 4, 1, config={"retention.ms": "-1", "message.timestamp.type": "LogAppendTime"})
    client.create_topics([made])[name].result()
    with pytest.raises(EngineError, match=r"urls has 4 partitions, not 8: pass `-s kafka.partitions=4`"):
        provision.ensure_topics(cluster)
    provision.ensure_topics(changed(cluster, partitions=4))
    assert provision.partition_count(cluster) == 4


def test_no_number_is_advised_where_the_topics_differ(cluster: Settings) -> None:
    """None would fit them all."""
    provision.ensure_topics(cluster)
    prefix, client = cluster.kafka.prefix, Admin(cluster).client
    delete(cluster, ["items", "control"])
    made = NewTopic(f"{prefix}items", 4, 1, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "1000"})
    client.create_topics([made])[made.topic].result()
    with pytest.raises(EngineError) as told:
        provision.ensure_topics(cluster)
    assert f"{prefix}items has 4 partitions, not 8\n" in str(told.value)
    assert f"{prefix}items has retention.ms=1000, but must have -1" in str(told.value)


@pytest.mark.parametrize("codec", get_args(Kafka.model_fields["compression"].annotation))
def test_records_lie_in_the_log_as_asked(codec: str, engine: Engine, cluster: Settings) -> None:
    """The broker keeps what the producer made, and the stages' reader takes it."""
    provision.ensure_topics(cluster)
    name, body = Topics(cluster.kafka.prefix).pages, b"<p>the same again</p>" * 1000
    sending = producer.Producer(changed(cluster, compression=codec), "test")
    sending.send(name, body, partition=0)
    assert sending.flush(30)
    [segment] = (engine.data / "kafka" / "log" / f"{name}-0").glob("*.log")
    batch = MemoryRecords(segment.read_bytes()).next_batch()
    assert batch is not None
    assert CODECS[codec] == batch.attributes & 7
    assert [record.value for record in batch] == [body]


def test_a_topic_that_expires_is_refused(cluster: Settings) -> None:
    """Somebody created it by hand with Kafka's defaults."""
    admin = AdminClient(kafka_config(cluster))
    made = NewTopic(f"{cluster.kafka.prefix}urls", 8, 1, config={"retention.ms": "604800000"})
    admin.create_topics([made])[made.topic].result()
    with pytest.raises(EngineError, match=r"urls has retention.ms=604800000, but must have -1"):
        provision.ensure_topics(cluster)


def test_a_raised_record_limit_reaches_the_topics(cluster: Settings) -> None:
    """The setting grew since the topics were created."""
    provision.ensure_topics(cluster)
    larger = changed(cluster, max_record_bytes=cluster.kafka.max_record_bytes + 1)
    provision.ensure_topics(larger)
    names = [larger.kafka.prefix + kind.name for kind in topics.TOPIC_KINDS]
    client, wanted = Admin(larger), {str(larger.kafka.max_record_bytes)}
    # The controller acknowledges a setting before the broker has it.
    until(lambda: {one["max.message.bytes"] for one in client.configs(names).values()} == wanted, "the limit")


def test_records_and_lag_are_described(cluster: Settings) -> None:
    """Three records of crawl.urls, one of them committed by crawlog-fetch."""
    provision.ensure_topics(cluster)
    urls = Topics(cluster.kafka.prefix).urls
    producer = Producer(kafka_config(cluster))
    for _ in range(3):
        producer.produce(urls, b"{}", partition=2)
    producer.flush()
    consumer = Consumer(kafka_config(cluster) | {"group.id": stage_group(cluster, "fetch")})
    consumer.commit(offsets=[TopicPartition(urls, 2, 1)], asynchronous=False)
    consumer.close()
    row = next(row for row in provision.topic_rows(Admin(cluster)) if row.name == urls)
    assert (row.partitions, row.records, row.lag) == (8, 3, {f"{cluster.kafka.prefix}crawlog-fetch": 2})


def test_topics_of_another_prefix_have_groups_of_their_own() -> None:
    """Two crawls on one cluster share no rebalance; the default's names are the plain ones."""
    plain = Settings()
    other = plain.model_copy(update={"kafka": plain.kafka.model_copy(update={"prefix": "shop."})})
    assert (stage_group(plain, "parse"), stage_group(other, "parse")) == ("crawlog-parse", "shop.crawlog-parse")


def test_no_cluster_at_the_address_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused connections do not take the full time-out, whatever is asked first."""
    monkeypatch.setattr(admin, "REFUSED_TIMEOUT_S", 0.3)
    monkeypatch.setattr(admin, "ANSWER_TIMEOUT_S", 3600.0)
    nowhere = changed(Settings(), bootstrap="127.0.0.1:1")
    for ask in (lambda: provision.partition_count(nowhere), lambda: Admin(nowhere).groups("")):
        with pytest.raises(EngineError, match=r"(?s)127.0.0.1:1 .*refused.*--bootstrap"):
            ask()
