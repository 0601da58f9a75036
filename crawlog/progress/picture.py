"""What the reports of all workers say together, and when a job is finished: pure, time is `now`.

A partition has one owner, so the last report per (stage, partition) holds, whoever wrote it: on a cluster other
commands have workers too. But each sink reads all partitions, so a picture takes the reports of one sink alone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from crawlog.schemas.progress import JobCounts, Progress

RATE_WINDOW_S = 5.0
"""Pages per second are a mean over this long."""

PACE_WINDOW_S = 60.0
"""The end is estimated by a mean over this long: what is shown should not jump."""

LOOK_S = 0.5
"""Least rest between two looks at how many pages there are."""

PACE_LEAST_S = 10.0
"""Before that a crawl's pace says nothing of its end."""

Ends = Callable[[str], tuple[int, ...]]
"""Reads the next offset of each partition of the topic that a stage consumes: its name is the stage's."""


def by_rule(dropped: Mapping[str, int]) -> str:
    """Counts of dropped links in words, the largest first."""
    ordered = sorted(dropped.items(), key=lambda one: -one[1])
    return ", ".join(f"{count:,} by {rule}" for rule, count in ordered)


def needed(needs: Mapping[str, int]) -> str:
    """What URLs wait for that their owners may not ask for, in words; empty where there are none."""
    return ", ".join(f"{count:,} wait for a worker with {setting}" for setting, count in sorted(needs.items()))


def ended(counts: JobCounts) -> int:
    """Pages that a job has in the log: what ended without one was refused."""
    return counts.fetched + counts.redirected + counts.failed


class Picture:
    """The newest report of each partition, and what they add up to.

    Args:
        own: Names of the workers whose every report it gets; others may have worked before it began.

    Attributes:
        sink: Id of the sink whose reports count; those of others are left out.
        cuts: Offsets that workers wanted and that their input no longer reached, by stage and partition.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self.sink = ""
        self._own = frozenset(own)
        self.cuts: dict[tuple[str, int], int] = {}
        self.newest: dict[tuple[str, int], Progress] = {}
        self._job = ""
        self._since: tuple[int, ...] = ()
        self._first: dict[int, tuple[int, int]] = {}
        self._parsed: dict[tuple[str, int], dict[str, int]] = {}
        self._parsed_before: dict[tuple[str, int], dict[str, int]] = {}
        self._pids: set[int] = set()
        self._stopped: set[tuple[str, int]] = set()
        self._rate: deque[tuple[float, int]] = deque()

    def take(self, report: Progress) -> None:
        """Adds a report, in the order of the topic.

        Not by what it says of the time: a worker whose clock was set back would never be heard again. A late report of
        a former owner holds until the owner's next one, a second later, and cannot end a job: its offset is too low.
        """
        if (report.stage, report.pid) in self._stopped or (report.stage == "sink" and report.sink != self.sink):
            return
        self.newest[report.stage, report.partition] = report
        if report.cut:
            self.cuts[report.stage, report.partition] = report.cut
        self._pids.add(report.pid)
        if report.stage == "fetch":
            self._note_first(report)
        elif report.stage == "parse":
            self._note_parsed(report)

    def begin(self, job: str, ends: tuple[int, ...]) -> None:
        """A run of a job begins, when crawl.urls ends here: what it has gained is counted from now on."""
        self._job, self._since = job, ends

    def _note_first(self, report: Progress) -> None:
        number = report.partition
        if number < len(self._since) and number not in self._first and report.offset >= self._since[number]:
            self._first[number] = report.offset, ended(report.jobs.get(self._job) or JobCounts())

    def _note_parsed(self, report: Progress) -> None:
        """Notes what a worker has parsed; what another command's worker had parsed before the run does not count."""
        worker = report.worker, report.pid
        self._parsed[worker] = self._parsed.get(worker, {}) | report.parsed
        is_new = report.worker in self._own or not self._job
        self._parsed_before.setdefault(worker, {} if is_new else report.parsed)

    @property
    def is_begun(self) -> bool:
        """Whether every partition has reported since the run began."""
        return len(self._first) == len(self._since) > 0

    @property
    def gained(self) -> int | None:
        """Pages that the job has gained since each partition's first report of this run; None before there is one.

        A partition whose count is lower than it was has begun again: all that it has is gained.
        """
        if not self._first:
            return None
        gained = 0
        for number, (_, before) in self._first.items():
            now = ended(self.newest["fetch", number].jobs.get(self._job) or JobCounts())
            gained += now - before if now >= before else now
        return gained

    @property
    def unread(self) -> dict[int, tuple[int, int]]:
        """By partition, the records of this run that the first reports have counted already: from where to where."""
        ranges = {number: (self._since[number], offset) for number, (offset, _) in self._first.items()}
        return {number: (start, end) for number, (start, end) in ranges.items() if start < end}

    def counts(self, job: str) -> JobCounts:
        """The counts of a job over all partitions."""
        total = JobCounts(dropped={}, needs={})
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

    def notes(self) -> set[str]:
        """Why states begin again, for the user."""
        return {report.note for report in self.newest.values() if report.note}

    def forget(self, stage: str) -> None:
        """Leave out what the workers of a stage have reported, and what of it comes late: they were stopped."""
        for report in list(self.of(stage)):
            self._stopped.add((stage, report.pid))
            del self.newest[stage, report.partition]

    def jobs(self) -> set[str]:
        """Names of the jobs that were reported."""
        return {name for report in self.of("fetch") for name in report.jobs}

    def of(self, stage: str) -> Iterator[Progress]:
        """The newest reports of a stage."""
        return (report for (name, _), report in self.newest.items() if name == stage)

    def parsed(self, job: str) -> int:
        """Pages of a job that parse has handled since this picture began, by workers that are dead now too."""
        before = sum(counts.get(job, 0) for counts in self._parsed_before.values())
        return sum(counts.get(job, 0) for counts in self._parsed.values()) - before

    def has_reported(self, pid: int) -> bool:
        """Whether a worker process has ever told anything: it has worked."""
        return pid in self._pids

    def look(self, job: str, now: float) -> None:
        """Note how many pages a job has; often, from the moment that all partitions have reported."""
        if self._rate and now - self._rate[-1][0] < LOOK_S:
            return
        pages = ended(self.counts(job))
        if self._rate and pages < self._rate[-1][1]:  # the job has begun again
            self._rate.clear()
        self._rate.append((now, pages))
        while len(self._rate) > 2 and self._rate[1][0] < now - PACE_WINDOW_S:
            self._rate.popleft()

    def rate(self) -> float:
        """Pages of the job per second, over the last looks."""
        return self._mean(self._rate[-1][0], RATE_WINDOW_S) if self._rate else 0.0

    def left_s(self, job: str, now: float, delay_s: float) -> float | None:
        """Seconds until what is queued now will be fetched; None where that cannot be told.

        At the pace of the last minute, but no sooner than the longest queue of a host takes with its rests.

        Args:
            delay_s: Least rest between two requests to one host, over those at a time.
        """
        counts, pace = self.counts(job), self._mean(now, PACE_WINDOW_S)
        if not counts.queued or counts.paused or not pace or now - self._rate[0][0] < PACE_LEAST_S:
            return None
        longest = max((queued for _, queued, _ in self.hosts()), default=0)
        return max(counts.queued / pace, longest * delay_s)

    def _mean(self, now: float, over_s: float) -> float:
        """Pages per second over this long, or as long as there are looks."""
        if not self._rate:
            return 0.0
        since, before = next((look for look in reversed(self._rate) if look[0] < now - over_s), self._rate[0])
        return (self._rate[-1][1] - before) / (now - since) if now > since else 0.0

    def lag(self, stage: str, ends: tuple[int, ...]) -> int:
        """Records of a stage's input that it has not passed."""
        passed = {report.partition: report.offset for report in self.of(stage)}
        return sum(max(0, end - passed.get(partition, 0)) for partition, end in enumerate(ends))

    def hosts(self) -> list[tuple[str, int, float]]:
        """The slowest host queues: (host, queued, seconds until it may be asked), the longest first."""
        return sorted((host for report in self.of("fetch") for host in report.hosts), key=lambda host: -host[1])

    def strangers(self) -> tuple[int, int]:
        """Hosts that wait for DNS, and requests to such as have not answered yet, or not lately."""
        reports = list(self.of("fetch"))
        return sum(report.naming for report in reports), sum(report.unanswered for report in reports)

    def has_passed(self, stage: str, ends: tuple[int, ...]) -> bool:
        """Whether every partition of a stage's input has been passed up to these ends."""
        return self.passed(stage, ends) == len(ends)

    def passed(self, stage: str, ends: tuple[int, ...]) -> int:
        """How many partitions of a stage's input have been passed up to these ends."""
        return sum(
            not end or ((report := self.newest.get((stage, partition))) is not None and report.offset >= end)
            for partition, end in enumerate(ends)
        )


def _add(total: JobCounts, one: JobCounts) -> None:
    for name in JobCounts.__struct_fields__:
        if name not in ("dropped", "needs"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
    for sums, counts in ((total.dropped, one.dropped), (total.needs, one.needs)):
        for key, count in counts.items():
            sums[key] = sums.get(key, 0) + count


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
