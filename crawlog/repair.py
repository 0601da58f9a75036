"""`crawlog repair`: cuts each partition of the local engine's log before its first record that cannot be read.

Kafka itself does it: a broker that finds no mark of a clean stop checks every batch of its files, and cuts a file
before the first one that is damaged. So the marks are removed, and the next `crawlog run` starts the broker, sees what
is gone, and has it fetched and parsed again (`streams/recovery.py`). No reader of the log has to know of a gap.
"""

from typing import TYPE_CHECKING, NamedTuple

from .streams.errors import Misconfigured

if TYPE_CHECKING:
    from .streams.settings import Settings


class Cut(NamedTuple):
    """Where a partition will end, and where it ends now."""

    topic: str
    partition: int
    offset: int
    end: int

    def __str__(self) -> str:
        """For people."""
        return f"{self.topic}[{self.partition}] is cut at offset {self.offset}: records up to {self.end - 1} are lost"


def cuts(settings: "Settings") -> list[Cut]:
    """What would be cut off; reads the whole log.

    Raises: EngineError: the cluster does not answer.
    """
    from .streams.logcheck import Check

    return [Cut(p.topic, p.partition, p.damaged[0][0], p.end) for p in Check(settings).parts if p.damaged]


def cut(settings: "Settings") -> None:
    """Have the local engine, which does not run, check all of its files at its next start.

    Raises: Misconfigured: its files are not here, or something works on them.
    """
    from .streams import engine
    from .supervisor import Hold

    if settings.kafka.bootstrap:
        raise Misconfigured(
            "`crawlog repair --execute` needs the files of the log, and those of your cluster are its own.\n"
            "Where another replica is whole: stop the broker with the damaged one, remove the folder of that partition "
            "there, and start it; it copies the partition. Else crawl anew with -s kafka.prefix=NAME."
        )
    hold = Hold(settings.run.data, "repair")
    try:
        engine.stop(settings.run.data)  # a command that was killed may have left it behind
        engine.recheck(settings.run.data)
    finally:
        hold.release()
