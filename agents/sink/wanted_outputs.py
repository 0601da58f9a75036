"""The outputs that jobs want of a fleet's sink workers, as crawl.control tells of them. Pure.

JobCopy, Rewound ─► which outputs, of which epoch       Finished ─► an output may be completed
OutputNote ───────► it was completed already
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import control
from crawlog.schemas.control import Control, Finished, JobCopy, OutputNote, Rewound
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.jobs import is_final
from crawlog.streams.log import Void, counting_epochs

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

MOST_NAME = 200
"""Longest name in a note, characters: a refused one may be of any length."""


class WantedOutput(msgspec.Struct, frozen=True):
    """An output of a job.

    Attributes:
        number: Of the output in its job.
        epoch: Of the job.
        rev: Revision of the job's record.
        since, voids: Which item records are its rows.
        spec: The job's record.
        end: How the job ended; None while it goes on.
        note: The newest note about this output of this epoch.
    """

    job: str
    number: int
    output: OutputSpec
    epoch: int
    rev: int
    since: int
    voids: tuple[Void, ...]
    spec: JobSpec
    end: Finished | None
    note: OutputNote | None

    @property
    def key(self) -> tuple[str, str]:
        """Job and output."""
        return self.job, self.output.name

    @property
    def home(self) -> int:
        """It belongs to the partition of this number modulo their count."""
        return self.spec.home(self.number)

    def is_required(self, settings: "Settings") -> bool:
        """Whether the job is finished only when it is complete, by the job and by this worker's settings."""
        output = self.output
        return output.required and not (output.declared and output.name in settings.sink.optional)

    @property
    def is_settled(self) -> bool:
        """Whether it was completed behind the job's present end."""
        return self.end is not None and self.note is not None and not self.note.error and self.note.rev == self.rev

    @property
    def has_failed(self) -> bool:
        """Whether the newest note says that it cannot be written."""
        return self.note is not None and bool(self.note.error)

    @property
    def is_refused(self) -> bool:
        """Whether the newest note says that its name is no good, or its place: nothing is written for it."""
        return self.has_failed and self.note is not None and self.note.is_refused and self.note.rev == self.rev

    @property
    def lacks_file(self) -> bool:
        """Whether the newest note says that FILE could not be made behind the job's present end: it has a place."""
        note = self.note
        return self.end is not None and note is not None and bool(note.error and note.place) and note.rev == self.rev

    @property
    def is_final(self) -> bool:
        """Whether FILE is made once the job has ended; else its rows stay in FILE.partial."""
        return is_final(self.spec.state, self.spec.reason)


def shares_rows(outputs: Sequence[WantedOutput]) -> bool:
    """Whether outputs of one job, some of which are to be completed, have the rows that its pipelines make for one."""
    return len(outputs) > 1 and outputs[0].spec.pipelines and not all(one.is_settled for one in outputs)


def needed_of(outputs: Iterable[WantedOutput], leading: Collection[str]) -> list[WantedOutput]:
    """The outputs of one job that are to be completed; of one with pipelines that which has the rows, too.

    Args:
        leading: Names of those that have rows here; they come first.
    """
    every = list(outputs)
    needed = [one for one in every if not one.is_settled]
    if any(one.spec.pipelines and not one.is_refused for one in needed):
        leads = next((one for one in every if one.output.name in leading), every[0])
        if leads.is_settled:
            needed.insert(0, leads)
    return sorted(needed, key=lambda one: one.output.name not in leading)


class WantedOutputs:
    """The outputs of all jobs.

    Attributes:
        changed: Jobs about which something was heard since it was emptied.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()
        self._copies: dict[str, JobCopy] = {}
        self._ends: dict[str, Finished] = {}
        self._notes: dict[tuple[str, str], OutputNote] = {}
        self._rewinds: dict[bytes, Control] = {}

    def heard(self, record: Control) -> None:
        """Take the next record of crawl.control."""
        if isinstance(record, JobCopy):
            self._copies[record.job] = record
        elif isinstance(record, Finished):
            self._ends[record.job] = record
        elif isinstance(record, OutputNote):
            self._notes[record.job, record.output] = record
        elif isinstance(record, Rewound):
            self._rewinds[control.key(record)] = record
            self.changed |= self._copies.keys()
            return
        else:
            return
        if self._copies.get(record.job) is not None:
            self.changed.add(record.job)

    def knows(self, job: str) -> bool:
        """Whether there is, or was, such a job."""
        return job in self._copies

    def is_deleted(self, job: str) -> bool:
        """Whether only the job's tombstone is left."""
        copy = self._copies.get(job)
        return copy is not None and copy.spec.state == "deleted"

    def names(self) -> list[str]:
        """All jobs."""
        return list(self._copies)

    def note(self, job: str, output: str) -> OutputNote | None:
        """The newest note about an output."""
        return self._notes.get((job, output))

    def of(self, job: str) -> Iterator[WantedOutput]:
        """The outputs of a job; none of a deleted one. Those that would share a note count once."""
        copy = self._copies.get(job)
        if copy is None or copy.spec.state == "deleted" or not copy.spec.outputs:
            return
        since, voids = counting_epochs({**self._rewinds, f"job/{job}".encode(): copy}, job)
        end, seen = self._end(copy), set[str]()
        for number, output in enumerate(copy.spec.outputs):
            name = output.name[:MOST_NAME]
            if name in seen:
                continue
            seen.add(name)
            note = self._notes.get((job, name))
            note = note if note is not None and note.epoch == copy.epoch else None
            yield WantedOutput(job, number, output, copy.epoch, copy.spec.rev, since, voids, copy.spec, end, note)

    def _end(self, copy: JobCopy) -> Finished | None:
        """How the job ended; None if the note is about an earlier end."""
        end = self._ends.get(copy.job)
        if end is None or end.epoch != copy.epoch:
            return None
        is_of_rev = end.rev == copy.spec.rev if end.rev else end.at >= copy.spec.changed_at
        return end if is_of_rev else None
