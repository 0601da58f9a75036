"""The outputs that jobs want of a fleet's sink workers, as crawl.control tells of them. Pure.

JobCopy, Rewound ─► which outputs, of which epoch; which jobs are fed       Finished ─► an output may be completed
OutputNote ───────► it was completed already
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from crawlog.agents.seed import feed_sink
from crawlog.schemas import control
from crawlog.schemas.control import Control, Finished, JobCopy, OutputNote, Rewound
from crawlog.schemas.job_orders import NO_FLOW, NO_LAYOUT, OutputSpec, feed_name, is_plain
from crawlog.schemas.urls import JobSpec
from crawlog.streams.control import counting_epochs
from crawlog.streams.jobs import is_final
from crawlog.streams.printable import without_secrets
from crawlog.streams.sink import PrivateOutputs, fleet_sink_of, private_sink_of
from crawlog.streams.sink_groups import ARCHIVE, RewoundRange, SinkSpec

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.streams.settings import Settings

NOT_FED = ("cancelled", "failed", "deleted")  # States of jobs that get no seeds of other jobs' rows

MOST_NAME = 200  # Longest name in a note, characters


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
        fed: Of a feed, the record of the job that it feeds.
        is_private: Whether it is of this worker's run: its name is what the run was given, such as a path.
    """

    job: str
    number: int
    output: OutputSpec
    epoch: int
    rev: int
    since: int
    voids: tuple[RewoundRange, ...]
    spec: JobSpec
    end: Finished | None
    note: OutputNote | None
    fed: JobCopy | None = None
    is_private: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Job and output."""
        return self.job, self.output.name

    @property
    def shown(self) -> str:
        """Its name for people: of a store that a run was given, the address without its password."""
        return without_secrets(self.output.name)

    @property
    def note_name(self) -> str:
        """How notes name it. A refused name of a record may be of any length."""
        return self.output.name if self.is_private else self.output.name[:MOST_NAME]

    def sink(self, settings: "Settings") -> SinkSpec:
        """Where its rows go. Raises: as `fleet_sink_of` and `private_sink_of`."""
        about, pipelines = (self.since, self.voids), self.spec.pipelines
        if self.fed is not None:
            fields = (self.fed.spec.flow or NO_FLOW).sources[self.job]
            source = SinkSpec(self.job, "", *about, pipelines=pipelines, is_fleet=True)
            return feed_sink(source, self.fed.job, self.fed.epoch, fields)
        if self.is_private:
            layout = self.output.layout
            return private_sink_of(settings, self.job, self.output.name, *about, pipelines=pipelines, layout=layout)
        return fleet_sink_of(settings, self.job, self.output, *about, pipelines=pipelines)

    def is_archive(self, settings: "Settings") -> bool:
        """Whether it is written from crawl.pages, `warc:DIR`."""
        is_declared = self.output.declared and not self.is_private
        name = settings.sink.outputs.get(self.output.name, "") if is_declared else self.output.name
        return name.startswith(ARCHIVE) and (is_declared or self.is_private)

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
    """The outputs of all jobs; or the private ones of one job, and no others.

    Attributes:
        changed: Jobs about which something was heard since it was emptied.
        released: Epoch and revision of the end behind which the private outputs may be completed.
    """

    def __init__(self, private: PrivateOutputs | None = None) -> None:
        self.changed: set[str] = set()
        self.released: tuple[int, int] | None = None
        self._private = private
        self._copies: dict[str, JobCopy] = {}
        self._ends: dict[str, Finished] = {}
        self._notes: dict[tuple[str, str], OutputNote] = {}
        self._rewinds: dict[bytes, Rewound] = {}
        self._fed: dict[str, set[str]] = {}

    def heard(self, record: Control) -> None:
        """Take the next record of crawl.control."""
        if isinstance(record, JobCopy):
            self._copies[record.job] = record
            for source in (record.spec.flow or NO_FLOW).sources if is_plain(record.job) else ():
                self._fed.setdefault(source, set()).add(record.job)
                self.changed |= self._copies.keys() & {source}
        elif isinstance(record, Finished):
            self._ends[record.job] = record
        elif isinstance(record, OutputNote):
            if self._private is None:
                self.noted(record)
            return
        elif isinstance(record, Rewound):
            self._rewinds[control.key(record)] = record
            self.changed |= self._copies.keys()
            return
        else:
            return
        if self._copies.get(record.job) is not None:
            self.changed.add(record.job)

    def noted(self, note: OutputNote) -> None:
        """Take the newest note about an output."""
        self._notes[note.job, note.output] = note
        if self._copies.get(note.job) is not None:
            self.changed.add(note.job)

    def look(self, data: "Path") -> None:
        """See whether the run has released its outputs."""
        if self._private is not None and (released := self._private.released(data)) != self.released:
            self.released = released
            self.changed |= self._copies.keys() & {self._private.job}

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
        outputs = list(self._outputs(copy))
        if copy is None or not outputs:
            return
        since, voids = counting_epochs(self._rewinds.values(), job, copy)
        end, seen = self._end(copy), set[str]()
        about = copy.epoch, copy.spec.rev, since, voids, copy.spec, end
        for number, output, fed in outputs:
            one = WantedOutput(job, number, output, *about, None, fed, is_private=self._private is not None)
            if one.note_name in seen:
                continue
            seen.add(one.note_name)
            note = self._notes.get((job, one.note_name))
            yield msgspec.structs.replace(one, note=note if note is not None and note.epoch == copy.epoch else None)

    def _outputs(self, copy: JobCopy | None) -> "Iterator[tuple[int, OutputSpec, JobCopy | None]]":
        """The outputs of a job with their numbers, and its feeds with the jobs that they feed."""
        if copy is None or copy.spec.state == "deleted":
            return
        if self._private is None:
            yield from ((number, one, None) for number, one in enumerate(copy.spec.outputs))
            for fed in (self._copies[name] for name in sorted(self._fed.get(copy.job, ()))):
                if fed.spec.state in NOT_FED or copy.job not in (fed.spec.flow or NO_FLOW).sources:
                    continue
                name = feed_name(fed.job, fed.epoch)
                yield crc32(name.encode()), OutputSpec(name, declared=True, required=False), fed
        elif copy.job == self._private.job:
            layouts = self._private.layouts
            for number, name in enumerate(self._private.outputs):
                yield number, OutputSpec(name, layout=layouts.get(name, NO_LAYOUT)), None

    def _end(self, copy: JobCopy) -> Finished | None:
        """How the job ended; None if the note is about an earlier end."""
        end = self._ends.get(copy.job)
        if end is None or end.epoch != copy.epoch:
            return None
        if self._private is not None and self.released != (end.epoch, end.rev):
            return None
        is_of_rev = end.rev == copy.spec.rev if end.rev else end.at >= copy.spec.changed_at
        return end if is_of_rev else None
