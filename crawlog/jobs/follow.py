"""`crawlog run` where a fleet is, and `submit --wait`: the fleet crawls, this command follows and writes FILE here.

has_fleet ─► Before ─► submit ─► FleetFollower: FleetView ─► frames ─► end ─► outputs ─► export_job ─► FILE ─► Summary
│ Ctrl-C: detached, the job goes on
└ Ctrl-C again: the job is cancelled ─► FILE.partial ─► Summary
"""

import contextlib
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from crawlog import outcome
from crawlog.jobs.live import Frame, View
from crawlog.jobs.pace import Pace
from crawlog.processes.hold import holder
from crawlog.schemas.job_orders import ENDED, PIPELINES_ALONE
from crawlog.streams import engine
from crawlog.streams.control import ended, remarks_of
from crawlog.streams.errors import EngineError, InvalidState
from crawlog.streams.jobs import Finish, is_final

from .detaching import Detach, Signals, is_again
from .job_outputs import JobOutputs
from .spider_lines import SpiderLines
from .summary import Summary

if TYPE_CHECKING:
    from crawlog.schemas.control import Finished, JobCopy
    from crawlog.streams.fleet import FleetState, FleetView, JobView, OutputView
    from crawlog.streams.settings import Settings

LOOK_S = 0.1
"""Between two looks at the job."""

RENEW_S = 1.0
"""Time between two looks whether the local engine was started again, seconds."""

SIGN_S = 3.0
"""How long to wait for a report of a fleet that seems to be gone, seconds: the broker's clock may differ from ours."""

AS_SCRAPED = (
    "{} will have the items as they were scraped: the job's pipelines run beside the fleet's sink worker."
    " `crawlog submit -o NAME` writes what they give"
)
"""What is said of FILE: the command makes it from the log, which has no rows of pipelines."""

END_NOTED_S = 10.0
"""How long the note of a job's end may come after its state, seconds."""

LETTERS_S = 60.0
"""How long crawl.dead may be read at the end, seconds."""


def has_fleet(settings: "Settings") -> bool:
    """Whether a `run` gives its job to workers that run already: those of `up` on this folder, or of a cluster.

    A command with workers of its own (`--workers`, `run.fetch_workers`) works by itself on a cluster.
    """
    from crawlog.streams.fleet import FleetView
    from crawlog.streams.log import has_topics

    if not settings.kafka.bootstrap:
        held = holder(settings.run.data)
        return held is not None and held.what == "up"
    if {"fetch_workers", "parse_workers"} & settings.run.model_fields_set:
        return False
    if not has_topics(settings):
        return False

    def is_told(view: FleetView) -> bool:
        return view.has_fleet() or not view.look(lambda state: state.had_fleet())

    return FleetView.read(settings, until=is_told, wait_s=SIGN_S).has_fleet()


class Before(NamedTuple):
    """The log before a job is submitted: this command counts what the job gains from then on.

    Attributes:
        dead: The next offset of crawl.dead.
        view: The jobs; None if the log has none.
    """

    dead: int = 0
    view: "FleetView | None" = None

    @classmethod
    def read(cls, settings: "Settings") -> "Before":
        """The log as it is now; it may have no topics yet."""
        from crawlog.streams.fleet import FleetView
        from crawlog.streams.log import Topics, has_topics, log_end

        if not has_topics(settings):
            return cls()
        return cls(log_end(settings, Topics(settings.kafka.prefix).dead), FleetView.read(settings))

    def job(self, name: str) -> "JobView | None":
        """A job as it was; None if there was none."""
        return self.view.job(name) if self.view is not None else None


def follow(
    settings: "Settings", job: "JobView", before: Before, shown: View, *, began: float, output: str | None = None
) -> Summary:
    """Follows a job of the fleet to its end, then writes its rows to `output`.

    Args:
        job: As it was submitted.
        before: The log before that.
        began: When the command began, UTC epoch seconds.
        output: As `-o` of `run`; None for no file.

    Raises: EngineError: the log does not answer, or an output of the job was not made. Misconfigured: the job failed.
    """
    signals = Signals()
    summary = Summary(job.name, output=output, epoch=job.epoch, resumed=0 < job.submitted_at < began)
    with signals.heard():
        following = None
        try:
            shown.say(f"job {job.name}, on the workers that run already")  # from here on Ctrl-C detaches
            if output is not None and _has_pipelines(job):
                shown.say(AS_SCRAPED.format(output))
            following = FleetFollower(settings, summary, before, shown)
            following.until_ended(signals.look)
            following.sum_stats()
            if output is not None and not summary.is_gone:
                shown.close()
                _write(following.settings, summary, output)
            following.outputs.check()
        except Detach as detach:
            shown.close()
            summary.signal, summary.counts = detach.number, job.counts
            _leave_off(following.settings if following is not None else settings, summary, signals, shown)
            if following is not None:
                following.count()
        finally:
            shown.close()
            summary.took_s = time.time() - began
            if following is not None:
                following.close()
    if output is not None and summary.reason == "cancelled":
        _write_partial(following.settings if following is not None else settings, summary, output)
    return summary


def _has_pipelines(job: "JobView") -> bool:
    """Whether the items of a job without outputs of its own pass pipelines."""
    return [one.name for one in job.outputs] == [PIPELINES_ALONE.name]


def _leave_off(settings: "Settings", summary: Summary, signals: Signals, shown: View) -> None:
    """Notes that a signal ends the command. The job goes on, unless it has ended or there is a second Ctrl-C."""
    if summary.reason != "interrupted":  # its end is told already
        is_unwritten = summary.output is not None and not summary.is_gone
        summary.reason = "interrupted" if is_unwritten else summary.reason
        return
    summary.reason = "detached"
    if summary.signal == signal.SIGINT and is_again(signals, shown):
        _cancel(settings, summary, shown)


def _cancel(settings: "Settings", summary: Summary, shown: View) -> None:
    """Cancels the job; one that has ended meanwhile stays as it is."""
    from .changes import cancel_job

    try:
        cancel_job(settings, summary.job)
    except InvalidState as error:
        shown.say(str(error))
    else:
        summary.signal, summary.reason = 0, "cancelled"


def _write(settings: "Settings", summary: Summary, output: str) -> None:
    """Writes FILE. That of a stopped job has the rows so far, as a `run` has them."""
    from crawlog.commands.export import export_job

    written = export_job(settings, summary.job, output)
    if written.is_complete:
        summary.rows = written.rows
    else:
        summary.partial = written.output


def _write_partial(settings: "Settings", summary: Summary, output: str) -> None:
    """Writes the rows of a cancelled job to FILE.partial, as a `run` leaves them; a signal ends that at once."""
    from crawlog.streams.sink import is_file

    if is_file(output):
        with contextlib.suppress(KeyboardInterrupt, SystemExit), outcome.stopped_by_signals():
            _write(settings, summary, output)


class FleetFollower:
    """A job of a fleet, as this command sees it.

    Attributes:
        settings: With the address and the password of the log; those of the local engine change with each start.
        outputs: Those of the job.
    """

    def __init__(self, settings: "Settings", summary: Summary, before: Before, shown: View) -> None:
        from crawlog.streams.control import DeadLetterReader, FleetReports, ProgressReader
        from crawlog.streams.fleet import FleetView
        from crawlog.streams.log import partition_count

        self._is_local = engine.is_at(settings.run.data, settings.kafka.bootstrap)
        self._renew_at = 0.0

        count = partition_count(settings)
        settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"partitions": count})})
        self.settings = settings
        self._summary = summary
        self._shown = shown
        self._pace = Pace()
        self._began = time.monotonic()
        self._ends = ProgressReader(settings, FleetReports())
        self._seeded = self._ends.ends("fetch")
        self._finish = Finish(summary.job, self._seeded, with_sink=False)
        self._is_left_open = False
        self.outputs = JobOutputs(summary.job, shown.say)
        self._letters = DeadLetterReader(settings, summary.job, before.dead)
        self._lines = SpiderLines(settings, summary.job, shown)
        self._view: FleetView = FleetView(settings).start()
        self._known = before.job(summary.job)
        summary.is_clean = not before.dead or self._known is None

    def _renew(self, now: float) -> None:
        """Goes on with the clients of a local engine that was stopped and started again."""
        if not self._is_local or now < self._renew_at:
            return
        self._renew_at = now + RENEW_S
        with contextlib.suppress(EngineError):  # it is being started
            settings = engine.again(self.settings, self.settings.run.data)
            if settings is not self.settings:
                self._reopen(settings)

    def _reopen(self, settings: "Settings") -> None:
        from crawlog.streams.control import FleetReports, ProgressReader
        from crawlog.streams.fleet import FleetView

        with contextlib.ExitStack() as opened:
            ends = opened.enter_context(contextlib.closing(ProgressReader(settings, FleetReports())))
            view = opened.enter_context(contextlib.closing(FleetView(settings))).start()
            opened.pop_all()
        for one in (self._view, self._ends):
            one.close()
        self.settings, self._ends, self._view = settings, ends, view
        self._letters.at(settings)

    def close(self) -> None:
        """Closes the consumers, after the last lines of the spider."""
        self._lines.finish(self.settings)
        for one in (self._view, self._letters, self._ends):
            one.close()

    def until_ended(self, heard: Callable[[], None]) -> None:
        """Shows the job until it has ended and its outputs are made; fills the summary.

        Args:
            heard: Called between two looks; may raise.
        """
        while not self._view.look(self._is_through):
            heard()
            time.sleep(LOOK_S)
            now = time.monotonic()
            self._renew(now)
            self._lines.poll(self.settings)
            self._view.look(self._count)
            self.outputs.tell_failed()
            self.outputs.tell_wait(now)
            if self._shown.is_due(now):
                self._show(now)
        self.outputs.tell_unmade()
        self._view.wait_until(lambda state: self._is_left_open or self._end(state) is not None, END_NOTED_S)
        self._view.look(self._sum_up)
        try:
            self._letters.catch_up(self._ends.dead_end(), LETTERS_S)
        finally:
            self._summary.tell_losses(self._letters.tally)

    def sum_stats(self) -> None:
        """Adds Scrapy's stats to the summary, those of its pages and those of its pipelines."""
        from .job_closing import stats_of

        self._summary.stats = stats_of(self.settings, self._view, self._summary.job)

    def _copy(self, state: "FleetState") -> "JobCopy | None":
        return state.copy(self._summary.job)

    def _end(self, state: "FleetState") -> "Finished | None":
        copy = self._copy(state)
        return None if copy is None else state.end(copy)

    def _is_through(self, state: "FleetState") -> bool:
        """Whether the job has ended, and its outputs are made: FILE comes, and pipelines are closed, after the end."""
        has_ended = self._has_ended(state)
        views = self._made_at_end(state) if has_ended else ()
        self.outputs.look(views, has_sink=bool(views) and self._view.has_fleet("sink"))
        if not has_ended and (job := state.job(self._summary.job)) is not None:
            self.outputs.hear(job.outputs)
        return has_ended and not self.outputs.are_awaited

    def _made_at_end(self, state: "FleetState") -> "tuple[OutputView, ...]":
        """The outputs of the job that has ended; none if its rows stay in FILE.partial."""
        job = state.job(self._summary.job)
        is_made = job is not None and not self._is_left_open and is_final(job.state, job.reason)
        return job.outputs if job is not None and is_made else ()

    def _has_ended(self, state: "FleetState") -> bool:
        """Whether the job has ended after its seeds were read; True if it is gone, or has begun again.

        At a limit the coordinator orders the state first: pages are in flight and to be parsed until the end is noted.
        """
        job, end = state.job(self._summary.job), self._end(state)
        if job is None:
            return True
        if self._has_begun_again(state):
            self._is_left_open = True  # the end of what was submitted does not come
            return True
        if end is None and self._is_open(state, job):
            self._is_left_open = self._is_finished(state, job)
            return self._is_left_open
        if job.state not in ENDED:
            return False
        if job.state != "finished":
            return end is not None or not is_final(job.state, job.reason)
        covers = end is not None and all(now >= then for now, then in zip(end.urls, self._seeded, strict=False))
        return covers or (state.picture.has_passed("fetch", self._seeded) and not job.counts.queued)

    def _has_begun_again(self, state: "FleetState") -> bool:
        """Whether another command has begun the job again: its rows are not those of what was submitted."""
        from crawlog.streams.log import has_begun_again

        return has_begun_again(state.said, self._summary.job, self._summary.epoch)

    def _is_open(self, state: "FleetState", job: "JobView") -> bool:
        """Whether commands hold all URLs that are left of a job without an end: they stop it, or block hosts."""
        copy = self._copy(state)
        if copy is None or copy.spec.state != "running":
            return False
        if state.commands.of_job(job.name).stopped:
            return not state.commands.reason(job.name)  # the coordinator ends a job that its spider closed
        is_blocked = any(one.action == "block" for one in state.commands.in_force)
        return is_blocked and bool(job.counts.held) and not job.counts.queued

    def _is_finished(self, state: "FleetState", job: "JobView") -> bool:
        """Whether nothing is left to do of an open job."""
        self._finish.is_starting = job.is_starting and job.state != "stopped"
        try:
            return self._finish.step(state.picture, self._ends.ends)
        except EngineError:  # the broker may be restarting
            return False

    def _count(self, state: "FleetState") -> None:
        if not state.picture.has_passed("fetch", self._seeded):
            return
        job = state.job(self._summary.job)
        if job is not None:
            self._pace.look(ended(job.counts), time.monotonic())

    def _show(self, now: float) -> None:
        lag = {}
        with contextlib.suppress(EngineError):
            lag = {one.stage: one.lag for one in self._view.stages()}
        if (frame := self._view.look(lambda state: self._frame(state, lag, now))) is not None:
            self._shown.show(frame)

    def _frame(self, state: "FleetState", lag: dict[str, int], now: float) -> Frame | None:
        """The job as it stands; None if it was deleted just now."""
        name, picture = self._summary.job, state.picture
        job, copy = state.job(name), self._copy(state)
        passed, count = picture.passed("fetch", self._seeded), len(self._seeded)
        naming, unanswered = picture.strangers()
        if job is None or copy is None:
            return None
        return Frame(
            job=name,
            took_s=now - self._began,
            counts=job.counts,
            rate=self._pace.rate(),
            lag=lag,
            hosts=picture.hosts(),
            paused="paused" if job.state == "paused" else picture.paused(name),
            reading=f"{passed} of {count} partitions so far" if passed < count else "",
            is_starting=job.is_starting,
            naming=naming,
            unanswered=unanswered,
            state=copy.spec.state,
            is_stalled=not lag,
        )

    def count(self) -> None:
        """Fills the counts of the summary, for a job whose end is not waited for."""
        self._view.look(self._sum_counts)

    def _sum_counts(self, state: "FleetState") -> "JobView | None":
        """Fills the counts; returns the job as it was before, if it has not begun again since."""
        job, end = state.job(self._summary.job), self._end(state)
        if job is None:
            return None
        self._summary.remarks = remarks_of(state.picture, job.name, job.epoch)
        self._summary.counts = counts = end.counts if end is not None and end.counts is not None else job.counts
        known = self._known if self._known is not None and self._known.epoch == job.epoch else None
        self._summary.pages = max(ended(counts) - (ended(known.counts) if known is not None else 0), 0)
        return known

    def _sum_up(self, state: "FleetState") -> None:
        """Fills the summary.

        Raises: Misconfigured: the job failed.
        """
        from crawlog.schemas.control import StartEnded

        summary, job = self._summary, state.job(self._summary.job)
        if job is None:
            summary.reason = "deleted"
            return
        if self._has_begun_again(state):
            summary.reason = "begun_again"
            return
        if self._is_left_open:
            summary.tell_open(state.commands, is_held=True)
        else:
            summary.tell_end(job.state, job.reason)
        known = self._sum_counts(state)
        if known is not None and known.state in ENDED and known.rev == job.rev and summary.reason != "stopped":
            summary.tell_known()
        note = state.said.get(f"start/{job.name}".encode())
        if isinstance(note, StartEnded) and note.epoch == job.epoch:
            summary.start_error, summary.start_items = note.error, note.items
