"""`crawlog run`: a fleet of its own for one job, in the foreground, that ends with the job.

    Supervisor: engine and workers ──┐
    JobWriter: its record, its seeds ┴► JobFollower ─► the coordinator has noted the end
                                          ▲                   │
                                          └─ restored ◄─ LossCheck ─► RunOutputs: FILE ─► Summary

The steps overlap so that the first fetch comes soon: workers load while the engine starts, and join their groups while
the job and its seeds are written. After any kill the same command goes on: the crawl's state is in the log.
"""

import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from crawlog.commands.control import whoever
from crawlog.processes.starts import Starts
from crawlog.processes.supervisor import Stop, Supervisor, names
from crawlog.schemas.items import named_stats
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import EndSteps
from crawlog.streams.printable import without_secrets
from crawlog.streams.settings import Settings, find_browser, wants_browser
from crawlog.streams.sink import summed

from .follow import END_LOOK_S, LETTERS_S, LOOK_S, Before, JobFollower
from .job_closing import job_stats
from .live import View
from .record import Wanted
from .request import JobRequest, LocalParts, refused
from .run_checks import LossCheck, Trouble, allow_spider, amend_end, check_outputs, check_spider, note_new_spider
from .run_hooks import call_hooks
from .run_outputs import RunOutputs
from .submit import wanted_of
from .summary import Summary
from .writer import JobWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crawlog.schemas.control import Finished, JobCopy
    from crawlog.streams.fleet import OutputView, ProgressReader

Value = TypeVar("Value")

HURRY_S = 1.5  # How long an interrupted run may ask for the group's members, or read crawl.dead: Ctrl-C ends within 5 s

MOST_VAIN_CHECKS = 3  # Checks of the log in which the broker gave no answer, after which a run ends

STALLED_S = 30.0  # How long a broker that has just started, or stands still, may give no answer


def run(
    settings: "Settings", request: JobRequest, parts: LocalParts, shown: View, *, accepts_skipped: bool = False
) -> Summary:
    """Crawls until the job is finished, or a signal ends the run.

    Args:
        accepts_skipped: Whether records stay unread that another program had a group skip.

    Raises: EngineError, Misconfigured: the run cannot go on.
    """
    if wants_browser(settings) or (parts.facts is not None and parts.facts.renders):
        find_browser(settings)  # reports a missing browser before anything is started
    with ExitStack() as opened:
        wanted = wanted_of(settings, request, parts, shown.say, opened, by=whoever(), may_change=True)
        summary = Summary(wanted.name, wanted.example, output=", ".join(map(without_secrets, request.outputs)) or None)
        started = time.monotonic()
        shown.say(f"job {summary.job}")
        for line in parts.facts.notes if parts.facts is not None else ():
            shown.say(line)
        for line in refused(wanted.urls, allow_private=settings.network.allow_private):
            shown.say(line)
        try:
            own = for_job(settings, summary.job)
            may_need_sink = bool(request.outputs or wanted.feeds) or wanted.spider.pipelines or parts.facts is None
            with Supervisor(own, "run", names(own, with_sink=may_need_sink), shown.say) as supervisor:
                supervisor.launch()
                dumps_stats = parts.facts is not None and parts.facts.dumps_stats
                fleet = PrivateFleet(wanted, summary, supervisor, shown, dumps_stats=dumps_stats)
                _crawl(fleet, shown, started, accepts_skipped=accepts_skipped)
        except Stop as stop:
            summary.signal = stop.number
    return summary


def for_job(settings: "Settings", job: str) -> "Settings":
    """The settings of a run's workers: they fetch only for its job, but on a cluster for all jobs.

    Runs on one cluster share the partitions, so a URL of one job may be in a partition of another run's worker.
    """
    if settings.kafka.bootstrap:
        return settings
    return settings.model_copy(update={"run": settings.run.model_copy(update={"job": job})})


def _crawl(fleet: "PrivateFleet", shown: View, started: float, *, accepts_skipped: bool) -> None:
    """Crawls until the job is finished or a signal comes; fills the summary."""
    is_connected = False
    try:
        fleet.supervisor.connect(accepts_skipped=accepts_skipped)
        is_connected = True
        fleet.until_finished()
    except Stop as stop:
        fleet.summary.signal = stop.number
    finally:
        shown.close()
        fleet.summary.took_s = time.monotonic() - started
    if is_connected:
        fleet.sum_up()


class PrivateFleet:
    """The workers of one run, and its job."""

    def __init__(
        self, wanted: Wanted, summary: Summary, supervisor: Supervisor, shown: View, *, dumps_stats: bool = False
    ) -> None:
        self.summary = summary
        self.supervisor = supervisor
        self.job = JobWriter(supervisor, wanted, shown.say, self._folds)
        self.outputs: RunOutputs | None = None
        self._wanted = wanted
        self._dumps_stats = dumps_stats
        self._shown = shown
        self._trouble = Trouble(supervisor.picture, shown.say)
        self._losses = LossCheck(supervisor, shown.say)
        self._lost_founds = 0
        self._starts: Starts | None = None
        self._following: JobFollower | None = None
        self._vain_checks = 0

    @property
    def settings(self) -> "Settings":
        """With the address of the log now."""
        return self.supervisor.settings

    @property
    def watch(self) -> "ProgressReader | None":
        """That of the supervisor, which polls it."""
        return self.supervisor.watch

    def look(self, wait_s: float) -> None:
        """Keeps engine, workers and `start` alive.

        Raises: Stop: a signal came. EngineError: they cannot go on.
        """
        self.supervisor.look(wait_s)
        if self._starts is not None:
            self._starts.look()
        self._seed_again()
        self._trouble.tell()
        self._trouble.tell_needs(self.supervisor.picture.counts(self.job.name).needs)

    def _folds(self, wait_s: float) -> "Iterable[Progress]":
        """The progress of the folds, while seeds are sent."""
        self.supervisor.look(wait_s)
        return self.supervisor.picture.of("fetch")

    def _seed_again(self) -> None:
        """Sends this command's seeds again if the log may have lost some since the last look."""
        if self._following is None or self._lost_founds == len(self.supervisor.lost_founds):
            return
        self._lost_founds = len(self.supervisor.lost_founds)
        self.job.write_again()
        self._following.seeded_again()

    def until_finished(self) -> None:
        """Seeds the job, follows it to the end, and makes its files."""
        allow_spider(self.settings, self._wanted.spider.path)
        copy = self._until_answered(self._recall)
        if self._until_answered(lambda: self._has_nothing_to_do(copy)):
            self._end_at_once(copy)
            self._until_answered(self._call_hooks)
            return
        check_spider(self.supervisor, copy)
        check_outputs(self.supervisor, copy, self.job.end)
        before = self._until_answered(self._before)
        self.supervisor.go(("fetch", "parse"))
        following = self._until_answered(lambda: JobFollower(self, self.summary, before, self._shown, is_own=True))
        self.supervisor.when_stopped(following.close)
        self._following = following  # before the first page, so that the summary has all, however soon Ctrl-C comes
        self._lost_founds = len(self.supervisor.lost_founds)
        self._until_answered(self.job.write, self._write_again)
        self._until_answered(following.seeded_again)
        if self.outputs:
            self.outputs.start()
        self._starts = Starts(self.supervisor, self._shown.say, job=self.job.name)
        self._until_answered(lambda: self._follow(following), stalled_s=0.0)
        self._until_answered(self._call_hooks)

    def _call_hooks(self) -> None:
        targets, say = self._wanted.request.on_finish, self._shown.say
        call_hooks(self.settings, self.supervisor.producer, self.job.name, targets, say)

    def _until_answered(
        self, step: "Callable[[], Value]", again: "Callable[[], Value] | None" = None, stalled_s: float = STALLED_S
    ) -> "Value":
        """Runs a step and returns its value. If this run's broker died meanwhile, restarts it and repeats the step.

        Args:
            again: Is called instead from the second time on.
            stalled_s: How long a broker that has not died may give no answer.

        Raises: EngineError: the broker gives no answer, or is another's.
        """
        until = time.monotonic() + stalled_s
        while True:
            engine = self.supervisor.engine
            try:
                return step()
            except EngineError:
                if engine is None:
                    raise
                if engine is not self.supervisor.engine or not engine.alive():
                    until = time.monotonic() + STALLED_S  # started again, it needs a while until all leaders answer
                elif time.monotonic() >= until:
                    raise
            self.supervisor.look(LOOK_S)  # starts a broker that died again
            step = again or step

    def _before(self) -> Before:
        """The log now; of a new job nothing is to be known but the end of crawl.dead."""
        assert self.supervisor.watch is not None
        if self.job.is_known:
            return Before.read(self.settings, self.job.name)
        return Before(self.supervisor.watch.dead_end())

    def _write_again(self) -> "JobCopy":
        """Writes what this command is to write, as the same command would that is given again."""
        self.job.recall(has_lost_founds=self.supervisor.has_lost_founds)
        return self.job.write()

    def _recall(self) -> "JobCopy":
        """Reads the job from the log, and prepares its files; returns its record as this command will have it."""
        job = self.job
        copy = job.recall(has_lost_founds=self.supervisor.has_lost_founds).copy
        given = self._wanted.outputs(copy.spec.at)
        self.summary.output = ", ".join(map(without_secrets, given)) or None
        self.summary.resumed, self.summary.epoch = job.is_known, copy.epoch
        pipelines = self._wanted.spider.pipelines or copy.spec.pipelines
        if given or pipelines:
            self.outputs = RunOutputs(self.supervisor, job.name, given, job.since, job.voids, pipelines=pipelines)
        return copy

    # ------------------------------------------------------------------ a job that has ended before

    def _has_nothing_to_do(self, copy: "JobCopy") -> bool:
        """Whether the job is finished, its pages are parsed and its files unchanged; or cancelled, without a file."""
        is_cancelled, watch = copy.spec.state == "cancelled", self.supervisor.watch
        assert watch is not None
        if is_cancelled and self.outputs is None:
            return True
        may_have_more_seeds = self._wanted.request.job and not is_cancelled
        if self.supervisor.is_unchecked or self.job.end is None or may_have_more_seeds:
            return False
        if watch.lag("parse"):
            return False
        return self.outputs is None or self.outputs.are_complete(watch.ends("sink"))

    def _end_at_once(self, copy: "JobCopy") -> None:
        """Fills the summary of a job that has ended from the log."""
        self.summary.tell_end(copy.spec.state, copy.spec.reason)
        if self.summary.reason != "stopped":
            self.summary.tell_known()
        self.summary.counts = self.job.end.counts if self.job.end else None  # no fold is open to report them
        self.summary.rows = self.outputs.rows() if self.outputs and self.summary.output else None
        note_new_spider(self.supervisor, self.job.end, self._wanted.digest)

    # ------------------------------------------------------------------ the end

    def _follow(self, following: JobFollower) -> None:
        """1 the job ends → 2 the log has lost nothing → 3 all rows are read → 4 its files are made; else again."""
        if self.job.end is not None:
            self._settle(following)
        while True:
            following.until_ended()
            if self.summary.reason in ("deleted", "begun_again"):
                return
            if not self._holds(following.end):
                self._settle(following)
            elif self._makes_files(following):
                break
        self._sum_stats(following.end)
        following.count_letters(LETTERS_S)
        self._note_end(following)

    def _settle(self, following: JobFollower) -> None:
        """Waits until all that is in the log is fetched, parsed and folded, however the job has ended before."""
        finish = None
        while True:
            with suppress(EngineError):  # the broker may be restarting
                finish = finish or EndSteps(self.job.name, self.supervisor.ends("fetch"))
                if finish.step(self.supervisor.picture, self.supervisor.ends):
                    break
            following.look(LOOK_S)
        following.seeded_again()

    def _holds(self, end: "Finished | None") -> bool:
        """As `LossCheck.holds`; False too if the broker died meanwhile: following the job starts it again."""
        try:
            holds = self._losses.holds(end, self.summary.counts or JobCounts(), self.job.was_back)
        except EngineError as error:
            self._vain_checks += 1
            if self._vain_checks == MOST_VAIN_CHECKS:
                raise
            self._shown.say(str(error).splitlines()[0])
            return False
        self.summary.missing = self._losses.missing + self._lost_seeds()
        return holds

    def _lost_seeds(self) -> tuple[str, ...]:
        """Lines about seeds that may be lost if this command has none: it cannot send those of `crawlog seed` again."""
        if self._wanted.has_requests or (self.job.plan is not None and self.job.plan.copy.spec.starts):
            return ()
        then = "seeds that `crawlog seed` gave may be among what is gone: give them again, it does no harm"
        return tuple(f"{one}; {then}" for one in self.supervisor.lost_founds)

    def _makes_files(self, following: JobFollower) -> bool:
        """Makes the files, or leaves the rows in their partial files; False if the job goes on meanwhile."""
        outputs, end = self.outputs, following.end
        if outputs is None:
            return True
        if self._losses.was_damaged:
            outputs.read_again()
        ends = self.supervisor.ends("sink")
        self._wait(following, lambda: outputs.has_rows(ends))
        if end is None or self.summary.missing:
            return True
        outputs.release(end)
        self._shown.close()  # rows may go to the same terminal

        def views() -> "list[OutputView]":
            if outputs.lacks_more() and not outputs.missing:
                self._settle(following)
                ends = self.supervisor.ends("sink")
                self._wait(following, lambda: outputs.has_rows(ends))
                outputs.made_again()
            return [] if outputs.missing else list(outputs.views(end))

        if not following.until_made(views):
            return False
        self.summary.missing += outputs.missing
        if not self.summary.is_unfinished:
            self.summary.rows = outputs.rows(end) if self.summary.output else None
        return True

    def _wait(self, following: JobFollower, is_over: "Callable[[], bool]") -> None:
        while not is_over():
            following.look(END_LOOK_S)

    def _note_end(self, following: JobFollower) -> None:
        """Notes what this run alone knows of the end. A job that is left open has not ended."""
        summary, job, end = self.summary, self.job, following.end
        if job.end is not None and not summary.pages:
            note_new_spider(self.supervisor, job.end, self._wanted.digest)
        elif end is not None and not summary.missing and summary.reason != "stopped":
            amend_end(self.supervisor, end, dead=summary.dead, spider=self._wanted.digest)

    def _sum_stats(self, end: "Finished | None") -> None:
        """Adds Scrapy's stats to the summary, as Scrapy dumps them at the end."""
        if not self._dumps_stats:
            return
        stats = job_stats(self.settings, self.job.name, self.job.since)
        for view in self.outputs.views(end) if self.outputs and end else ():
            stats = summed(stats, view.stats)
        self.summary.stats = named_stats(stats)

    def sum_up(self) -> None:
        """Fills the summary with what is known by now, however the run ended."""
        summary, following = self.summary, self._following
        summary.parsed = self.supervisor.picture.parsed(summary.job)
        is_interrupted = summary.reason == "interrupted"
        if is_interrupted and not self.supervisor.engine:
            assert self.supervisor.watch is not None
            with suppress(EngineError):
                summary.has_others = self.supervisor.watch.has_others(self.supervisor.names, HURRY_S)
        if following is not None:
            if is_interrupted:
                following.count()
                try:
                    following.count_letters(HURRY_S)
                except EngineError as error:
                    self._shown.say(f"not all records that could not be handled are counted: {error}")
            following.stop()
        partial = self.outputs.partial() if self.outputs else None
        if partial is not None and (summary.is_unfinished or (summary.signal and summary.rows is None)):
            summary.partial = partial
