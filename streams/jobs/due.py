"""Decides which orders and ends of jobs are due, from the reports of all workers. Pure.

    open job ─┬─ running, `max_pages` reached ─────────────► order: stopped
              ├─ running, closed by its spider, nothing left in flight ─► order: stopped
              ├─ running, nothing left at all (`EndSteps`) ──► order: finished
              ├─ waiting, other jobs have ended (`flow.py`) ─► order: running, or failed
              └─ ended, nothing left in flight ────────────► its end, for crawl.control
    finished job with a queued URL, open or not ───────────► order: running

An order is valid only for the revision that was looked at. So a second coordinator, or one that slept, does no harm.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from crawlog.schemas.control import Finished
from crawlog.schemas.job_orders import JobStateName
from crawlog.schemas.progress import JobCounts, Progress

from .control_state import Followed, FollowedJobs, JobRevision
from .finished import Ends, EndSteps
from .fleet_reports import FleetReports
from .flow import FollowedFlow
from .states import OrderName, after, traits


class DueOrder(NamedTuple):
    """An order that a job needs.

    Attributes:
        mark: The revision that was looked at.
        end: The end that is due when the order was taken, if the job is to end.
    """

    job: str
    mark: JobRevision
    state: JobStateName
    reason: str
    end: Finished | None = None


REOPENED = "new URLs"  # Reason of a finished job that runs again
DUE_AGAIN = "due again"  # The same of a job that was watching


class Dues:
    """What is due, look by look. Each order is given once for a revision, and again if it is forgotten.

    Args:
        jobs: Those that may wait for each other.
    """

    def __init__(self, jobs: FollowedJobs) -> None:
        self._flow = FollowedFlow(jobs)
        self._finishes: dict[str, tuple[JobRevision, EndSteps]] = {}
        self._given: dict[str, JobRevision] = {}
        self._seen: dict[int, Progress] = {}

    def of_open(self, jobs: Iterable[Followed], reports: FleetReports, ends: Ends) -> list[DueOrder | Finished]:
        """What open jobs need.

        Args:
            ends: The ends, read after the newest report and after the newest change of the jobs.
        """
        jobs = list(jobs)
        names = {job.job for job in jobs}
        for name in [name for name in self._finishes if name not in names]:
            del self._finishes[name]
        return [due for job in jobs if (due := self._of(job, reports, ends)) is not None]

    def of_finished(self, finished: Mapping[str, JobRevision], reports: FleetReports) -> list[DueOrder]:
        """What finished jobs need; only reports that came since the last look are looked at."""
        due = []
        for report in reports.of("fetch"):
            if self._seen.get(report.partition) is report:
                continue
            self._seen[report.partition] = report
            for name, counts in report.jobs.items():
                mark = finished.get(name) if counts.queued else None
                if mark is not None and self._is_first(name, mark):
                    due.append(DueOrder(name, mark, "running", DUE_AGAIN if counts.again else REOPENED))
        return due

    def forget(self, due: DueOrder | Finished) -> None:
        """Decide again what was due: nobody did it."""
        mark = due.mark if isinstance(due, DueOrder) else JobRevision(due.epoch, due.rev)
        if self._given.get(due.job) == mark:
            del self._given[due.job]

    def _of(self, job: Followed, reports: FleetReports, ends: Ends) -> DueOrder | Finished | None:
        if self._given.get(job.job) == job.mark:
            return None
        if job.state == "waiting":
            return self._release(job)
        if traits(job.state).ended:
            return self._end_of(job, reports, ends)
        return self._order_of(job, reports, ends) if traits(job.state).fetched else None

    def _release(self, job: Followed) -> DueOrder | None:
        broken = self._flow.release(job.job)
        if broken is None:
            return None
        return self._order(job, "fail", f"after {broken}") if broken else self._order(job, "release", "")

    def _order_of(self, job: Followed, reports: FleetReports, ends: Ends) -> DueOrder | None:
        glance = _glance(reports, job)
        if job.max_pages is not None and glance.fetched >= job.max_pages:
            return self._order(job, "limit", "max_pages")
        is_fed = job.has_feeds and not self._flow.is_feeding(job.job)
        may_end = is_fed or (not job.has_feeds and (job.has_started or glance.has_begun))
        is_empty = job.closes or (not glance.held and may_end)
        if glance.is_busy or not is_empty or not self._finish(job, ends).step(reports, ends):
            return None
        if job.closes:
            return self._order(job, "close", job.closes)
        order: OrderName = "watch" if job.recurs else "finish"
        return self._order(job, order, "", self._finished(job, "watching" if job.recurs else "finished"))

    def _end_of(self, job: Followed, reports: FleetReports, ends: Ends) -> DueOrder | Finished | None:
        if _glance(reports, job).is_busy:  # a finished job's queue is fetched by nobody, so it would never have an end
            return self._order(job, "reopen", REOPENED) if traits(job.state).done else None
        if not self._finish(job, ends).step(reports, ends):
            return None
        self._given[job.job] = job.mark
        return self._finished(job, job.reason or job.state)

    def _finish(self, job: Followed, ends: Ends) -> EndSteps:
        """The steps of a job's end, begun when this revision of its record was in every partition."""
        known = self._finishes.get(job.job)
        if known is None or known[0] != job.mark:
            required = job.required if traits(job.state).outputs else ()
            known = job.mark, EndSteps(job.job, ends("fetch"), outputs=required)
            self._finishes[job.job] = known
        may_start = job.is_starting and job.state == "running" and not job.closes
        known[1].gives_more = may_start or job.is_parsing_again
        return known[1]

    def _finished(self, job: Followed, reason: str) -> Finished:
        """The end of a job, with how far everything was when it had nothing left; its writer adds the time."""
        steps = self._finishes[job.job][1]
        return Finished(
            job.job,
            0.0,
            job.mark.epoch,
            reason,
            urls=steps.passed["fetch"],
            pages=steps.passed["parse"],
            items=steps.passed["sink"],
            counts=steps.counts,
            rev=job.mark.rev,
        )

    def _order(self, job: Followed, order: OrderName, reason: str, end: Finished | None = None) -> DueOrder:
        state = after(order, job.state)
        assert state is not None
        self._given[job.job] = job.mark
        return DueOrder(job.job, job.mark, state, reason, end)

    def _is_first(self, name: str, mark: JobRevision) -> bool:
        """Whether nothing was given for this revision yet; notes it."""
        if self._given.get(name) == mark:
            return False
        self._given[name] = mark
        return True


class _Glance(NamedTuple):
    """A job at one moment, by cheap sums: hundreds of jobs are looked at ten times a second.

    Attributes:
        is_busy: Whether URLs are queued or in flight.
        held: URLs for which nobody waits, such as those of a blocked host.
        has_begun: Whether any URL was offered: the seeds follow the job's record, and may not be in the log yet.
    """

    is_busy: bool
    fetched: int
    held: int
    has_begun: bool


def _glance(reports: FleetReports, job: Followed) -> _Glance:
    is_busy = has_begun = False
    fetched = held = 0
    for one in reports.counts_of(job.job, job.mark.epoch):
        fetched += one.fetched
        held += one.held
        is_busy = is_busy or bool(one.queued or one.in_flight)
        has_begun = has_begun or is_begun(one)
    return _Glance(is_busy, fetched, held, has_begun)


def is_offered(counts: JobCounts) -> bool:
    """Whether any URL was offered to a job."""
    return is_begun(counts) or bool(counts.queued or counts.held or counts.in_flight)


def is_begun(counts: JobCounts) -> bool:
    """Whether any URL was offered to a job and decided on."""
    one = counts
    return bool(one.fetched or one.redirected or one.failed or one.refused or one.seen or one.bad or one.dropped)
