"""The coordinator: answers orders, writes those that are due, and records ends.

Rules

    1  One worker is at work: the one whose partition 0 of crawl.urls is live, once it has read all of crawl.control.
       All others rest. Both hold for as long as `look` found them so.
    2  It keeps nothing that its successor could not read: the fold of partition 0, crawl.control, crawl.progress.
    3  An order names the revision that was looked at, so the fold refuses it if the job has changed since.
    4  A copy reaches crawl.control when every other partition has the record. Who reads of a job there may write to it.
    5  An end names the revision that it ended. It follows that revision's copy; every reader drops an older one.
    6  Without the lease on its partitions nothing is sent. What was due is decided again at the next look.

    event                                        at work                                           at rest
    partition 0 live and crawl.control read      –                                                 begin
    partition 0 lost                             end: stop following, forget the orders given      –
    the fold took an order                       copy to all partitions, to crawl.control, its end nothing: see `begin`
    the fold refused an order                    copy with the refusal to crawl.control            nothing
    a copy older than the fold's record          copy again                                        noted
    an order or an end is due                    with the lease: write it; without: decide again   nothing
    a finished job is closed by its spider       after FREE_S: resume it                           noted
    a schedule's time has come (`schedules.py`)  note it, read it back, create the jobs of the run noted

`begin` copies all that crawl.control lacks of the fold's jobs, resumes closed jobs that had finished, and follows.

The worst race: the former owner wakes up.

    1  A looks at job j in revision 7: nothing is left. It is stopped by SIGSTOP before its order goes out.
    2  B takes partition 0. A seed of j is folded; the operator pauses j: revision 9. B copies it.
    3  A goes on. It has lost the lease: rule 6. If its order was in librdkafka's queue, it expects 7: rule 3.
    4  A copy of revision 7 that A had queued arrives in crawl.control behind B's. B sees that it is older than its
       fold's record, and writes its own again: rule 4 holds for readers that compare no revisions.
    5  An end that A had queued names revision 7: rule 5.
"""

import asyncio
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import structlog

from crawlog.agents.hooks import HookCaller
from crawlog.schemas import urls
from crawlog.schemas.control import Command, Control, Finished, JobCopy, OutputNote
from crawlog.schemas.urls import JobOrder
from crawlog.streams.jobs import DueOrder, FollowedJobs, JobRevision, traits
from crawlog.streams.log import Producer

from .copies import Copies, Outgoing
from .following import Following
from .job_hooks import JobHooks
from .schedules import Schedules

if TYPE_CHECKING:
    from crawlog.agents.frontier import OwnedFrontier
    from crawlog.streams.fold import Answered, JobState
    from crawlog.streams.worker import CrawlApp

    from .scheduled_run import RunCreator

log = structlog.get_logger()

LINGER_MS = 2  # How long a record waits for others; somebody waits for most of them

# How long a finished job stays stopped by its spider: the log may hold an operator's command behind that stop.
FREE_S = 1.0

BY = "crawlog"  # `JobOrder.by` of the coordinator's orders

# Makes the thread that reads reports; what is due is passed to the second argument.
Follow = Callable[[FollowedJobs, Callable[[DueOrder | Finished], None]], Following]


class Coordinator:
    """The duty of one fetch worker.

    Args:
        copies: Makes the way out, when the duty comes for the first time.
        schedules: Makes what fires; None for a `run`, whose workers do its job alone.
        hooks: Makes what is called at the ends of jobs; None for a `run`, which does that itself.

    Attributes:
        jobs: Those of crawl.control; kept by every fetch worker, for the duty may come at any time.
    """

    def __init__(
        self,
        stage: "OwnedFrontier",
        copies: Callable[[], Copies],
        follow: Follow,
        schedules: Callable[[FollowedJobs], Schedules] | None = None,
        hooks: Callable[[FollowedJobs], JobHooks] | None = None,
    ) -> None:
        self.jobs = FollowedJobs()
        self._hooks = hooks(self.jobs) if hooks is not None else None
        self._schedules = schedules(self.jobs) if schedules is not None else None
        self._stage = stage
        self._new_copies = copies
        self._follow = follow
        self._copies: Copies | None = None
        self._following: Following | None = None
        self._given: dict[str, Finished] = {}  # ends of jobs that were ordered to end, with the time of the order

    # ------------------------------------------------------------------ hooks of the stage

    def take(self, record: Control) -> None:
        """Takes a record of crawl.control."""
        self.jobs.take(record)
        if self._schedules is not None:
            self._schedules.take(record)
        if self._following is not None and isinstance(record, JobCopy):
            job = self._folded().get(record.job)
            if job is not None and not job.awaited and _is_behind(record, job):
                self._send(job)
        if self._following is not None and isinstance(record, JobCopy | Finished | Command):
            self._free(record.job)
        if self._hooks is not None and isinstance(record, JobCopy | Finished | OutputNote):
            self._hooks.look(record.job)

    def look(self) -> None:
        """Begins or ends the duty: called when partitions come or go, and when crawl.control was read to its end."""
        is_mine = 0 in self._stage.live and self._stage.orders.is_known
        if is_mine and self._following is None:
            self._begin()
        elif not is_mine and self._following is not None:
            self._following.stop()
            self._following = None
            self._given.clear()
            if self._schedules is not None:
                self._schedules.end()
            if self._hooks is not None:
                self._hooks.end()
            log.info("coordinator_ended")

    def answered(self, answers: "list[Answered]") -> None:
        """Copies what orders changed; called when the fold of partition 0 has taken or refused them."""
        if self._following is None:
            return  # `look` will copy it
        for answer in answers:
            job = self._folded().get(answer.job)
            if job is not None:
                self._send(job, is_taken=not answer.refusal)
            if answer.refusal:
                log.info("order_refused", job=answer.job, offset=answer.offset, why=answer.refusal)

    # ------------------------------------------------------------------ the duty

    def _begin(self) -> None:
        if self._copies is None:
            self._copies = self._new_copies()
        loop = asyncio.get_running_loop()

        def act(due: DueOrder | Finished) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._act, following, due)

        following = self._following = self._follow(self.jobs, act)
        log.info("coordinator_begins", open_jobs=len(self.jobs.open))
        self._send_lacking()
        for name in self.jobs.finished:
            self._free(name)
        following.start()
        if self._schedules is not None:
            self._schedules.begin(self._copies.note, self._order, self._stage.may_ask)
        if self._hooks is not None:
            self._hooks.begin(self._copies.note)

    def _send_lacking(self) -> None:
        """Copies the jobs whose newest record crawl.control lacks."""
        for job in self._folded().values():
            copy = self.jobs.copy(job.name)
            is_copied = copy is not None and (JobRevision.of(copy), copy.answers) >= (_mark(job), job.answers)
            if job.name != urls.DEFAULT_JOB and not job.awaited and not is_copied:
                self._send(job)

    def _folded(self) -> "dict[str, JobState]":
        """The jobs of partition 0."""
        partition = self._stage.live.get(0)
        return partition.fold.jobs if partition is not None else {}

    def _send(self, job: "JobState", *, is_taken: bool = True) -> None:
        assert self._copies is not None
        copy = JobCopy(job.name, job.spec, job.epoch, job.answers, job.refusal, job.after)
        given = self._given.pop(job.name, None)
        ending = None
        if given is not None and traits(job.spec.state).done and job.spec.changed_at == given.at:
            ending = msgspec.structs.replace(given, rev=job.spec.rev)
        self._copies.send(Outgoing(copy, is_taken, ending))

    def _free(self, job: str) -> None:
        """Ends the stop with which a spider closed a job that had finished, unless an operator's command comes soon."""
        if self.jobs.is_closed_late(job):
            asyncio.get_running_loop().call_later(FREE_S, self._freed, self._following, job)

    def _freed(self, following: Following | None, job: str) -> None:
        if following is None or following is not self._following or not self.jobs.is_closed_late(job):
            return
        if not self._stage.may_ask():
            self._free(job)
            return
        assert self._copies is not None
        log.info("job_closed_late", job=job)
        self._copies.note(Command("resume", job=job, at=time.time()))

    def _act(self, following: Following, due: DueOrder | Finished) -> None:
        """Does what is due, unless the duty has moved meanwhile."""
        if following is not self._following:
            return
        if not self._stage.may_ask():
            following.undone(due)
            return
        assert self._copies is not None
        if isinstance(due, Finished):
            log.info("job_ended", job=due.job, reason=due.reason)
            self._copies.end(msgspec.structs.replace(due, at=time.time()))
        else:
            self._order(due)

    def _order(self, due: DueOrder) -> None:
        assert self._copies is not None
        order = JobOrder(due.mark.rev, due.state, reason=due.reason, by=BY, at=time.time())
        record = urls.UrlsRecord(job=due.job, epoch=due.mark.epoch, order=order)
        self._given.pop(due.job, None)
        if due.end is not None:
            self._given[due.job] = msgspec.structs.replace(due.end, at=order.at)
        log.info("job_ordered", job=due.job, state=due.state, reason=due.reason, expects=due.mark.rev)
        self._copies.order(record)


def _mark(job: "JobState") -> JobRevision:
    return JobRevision(job.epoch, job.spec.rev)


def _is_behind(copy: JobCopy, job: "JobState") -> bool:
    """Whether a copy is older than the job in partition 0, or differs from it."""
    mark = JobRevision.of(copy)
    if mark != _mark(job):
        return mark < _mark(job)
    return copy.answers < job.answers or copy.spec != job.spec


def attach(app: "CrawlApp", stage: "OwnedFrontier") -> Coordinator:
    """Gives a fetch worker the duty, for the times when partition 0 is its own."""

    def copies() -> Copies:
        producer = Producer(stage.settings, f"{app.worker_name}-coordinator", linger_ms=LINGER_MS)
        app.add_future(producer.run(asyncio.Event()))
        return Copies(producer, stage.names, stage.partitions)

    @cache
    def creator() -> "RunCreator":
        from .scheduled_run import RunCreator  # what reads seeds takes 14 MB: only a fleet with schedules pays

        return RunCreator(stage.settings, stage.names)

    def schedules(jobs: FollowedJobs) -> Schedules:
        return Schedules(jobs, lambda *run: creator().create(*run))

    duty = Coordinator(
        stage,
        copies,
        lambda jobs, act: Following(stage.settings, jobs, act),
        None if stage.settings.run.job else schedules,
        None if stage.settings.run.job else lambda jobs: JobHooks(jobs, HookCaller(stage.settings, stage.may_ask)),
    )
    stage.listeners.append(duty.take)
    stage.on_changed = duty.look
    stage.on_answered = duty.answered
    return duty
