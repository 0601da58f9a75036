"""Writes a job and its seeds to the log, and sends the seeds again if the log loses some during the run."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import Command, JobCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crawlog.agents.seed import Source
    from crawlog.processes.starting import Starting
    from crawlog.processes.supervisor import Supervisor
    from crawlog.schemas.progress import Progress

    from .job_in_log import JobInLog


class Planting:
    """The job's record and the seeds of one run."""

    def __init__(self, job: "JobInLog", supervisor: "Supervisor", say: "Callable[[str], None]") -> None:
        self._job = job
        self._supervisor = supervisor
        self._say = say
        self._lost_founds = len(supervisor.lost_founds)
        self._starting: Starting | None = None

    def plant(self) -> JobCopy:
        """Writes the job's record, then its seeds, until all are acknowledged; begins `start`; returns the record."""
        from crawlog.agents.seed import Source, kept_seeds
        from crawlog.streams.log import known_job

        job, source, seeds = self._job, self._job.order.source, None
        with ExitStack() as kept:
            if source is None and job.is_anew and not self._starts:
                seeds = kept.enter_context(kept_seeds(self._supervisor.settings, job.topics, job.name))
                source = Source([str(seeds.path)])
            known = self._write_record()  # after the seeds are read: it drops the queue
            if known is None and job.order.starts:
                known = self._write_new()
            if seeds is not None:
                seeds.read_on()  # others gave some until then
            if source is not None and not job.is_cancelled and (job.end is None or job.order.job):
                self._seed(source)
        copy = known or known_job(self._supervisor.settings, job.topics, job.name)
        assert copy is not None
        if job.copy is None or job.starts:
            self._begin(copy)
        return copy

    @property
    def _starts(self) -> bool:
        """Whether the job's first requests are those of its spider's `start`."""
        copy = self._job.copy
        return self._job.order.starts if copy is None else copy.spec.starts

    def _write_new(self) -> JobCopy:
        """Writes the record of a new job without seeds."""
        from crawlog.streams.log import resolve_spec, write_job

        job = self._job
        spec = resolve_spec(self._supervisor.settings, job.order.of_spider(), requests=job.requests)
        spec = msgspec.structs.replace(spec, at=time.time())
        return write_job(self._supervisor.settings, self._supervisor.producer, job.topics, job.name, spec)

    def _begin(self, copy: JobCopy) -> None:
        """Begins the `start` of the job's spider, if it has one."""
        from crawlog.processes.starting import Starting

        if copy.spec.starts:
            self.close()
            self._starting = Starting(copy, self._supervisor, self._say)

    @property
    def is_starting(self) -> bool:
        """Whether `start` may give more requests."""
        return self._starting is not None and self._starting.is_running

    @property
    def start_error(self) -> str:
        """The error with which `start` ended, one line; empty without one."""
        return self._starting.error if self._starting is not None else ""

    @property
    def start_items(self) -> int:
        """Items that `start` gave: of this command, or else of an earlier one."""
        ended = self._starting or self._job.start
        return ended.items if ended is not None else 0

    def look(self) -> bool:
        """Takes what `start` gives; whether it has just ended, or seeds were sent again: crawl.urls has a new end."""
        was_starting = self.is_starting
        if was_starting and self._starting is not None:
            self._starting.look()
        return self.again() or (was_starting and not self.is_starting)

    def close(self) -> None:
        """Ends the process of `start`."""
        if self._starting is not None:
            self._starting.close()

    def _write_record(self) -> JobCopy | None:
        """Writes a known job's record again, if need be; None for a new job, whose record is written with the seeds."""
        from crawlog.streams.log import overruling, remove_notes, rewind_job, write_command, write_control, write_job

        job, known = self._job, self._job.copy
        if known is None:
            return None
        assert self._supervisor.watch is not None
        settings, producer = self._supervisor.settings, self._supervisor.producer
        if job.is_changed:
            if job.closed:  # by its spider: this command goes on
                write_command(producer, job.topics, Command("resume", job=job.name))
            spec = msgspec.structs.replace(known.spec, rev=overruling(settings, job.topics, known.spec))
            if job.is_anew and job.is_known:  # a deleted job has nothing to rewind
                return rewind_job(settings, producer, job.topics, job.name, spec, known.epoch)
            if job.is_anew:
                remove_notes(settings, producer, job.topics, job.name)
            return write_job(settings, producer, job.topics, job.name, spec, known.epoch, known.after)
        if 0 in self._supervisor.watch.ends("fetch"):  # an empty partition lacks the job's record
            self._say(f"{job.topics.urls} was made anew and has lost the job: it begins again")
            return write_job(settings, producer, job.topics, job.name, known.spec, known.epoch, known.after)
        write_control(producer, job.topics, [known])  # makes workers report the counts of an old job again
        return known

    def _seed(self, source: "Source") -> None:
        """Sends the seeds; those that are in the log already change nothing."""
        from crawlog.agents.seed import plant

        self._lost_founds = len(self._supervisor.lost_founds)
        plant(
            self._supervisor.settings,
            self._supervisor.producer,
            self._job.name,
            source,
            spider=self._job.order.of_spider(),
            requests=self._job.requests,
            report=self._say,
            look=self._folds,
        )

    def _folds(self, wait_s: float) -> "Iterable[Progress]":
        """The progress of the folds; also keeps engine and workers alive while seeds are sent."""
        self._supervisor.look(wait_s)
        return self._supervisor.picture.of("fetch")

    def again(self) -> bool:
        """Whether the log may have lost seeds since the last call; if so, sends this command's seeds again."""
        from crawlog.streams.log import known_job

        if self._lost_founds == len(self._supervisor.lost_founds):
            return False
        self._lost_founds = len(self._supervisor.lost_founds)
        if self._job.order.source is not None and not self._job.is_cancelled:
            self._seed(self._job.order.source)
        copy = known_job(self._supervisor.settings, self._job.topics, self._job.name)
        if copy is not None and not self._job.is_cancelled:
            self._begin(copy)
        return True

    def lost(self) -> tuple[str, ...]:
        """Lines about seeds that may be lost if this command has none: it cannot send those of `crawlog seed` again."""
        if self._job.order.source is not None or self._starts:
            return ()
        then = "seeds that `crawlog seed` gave may be among what is gone: give them again, it does no harm"
        return tuple(f"{one}; {then}" for one in self._supervisor.lost_founds)
