"""The state of crawl.control: the newest record of each key, typed. Pure.

Readers share this one view: commands read the topic once (`streams/control/`), the fleet's view follows it.
"""

from math import inf
from typing import TypeVar

from crawlog.schemas.control import Command, Control, Finished, JobCopy, OutputNote, Rewound, StartEnded, key_of

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
        return [one for one in self.records.values() if isinstance(one, kind)]

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

    def has_ended_once(self, name: str) -> bool:
        """Whether any end of a job is noted, also an earlier one."""
        return key_of("finished", name) in self.records

    def start(self, name: str) -> StartEnded | None:
        """The note that the `start` of a job's spider has ended, of whatever epoch."""
        return self._get(key_of("start", name), StartEnded)

    def output(self, job: str, name: str) -> OutputNote | None:
        """The newest note about an output."""
        return self._get(key_of("output", job, name), OutputNote)

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

    def startable(self) -> dict[tuple[str, int], JobCopy]:
        """The jobs whose spiders may give requests, by name and epoch: no command stops them.

        A finished job runs again when its spider gives it a new URL.
        """
        return {
            (copy.job, copy.epoch): copy
            for copy in self.of(JobCopy)
            if copy.spec.starts and traits(copy.spec.state).starts and not self.commands.of_job(copy.job).stopped
        }

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


def is_end_of(end: Finished, copy: JobCopy) -> bool:
    """Whether a job ended so and has not changed since. Older records of ends do not name a revision."""
    return end.epoch >= copy.epoch and (not end.rev or end.rev == copy.spec.rev)
