"""`crawlog repair`: the log ends before its damage, and the broker that ends it there is Kafka itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from damaging import WAYS, batches

from crawlog.streams import engine as local
from crawlog.streams import topics
from crawlog.streams.kafka import bounds, kafka_config, read
from crawlog.streams.settings import Settings

HURT = 3
"""The record that is damaged, of each partition; a batch holds one."""

HURTING = (0, 1)
"""The partitions that are damaged: a record of the first, the length of a batch of the other. The third is whole."""


def repair(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "crawlog", "repair", f"--data={data}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=data.parent)


@pytest.mark.broker
@pytest.mark.slow
def test_a_log_is_cut_before_its_damage_and_only_when_told_to(tmp_path: Path) -> None:
    """What lies before it stays, and other partitions too. A broker that cannot start on its files is told the way."""
    data = tmp_path / "data"
    engine = local.start(Settings(), data, lambda _: None)
    settings = engine.point(Settings())
    topics.ensure(settings)
    names = topics.Topics(settings.kafka.prefix)
    producer = Producer(kafka_config(settings))
    for number in range(6):
        for partition in range(3):
            producer.produce(names.items, b"record %d" % number, partition=partition)
        assert producer.flush(30) == 0
    hurt = [batches(engine, names.items, partition)[HURT] for partition in HURTING]
    assert [batch.offset for batch in hurt] == [HURT, HURT]
    engine.stop()
    WAYS["record"](hurt[0])
    dry = repair(data, "--json")
    assert dry.returncode == 5, dry.stderr
    [told] = dry.stdout.splitlines()
    assert json.loads(told) == {"topic": names.items, "partition": 0, "offset": HURT, "end": 6}
    WAYS["length"](hurt[1])
    refused = repair(data)
    assert refused.returncode == 3
    assert "`crawlog repair --execute" in refused.stderr
    done = repair(data, "--execute")
    assert done.returncode == 0, done.stderr
    engine = local.start(Settings(), data, lambda _: None)
    settings = engine.point(Settings())
    try:
        assert engine.is_unchecked
        assert bounds(settings, names.items, [0, 1, 2]) == {0: (0, HURT), 1: (0, HURT), 2: (0, 6)}
        kept = [message.value() for message in read(settings, names.items, 0, 0, HURT)]
    finally:
        engine.stop()
    assert kept == [b"record %d" % number for number in range(HURT)]


def test_files_of_a_cluster_are_left_to_it(tmp_path: Path) -> None:
    """Its brokers hold them, and other replicas may be whole."""
    from crawlog.repair import cut
    from crawlog.streams.errors import Misconfigured
    from crawlog.streams.sections import Kafka

    with pytest.raises(Misconfigured, match="copies the partition"):
        cut(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
