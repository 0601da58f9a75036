"""A cluster of three brokers, as somebody else runs it.

Topics have three replicas, of which two must have a record before it is acknowledged (`min.insync.replicas=2`), and no
replica that lags becomes the leader: so the death of one broker loses no acknowledged record, and stops nothing.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.site import free_port
from crawlog.streams import broker
from crawlog.streams.engine import fetch_jars
from crawlog.streams.java import FLAGS, class_path, environ, find_java
from crawlog.streams.settings import load

START_S = 60.0
IN_SYNC_S = 120.0

PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=log
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
offsets.topic.replication.factor=3
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
auto.create.topics.enable=false
message.max.bytes={max_bytes}
replica.fetch.max.bytes={max_bytes}
log.index.size.max.bytes=1048576
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.threads=1
"""
"""All else is Kafka's default: sessions of 9 s, replicas out of sync after 30 s, idle time before a group begins."""


class Node:
    """One of the brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.controller_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self.process is not None, "it was started"
        return self.process.pid

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Cluster:
    """The brokers, which keep their addresses and what is on their disks."""

    def __init__(self, folder: Path, count: int) -> None:
        settings = load({"run.data": str(folder)})
        jars = fetch_jars(settings, None, lambda _: None)
        self._java = [str(find_java(settings).path), *FLAGS, "-Xmx256m", "-cp", class_path(jars)]
        self.nodes = [Node(folder / f"node-{number}") for number in range(1, count + 1)]
        self.bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        voters = ",".join(f"{n}@127.0.0.1:{node.controller_port}" for n, node in enumerate(self.nodes, 1))
        cluster_id = broker.new_id()
        for number, node in enumerate(self.nodes, 1):
            node.folder.mkdir(parents=True)
            properties = node.folder / "server.properties"
            ports = {"port": node.port, "controller_port": node.controller_port}
            most = settings.kafka.max_record_bytes
            properties.write_text(PROPERTIES.format(node=number, voters=voters, max_bytes=most, **ports))
            tool = ["kafka.tools.StorageTool", "format", "--config", str(properties), f"--cluster-id={cluster_id}"]
            subprocess.run([*self._java, *tool], cwd=node.folder, env=environ(), check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """All that do not run, until the cluster knows them all.

        Raises: TimeoutError: it does not.
        """
        for node in self.nodes:
            if node.process is None or node.process.poll() is not None:
                self.start_one(node)
        self._until(START_S, lambda admin: len(admin.list_topics(timeout=1.0).brokers) == len(self.nodes))

    def start_one(self, node: Node) -> None:
        """Again, as its operator would."""
        with (node.folder / "broker.log").open("ab") as log:
            command = [*self._java, "kafka.Kafka", str(node.folder / "server.properties")]
            node.process = subprocess.Popen(command, cwd=node.folder, env=environ(), stdout=log, stderr=log)

    def until_in_sync(self) -> None:
        """Waits until every replica has what its leader has.

        Raises: TimeoutError: one does not catch up.
        """

        def are_in_sync(admin: AdminClient) -> bool:
            topics = admin.list_topics(timeout=1.0).topics.values()
            return all(len(at.isrs) == len(at.replicas) for topic in topics for at in topic.partitions.values())

        self._until(IN_SYNC_S, are_in_sync)

    def _until(self, limit_s: float, is_so: Callable[[AdminClient], bool]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            try:
                if is_so(admin):
                    return
            except KafkaException:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"the cluster did not become what was asked for within {limit_s:.0f} s")

    def kill(self) -> None:
        """All of them."""
        for node in self.nodes:
            node.kill()
