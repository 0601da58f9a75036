"""Writes the record of a job and its seeds to the log: for `run`, `submit`, `crawl()`, the HTTP API and Scrapyd's API.

    recall: crawl.control ─► the job as it is ─► `record.plan` ─► RecordPlan
    write:  RecordPlan ─► the record in every partition, acknowledged ─► the seeds, acknowledged

A command that is killed in between writes both again. Where fetch workers of a fleet run, a change is an order to them;
a command with workers of its own writes the record before they fetch.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from crawlog.schemas.control import NO_EPOCH, Finished, JobCopy, OutputNote, Rewound, StartEnded
from crawlog.schemas.job_orders import GROUP
from crawlog.streams.cluster import log_bounds, log_end
from crawlog.streams.control import (
    apply_change,
    counting_epochs,
    create_job,
    end_closing,
    overruling,
    read_control,
    rewind_job,
    settled_control,
    write_control,
    write_job,
)
from crawlog.streams.errors import InvalidState, Misconfigured, UnknownName
from crawlog.streams.jobs import ControlState, Flow, traits
from crawlog.streams.log import Producer, Topics, partition_count

from .record import RecordPlan, Wanted, plan, way_on

if TYPE_CHECKING:
    from crawlog.agents.seed import Source
    from crawlog.schemas.progress import Progress
    from crawlog.streams.settings import Settings
    from crawlog.streams.sink_groups import RewoundRange


class JobLog(Protocol):
    """The log that a job is written to; both change where a local broker is started again."""

    @property
    def settings(self) -> "Settings":
        """The job's settings, with the address of the log."""

    @property
    def producer(self) -> "Producer":
        """A producer of the log."""


class JobWriter:
    """The record and the seeds of one job.

    Args:
        say: Takes lines for the user.
        look: Keeps engine and workers alive while seeds are sent, and returns the progress of the folds; None on a
            fleet.

    Attributes:
        is_known: Whether the log has the job.
        plan: What becomes of its record, once `recall` has read it.
        end: How the job ended; None while it goes on, and if it goes on now.
        was_back: Its `JobCounts.page_back` when it ended.
        since, voids: Which item records are rows of the job.
    """

    def __init__(
        self,
        log: JobLog,
        wanted: Wanted,
        say: Callable[[str], None],
        look: "Callable[[float], Iterable[Progress]] | None" = None,
    ) -> None:
        self.wanted = wanted
        self.name = wanted.name
        self.topics = Topics(log.settings.kafka.prefix)
        self.plan: RecordPlan | None = None
        self.is_known = False
        self.end: Finished | None = None
        self.was_back = 0
        self.since = 0
        self.voids: tuple[RewoundRange, ...] = ()
        self._log = log
        self._say = say
        self._look = look
        self._control = ControlState()
        self._known: JobCopy | None = None
        self._control_end = 0
        self._has_lost_founds = False

    # ------------------------------------------------------------------ what is there

    def recall(self, *, has_lost_founds: bool = False) -> RecordPlan:
        """Reads the job from the log, and decides what becomes of its record.

        Args:
            has_lost_founds: Whether the log lost records of crawl.urls: seeds may be among them, and the job goes on.

        Raises:
            Misconfigured: there is no such job, and no seeds were given.
            InvalidState: it is not the same job, or it is cancelled, or is to wait and does not.
        """
        settings = self._log.settings
        self._has_lost_founds = has_lost_founds
        self._control_end = log_end(settings, self.topics.control)
        self._control = settled_control(settings, self._log.producer, self.topics)
        known = self._control.job(self.name)
        self._check_flow()
        if (known is None or known.spec.state == "deleted") and not self.wanted.has_requests:
            raise Misconfigured(f"there is no job {self.name} in the log; give the URLs that it starts with.")
        if (end := self._control.end(self.name)) is not None and end.counts is not None:
            self.was_back = end.counts.page_back
        self.end = None if has_lost_founds else end
        self.since, self.voids = counting_epochs(self._control.of(Rewound), self.name, known)
        return self._decide(known)

    def _check_flow(self) -> None:
        """Raises: UnknownName: it would wait for a job that is not there. Misconfigured: it would wait for itself."""
        if (wanted := self.wanted.request.flow) is None:
            return
        there = {one.job for one in self._control.of(JobCopy) if one.spec.state != "deleted"}
        for name in (*wanted.after, *wanted.sources):
            if not name.startswith(GROUP) and name not in there | {self.name}:
                raise UnknownName(
                    f"there is no job {name} to wait for: submit it first; `crawlog jobs` lists those that there are"
                )
        if cycle := Flow(self._control).cycle(self.name, wanted):
            raise Misconfigured(f"job {self.name} would wait for itself: {' after '.join(cycle)}")

    def _decide(self, known: JobCopy | None) -> RecordPlan:
        self._known, self.is_known = known, known is not None and known.spec.state != "deleted"
        is_done = self.end is not None and self.end.reason in ("finished", "watching")
        wanted, request = self.wanted, self.wanted.request
        if self.is_known and request.fresh and not (wanted.has_requests or wanted.may_change):
            raise Misconfigured(f"--fresh: give the URLs that job {self.name} begins with")
        decided = plan(wanted, wanted.spec(self._log.settings, known, self._say), known, is_done=is_done)
        if decided.step == "begin_again" and not request.fresh:
            self._say("the job was finished under other settings: it is crawled again")
        if decided.copy.epoch > (known.epoch if known is not None else 0):
            self.since, self.voids = decided.copy.epoch, ()
        if decided.step != "keep" and not (decided.step == "change" and is_done):
            self.end = None
        if traits(decided.copy.spec.state).done and self._begins_start_again(decided.copy):
            reason = "its `start` begins again"  # the coordinator then waits for the end of `start`
            spec = msgspec.structs.replace(
                decided.copy.spec, rev=decided.copy.spec.rev + 1, state="running", reason=reason
            )
            decided, self.end = RecordPlan("change", msgspec.structs.replace(decided.copy, spec=spec)), None
        self.plan = decided
        return decided

    def _begins_start_again(self, copy: JobCopy) -> bool:
        """Whether the spider's `start` has ended, and is to begin again: it failed, is another, was lost, or is due."""
        note, coming = self._control.start(self.name), self._control.next_start(copy)
        if note is None or not copy.spec.starts or copy.spec.state == "cancelled":
            return False
        if self.wanted.may_change and copy.spec.every and coming is not None and coming.at <= time.time():
            return True
        if note.epoch != copy.epoch:
            return False
        if self.wanted.may_change:
            return copy.spec.fed or self._has_lost_founds or self._control.start_ended(copy, self.wanted.digest) is None
        return bool(note.error)

    # ------------------------------------------------------------------ writing

    def write(self) -> JobCopy:
        """Writes the record, then the seeds, until all are acknowledged; returns the record.

        Raises:
            InvalidState: another command has created, deleted or begun the job meanwhile.
            OrderRefused, NotAnswered: the fleet's workers did not change the job.
        """
        from crawlog.agents.seed import Source, kept_seeds

        source, again = self.wanted.source, None
        with ExitStack() as opened:
            is_seeded = source is not None or self._decided.copy.spec.starts or self.wanted.request.feed
            if self._decided.step == "begin_again" and not is_seeded:
                again = opened.enter_context(kept_seeds(self._log.settings, self.topics, self.name))
                source = Source([str(again.path)])
            copy = self._write_record()  # after the seeds are read: it drops the queue
            if again is not None:
                again.read_on()  # others gave some until then
            if source is not None and copy.spec.state != "cancelled" and (self.end is None or self.wanted.request.job):
                self._seed(copy, source)
        return copy

    @property
    def _decided(self) -> RecordPlan:
        assert self.plan is not None
        return self.plan

    def _write_record(self) -> JobCopy:
        step, copy = self._decided
        if step == "create":
            return self._create(copy)
        if self._begins_start_again(copy):
            if (note := self._control.start(self.name)) is not None and note.error:
                self._say(f"the `start` of job {self.name} ended with an error: it begins again")
            self._forget_start()
        if step == "begin_again":
            return self._begin_again(copy)
        copy = self._change(copy) if step == "change" else self._keep(copy)
        if not self.wanted.may_change:
            self._look_again(copy)
        return copy

    def _begin_again(self, copy: JobCopy) -> JobCopy:
        log, spec = self._log, msgspec.structs.replace(copy.spec, items=self._items())
        was_closed = end_closing(log.producer, self.topics, self._control, self.name)
        copy = rewind_job(log.settings, log.producer, self.topics, self.name, spec, copy.epoch)
        if was_closed:  # a page of the former epoch may have closed the job before its worker heard of the new one
            end_closing(log.producer, self.topics, read_control(log.settings, self.topics), self.name)
        return copy

    def _keep(self, copy: JobCopy) -> JobCopy:
        """Writes a record as it is where the log has lost it."""
        log = self._log
        if any(not end for _, end in self._bounds(self.topics.urls)):
            self._say(f"{self.topics.urls} was made anew and has lost the job: it begins again")
            return write_job(log.settings, log.producer, self.topics, self.name, copy.spec, copy.epoch, copy.after)
        if self.wanted.may_change:  # makes workers report the counts of an old job again
            write_control(log.producer, self.topics, [copy])
        return copy

    def _create(self, copy: JobCopy) -> JobCopy:
        """Writes the record of a new job, or continues the one that another command has created first."""
        log = self._log
        end_closing(log.producer, self.topics, self._control, self.name)
        spec = msgspec.structs.replace(copy.spec, items=self._items())
        made = create_job(log.settings, log.producer, self.topics, self.name, spec, copy.epoch, self._control_end)
        if made.spec == spec:
            return made
        self._decide(made)
        return self._write_record()

    def _change(self, copy: JobCopy) -> JobCopy:
        """Writes a changed record; workers of a fleet are ordered to."""
        log, known = self._log, self._known
        assert known is not None
        spec = copy.spec
        if self.wanted.may_change:
            end_closing(log.producer, self.topics, self._control, self.name)  # its spider's: this command goes on
            spec = msgspec.structs.replace(spec, rev=overruling(log.settings, self.topics, spec))
            return write_job(log.settings, log.producer, self.topics, self.name, spec, copy.epoch, copy.after)
        changed = msgspec.structs.replace(spec, rev=known.spec.rev, state=known.spec.state, reason=known.spec.reason)
        return apply_change(
            log.settings,
            log.producer,
            self.topics,
            known,
            state=spec.state if spec.state != known.spec.state else None,
            spec=spec if changed != known.spec else None,
            reason=spec.reason,
            by=self.wanted.by,
        )

    def _look_again(self, copy: JobCopy) -> None:
        """Has the fleet check the outputs of an ended job, which may be lost; reports a job whose URLs wait."""
        if traits(copy.spec.state).ended:
            notes = [OutputNote(copy.job, one.name, time.time(), copy.epoch) for one in copy.spec.outputs]
            write_control(self._log.producer, self.topics, notes)
        if traits(copy.spec.state).waits:
            self._say(f"job {copy.job} is {copy.spec.state}: its URLs wait; {way_on(copy)} lets it go on")

    def _items(self) -> tuple[int, ...]:
        """The ends of crawl.items: the job's rows come behind them."""
        return tuple(end for _, end in self._bounds(self.topics.items))

    def _bounds(self, topic: str) -> list[tuple[int, int]]:
        numbers = list(range(partition_count(self._log.settings)))
        return list(log_bounds(self._log.settings, topic, numbers).values())

    def _forget_start(self) -> None:
        """Lets the job's `start` begin again: no tombstone, which followers of crawl.control would not hear."""
        note = self._control.start(self.name)
        at = note.at if note is not None else time.time()
        write_control(self._log.producer, self.topics, [StartEnded(self.name, at, NO_EPOCH)])

    def _seed(self, copy: JobCopy, source: "Source") -> None:
        """Sends the seeds; those that are in the log already change nothing."""
        from crawlog.agents.seed import plant

        plant(
            self._log.settings,
            self._log.producer,
            self.name,
            source,
            spider=self.wanted.spider,
            requests=self.wanted.rules(self._log.settings),
            report=self._say,
            look=self._look,
            begun=copy,
        )

    # ------------------------------------------------------------------ while the job goes on

    def write_again(self) -> None:
        """Sends the command's seeds again, where the log has lost some: nothing to a job that is gone by now."""
        copy = self._decided.copy
        if copy.spec.state == "cancelled":
            return
        if self.wanted.source is not None:
            with suppress(InvalidState):
                self._seed(copy, self.wanted.source)
        if copy.spec.starts:
            self._forget_start()
