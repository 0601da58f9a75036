"""Counts what one run adds to its job: pages, by the log, and dead letters, by crawl.dead."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from crawlog.jobs.pace import Pace
from crawlog.streams.control import DeadLetterReader, ended
from crawlog.streams.errors import EngineError

if TYPE_CHECKING:
    from crawlog.processes.supervisor import Supervisor
    from crawlog.streams.log import LetterTally

    from .job_in_log import JobInLog


class Gains:
    """The numbers of one run; it counts from the moment that it is made.

    Attributes:
        pace: The speed of the job.
        is_clean: Whether no earlier run of the job can have left dead letters.
    """

    def __init__(self, job: "JobInLog", supervisor: "Supervisor") -> None:
        assert supervisor.watch is not None
        self._job = job
        self._supervisor = supervisor
        self.pace = Pace()
        self._early: int | None = None
        self._has_before = job.is_known and not job.is_anew  # for a new job all pages count
        end = supervisor.watch.dead_end()
        self.is_clean = not end or not job.is_known
        self._losses = DeadLetterReader(supervisor.settings, job.name, end)
        if self._has_before:
            supervisor.picture.begin(job.name, supervisor.watch.ends("fetch"))

    @property
    def tally(self) -> "LetterTally":
        """New dead letters of the job, as far as crawl.dead was read."""
        return self._losses.tally

    def look(self, *, has_read_seeds: bool) -> None:
        """Updates the counts from the picture, the log and crawl.dead.

        Args:
            has_read_seeds: Whether all folds have passed the seeds; the pace means nothing before that.
        """
        picture = self._supervisor.picture
        self._losses.at(self._supervisor.settings)
        self._losses.poll()
        if has_read_seeds:
            self.pace.look(ended(picture.counts(self._job.name)), time.monotonic())
        if picture.is_begun and self._early is None:
            self._early = self._read_early()

    def _read_early(self) -> int:
        """Pages of this run that the first reports had counted already; 0 if the broker is away."""
        from crawlog.streams.log import pages_done, read_partitions

        with suppress(EngineError):
            early = read_partitions(self._supervisor.settings, self._job.topics.urls, self._supervisor.picture.unread)
            return sum(pages_done(record.value(), self._job.name) for record in early)
        return 0

    def pages(self) -> int:
        """Pages that this run added to the job, by the log."""
        picture = self._supervisor.picture
        if not self._has_before:
            return ended(picture.counts(self._job.name))
        return (picture.gained or 0) + (self._early or 0)

    def count_losses(self, within_s: float) -> None:
        """Reads crawl.dead up to its present end.

        Raises: EngineError: not all of it could be read in time.
        """
        assert self._supervisor.watch is not None
        self._losses.at(self._supervisor.settings)
        self._losses.catch_up(self._supervisor.watch.dead_end(), within_s)

    def close(self) -> None:
        """Closes the consumer."""
        self._losses.close()
