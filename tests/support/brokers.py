"""Brokers of somebody else's, to be killed, set back to an older copy, or closed to a crawl."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import kafka_config
from crawlog.streams.engine import broker
from crawlog.streams.errors import EngineError
from crawlog.streams.log import provision
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.settings.sources import load
from tests.support.node import Node
from tests.support.synthetic_site import free_port

SMALL = """\
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=1500
"""
"""One broker alone, quick to join and to be given up."""

OPEN = """\
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
"""

READY_S = 90.0


class Foreign:
    """A broker of somebody else's, started.

    Args:
        properties: Its listeners, and what else it has beyond SMALL.
        port: Where it is asked whether it is ready.
        options: For Kafka's tool that formats its folder.
    """

    def __init__(self, folder: Path, properties: str, port: int, controller: int, *options: str) -> None:
        self._identity = broker.Identity(broker.new_id(), port, controller)
        self._node = Node(folder, properties + SMALL, self._identity.cluster_id, *options)
        self.bootstrap = f"127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        """Until it answers."""
        self._node.start()
        broker.Readiness(self._node.folder, self._identity, self._node.process, READY_S).wait()

    def kill(self) -> None:
        """Kill -9."""
        self._node.kill()

    def stop(self) -> None:
        """A clean stop."""
        self._node.process.terminate()
        self._node.process.wait(READY_S)


class Lossy(Foreign):
    """A broker whose partitions can be set back."""

    def __init__(self, folder: Path) -> None:
        port, controller = free_port(), free_port()
        self.log = folder / "log"
        super().__init__(folder, OPEN.format(port=port, controller=controller), port, controller)

    def copy(self, topic: str, partition: int) -> Path:
        """A copy of a partition as it is now."""
        kept = self.log.parent / f"copy-{topic}-{partition}"
        shutil.rmtree(kept, ignore_errors=True)
        return Path(shutil.copytree(self.log / f"{topic}-{partition}", kept))

    def set_back(self, *copies: Path) -> None:
        """Dies, and comes back with these copies."""
        self.kill()
        for kept in copies:
            there = self.log / kept.name.removeprefix("copy-")
            shutil.rmtree(there)
            shutil.copytree(kept, there)
        self.start()


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    """One broker for all tests here."""
    made = Lossy(tmp_path_factory.mktemp("lossy"))
    yield made
    made.kill()


@pytest.fixture
def log(lossy: Lossy, tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """An empty log of this test alone, of two partitions."""
    prefix = f"{request.node.name[:60].replace('[', '-').replace(']', '-')}."
    given = {"kafka.bootstrap": lossy.bootstrap, "kafka.prefix": prefix, "kafka.partitions": 2}
    settings = load(given | {"run.data": str(tmp_path / "data")})
    provision.ensure_topics(settings)
    (tmp_path / "data" / "run").mkdir(parents=True)
    return settings


def put(settings: Settings, topic: str, count: int, partition: int = 1) -> None:
    """Records, each in a batch of its own."""
    producer = Producer(kafka_config(settings) | {"batch.num.messages": 1})
    for number in range(count):
        producer.produce(topic, f"{number}".encode(), partition=partition)
    assert producer.flush(READY_S) == 0


def until_led(settings: Settings) -> None:
    """Waits until all partitions have leaders again."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            Admin(settings).ends((Topics(settings.kafka.prefix).urls,), 2)
        except (KafkaException, EngineError):
            assert time.monotonic() < deadline
        else:
            return
