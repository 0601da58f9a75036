"""Jobs in the log: a record in every partition of crawl.urls; its copy, joins and end in crawl.control.

Order of writes: every partition of crawl.urls → acknowledged → crawl.control → acknowledged → the first seed. So a job
in crawl.control is known to every partition. A command that was killed in between writes the record again. Scope
names beyond `sower.MAX_NAMES` have their own records, before the seeds: each name in the partition of its domain only.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from crawlog.schemas import control as records
from crawlog.schemas import urls
from crawlog.schemas.control import JOINS, NO_EPOCH, Command, Control, Finished, JobCopy, Join, StartEnded
from crawlog.schemas.urls import MAX_BATCH_NAMES, JobSpec, UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import ControlState
from crawlog.streams.log import check_readable, partition_count, read_records
from crawlog.streams.url import Places

if TYPE_CHECKING:
    from crawlog.streams.log import Producer, Topics
    from crawlog.streams.settings import Settings

ACKNOWLEDGED_S = 60.0  # Timeout of the acknowledgements of a job's records, seconds


def write_job(
    settings: "Settings",
    producer: "Producer",
    topics: "Topics",
    job: str,
    spec: JobSpec,
    epoch: int = 0,
    after: int = NO_EPOCH,
) -> JobCopy:
    """Write a job record, new or changed, to every partition, then its copy; wait for the acknowledgements.

    Args:
        after: As in the copy that there is; of a new job, the epoch of the deleted one.

    Raises: EngineError: not acknowledged in time. DamagedLog: as the log cannot be read.
    """
    copy = JobCopy(job, spec, epoch, after=after)
    record = urls.encode(UrlsRecord(job=job, epoch=epoch, spec=spec))
    for partition in range(partition_count(settings)):
        crash_points.point("job.sending")
        producer.send(topics.urls, record, partition=partition)
    try:
        acknowledged(producer, f"the record of job {job}")
    except EngineError:  # a broker that cannot read the first batch of a file appends none to it
        check_readable(settings, topics.urls, dict.fromkeys(range(partition_count(settings)), 0))
        raise
    crash_points.point("job.acknowledged")
    write_control(producer, topics, [copy])
    crash_points.point("job.copied")
    return copy


def write_joins(
    producer: "Producer", topics: "Topics", job: str, names: Iterable[str], within_s: float = ACKNOWLEDGED_S
) -> None:
    """Tell parse about scope names that join a job: names of new seeds, or of a host that a seed led to."""
    joins = (Join(job, name, tuple(more)) for name, *more in _batched(sorted(set(names))))
    write_control(producer, topics, joins, within_s)


def write_names(
    producer: "Producer",
    topics: "Topics",
    copy: JobCopy,
    names: Iterable[str],
    count: int,
    within_s: float = ACKNOWLEDGED_S,
) -> None:
    """Add scope names to a job, each in the partition of its domain; wait for the acknowledgements.

    Args:
        names: Of the job's kind of scope; see `scope_name`.
        count: Partitions of crawl.urls.

    Raises: EngineError: not acknowledged in time.
    """
    by_partition: dict[int, list[str]] = {}
    place = Places(count).of
    for name in sorted(names):
        by_partition.setdefault(place(f"http://{name}/").partition, []).append(name)
    for partition, own in by_partition.items():
        for batch in _batched(own):
            record = UrlsRecord(job=copy.job, epoch=copy.epoch, joins=tuple(batch))
            producer.send(topics.urls, urls.encode(record), partition=partition)
    acknowledged(producer, f"the scope names of job {copy.job}", within_s)


def _batched(names: list[str]) -> Iterator[list[str]]:
    """Batches of names, each for one record."""
    return (names[at : at + MAX_BATCH_NAMES] for at in range(0, len(names), MAX_BATCH_NAMES))


def write_finished(producer: "Producer", topics: "Topics", record: Finished) -> None:
    """Write that a job has ended, and the log's ends at that time."""
    write_control(producer, topics, [record])


def write_command(producer: "Producer", topics: "Topics", command: Command, within_s: float = ACKNOWLEDGED_S) -> None:
    """Write a command. It is in force on all workers until the next command for the same target."""
    write_control(producer, topics, [command.check()], within_s)


def forget_failed_start(producer: "Producer", topics: "Topics", control: ControlState, copy: JobCopy) -> bool:
    """Replace the note that the `start` of a job ended with an error: a process of the fleet begins it again.

    No tombstone: followers of crawl.control would keep what they heard.

    Returns: Whether there was one.
    """
    note = control.start(copy.job)
    has_failed = note is not None and note.epoch == copy.epoch and bool(note.error) and copy.spec.starts
    if has_failed:
        write_control(producer, topics, [StartEnded(copy.job, time.time(), NO_EPOCH)])
    return has_failed


def end_closing(producer: "Producer", topics: "Topics", control: ControlState, job: str) -> bool:
    """End the stop with which a spider closed a job that begins again. A command of the operator stays in force.

    Returns: Whether there was one.
    """
    command = control.command(job)
    is_closed = command is not None and bool(command.reason)
    if is_closed:
        write_command(producer, topics, Command("resume", job=job))
    return is_closed


def read_control(settings: "Settings", topics: "Topics", *, joins: bool = False) -> ControlState:
    """The present content of crawl.control.

    Args:
        joins: Whether to include joins; there may be a million.
    """
    start, end = log_bounds(settings, topics.control, [0])[0]
    control = ControlState()
    for record in read_records(settings, topics.control, 0, start, end):
        key = record.key() or b""
        if not joins and key.startswith(JOINS):
            continue
        try:
            entry = records.decode(key, record.value())
        except ValueError:
            entry = None  # another client wrote it; the live reader of crawl.control sends it to crawl.dead
        control.take(key, entry, record.timestamp()[1] / 1000)
    return control


def known_job(settings: "Settings", topics: "Topics", job: str) -> JobCopy | None:
    """The newest copy of a job's record; None when there is no such job."""
    return read_control(settings, topics).job(job)


def pages_done(value: bytes | None, job: str) -> int:
    """The number of a job's pages that a record of crawl.urls reports."""
    if not value or b'"results"' not in value:
        return 0
    try:
        record = urls.decode(value)
    except ValueError:
        return 0
    return sum(result.page is not None for result in record.results or ()) if record.job == job else 0


def write_control(
    producer: "Producer", topics: "Topics", entries: Iterable[Control], within_s: float = ACKNOWLEDGED_S
) -> None:
    """Write records to crawl.control, which every worker reads; wait for the acknowledgements."""
    for record in entries:
        producer.send(topics.control, records.encode(record), key=records.key(record), partition=0)
    acknowledged(producer, topics.control, within_s)


def acknowledged(producer: "Producer", what: str, within_s: float = ACKNOWLEDGED_S) -> None:
    """Wait for all acknowledgements.

    Raises: EngineError: some are missing after `within_s`.
    """
    if not producer.flush(within_s):
        raise EngineError(f"Kafka did not acknowledge {what} within {within_s:.0f} s; see `crawlog doctor`")
