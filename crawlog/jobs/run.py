"""`crawlog run`: a fleet of its own for one job, in the foreground, that ends with the job.

    Supervisor: engine and workers ─┐
    JobInLog, Planting: the job ────┴─► JobFollower ─► the coordinator has noted the end
                                          ▲                   │
                                          └─ restored ◄─ LossCheck ─► RunOutputs: FILE ─► Summary

The steps overlap so that the first fetch comes soon: workers load while the engine starts, and join their groups while
the job and its seeds are written. After any kill the same command goes on: the crawl's state is in the log.
"""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from crawlog.processes.starts import Starts
from crawlog.processes.supervisor import Stop, Supervisor, names
from crawlog.schemas.items import named_stats
from crawlog.schemas.progress import JobCounts
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import Finish
from crawlog.streams.settings import find_browser, wants_browser

from .follow import END_LOOK_S, LETTERS_S, LOOK_S, Before, JobFollower
from .job_in_log import JobInLog
from .live import View
from .loss_check import LossCheck
from .planting import Planting
from .run_outputs import RunOutputs
from .run_request import RunRequest, refused
from .summary import Summary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from crawlog.schemas.control import Finished
    from crawlog.streams.fleet import OutputView, ProgressReader
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.settings import Settings

HURRY_S = 1.5  # How long an interrupted run may ask for the group's members, or read crawl.dead: Ctrl-C ends within 5 s

MOST_VAIN_CHECKS = 3  # Checks of the log in which the broker gave no answer, after which a run ends


def run(settings: "Settings", request: RunRequest, shown: View) -> Summary:
    """Crawls until the job is finished, or a signal ends the run.

    Raises: EngineError, Misconfigured: the run cannot go on.
    """
    if wants_browser(settings):
        find_browser(settings)  # reports a missing browser before anything is started
    request.read_seeds(settings, shown.say)
    summary = Summary(request.name(), request.example(), output=", ".join(request.outputs) or None)
    started = time.monotonic()
    shown.say(f"job {summary.job}")
    for line in request.notes:
        shown.say(line)
    for line in refused(request.seeds, allow_private=settings.network.allow_private):
        shown.say(line)
    try:
        own = for_job(settings, summary.job)
        with Supervisor(own, "run", names(own, with_sink=request.may_need_sink), shown.say) as supervisor:
            _crawl(request, summary, supervisor, shown, started)
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


def _crawl(request: RunRequest, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
    """Crawls until the job is finished or a signal comes; fills the summary."""
    fleet = None
    try:
        supervisor.launch()
        supervisor.connect(accepts_skipped=request.accepts_skipped)
        fleet = PrivateFleet(request, summary, supervisor, shown)
        fleet.until_finished()
    except Stop as stop:
        summary.signal = stop.number
    finally:
        shown.close()
        summary.took_s = time.monotonic() - started
    if fleet is not None:
        fleet.sum_up()


class PrivateFleet:
    """The workers of one run, and its job."""

    def __init__(self, request: RunRequest, summary: Summary, supervisor: Supervisor, shown: View) -> None:
        self.summary = summary
        self.supervisor = supervisor
        self.job = JobInLog(request, summary.job, supervisor, shown.say)
        self.outputs: RunOutputs | None = None
        self._request = request
        self._shown = shown
        self._planting = Planting(self.job, supervisor, shown.say)
        self._trouble = Trouble(supervisor.picture, shown.say)
        self._losses = LossCheck(supervisor, shown.say)
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
        if self._planting.again() and self._following is not None:
            self._following.seeded_again()
        self._trouble.tell()
        self._trouble.tell_needs(self.supervisor.picture.counts(self.job.name).needs)

    def until_finished(self) -> None:
        """Seeds the job, follows it to the end, and makes its files."""
        self.job.allow_spider()
        self._recall()
        if self._has_nothing_to_do():
            self._end_at_once()
            return
        self.job.check_spider()
        self.job.check_outputs()
        before = self._before()
        self.supervisor.go(("fetch", "parse"))
        self._planting.plant()
        if self.outputs:
            self.outputs.start()
        self._starts = Starts(self.supervisor, self._shown.say, job=self.job.name)
        self._following = JobFollower(self, self.summary, before, self._shown, is_own=True)
        self.supervisor.when_stopped = self._following.close
        self._follow(self._following)

    def _before(self) -> Before:
        """The log now; of a new job nothing is to be known but the end of crawl.dead."""
        assert self.supervisor.watch is not None
        if self.job.is_known:
            return Before.read(self.settings, self.job.name)
        return Before(self.supervisor.watch.dead_end())

    def _recall(self) -> None:
        """Reads the job from the log, and prepares its files."""
        job = self.job
        job.recall()
        self._losses = LossCheck(self.supervisor, self._shown.say, job.was_back)
        self.summary.resumed = job.is_known
        self.summary.epoch = job.copy.epoch if job.copy else 0
        pipelines = self._request.pipelines or (job.copy is not None and job.copy.spec.pipelines)
        if self._request.outputs or pipelines:
            given = self._request.outputs
            self.outputs = RunOutputs(self.supervisor, job.name, given, job.since, job.voids, pipelines=pipelines)

    # ------------------------------------------------------------------ a job that has ended before

    def _has_nothing_to_do(self) -> bool:
        """Whether the job is finished, its pages are parsed and its files unchanged; or cancelled, without a file."""
        job, watch = self.job, self.supervisor.watch
        assert watch is not None
        if job.is_cancelled and self.outputs is None:
            return True
        may_have_more_seeds = self._request.job and not job.is_cancelled
        if self.supervisor.is_unchecked or job.end is None or may_have_more_seeds:
            return False
        if watch.lag("parse"):
            return False
        return self.outputs is None or self.outputs.are_complete(watch.ends("sink"))

    def _end_at_once(self) -> None:
        """Fills the summary of a job that has ended from the log."""
        assert self.job.copy is not None
        self.summary.tell_end(self.job.copy.spec.state, self.job.copy.spec.reason)
        if self.summary.reason != "stopped":
            self.summary.tell_known()
        self.summary.counts = self.job.end.counts if self.job.end else None  # no fold is open to report them
        self.summary.rows = self.outputs.rows() if self.outputs and self._request.outputs else None
        self.job.note_new_spider()

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
                finish = finish or Finish(self.job.name, self.supervisor.ends("fetch"), with_sink=False)
                if finish.step(self.supervisor.picture, self.supervisor.ends):
                    break
            following.look(LOOK_S)
        following.seeded_again()

    def _holds(self, end: "Finished | None") -> bool:
        """As `LossCheck.holds`; False too if the broker died meanwhile: following the job starts it again."""
        try:
            holds = self._losses.holds(end, self.summary.counts or JobCounts())
        except EngineError as error:
            self._vain_checks += 1
            if self._vain_checks == MOST_VAIN_CHECKS:
                raise
            self._shown.say(str(error).splitlines()[0])
            return False
        self.summary.missing = self._losses.missing + self._planting.lost()
        return holds

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
            self.summary.rows = outputs.rows(end) if self._request.outputs else None
        return True

    def _wait(self, following: JobFollower, is_over: "Callable[[], bool]") -> None:
        while not is_over():
            following.look(END_LOOK_S)

    def _note_end(self, following: JobFollower) -> None:
        """Notes what this run alone knows of the end. A job that is left open has not ended."""
        summary, job, end = self.summary, self.job, following.end
        if job.end is not None and not summary.pages:
            job.note_new_spider()
        elif end is not None and not summary.missing and summary.reason != "stopped":
            job.amend_end(end, summary.dead)

    def _sum_stats(self, end: "Finished | None") -> None:
        """Adds Scrapy's stats to the summary, as Scrapy dumps them at the end."""
        if not self._request.dumps_stats:
            return
        from crawlog.streams.sink import summed

        from .job_closing import job_stats

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
                with suppress(EngineError):
                    following.count_letters(HURRY_S)
            following.stop()
        partial = self.outputs.partial() if self.outputs else None
        if partial is not None and (summary.is_unfinished or (summary.signal and summary.rows is None)):
            summary.partial = partial


class Trouble:
    """Reports why no row is written (FILE may be on another disk than the log), and why a state begins again."""

    def __init__(self, picture: "FleetReports", say: "Callable[[str], None]") -> None:
        self._picture = picture
        self._say = say
        self._last = ""
        self._notes: set[str] = set()
        self._needs: set[str] = set()

    def tell(self) -> None:
        """Reports changes since the last call."""
        trouble = self._picture.trouble("sink")
        if trouble != self._last:
            self._say(f"{trouble}; rows wait, and go on by themselves" if trouble else "rows are written again")
            self._last = trouble
        for note in sorted(self._picture.notes() - self._notes):
            self._say(note)
            self._notes.add(note)

    def tell_needs(self, needs: "Mapping[str, int]") -> None:
        """Reports settings of workers that the job's URLs wait for: this command's workers lack them, too."""
        for setting in sorted(needs.keys() - self._needs):
            self._needs.add(setting)
            self._say(f"URLs wait for a worker with {setting}: end this command, and give it -s {setting}")
