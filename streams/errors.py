"""Every error crawlog raises on purpose; a class says what the caller does next.

CrawlError
├── RetryLater           try the same thing again after `retry_after_s`
│   └── SinkBehind       let the sink read on first
├── GiveUp               this URL or record ends here, with a reason
├── PoisonRecord         the record goes to crawl.dead; the partition goes on
├── TrialError           no sandbox is available: go on with the limits of this process
├── SpiderDied           try the call again in a new process; in the end the page goes to crawl.dead
├── Unusable             set the folder on disk aside, and fold the log again
├── HalfFolded           close the state without a checkpoint: the last one on disk is whole
├── StateLocked          wait for the process that has the database, or go on without it
├── NotCopied            go on with an older copy, or without one
├── DamagedSnapshot      pass this snapshot over and try the next one
├── RestoreInterrupted   stop: the restore was asked to stop
├── Misconfigured        tell the user and stop: exit code 2
│   ├── RefusedOutput    a job names an output that no worker ever writes
│   ├── UnknownName      nothing has the name: look for the right one
│   ├── InvalidState      the state of the job or worker does not allow it
│   └── OrderRefused     the job was changed by somebody else: look again, then order again
└── EngineError          the log cannot be reached or started: exit code 3
    ├── SnapshotsAway    try again: only a snapshot can replace the state, and their store does not answer
    ├── EngineKilled     start the broker again, a few times
    ├── NotAnswered      the order is in the log, and is obeyed when a worker runs
    ├── Unreadable       no restart helps: another process met records that cannot be read; exit code 65
    │   └── DamagedLog   this one did
    │       └── OffsetFell  start the worker again: if it falls there each time, the log is damaged
    └── AccessDenied     try again a few times; if it persists, no restart helps

Exceptions that never leave their room, such as those of the client's connections, are defined where they are raised.
"""


class CrawlError(Exception):
    """Base of all errors that crawlog raises on purpose."""


class RetryLater(CrawlError):
    """The same attempt may succeed later.

    Args:
        reason: One word or a short phrase; it goes into the done record.
        retry_after_s: Least wait that the other side asked for; None if it asked for none.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class SinkBehind(RetryLater):
    """The sink has more of crawl.items to read."""


class GiveUp(CrawlError):
    """No further attempt helps; `reason` goes into the result."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PoisonRecord(CrawlError):
    """A record that cannot be decoded or handled; it goes to crawl.dead."""


class TrialError(CrawlError):
    """No trial of a page is possible: no process, no memory, or the child was killed from outside at each try."""


class SpiderDied(CrawlError):
    """The process of a user's spider ended during a call, or was ended because the call took too long."""


class Unusable(CrawlError):
    """A database on disk is damaged, or another version of crawlog wrote it."""


class HalfFolded(CrawlError):
    """A state in memory holds a part of a record: folding it failed midway."""


class StateLocked(CrawlError):
    """Another process holds the database."""


class NotCopied(CrawlError):
    """A database is gone, or changes faster than it can be copied."""


class DamagedSnapshot(CrawlError):
    """A snapshot is incomplete or damaged."""


class RestoreInterrupted(CrawlError):
    """The restore was asked to stop; the rows folded so far are correct but incomplete."""


class Misconfigured(CrawlError):
    """A setting, a file or an argument is wrong; the message names it, the likely cause and the next command."""


class UnknownName(Misconfigured):
    """There is no job or worker of this name; the message says how to find those that there are."""


class InvalidState(Misconfigured):
    """The state of a job or worker does not allow what was asked for."""


class OrderRefused(Misconfigured):
    """An order for a job changed nothing: the job is not as the writer saw it.

    Args:
        why: The answer in the log.
    """

    def __init__(self, job: str, why: str) -> None:
        super().__init__(
            f"job {job} was not changed: {why}. It has changed since it was looked at; see `crawlog jobs show {job}`, "
            "and repeat the command if it is still wanted."
        )
        self.job, self.why = job, why


class RefusedOutput(Misconfigured):
    """The record of a job names an output that no worker ever writes, such as one with a path for a name."""


class EngineError(CrawlError):
    """Kafka cannot be started or reached; the message names what, where, the likely cause and the next command."""


class SnapshotsAway(EngineError):
    """The store of the snapshots does not answer, and the log alone does not give the state.

    Args:
        why: The store's error.
    """

    def __init__(self, partition: int, why: str) -> None:
        super().__init__(
            f"the snapshots of partition {partition} cannot be read: {why}. The log no longer has its first records, so"
            " the state cannot begin without one. Look at the store that snapshots.to names; it is asked again."
        )


class EngineKilled(EngineError):
    """The broker was killed while it started."""


class NotAnswered(EngineError):
    """No worker has answered an order for a job in time; it stays in the log.

    Args:
        offset: Of the order, in partition 0 of crawl.urls.
    """

    def __init__(self, job: str, offset: int, waited_s: float) -> None:
        super().__init__(
            f"the order for job {job} is in the log, and no worker has answered it for {waited_s:.0f} s. It is obeyed"
            " as soon as a fetch worker runs (`crawlog up`); `crawlog status` shows the workers."
        )
        self.job, self.offset = job, offset


class AccessDenied(EngineError):
    """The cluster refuses our credentials, or does not permit an operation. A run ends only if this persists.

    Args:
        said: The message of the cluster or the client.
    """

    def __init__(self, bootstrap: str, protocol: str, said: str) -> None:
        super().__init__(
            f"The Kafka cluster at {bootstrap} ({protocol}) denies access: {said}.\n"
            "A password, a certificate or a permission (ACL) does not fit, or was changed. Check the credentials "
            "(kafka.sasl_username, kafka.sasl_password, kafka.ssl_cert …) and what they may do with topics and groups; "
            "`crawlog doctor` tells more. Nothing is lost: the same command then goes on."
        )


class Unreadable(EngineError):
    """The log is damaged, as another process found: the message names the place. A command ends with 65."""


class DamagedLog(Unreadable):
    """A record of the log cannot be read, now or later. No reader may skip it silently.

    Args:
        offset: The first offset that cannot be read, as far as known.
        why: The message of the client or the broker.
    """

    def __init__(self, topic: str, partition: int, offset: int, why: str) -> None:
        super().__init__(
            f"the log is damaged: {topic}[{partition}] cannot be read at offset {offset}: {why}.\n"
            "A disk, or another program, changed Kafka's files. Nothing behind that offset was worked on.\n"
            "`crawlog repair` shows what is damaged, and with --execute the next run makes it again."
        )
        self.topic, self.partition, self.offset = topic, partition, offset


class OffsetFell(DamagedLog):
    """A record came whose offset is not above those before it: damage that no CRC covers, or a log that was cut."""
