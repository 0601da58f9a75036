"""Which jobs a fetch worker's reports name: a log may hold thousands of finished ones. Pure.

    crawl.control ─► ReportedJobs: which finished jobs are left out?
    counts of a partition ─► ToldJobs: which of them does this report name?

A report names jobs whose counts changed, and in turns the other open ones and those that crawl.control named last. A
command that needs the counts of a finished job writes the job's copy to crawl.control once more; every worker reads
that from its beginning, and names the job in its next report.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice

from crawlog.schemas.control import Control, Finished, JobCopy, Join
from crawlog.schemas.progress import TOOK_S, JobCounts

MOST_FINISHED = 50  # Finished jobs that a report may name: 10 kB of counts at most, where names are short

ROTATED = 20  # Unchanged jobs that a report names in turns, at least

# Reports that together name every open job, where there are many: a reader that came late knows them after 10 s.
TURNS = 10

MOST_JOBS = 1_000  # Jobs of one record. More changed ones take several records.


class ReportedJobs:
    """The finished jobs, in the order in which crawl.control named them last."""

    def __init__(self) -> None:
        self._finished: OrderedDict[str, int] = OrderedDict()  # by name: the epoch in which it ended
        self._left_out: frozenset[str] | None = frozenset()
        self._asked: set[str] = set()

    def heard(self, record: Control) -> None:
        if isinstance(record, Finished) or (isinstance(record, JobCopy) and record.spec.state == "deleted"):
            self._ended(record.job, record.epoch)
        elif isinstance(record, JobCopy | Join) and record.job in self._finished:
            if isinstance(record, JobCopy) and _is_open_again(record, self._finished[record.job]):
                del self._finished[record.job]
            else:
                self._finished.move_to_end(record.job)
            self._left_out = None
        if isinstance(record, JobCopy | Join):
            self._asked.add(record.job)

    def _ended(self, job: str, epoch: int) -> None:
        self._finished[job] = epoch
        self._finished.move_to_end(job)
        self._left_out = None

    def take_asked(self) -> set[str]:
        """Jobs that crawl.control named since the last call: somebody may wait for their counts."""
        asked, self._asked = self._asked, set()
        return asked

    @property
    def left_out(self) -> frozenset[str]:
        """Jobs that a report leaves out unless they have something to do."""
        if self._left_out is None:
            count = max(len(self._finished) - MOST_FINISHED, 0)
            self._left_out = frozenset(name for name, _ in zip(self._finished, range(count), strict=False))
        return self._left_out


class ToldJobs:
    """What the reports of one partition have said, and so what the next one says.

    Counts that did not change are the same object in the next call; so a comparison costs next to nothing.

    Attributes:
        offset: Of the last report.
    """

    def __init__(self) -> None:
        self.offset = 0
        self._told: Mapping[str, JobCounts] = {}
        self._turn = 0

    def gone(self, jobs: Mapping[str, JobCounts]) -> list[str]:
        return [name for name in self._told if name not in jobs] if self._told is not jobs else []

    def named(self, jobs: Mapping[str, JobCounts], offset: int) -> list[dict[str, JobCounts]]:
        """The jobs that the next records name, in order; the last record alone says up to where the input is folded.

        A record with the new offset and without a changed job would say that the job had not changed.
        """
        told, self._told, self.offset = self._told, jobs, offset
        is_same = told is jobs
        changed = {} if is_same else {name: one for name, one in jobs.items() if told.get(name) is not one}
        rest = len(jobs) - len(changed)
        most = max(ROTATED, -(-len(jobs) // TURNS))
        if rest <= most:
            changed = dict(jobs)
        else:
            changed |= self._rotated(jobs, most)
        return list(_pieces(changed)) or [{}]

    def _rotated(self, jobs: Mapping[str, JobCounts], most: int) -> Iterator[tuple[str, JobCounts]]:
        start = self._turn if self._turn < len(jobs) else 0
        self._turn = start + most
        yield from islice(jobs.items(), start, start + most)


def _pieces(jobs: dict[str, JobCounts]) -> Iterator[dict[str, JobCounts]]:
    names = iter(jobs.items())
    while piece := dict(islice(names, MOST_JOBS)):
        yield piece


def _is_open_again(copy: JobCopy, ended_in: int) -> bool:
    """Whether a job that ended goes on: in a new epoch, or by an order. A copy without order only names it again."""
    return copy.epoch > ended_in or copy.answers >= 0


# How long requests took: counts by duration for the reports.


class Durations:
    """Counts of requests by duration, since the start.

    Attributes:
        counts: Number k counts durations of at most `TOOK_S[k]` seconds, the last one longer ones.
        sum_s: Sum of all durations.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(TOOK_S) + 1)
        self.sum_s = 0.0

    def note(self, took_s: float) -> None:
        self.counts[bisect_left(TOOK_S, took_s)] += 1
        self.sum_s += took_s
