"""Decides when a job is finished, from the reports of all workers and the ends of the log. Pure.

Five steps; each uses data read after the step before.

    1  the spider's `start` has ended, and no stored page is left to be parsed again; every partition has folded the
       seeds and reports nothing queued or in flight; their counts are noted
    2  parse has passed the end of crawl.pages as read after that
    3  all folds have passed the end of crawl.urls as read after that
    4  the folds report the same counts, and still nothing queued or in flight; otherwise back to 1
    5  the sinks have passed the end of crawl.items as read after that; back to 1 if the folds have more by then

The worst race, and why the counts are compared: a link between two partitions.

    1  Partition A reports that it is idle. B's last page is in flight.
    2  B's page comes, and is acknowledged before B reports that it is idle, too: step 1 is done.
    3  Parse finds a link to A in that page. It writes the found before it passes the page: step 2 is done after that.
    4  The end of crawl.urls that step 3 reads is behind the found. A folds it: A's count differs from that of step 1.
    5  Step 4 sees that, even if A has fetched the URL by then and is idle again. The steps begin anew.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from crawlog.schemas.progress import JobCounts

from .fleet_reports import FleetReports

# Reads the end offset of each partition of a stage's input topic, by the stage's name.
Ends = Callable[[str], tuple[int, ...]]


class Snapshot(NamedTuple):
    """A job at one moment: its folded records in each partition, and whether all partitions are idle.

    The job's record goes to every partition. A partition that does not know the job has lost it, and is not idle.
    """

    folded: tuple[int, ...]
    is_idle: bool


@dataclass
class EndSteps:
    """Takes the five steps for one job.

    Attributes:
        seeded: End offsets of crawl.urls when the last seed was acknowledged.
        outputs: Numbers of the job's outputs that sink workers of a fleet must have complete.
        gives_more: Whether the spider's `start` may give more requests, or stored pages are still to be parsed again.
        counts: The job's counts of step 4. Later reports may be of a former owner, or of a fold that begins again.
    """

    job: str
    seeded: tuple[int, ...]
    gives_more: bool = False
    outputs: tuple[int, ...] = ()
    passed: dict[str, tuple[int, ...]] = field(default_factory=dict)
    counts: JobCounts = field(default_factory=JobCounts)
    _folded: tuple[int, ...] = ()
    _step: int = 1

    def step(self, reports: FleetReports, ends: Ends) -> bool:
        """Advances as far as possible; True when the job is finished."""
        while self._step <= 5:
            before = self._step
            self._go(reports, ends)
            if self._step <= before:
                return False
        return True

    def _go(self, reports: FleetReports, ends: Ends) -> None:
        if self._step == 1:
            now = self._look(reports)
            if not self.gives_more and reports.has_passed("fetch", self.seeded) and now.is_idle:
                self._folded = now.folded
                self._wait_for("parse", ends, 2)
        elif self._step == 2 and reports.has_passed("parse", self.passed["parse"]):
            self._wait_for("fetch", ends, 3)
        elif self._step == 3 and reports.has_passed("fetch", self.passed["fetch"]):
            self._step = 4
        elif self._step in (4, 5):
            self._confirm(reports, ends)

    def _confirm(self, reports: FleetReports, ends: Ends) -> None:
        """Ends, unless more came since step 1."""
        now = self._look(reports)
        if self._step == 4 and now.is_idle and now.folded == self._folded:
            self.counts = reports.counts(self.job)
            self._wait_for("sink", ends, 5)
        elif self._step == 4 or sum(now.folded) > sum(self._folded):  # fewer are a late report's
            self._step = 1
        elif all(reports.has_written(self.job, number, self.passed["sink"]) for number in self.outputs):
            self._step = 6

    def _wait_for(self, stage: str, ends: Ends, step: int) -> None:
        self.passed[stage] = ends(stage)
        self._step = step

    def _look(self, reports: FleetReports) -> Snapshot:
        newest = [reports.newest.get(("fetch", partition)) for partition in range(len(self.seeded))]
        counts = [report.jobs[self.job] for report in newest if report is not None and self.job in report.jobs]
        is_idle = len(counts) == len(newest) and not any(one.queued or one.in_flight for one in counts)
        return Snapshot(tuple(one.folded for one in counts), is_idle)
