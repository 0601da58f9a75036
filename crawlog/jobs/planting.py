"""Writes a job and its seeds to the log, and sends the seeds again if the log loses some during the run."""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas.control import NO_EPOCH, Command, JobCopy, StartEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crawlog.agents.seed import Source
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

    def plant(self) -> JobCopy:
        """Writes the job's record, then its seeds, until all are acknowledged; returns the record."""
        from crawlog.agents.seed import Source, kept_seeds
        from crawlog.streams.control import known_job

        job, source, seeds = self._job, self._job.request.source, None
        with ExitStack() as kept:
            if source is None and job.is_anew and not self._starts:
                seeds = kept.enter_context(kept_seeds(self._supervisor.settings, job.topics, job.name))
                source = Source([str(seeds.path)])
            known = self._write_record()  # after the seeds are read: it drops the queue
            if known is None and job.request.starts:
                known = self._write_new()
            if seeds is not None:
                seeds.read_on()  # others gave some until then
            if source is not None and not job.is_cancelled and (job.end is None or job.request.job):
                self._seed(source)
        copy = known or known_job(self._supervisor.settings, job.topics, job.name)
        assert copy is not None
        return copy

    @property
    def _starts(self) -> bool:
        """Whether the job's first requests are those of its spider's `start`."""
        copy = self._job.copy
        return self._job.request.starts if copy is None else copy.spec.starts

    def _write_new(self) -> JobCopy:
        """Writes the record of a new job without seeds."""
        from crawlog.streams.control import write_job
        from crawlog.streams.job_spec import resolve_spec

        job = self._job
        spec = resolve_spec(self._supervisor.settings, job.request.of_spider(), requests=job.requests)
        spec = msgspec.structs.replace(spec, at=time.time())
        return write_job(self._supervisor.settings, self._supervisor.producer, job.topics, job.name, spec)

    def _forget_start(self) -> None:
        """Lets the job's `start` begin again: no tombstone, which followers of crawl.control would not hear."""
        from crawlog.streams.control import write_control

        note = StartEnded(self._job.name, time.time(), NO_EPOCH)
        write_control(self._supervisor.producer, self._job.topics, [note])

    def _write_record(self) -> JobCopy | None:
        """Writes a known job's record again, if need be; None for a new job, whose record is written with the seeds."""
        from crawlog.streams.control import (
            overruling,
            remove_notes,
            rewind_job,
            write_command,
            write_control,
            write_job,
        )

        job, known = self._job, self._job.copy
        if known is None:
            return None
        assert self._supervisor.watch is not None
        settings, producer = self._supervisor.settings, self._supervisor.producer
        if job.starts:
            self._forget_start()
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
            spider=self._job.request.of_spider(),
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
        if self._lost_founds == len(self._supervisor.lost_founds):
            return False
        self._lost_founds = len(self._supervisor.lost_founds)
        if self._job.request.source is not None and not self._job.is_cancelled:
            self._seed(self._job.request.source)
        if self._starts and not self._job.is_cancelled:
            self._forget_start()
        return True

    def lost(self) -> tuple[str, ...]:
        """Lines about seeds that may be lost if this command has none: it cannot send those of `crawlog seed` again."""
        if self._job.request.source is not None or self._starts:
            return ()
        then = "seeds that `crawlog seed` gave may be among what is gone: give them again, it does no harm"
        return tuple(f"{one}; {then}" for one in self._supervisor.lost_founds)
