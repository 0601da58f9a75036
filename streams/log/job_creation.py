"""Creates a job. Of several commands that do so at one instant, one has the name, and the others learn of it.

    the record, its copy ─► crawl.control: the first copy of this epoch ─► ours: the job is as we want it
                                                                         └ another's: its record, in a new revision

The folds cannot decide: of two records of one revision they take the greater one, also when it comes later. So 1 A
reads that there is no job ─► 2 B reads the same ─► 3 A writes its record, its copy, and begins ─► 4 B writes both, and
the folds take B's ─► 5 B reads that A's copy was first, and writes A's record in a revision that all folds take.
"""

from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import control
from crawlog.schemas.control import JobCopy

from .client import log_end
from .job_changes import remove_notes
from .job_records import write_job
from .read import read_records

if TYPE_CHECKING:
    from crawlog.schemas.urls import JobSpec
    from crawlog.streams.settings import Settings

    from .producer import Producer
    from .topics import Topics


def create_job(
    settings: "Settings",
    producer: "Producer",
    topics: "Topics",
    job: str,
    spec: "JobSpec",
    epoch: int,
    since: int,
) -> JobCopy:
    """Write the record of a new job, unless another command was first.

    Args:
        since: An offset of crawl.control, from before the caller read there that there is no such job.

    Returns: The job's record; it has another `spec` if another command was first.

    Raises: EngineError: not acknowledged in time.
    """
    after = epoch - 1  # a later epoch than the first is that of a name that a deleted job had
    if epoch:
        remove_notes(settings, producer, topics, job)
    own = write_job(settings, producer, topics, job, spec, epoch, after)
    first = _first_copy(settings, topics, own, since)
    if first.spec == spec:
        return own
    again = msgspec.structs.replace(first.spec, rev=first.spec.rev + 1)
    return write_job(settings, producer, topics, job, again, epoch, after)


def _first_copy(settings: "Settings", topics: "Topics", own: JobCopy, since: int) -> JobCopy:
    """The first copy of a job's record in its epoch."""
    with closing(read_records(settings, topics.control, 0, since, log_end(settings, topics.control))) as records:
        for record in records:
            try:
                entry = control.decode(record.key(), record.value())
            except ValueError:
                continue  # another client wrote it
            if isinstance(entry, JobCopy) and (entry.job, entry.epoch) == (own.job, own.epoch):
                return entry
    return own
