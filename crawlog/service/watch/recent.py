"""What jobs, workers and stages did in the last minutes: what alerts compare. Pure."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crawlog.schemas.progress import JobCounts
from crawlog.streams.fleet import JobView, StageView, WorkerView
from crawlog.streams.jobs import ended, traits

WINDOW_S = 600.0  # Time that jobs are compared over, seconds

RESTARTS_S = LAG_S = 900.0  # The same of workers' restarts, and of lags

REFUSING = ("401", "403", "429", "503")  # Statuses of a site that turns a crawler away


class JobFigures(NamedTuple):
    """Counts of a job, or what was added to them.

    Attributes:
        done: URLs that ended.
        answers: Those with a status.
        refused: Answers that turn the crawler away.
        failed: URLs that ended without an answer.
    """

    done: int = 0
    answers: int = 0
    refused: int = 0
    failed: int = 0
    rows: int = 0
    rowless: int = 0


NOTHING = JobFigures()


def refusals(counts: JobCounts) -> int:
    """Final answers that turn the crawler away. That robots.txt closes a part of a site is usual, so it is none."""
    return sum(counts.statuses.get(code, 0) for code in REFUSING)


def figures(view: JobView) -> JobFigures:
    counts, answers = view.counts, sum(view.counts.statuses.values())
    failed, done = max(ended(counts) - answers, 0), ended(counts) + counts.refused
    return JobFigures(done, answers, refusals(counts), failed, view.remarks.rows, view.remarks.rowless)


class _JobRecent:
    def __init__(self, view: JobView, now: float) -> None:
        self.view = view
        self.moved_at = now
        self.looks = deque([(now, figures(view))])

    def take(self, view: JobView, now: float) -> None:
        if view is not self.view:
            if (view.epoch, view.rev) != (self.view.epoch, self.view.rev):
                self.moved_at = now
                self.looks.clear()
            new = figures(view)
            if self.looks and new != self.looks[-1][1]:
                self.moved_at = now
            self.view = view
            self.looks.append((now, new))
        while len(self.looks) > 1 and self.looks[1][0] <= now - WINDOW_S:
            self.looks.popleft()


class Recent:
    """The last minutes; take each look."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobRecent] = {}
        self._started: dict[str, deque[tuple[float, float]]] = {}
        self._lags: dict[str, deque[tuple[float, int]]] = {}

    def take(
        self, now: float, jobs: Iterable[JobView], workers: Sequence[WorkerView], stages: Iterable[StageView]
    ) -> None:
        """Takes a look: jobs that ended, and workers that are gone for long, are forgotten."""
        going = [one for one in jobs if not traits(one.state).ended]
        for view in going:
            known = self._jobs.get(view.name)
            if known is None:
                self._jobs[view.name] = _JobRecent(view, now)
            else:
                known.take(view, now)
        names = {one.name for one in going}
        self._jobs = {name: one for name, one in self._jobs.items() if name in names}
        self._take_starts(now, workers)
        for stage in stages:
            lags = self._lags.setdefault(stage.stage, deque())
            lags.append((now, stage.lag))
            while len(lags) > 1 and lags[1][0] <= now - LAG_S:
                lags.popleft()

    def _take_starts(self, now: float, workers: Sequence[WorkerView]) -> None:
        for worker in workers:
            starts = self._started.setdefault(worker.id, deque())
            if not starts or starts[-1][1] < worker.started_at:
                starts.append((now, worker.started_at))
        living = {worker.id for worker in workers}
        for name, starts in list(self._started.items()):
            while len(starts) > 1 and starts[1][0] <= now - RESTARTS_S:
                starts.popleft()
            if name not in living and starts[-1][0] <= now - RESTARTS_S:
                del self._started[name]

    def added(self, job: str) -> JobFigures:
        """What was added to a job's counts within the window, or since it was met."""
        known = self._jobs.get(job)
        if known is None:
            return NOTHING
        (_, first), (_, last) = known.looks[0], known.looks[-1]
        return JobFigures(*(max(new - old, 0) for new, old in zip(last, first, strict=True)))

    def moved_at(self, job: str, now: float) -> float:
        """When a job's counts changed last; the first time it was met counts as a change."""
        known = self._jobs.get(job)
        return known.moved_at if known is not None else now

    def restarts(self, worker: str) -> int:
        """New processes of a worker within a quarter of an hour."""
        return max(len(self._started.get(worker, ())) - 1, 0)

    def lag_before(self, stage: str) -> int | None:
        """The lag of a stage a quarter of an hour ago; None if it is not known for so long."""
        lags = self._lags.get(stage)
        return lags[0][1] if lags and lags[-1][0] - lags[0][0] >= LAG_S else None
