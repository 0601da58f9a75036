"""`crawlog repair`: the log ends before its damage."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from crawlog.commands.verify import ON_A_CLUSTER, Placed, cut
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import kafka_config, log_bounds
from crawlog.streams.engine import engine as local
from crawlog.streams.engine.engine import Engine
from crawlog.streams.engine.segments import founds, write_down
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import provision, topics
from crawlog.streams.log.read import read_records
from crawlog.streams.recovery.power_cut import offer_again
from crawlog.streams.settings.machine import Kafka
from crawlog.streams.settings.settings import Settings
from tests.support.brokers import Lossy, log, lossy, put, until_led
from tests.support.damaging import WAYS, batches, cut_in_half

__all__ = ["log", "lossy"]  # fixtures

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
@pytest.mark.long
def test_a_log_is_cut_before_its_damage_and_only_when_told_to(tmp_path: Path) -> None:
    """What lies before it stays, and other partitions too. A broker that cannot start on its files is told the way."""
    data = tmp_path / "data"
    engine = local.start(Settings(), data, lambda _: None)
    settings = engine.point(Settings())
    provision.ensure_topics(settings)
    names = topics.Topics(settings.kafka.prefix)
    producer = Producer(kafka_config(settings))
    for number in range(6):
        for partition in range(3):
            producer.produce(names.items, b"record %d" % number, b"key %d" % number, partition=partition)
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
    assert f"{names.items}[0] is cut at offset {HURT}: " in done.stdout
    assert f"{names.items}[1] is cut at offset {HURT}: " in done.stdout
    [file] = (data / "kafka").glob("cut-*.jsonl")
    assert str(file) in done.stdout
    lost = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["partition"], one["offset"], one["end"], one["readable"]) for one in lost if "cut" in one] == [
        (0, HURT, 6, 2),
        (1, HURT, HURT, 0),
    ]
    assert [(one["partition"], one["offset"], one["key"]) for one in lost if "cut" not in one] == [
        (0, 4, "key 4"),
        (0, 5, "key 5"),
    ]
    engine = local.start(Settings(), data, lambda _: None)
    settings = engine.point(Settings())
    try:
        assert engine.is_unchecked
        assert log_bounds(settings, names.items, [0, 1, 2]) == {0: (0, HURT), 1: (0, HURT), 2: (0, 6)}
        kept = [message.value() for message in read_records(settings, names.items, 0, 0, HURT)]
    finally:
        engine.stop()
    assert kept == [b"record %d" % number for number in range(HURT)]


@pytest.mark.broker
def test_founds_behind_damage_are_given_to_the_log_again(cluster: Settings, engine: Engine, tmp_path: Path) -> None:
    """What can be read is written down with the URLs it names; jobs, dones and what is damaged are not offered."""
    provision.ensure_topics(cluster)
    topic = topics.Topics(cluster.kafka.prefix).urls
    producer = Producer(kafka_config(cluster))
    done = u.Result("http://a.com/3", row=0, status="fetched")
    records = [u.UrlsRecord(job="j", urls=[u.FoundUrl(f"http://a.com/{number}")]) for number in range(3)]
    records += [u.UrlsRecord(job="j", results=[done]), u.UrlsRecord(job="j", urls=[u.FoundUrl("http://a.com/4")])]
    for record in records:
        producer.produce(topic, u.encode(record), b"a.com", partition=2)
        assert producer.flush(30) == 0
    WAYS["record"](batches(engine, topic, 2)[1])
    file, said = tmp_path / "cut.jsonl", list[str]()
    names = [f"{topic}-{number}" for number in (1, 2)]
    copies = [shutil.copytree(engine.data / "kafka" / "log" / name, tmp_path / name) for name in names]
    [(found, *_)] = write_down(copies, file)  # of a running broker's files
    assert (found.topic, found.partition, found.offset, found.end, found.readable) == (topic, 2, 1, 5, 3)
    lost = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [one["urls"] for one in lost] == [["http://a.com/2"], ["http://a.com/3"], ["http://a.com/4"]]
    offer_again(cluster, said.append, file.name, founds(file))
    again = [u.decode(message.value()) for message in read_records(cluster, topic, 2, 5, 7)]
    assert again == [records[2], records[4]]
    assert said == ["links that were cut off, by cut.jsonl, are in the log again: 2"]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_files_that_were_changed_while_no_broker_ran_are_checked(tmp_path: Path) -> None:
    """A broker trusts what it left. A command that only looks has nothing cut; what works on the log does."""
    engine = local.start(Settings(), tmp_path, lambda _: None)
    settings = engine.point(Settings())
    provision.ensure_topics(settings)
    items = topics.Topics(settings.kafka.prefix).items
    producer = Producer(kafka_config(settings))
    for number in range(6):
        for partition in range(3):
            producer.produce(items, b"record %d" % number, partition=partition)
        assert producer.flush(30) == 0
    hurt = [batches(engine, items, partition)[HURT] for partition in range(3)]
    engine.stop()
    cut_in_half(hurt[0])
    WAYS["offset-too-small"](hurt[2])  # a broker that checks CRCs keeps it
    WAYS["offset-too-large"](hurt[1])
    said: list[str] = []
    engine = local.start(Settings(), tmp_path, said.append)
    is_unchecked = engine.is_unchecked
    engine.stop()
    assert not is_unchecked
    assert f"changed while it did not run: {items}-0/" in said[0]
    engine = local.start(Settings(), tmp_path, lambda _: None, checks=True)
    try:
        bounds = log_bounds(engine.point(Settings()), items, [0, 1, 2])
        assert bounds == {0: (0, HURT), 1: (0, HURT), 2: (0, HURT)}
        assert engine.is_unchecked
    finally:
        engine.stop()
    said.clear()
    local.start(Settings(), tmp_path, said.append, checks=True).stop()
    assert said == []


def test_files_of_a_cluster_are_left_to_it() -> None:
    """Its brokers hold them, and other replicas may be whole: what its operator does is said."""
    with pytest.raises(Misconfigured, match="copies the partition") as told:
        cut(Settings(kafka=Kafka(bootstrap="127.0.0.1:1")))
    assert "recovery-point-offset-checkpoint" in str(told.value)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            Placed("crawl.urls", 3, "2 (kafka-2:9092)", (2, 1)),
            "broker 2 (kafka-2:9092) leads, replicas on brokers 2, 1",
        ),
        (Placed("crawl.urls", 3, "", (1,)), "no broker leads, replica on broker 1"),
    ],
)
def test_who_has_a_damaged_partition_is_told(place: Placed, said: str) -> None:
    """By the name of its folder, which the operator looks for."""
    assert str(place) == f"crawl.urls-3: {said}"


@pytest.mark.broker
@pytest.mark.slow
def test_what_is_said_of_a_cluster_cuts_its_log_before_the_damage(lossy: Lossy, log: Settings, tmp_path: Path) -> None:
    """The command names the partition's folder and its broker; after the second way the log ends there."""
    topic = topics.Topics(log.kafka.prefix).items
    put(log, topic, 6)
    (tmp_path / "kafka").symlink_to(lossy.log.parent)
    WAYS["record"](batches(tmp_path, topic, 1)[HURT])
    kafka = [f"-skafka.{name}={value}" for name, value in (("prefix", log.kafka.prefix), ("partitions", 2))]
    said = repair(log.run.data, "--bootstrap", lossy.bootstrap, *kafka)
    assert said.returncode == 5, said.stderr
    assert f"{topic}[1] is cut at offset {HURT}" in said.stdout
    assert f"{topic}-1: broker 1 ({lossy.bootstrap}) leads, replica on broker 1" in said.stderr
    for line in ON_A_CLUSTER.splitlines():
        assert line in said.stderr or "`" in line  # a command that is named gets the options of this one
    lossy.stop()
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (lossy.log / name).unlink()
    lossy.start()
    until_led(log)
    assert log_bounds(log, topic, [1]) == {1: (0, HURT)}
