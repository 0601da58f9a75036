"""Puts a job and its seeds into the log, and again what the log loses of them while the run goes on."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from crawlog.schemas.control import JobCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crawlog.agents.seed import Source
    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.progress import Progress
    from crawlog.streams.log import Producer

    from .job_in_log import JobInLog


class Planting:
    """The job's record and the seeds of one run."""

    def __init__(
        self, job: "JobInLog", supervisor: "Supervisor", producer: "Producer", say: "Callable[[str], None]"
    ) -> None:
        self._job = job
        self._supervisor = supervisor
        self._settings = supervisor.settings
        self._producer = producer
        self._say = say
        self._lost_founds = len(supervisor.lost_founds)

    def plant(self) -> JobCopy:
        """Writes the job's record, new or changed, then its seeds; all are acknowledged. Returns the record."""
        from crawlog.agents.seed import Source, kept_seeds
        from crawlog.streams.log import known_job

        job, source = self._job, self._job.order.source
        known = self._write_record()
        with ExitStack() as kept:
            if source is None and job.is_anew:
                source = Source([str(kept.enter_context(kept_seeds(self._settings, job.topics, job.name)))])
            if source is not None and not job.is_cancelled and (job.end is None or job.order.job):
                self._seed(source)
        copy = known or known_job(self._settings, job.topics, job.name)
        assert copy is not None
        return copy

    def _write_record(self) -> JobCopy | None:
        """Writes the record of a job that the log knows, where it must; None for a new job: its seeds bring theirs."""
        from crawlog.streams.log import rewind_job, write_control, write_job

        job, known = self._job, self._job.copy
        if known is None:
            return None
        assert self._supervisor.watch is not None
        if job.is_changed:
            write = rewind_job if job.is_anew else write_job
            return write(self._settings, self._producer, job.topics, job.name, known.spec, known.epoch)
        if 0 in self._supervisor.watch.ends("fetch"):  # its record goes to every partition
            self._say(f"{job.topics.urls} was made anew and has lost the job: it begins again")
            return write_job(self._settings, self._producer, job.topics, job.name, known.spec, known.epoch)
        write_control(self._producer, job.topics, [known])  # workers report the counts of an old job again
        return known

    def _seed(self, source: "Source") -> None:
        """Sends the seeds; those that the log has are known."""
        from crawlog.agents.seed import plant

        self._lost_founds = len(self._supervisor.lost_founds)
        plant(
            self._settings,
            self._producer,
            self._job.name,
            source,
            spider=self._job.order.spider,
            requests=self._job.requests,
            report=self._say,
            look=self._folds,
        )

    def _folds(self, wait_s: float) -> "Iterable[Progress]":
        """How far the workers are; engine and workers are kept alive while seeds are sent."""
        self._supervisor.look(wait_s)
        return self._supervisor.picture.of("fetch")

    def again(self) -> bool:
        """Whether seeds may have been lost while the crawl went on; this command's own are sent again."""
        if self._lost_founds == len(self._supervisor.lost_founds):
            return False
        self._lost_founds = len(self._supervisor.lost_founds)
        if self._job.order.source is not None and not self._job.is_cancelled:
            self._seed(self._job.order.source)
        return True

    def lost(self) -> tuple[str, ...]:
        """What may be missing where this command was given no seeds: only `crawlog seed` knew its own."""
        if self._job.order.source is not None:
            return ()
        then = "seeds that `crawlog seed` gave may be among what is gone: give them again, it does no harm"
        return tuple(f"{one}; {then}" for one in self._supervisor.lost_founds)
