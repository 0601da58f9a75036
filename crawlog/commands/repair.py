"""`crawlog repair`: cuts each partition of the local engine's log before its first record that cannot be read.

Kafka itself does it: a broker that finds no mark of a clean stop checks every batch of its files, and cuts a file
before the first one that is damaged. So the marks are removed, and the next `crawlog run` starts the broker, sees what
is gone, and has it fetched and parsed again (`streams/log/power_cut.py`). What is cut off is written down before, as
far as it can be read (`streams/engine/segments.py`); the run gives its links to the log again. No reader of the log has
to know of a gap.

The files of a cluster belong to its operator. Over the network records can be removed from a partition's front alone
(DeleteRecords), so what can be done there is said, with the brokers that have the replicas.
"""

from typing import TYPE_CHECKING, NamedTuple

from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crawlog.streams.settings import Settings

ON_A_CLUSTER = """\
Kafka removes records over the network only from a partition's front. So its operator does this, with its files:
1. With several replicas: stop the leader, cleanly. Another replica leads then; `crawlog repair`, once more, tells
   whether that one is whole. If it is, remove the partition's folder in log.dirs of the stopped broker and start it:
   it copies the partition, and nothing is lost.
2. With one replica, or where none is whole: stop every broker that has one. In log.dirs of each remove the files
   .kafka_cleanshutdown and recovery-point-offset-checkpoint, and start it: Kafka checks all batches, and cuts the
   partition before the first that is damaged.
3. The next `crawlog run` or `crawlog up` notices what is gone, and makes it again."""
"""What to do about damage in a log whose files are not ours."""


class Cut(NamedTuple):
    """Where a partition will end, and where it ends now."""

    topic: str
    partition: int
    offset: int
    end: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.topic}[{self.partition}] is cut at offset {self.offset}: records up to {self.end - 1} are lost"


class Placed(NamedTuple):
    """Which brokers have a partition.

    Attributes:
        leader: With its address; empty where there is none now.
    """

    topic: str
    partition: int
    leader: str
    replicas: tuple[int, ...]

    def __str__(self) -> str:
        """For people."""
        leads = f"broker {self.leader} leads" if self.leader else "no broker leads"
        replicas = "s on brokers" if len(self.replicas) > 1 else " on broker"
        return f"{self.topic}-{self.partition}: {leads}, replica{replicas} {', '.join(map(str, self.replicas))}"


def placed(settings: "Settings", found: "Iterable[Cut]") -> list[Placed]:
    """Which brokers have the damaged partitions.

    Raises: EngineError: the cluster does not answer.
    """
    from crawlog.streams.log import Admin

    known = Admin(settings).metadata()
    places = []
    for one in found:
        part = known.topics[one.topic].partitions[one.partition]
        leader = known.brokers.get(part.leader)
        where = f"{part.leader} ({leader.host}:{leader.port})" if leader else ""
        places.append(Placed(one.topic, one.partition, where, tuple(part.replicas)))
    return places


def cuts(settings: "Settings") -> list[Cut]:
    """What would be cut off; reads the whole log.

    Raises: EngineError: the cluster does not answer.
    """
    from crawlog.streams.log import Check

    return [Cut(p.topic, p.partition, p.damaged[0][0], p.end) for p in Check(settings).parts if p.damaged]


def cut(settings: "Settings") -> list[str]:
    """Have the local engine, which does not run, check all of its files at its next start.

    Returns: What will be cut, and where it is written down, in lines.

    Raises: Misconfigured: its files are not here, or something works on them.
    """
    from crawlog.processes.hold import Hold
    from crawlog.streams import engine

    if settings.kafka.bootstrap:
        raise Misconfigured(
            "`crawlog repair --execute` needs the files of the log, and those of your cluster are its own. Without "
            f"--execute it names the damaged partitions and their brokers.\n{ON_A_CLUSTER}"
        )
    hold = Hold(settings.run.data, "repair")
    try:
        engine.stop(settings.run.data)  # a command that was killed may have left it behind
        return engine.recheck(settings.run.data)
    finally:
        hold.release()
