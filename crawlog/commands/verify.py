"""`crawlog verify` compares every state on this machine with the fold of its log; `crawlog repair` cuts a damaged log.

Each partition of the local engine's log is cut before its first unreadable record. Kafka does the cutting: a broker
that finds no mark of a clean stop checks every batch of its files, and cuts a file before the first damaged batch. So
`repair` removes the marks. Before that it saves the records that will be cut off, as far as they can be read
(`streams/engine/segments.py`). The next `crawlog run` starts the broker, detects the loss, and has lost pages fetched
and parsed again (`streams/recovery/power_cut.py`). It also writes the saved links to the log again. So readers of the
log never meet a gap.

The files of a cluster belong to its operator. Over the network Kafka removes records only from the front of a partition
(DeleteRecords). So on a cluster `repair` prints instructions and the brokers that have the replicas.
"""

import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.state import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crawlog.streams.recovery import CheckFinding
    from crawlog.streams.settings import Settings


SHOWN = 20  # Findings that are listed at most; `--json` lists all


class Verified(msgspec.Struct):
    """The result of a second fold of the log."""

    verdicts: list[Verdict]
    took_s: float

    @property
    def is_equal(self) -> bool:
        return all(verdict.equal for verdict in self.verdicts)


def verify(settings: "Settings", rows: int) -> Verified:
    """Folds the log again, and compares the result with the states.

    Args:
        rows: Differing rows that are named at most for each partition.

    Raises: Misconfigured: there is no state.
    """
    from crawlog.streams import logs
    from crawlog.streams.state import verify as streams

    logs.configure("debug" if settings.log.level == "debug" else "warning")  # standard output is for answers
    state = settings.run.data / "state"
    if not state.is_dir():
        raise Misconfigured(f"there is no state in {state}: nothing was crawled with this data folder yet.")
    began = time.monotonic()
    verdicts = streams.verify(settings, state, rows)
    return Verified(verdicts, time.monotonic() - began)


def findings(found: "Iterable[CheckFinding]", missing: int) -> list[str]:
    """Lines about missing records: the first findings, then the total."""
    told = [str(one) for one in islice(found, SHOWN)]
    if missing > SHOWN:
        told.append(f"… and {missing - SHOWN:,} more; `crawlog verify --log --json` names all")
    if missing:
        told.append(f"missing: {missing:,}; `crawlog run` of the job, the same command again, or `crawlog up` mends it")
    return told


# Instructions for a damaged log on a cluster of the user's.
ON_A_CLUSTER = """\
Kafka removes records over the network only from a partition's front. So its operator does this, with its files:
1. With several replicas: stop the leader, cleanly. Another replica leads then; `crawlog repair`, once more, tells
   whether that one is whole. If it is, remove the partition's folder in log.dirs of the stopped broker and start it:
   it copies the partition, and nothing is lost.
2. With one replica, or where none is whole: stop every broker that has one. In log.dirs of each remove the files
   .kafka_cleanshutdown and recovery-point-offset-checkpoint, and start it: Kafka checks all batches, and cuts the
   partition before the first that is damaged.
3. The next `crawlog run` or `crawlog up` notices what is gone, and makes it again."""


class Cut(NamedTuple):
    """A damaged partition: its end after the cut (`offset`), and its end now."""

    topic: str
    partition: int
    offset: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] is cut at offset {self.offset}: records up to {self.end - 1} are lost"


class Placed(NamedTuple):
    """The brokers that have a partition.

    Attributes:
        leader: The leader's id and address; empty if there is no leader now.
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
    """The brokers that have the damaged partitions.

    Raises: EngineError: the cluster does not answer.
    """
    from crawlog.streams.cluster import Admin

    known = Admin(settings).metadata()
    places = []
    for one in found:
        part = known.topics[one.topic].partitions[one.partition]
        leader = known.brokers.get(part.leader)
        where = f"{part.leader} ({leader.host}:{leader.port})" if leader else ""
        places.append(Placed(one.topic, one.partition, where, tuple(part.replicas)))
    return places


def cuts(settings: "Settings") -> list[Cut]:
    """The cuts that a repair would make; reads the whole log.

    Damage that would abort the client of the check is looked for without it, before.

    Raises: EngineError: the cluster does not answer.
    """
    from crawlog.streams.cluster import log_end
    from crawlog.streams.log import unreadable
    from crawlog.streams.recovery import Check

    if fatal := unreadable(settings):
        return [Cut(one.topic, one.partition, one.offset, log_end(settings, one.topic, one.partition)) for one in fatal]
    return [Cut(p.topic, p.partition, p.damaged[0][0], p.end) for p in Check(settings).parts if p.damaged]


def cut(settings: "Settings") -> list[str]:
    """Makes the local engine check all of its files at its next start; no command may be using it.

    Returns: Lines about the cuts, and about the file with the records that will be cut off.

    Raises: Misconfigured: the log is on a cluster, or another command uses the data folder.
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
        engine.stop(settings.run.data)  # a killed command may have left it running
        return engine.recheck(settings.run.data)
    finally:
        hold.release()
