"""How many queued URLs of one partition wait because of commands for a job or its hosts."""

from crawlog.streams.fold import Fold, JobState
from crawlog.streams.fold import rows as r
from crawlog.streams.url import hashed

from .schedule import Schedule


class HeldHosts:
    """The hosts with a queue that a command pauses or blocks."""

    def __init__(self, fold: Fold, schedule: Schedule) -> None:
        self._fold = fold
        self._schedule = schedule
        self._is_blocked: dict[int, bool] = {}  # by the host's hash; a paused one is not blocked

    def note(self, host: str) -> None:
        """Count a host, given by its key, if a command keeps it waiting: it has a queue."""
        orders = self._schedule.commands.of_host(host)
        if orders.paused:
            self._is_blocked[hashed(host)] = orders.stopped

    def look(self) -> None:
        """Look through all host queues: the commands for hosts have changed."""
        self._is_blocked.clear()
        if self._schedule.holding:
            self._fold.flush()
            for _, value in self._fold.rows.scan(b"g"):
                self.note(r.read_host_queue(value).host)

    def counts(self, job: JobState) -> tuple[int, int]:
        """Number of a job's URLs that are paused, and of those on blocked hosts, for which no run waits."""
        if not job.counts.queued:
            return 0, 0
        counts = [0, 0]
        for host, is_blocked in self._is_blocked.items():
            counts[is_blocked] += self._fold.queued_of(job.number, host)
        paused, blocked = counts
        if self._schedule.commands.of_job(job.name).paused:
            paused = job.counts.queued - blocked
        return paused, blocked
