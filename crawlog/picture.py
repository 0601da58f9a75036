"""What the reports of all workers say together, and when a job is finished: pure, time is `now`.

A partition has one owner, so the last report per (stage, partition) holds, whoever wrote it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .schemas.progress import JobCounts, Progress

RATE_WINDOW_S = 5.0
"""Pages per second are a mean over this long."""

Ends = Callable[[str], tuple[int, ...]]
"""Reads the next offset of each partition of the topic that a stage consumes: its name is the stage's."""


class Picture:
    """The newest report of each partition, and what they add up to."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, int], Progress] = {}
        self._pages: dict[tuple[str, str, int], int] = {}
        self._pids: set[int] = set()
        self._rate: deque[tuple[float, int]] = deque()

    def take(self, report: Progress) -> None:
        """Adds a report, in the order of the topic.

        Not by what it says of the time: a worker whose clock was set back would never be heard again. A late report of
        a former owner holds until the owner's next one, a second later, and cannot end a job: its offset is too low.
        """
        self.newest[report.stage, report.partition] = report
        self._pids.add(report.pid)
        life = report.stage, report.worker, report.pid
        self._pages[life] = max(self._pages.get(life, 0), report.pages)

    def counts(self, job: str) -> JobCounts:
        """The counts of a job over all partitions."""
        total = JobCounts(dropped={})
        for report in self.of("fetch"):
            _add(total, report.jobs.get(job) or JobCounts())
        return total

    def paused(self, job: str) -> str:
        """What a command keeps waiting, in words; empty when nothing is."""
        counts = self.counts(job)
        parts = [f"{stage} paused" for stage in ("parse", "sink") if any(report.paused for report in self.of(stage))]
        if counts.paused:
            parts.insert(0, "paused" if counts.paused >= counts.queued else f"{counts.paused:,} of them paused")
        return ", ".join(parts)

    def trouble(self, stage: str) -> str:
        """What a stage cannot do and tries again; empty when all goes well."""
        return next((report.trouble for report in self.of(stage) if report.trouble), "")

    def jobs(self) -> set[str]:
        """Names of the jobs that were reported."""
        return {name for report in self.of("fetch") for name in report.jobs}

    def of(self, stage: str) -> Iterator[Progress]:
        """The newest reports of a stage."""
        return (report for (name, _), report in self.newest.items() if name == stage)

    def pages(self, stage: str = "fetch") -> int:
        """Pages that the workers of a stage handled since this picture began, those of dead workers included."""
        return sum(count for (name, _, _), count in self._pages.items() if name == stage)

    def has_reported(self, pid: int) -> bool:
        """Whether a worker process has ever told anything: it has worked."""
        return pid in self._pids

    def rate(self, now: float) -> float:
        """Pages fetched per second, lately."""
        pages = self.pages()
        self._rate.append((now, pages))
        while len(self._rate) > 2 and self._rate[1][0] < now - RATE_WINDOW_S:
            self._rate.popleft()
        since, before = self._rate[0]
        return (pages - before) / (now - since) if now > since else 0.0

    def lag(self, stage: str, ends: tuple[int, ...]) -> int:
        """Records of a stage's input that it has not passed."""
        passed = {report.partition: report.offset for report in self.of(stage)}
        return sum(max(0, end - passed.get(partition, 0)) for partition, end in enumerate(ends))

    def hosts(self) -> list[tuple[str, int, float]]:
        """The slowest host queues: (host, queued, seconds until it may be asked), the longest first."""
        return sorted((host for report in self.of("fetch") for host in report.hosts), key=lambda host: -host[1])

    def has_passed(self, stage: str, ends: tuple[int, ...]) -> bool:
        """Whether every partition of a stage's input has been passed up to these ends."""
        return all(
            not end or ((report := self.newest.get((stage, partition))) is not None and report.offset >= end)
            for partition, end in enumerate(ends)
        )


def _add(total: JobCounts, one: JobCounts) -> None:
    for name in JobCounts.__struct_fields__:
        if name != "dropped":
            setattr(total, name, getattr(total, name) + getattr(one, name))
    for rule, count in one.dropped.items():
        total.dropped[rule] = total.dropped.get(rule, 0) + count


class Snapshot(NamedTuple):
    """What a job looked like, partition by partition: its folded records, and whether nothing is to do.

    A job's record goes to every partition: one that does not know the job has lost it, and is not idle.
    """

    folded: tuple[int, ...]
    is_idle: bool


@dataclass
class Finish:
    """Whether a job is finished, in five steps; each needs what was written after the one before.

        1. every partition has folded the seeds and reports nothing queued or in flight; their counts are noted
        2. parse has passed the end of crawl.pages as read after that
        3. all folds have passed the end of crawl.urls as read after that
        4. they show the same counts, and still nothing queued or in flight; otherwise from 1 again
        5. the sinks have passed the end of crawl.items as read after that

    Why twice: partition A reports nothing to do, then B's last page links to A. B's page was acknowledged before B was
    idle (1), so parse's founds lie before the end of crawl.urls read in 3, and A's count in 4 is another one.

    Attributes:
        seeded: The ends of crawl.urls when the last seed was acknowledged.
        with_sink: Whether there is a sink to wait for.
    """

    job: str
    seeded: tuple[int, ...]
    with_sink: bool
    passed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _folded: tuple[int, ...] = ()
    _step: int = 1

    def step(self, picture: Picture, ends: Ends) -> bool:
        """Goes as many steps as it can; True when the job is finished."""
        while self._step <= 5:
            before = self._step
            self._go(picture, ends)
            if self._step <= before:
                return False
        return True

    def _go(self, picture: Picture, ends: Ends) -> None:
        if self._step == 1:
            now = self._look(picture)
            if picture.has_passed("fetch", self.seeded) and now.is_idle:
                self._folded = now.folded
                self._wait_for("parse", ends, 2)
        elif self._step == 2 and picture.has_passed("parse", self.passed["parse"]):
            self._wait_for("fetch", ends, 3)
        elif self._step == 3 and picture.has_passed("fetch", self.passed["fetch"]):
            self._step = 4
        elif self._step == 4:
            now = self._look(picture)
            if now.is_idle and now.folded == self._folded:
                self._wait_for("sink", ends, 5)
            else:
                self._step = 1
        elif self._step == 5 and (not self.with_sink or picture.has_passed("sink", self.passed["sink"])):
            self._step = 6

    def _wait_for(self, stage: str, ends: Ends, step: int) -> None:
        self.passed[stage] = ends(stage)
        self._step = step

    def _look(self, picture: Picture) -> Snapshot:
        reports = [picture.newest.get(("fetch", partition)) for partition in range(len(self.seeded))]
        counts = [report.jobs[self.job] for report in reports if report is not None and self.job in report.jobs]
        is_idle = len(counts) == len(reports) and not any(one.queued or one.in_flight for one in counts)
        return Snapshot(tuple(one.folded for one in counts), is_idle)
