"""A cluster of three brokers, as an operator runs it.

Topics have three replicas, of which two must have a record before it is acknowledged (`min.insync.replicas=2`), and no
replica that lags becomes the leader: so the death of one broker loses no acknowledged record, and stops nothing.
"""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crawlog.streams.engine import broker
from tests.support.node import Node
from tests.support.synthetic_site import free_port

START_S = 180.0
IN_SYNC_S = 120.0

LOOK_S = 0.1
"""Between two looks at what the cluster says of itself."""

PROPERTIES = """\
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
"""
"""All else is Kafka's default: sessions of 9 s, replicas out of sync after 30 s, idle time before a group begins."""


class Cluster:
    """The brokers, which keep their addresses and what is on their disks."""

    def __init__(self, folder: Path, count: int) -> None:
        ports = [(free_port(), free_port()) for _ in range(count)]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port, _ in ports)
        voters = ",".join(
            f"{number}@127.0.0.1:{controller_port}" for number, (_, controller_port) in enumerate(ports, 1)
        )
        cluster_id = broker.new_id()
        self.nodes = []
        for number, (port, controller_port) in enumerate(ports, 1):
            own = PROPERTIES.format(node=number, voters=voters, port=port, controller_port=controller_port)
            self.nodes.append(Node(folder / f"node-{number}", own, cluster_id))

    def start(self) -> None:
        """All that do not run, until the cluster knows them all.

        Raises: TimeoutError: it does not.
        """
        for node in self.nodes:
            if not node.is_alive:
                node.start()
        self._until(START_S, lambda admin: len(admin.list_topics(timeout=1.0).brokers) == len(self.nodes))

    def until_in_sync(self) -> None:
        """Waits until every replica has what its leader has.

        Raises: TimeoutError: one does not catch up.
        """

        def are_in_sync(admin: AdminClient) -> bool:
            topics = admin.list_topics(timeout=1.0).topics.values()
            return all(len(at.isrs) == len(at.replicas) for topic in topics for at in topic.partitions.values())

        self._until(IN_SYNC_S, are_in_sync)

    def coordinator(self, group: str) -> Node:
        """The broker that coordinates a consumer group."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        described = admin.describe_consumer_groups([group])[group].result(30.0)
        return self.nodes[int(described.coordinator.id) - 1]

    def _until(self, limit_s: float, is_so: Callable[[AdminClient], bool]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                if is_so(admin):
                    return
            except KafkaException:
                pass
            time.sleep(LOOK_S)
        raise TimeoutError(f"the cluster did not become what was asked for within {limit_s:.0f} s")

    def kill(self) -> None:
        """All of them."""
        for node in self.nodes:
            node.kill()
