"""The state of crawl.control: the newest record of each key, typed; and which jobs are open. Pure.

Readers share this one view: commands read the topic once (`streams/control/`), the fleet's view follows it, and the
coordinator follows the jobs in it. A job is open until crawl.control has the end of its present revision.
"""

from math import inf
from typing import NamedTuple, TypeVar

import msgspec

from crawlog.schemas.control import (
    Command,
    Control,
    Finished,
    HookNote,
    JobCopy,
    OutputNote,
    ParsedAgain,
    Rewound,
    StartEnded,
    WorkerCommand,
    hook_key,
    key,
    key_of,
)
from crawlog.schemas.job_orders import JobStateName, ParseAgain

from .commands import Commands
from .states import traits

R = TypeVar("R", bound=Control)


class ControlState:
    """The newest record of each key.

    Attributes:
        records: In the log's order.
        commands: Those in force.
    """

    def __init__(self) -> None:
        self.records: dict[bytes, Control] = {}
        self.commands = Commands()
        self._began: dict[str, tuple[int, float]] = {}

    def take(self, key: bytes, record: Control | None, at: float = 0.0) -> None:
        """Takes the next record, None for a tombstone; `at` is its time in the log, UTC epoch seconds."""
        self.records.pop(key, None)  # so a newer record stands at the end
        if record is None:
            return
        self.records[key] = record
        if isinstance(record, Command):
            self.commands.take(record)
        elif isinstance(record, JobCopy | Rewound) and record.epoch > self._began.get(record.job, (-1, 0.0))[0]:
            self._began[record.job] = record.epoch, at

    def of(self, kind: type[R]) -> list[R]:
        """All records of a kind, in the log's order."""
        return [one for one in list(self.records.values()) if isinstance(one, kind)]  # another thread may take more

    def _get(self, key: bytes, kind: type[R]) -> R | None:
        record = self.records.get(key)
        return record if isinstance(record, kind) else None

    # ------------------------------------------------------------------ a job

    def job(self, name: str) -> JobCopy | None:
        """The copy of a job's record, that of a deleted job too."""
        return self._get(key_of("job", name), JobCopy)

    def end(self, name: str) -> Finished | None:
        """The end of a job; None while it runs, or when it goes on in a later epoch or revision."""
        copy, end = self.job(name), self._get(key_of("finished", name), Finished)
        return end if end is not None and (copy is None or is_end_of(end, copy)) else None

    def complete_end(self, name: str) -> Finished | None:
        """The end of a job behind which its required outputs are made, or could not be; None before that."""
        copy, end = self.job(name), self.end(name)
        if copy is None or end is None or not traits(copy.spec.state).outputs:
            return end
        notes = (self.output(name, one.name) for one in copy.spec.outputs if one.required)
        is_made = all(note is not None and JobRevision(note.epoch, note.rev) == JobRevision.of(copy) for note in notes)
        return end if is_made else None

    def has_ended_once(self, name: str) -> bool:
        """Whether any end of a job is noted, also an earlier one."""
        return key_of("finished", name) in self.records

    def start(self, name: str) -> StartEnded | None:
        """The note that the `start` of a job's spider has ended, of whatever epoch."""
        return self._get(key_of("start", name), StartEnded)

    def output(self, job: str, name: str) -> OutputNote | None:
        """The newest note about an output."""
        return self._get(key_of("output", job, name), OutputNote)

    def hook(self, job: str, target: str) -> HookNote | None:
        """The newest note about a call at a job's end."""
        return self._get(hook_key(job, target), HookNote)

    def order_to(self, worker: str) -> WorkerCommand | None:
        """The last order to a process of a worker."""
        return self._get(key_of("worker", worker), WorkerCommand)

    def parsed_again(self, copy: JobCopy) -> list[ParsedAgain]:
        """How far the last order to parse a job's pages again is, by partition; empty without such an order."""
        order = copy.spec.parse_again
        return [self._parsed_again(copy, order, one) for one in range(len(order.start))] if order is not None else []

    def _parsed_again(self, copy: JobCopy, order: ParseAgain, partition: int) -> ParsedAgain:
        """The note of a partition. One without a note is as at the order, and never done: its owner has to look."""
        note = self._get(key_of("again", copy.job, str(partition)), ParsedAgain)
        if note is not None and (note.epoch, note.number) == (copy.epoch, order.number):
            return note
        start = order.start[partition]
        end = max(start + 1, *order.end[partition : partition + 1])
        return ParsedAgain(copy.job, partition, copy.epoch, order.number, start, end)

    def is_parsing_again(self, copy: JobCopy) -> bool:
        """Whether stored pages of a job are still to be parsed again."""
        return traits(copy.spec.state).outputs and not all(one.is_done for one in self.parsed_again(copy))

    def command(self, job: str) -> Command | None:
        """The last command for a job, `resume` too."""
        return self._get(key_of("command", "job", job), Command)

    def start_ended(self, copy: JobCopy, digest: str = "") -> StartEnded | None:
        """The note that the present `start` of a job has ended; None if it begins, or begins again.

        Args:
            digest: Of the spider's code; empty if it is not known.
        """
        note = self.start(copy.job)
        if note is None or not note.is_of(copy) or note.error:
            return None
        return None if digest and note.spider and digest != note.spider else note

    def next_start(self, copy: JobCopy) -> "NextStart | None":
        """The `start` of a job that goes on or comes next; None when it has ended for good, or the job is stopped."""
        note = self.start(copy.job)
        if not self._may_start(copy):
            return None
        if note is None or not note.is_of(copy):
            return NextStart(copy, 0.0, note.at if note is not None and copy.spec.every else 0.0)
        return NextStart(copy, note.at + copy.spec.every, note.at) if copy.spec.every else None

    def startable(self) -> dict[tuple[str, int], JobCopy]:
        """The jobs whose spiders may give requests, by name and epoch: no command stops them.

        A finished job runs again when its spider gives it a new URL.
        """
        return {(copy.job, copy.epoch): copy for copy in self.of(JobCopy) if self._may_start(copy)}

    def _may_start(self, copy: JobCopy) -> bool:
        may = copy.spec.starts and traits(copy.spec.state).starts
        return may and not self.commands.of_job(copy.job).stopped

    def since(self, copy: JobCopy) -> float:
        """The time from which on records that name a job are its own, UTC epoch seconds.

        Older ones are of a deleted job of the name, or of the job before `--fresh`. The clock of the submission may be
        ahead of the broker's, so the broker's time of the epoch's earliest record counts too; compaction may leave a
        later record, but the note of `--fresh` stays. In a first epoch there is nothing to tell apart.
        """
        if not copy.epoch:
            return 0.0
        epoch, at = self._began.get(copy.job, (copy.epoch, inf))
        return min(copy.spec.at, at) if epoch == copy.epoch else copy.spec.at


class NextStart(NamedTuple):
    """A `start` of a job's spider.

    Attributes:
        at: When it begins, UTC epoch seconds; 0 for at once.
        after: When the one before it ended; 0 for the first one. Requests with `dont_filter` have it in their identity,
            so a killed `start` asks for them once, and the next one again.
    """

    copy: JobCopy
    at: float
    after: float


def is_end_of(end: Finished, copy: JobCopy) -> bool:
    """Whether a job ended so and has not changed since. Older records of ends do not name a revision."""
    return end.epoch >= copy.epoch and (not end.rev or end.rev == copy.spec.rev)


class JobRevision(NamedTuple):
    """A revision of a job: two are of one job's record if they are equal."""

    epoch: int
    rev: int

    @classmethod
    def of(cls, copy: JobCopy) -> "JobRevision":
        """That of a copy."""
        return cls(copy.epoch, copy.spec.rev)


class Followed(msgspec.Struct, frozen=True):
    """An open job.

    Attributes:
        is_starting: Whether the spider's `start` may give more requests.
        is_parsing_again: Whether stored pages of it are still to be parsed again.
        has_started: Whether it had a `start`, and it has ended: it may have given nothing.
        has_feeds: Whether rows of other jobs are its seeds.
        closes: Reason with which its spider closed it; empty if it did not.
        answers: Offset of the last order that was answered.
        required: Of the outputs that must be complete before the job is finished, the numbers of their homes.
        recurs: As in `JobSpec`: it is `watching` when nothing is left.
    """

    job: str
    mark: JobRevision
    state: JobStateName
    reason: str = ""
    max_pages: int | None = None
    is_starting: bool = False
    is_parsing_again: bool = False
    has_started: bool = False
    has_feeds: bool = False
    closes: str = ""
    answers: int = -1
    required: tuple[int, ...] = ()
    recurs: bool = False


class FollowedJobs:
    """The jobs that the coordinator follows. One thread calls `take`; any may read `open` and `finished`.

    Attributes:
        open: By name, the jobs whose end is not on record.
        finished: By name, the revision of each job that is finished or watching, which is on record.
        control: What was taken.
        taken: How many records that was.
    """

    def __init__(self) -> None:
        self.open: dict[str, Followed] = {}
        self.finished: dict[str, JobRevision] = {}
        self.control = ControlState()
        self.taken = 0

    def take(self, record: Control) -> None:
        """Takes the next record of crawl.control."""
        if isinstance(record, Command) and not record.job:
            return
        if isinstance(record, JobCopy | Finished | StartEnded | ParsedAgain | OutputNote | HookNote | Command):
            self.control.take(key(record), record)
            self.taken += 1
            self._look(record.job)

    def copies(self) -> list[JobCopy]:
        """The copies of all jobs' records."""
        return self.control.of(JobCopy)

    def copy(self, job: str) -> JobCopy | None:
        """The copy of a job's record."""
        return self.control.job(job)

    def is_closed_late(self, job: str) -> bool:
        """Whether a finished job's spider has closed it all the same, such as pipelines that open slowly.

        The job could not go on: its URLs would wait, and nobody may order a finished job to run.
        """
        return job in self.finished and bool(self._closes(job))

    def _closes(self, job: str) -> str:
        command = self.control.command(job)
        return command.reason if command is not None and command.action == "stop" else ""

    def _look(self, job: str) -> None:
        """Notes whether a job is open."""
        copy = self.control.job(job)
        if copy is None:
            return
        state = copy.spec.state
        self.finished.pop(job, None)
        if state == "deleted" or (traits(state).ended and self.control.end(job) is not None):
            if traits(state).done:
                self.finished[job] = JobRevision.of(copy)
            self.open.pop(job, None)
        else:
            self.open[job] = self._followed(copy)

    def _followed(self, copy: JobCopy) -> Followed:
        spec, start = copy.spec, self.control.start(copy.job)
        has_started = start is not None and start.is_of(copy)
        return Followed(
            copy.job,
            JobRevision.of(copy),
            spec.state,
            reason=spec.reason,
            max_pages=spec.max_pages,
            is_starting=spec.starts and not has_started,
            is_parsing_again=self.control.is_parsing_again(copy),
            has_started=has_started,
            has_feeds=spec.flow is not None and bool(spec.flow.feeds),
            closes=self._closes(copy.job),
            answers=copy.answers,
            required=tuple({spec.home(number): None for number, one in enumerate(spec.outputs) if one.required}),
            recurs=spec.recurs,
        )
