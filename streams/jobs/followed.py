"""The jobs that the coordinator follows, as crawl.control tells of them. Pure.

A job is open until crawl.control has the end of its present revision; of the others only epoch and revision are kept,
since a log may hold thousands of them.
"""

from typing import NamedTuple

import msgspec

from crawlog.schemas.control import Command, Control, Finished, JobCopy, StartEnded
from crawlog.schemas.job_orders import JobStateName

from .states import traits


class JobRevision(NamedTuple):
    """A revision of a job: two are of one job's record if they are equal."""

    epoch: int
    rev: int


class Followed(msgspec.Struct, frozen=True):
    """An open job.

    Attributes:
        is_starting: Whether the spider's `start` may give more requests.
        has_started: Whether it had a `start`, and it has ended: it may have given nothing.
        closes: Reason with which its spider closed it; empty if it did not.
        answers: Offset of the last order that was answered.
        required: Of the outputs that must be complete before the job is finished, the numbers of their homes.
    """

    job: str
    mark: JobRevision
    state: JobStateName
    reason: str = ""
    max_pages: int | None = None
    is_starting: bool = False
    has_started: bool = False
    closes: str = ""
    answers: int = -1
    required: tuple[int, ...] = ()


class _Known:
    """The records of an open job."""

    def __init__(self, copy: JobCopy, start: StartEnded | None, closes: str) -> None:
        self.copy = copy
        self.start = start
        self.closes = closes

    def followed(self) -> Followed:
        copy, spec = self.copy, self.copy.spec
        has_started = self.start is not None and self.start.is_of(copy)
        return Followed(
            copy.job,
            JobRevision(copy.epoch, spec.rev),
            spec.state,
            reason=spec.reason,
            max_pages=spec.max_pages,
            is_starting=spec.starts and not has_started,
            has_started=has_started,
            closes=self.closes,
            answers=copy.answers,
            required=tuple({spec.home(number): None for number, one in enumerate(spec.outputs) if one.required}),
        )


class FollowedJobs:
    """All jobs of crawl.control. One thread calls `heard`; any may read `open` and `finished`.

    Attributes:
        open: By name, the jobs whose end is not on record.
        finished: By name, the revision of each job that is finished, which is on record.
        copied: By name, the revision and the last answered order of each job's copy.
    """

    def __init__(self) -> None:
        self.open: dict[str, Followed] = {}
        self.finished: dict[str, JobRevision] = {}
        self.copied: dict[str, tuple[JobRevision, int]] = {}
        self._known: dict[str, _Known] = {}
        self._ends: dict[str, JobRevision] = {}
        self._starts: dict[str, StartEnded] = {}
        self._closes: dict[str, str] = {}

    def heard(self, record: Control) -> None:
        """Takes the next record of crawl.control."""
        if isinstance(record, JobCopy):
            self._copied(record)
        elif isinstance(record, Finished):
            self._ends[record.job] = JobRevision(record.epoch, record.rev)
            self._look(record.job)
        elif isinstance(record, StartEnded):
            self._starts[record.job] = record
            self._change(record.job)
        elif isinstance(record, Command) and record.job:
            if record.action == "stop" and record.reason:
                self._closes[record.job] = record.reason
            else:
                self._closes.pop(record.job, None)
            self._change(record.job)

    def is_closed_late(self, job: str) -> bool:
        """Whether a finished job's spider has closed it all the same, such as pipelines that open slowly.

        The job could not go on: its URLs would wait, and nobody may order a finished job to run.
        """
        return job in self.finished and job in self._closes

    def _copied(self, copy: JobCopy) -> None:
        mark = JobRevision(copy.epoch, copy.spec.rev)
        self.copied[copy.job] = mark, copy.answers
        self._known[copy.job] = _Known(copy, self._starts.get(copy.job), self._closes.get(copy.job, ""))
        self._look(copy.job)

    def _change(self, job: str) -> None:
        known = self._known.get(job)
        if known is not None:
            known.start, known.closes = self._starts.get(job), self._closes.get(job, "")
            self._look(job)

    def _look(self, job: str) -> None:
        """Notes whether a job is open."""
        known, copied = self._known.get(job), self.copied.get(job)
        if known is None or copied is None:
            return
        spec, mark = known.copy.spec, copied[0]
        self.finished.pop(job, None)
        if spec.state == "deleted" or (traits(spec.state).ended and self._ends.get(job) == mark):
            if spec.state == "finished":
                self.finished[job] = mark
            self.open.pop(job, None)
        else:
            self.open[job] = known.followed()
