"""`crawlog run`: seeds a job, keeps engine and workers alive until it is finished, and returns how it ended.

The steps overlap so that the first fetch comes soon: workers load while the engine starts, and join their groups while
the job and its seeds are written. After any kill the same command goes on: the crawl's state is in the log.
"""

import time
from contextlib import closing, suppress
from math import inf
from typing import TYPE_CHECKING

import msgspec

from crawlog.jobs.live import Frame, View
from crawlog.processes.supervisor import Stop, Supervisor, names
from crawlog.schemas.items import named_stats
from crawlog.streams.control import remarks_of
from crawlog.streams.errors import AccessDenied, EngineError
from crawlog.streams.jobs import Finish, is_begun
from crawlog.streams.settings import find_browser, wants_browser

from .gains import Gains
from .job_in_log import JobInLog
from .job_tail import JobTail
from .order import Order, refused
from .planting import Planting
from .result_file import ResultFile
from .spider_lines import SpiderLines
from .summary import Summary
from .trouble import Trouble
from .whole import Whole

if TYPE_CHECKING:
    from crawlog.schemas.control import Finished
    from crawlog.schemas.progress import JobCounts
    from crawlog.streams.control import ProgressReader
    from crawlog.streams.settings import Settings

LOOK_S = 0.1
"""Between two looks at workers and engine."""

END_LOOK_S = 0.02
"""The same while only the end of the job is waited for: it takes the coordinator some 0.1 s."""

NOTICE_AFTER_S = 10.0
"""After this time the user is told why the run has not ended, seconds."""

HURRY_S = 1.5
"""How long an interrupted run may ask for the group's members, or read crawl.dead: Ctrl-C ends within 5 s."""

DENIED_S = 30.0
"""How long the cluster may deny access to this command. Its workers give up sooner, and name the denied resource."""

MOST_VAIN_CHECKS = 3
"""Checks of the log in which the broker gave no answer, after which a run ends."""

CATCH_UP_S = 60.0
"""How long a run that ends by itself may read crawl.dead."""


def run(settings: "Settings", order: Order, shown: View) -> Summary:
    """Crawls until the job is finished, or a signal ends the run.

    Raises: EngineError, Misconfigured: the run cannot go on.
    """
    if wants_browser(settings):
        find_browser(settings)  # reports a missing browser before anything is started
    order.read_seeds(settings, shown.say)
    summary = Summary(order.name(), order.example(), output=order.output)
    started = time.monotonic()
    shown.say(f"job {summary.job}")
    for line in order.notes:
        shown.say(line)
    for line in refused(order.seeds, allow_private=settings.network.allow_private):
        shown.say(line)
    try:
        own = for_job(settings, summary.job)
        with Supervisor(own, "run", names(own, with_sink=order.may_need_sink), shown.say) as supervisor:
            _crawl(order, summary, supervisor, shown, started)
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


def _crawl(order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
    """Crawls until the job is finished or a signal comes; fills the summary."""
    crawl = None
    try:
        supervisor.launch()
        supervisor.connect(accepts_skipped=order.accepts_skipped)
        crawl = Run(order, summary, supervisor, shown, started)
        crawl.until_finished()
    except Stop as stop:
        summary.signal = stop.number
    finally:
        shown.close()
        summary.took_s = time.monotonic() - started
    if crawl is not None:
        crawl.planting.close()
        crawl.sum_up()


class JobGone(Exception):
    """Another command has deleted the job of a run, or begun it again: the reason of the summary."""


class Run:
    """One run of a job."""

    def __init__(self, order: Order, summary: Summary, supervisor: Supervisor, shown: View, started: float) -> None:
        self.summary = summary
        self.supervisor = supervisor
        self.job = JobInLog(order, summary.job, supervisor, shown.say)
        self.planting = Planting(self.job, supervisor, shown.say)
        self.trouble = Trouble(supervisor.picture, shown.say)
        self.whole = Whole(supervisor, summary.job, shown.say)
        self.file: ResultFile | None = None
        self.gains: Gains | None = None
        self._shown = shown
        self._started = started
        self._seeded: tuple[int, ...] = ()
        self._rest_s = 0.0
        self._denied_at: float | None = None
        self._vain_checks = 0
        self._said = ""
        self._stats: dict[str, float] = {}
        self._amended: Finished | None = None
        self._lines: SpiderLines | None = None

    @property
    def watch(self) -> "ProgressReader":
        """The supervisor's watch; another object after the broker's restart."""
        assert self.supervisor.watch is not None
        return self.supervisor.watch

    def until_finished(self) -> None:
        """Seeds the job, follows it to the end, records the end, makes the file."""
        self.job.allow_spider()
        self._recall()
        if self._has_nothing_to_do():
            self._end_at_once()
            return
        self.job.check_spider()
        self.job.check_outputs()
        self.gains = Gains(self.job, self.supervisor)
        self.summary.is_clean = self.gains.is_clean
        self._show_spider()
        self.supervisor.go(("fetch", "parse"))
        self._plant()
        if self.file:
            self.file.go()
        self._seeded = self.watch.ends("fetch")
        try:
            with closing(JobTail(self.supervisor, self.job.name)) as tail:
                self._end(tail, self.gains)
        except JobGone as gone:
            self.summary.reason = str(gone)

    def _show_spider(self) -> None:
        """Begins to show what the job's spider prints; the workers send its last lines when they stop."""
        if self.job.order.spider or (self.job.copy is not None and self.job.copy.spec.spider):
            self._lines = lines = SpiderLines(self.supervisor.settings, self.job.name, self._shown)
            self.supervisor.when_stopped = lambda: lines.finish(self.supervisor.settings)

    def _end(self, tail: JobTail, gains: Gains) -> None:
        """Follows the job to its end. Raises: JobGone: no report names it as it was, and no such end is recorded."""
        finish = self._follow(tail, gains, self._seeded)
        while not self._holds(finish):
            finish = self._follow(tail, gains, finish.seeded)
        self.summary.counts = finish.counts
        self.summary.missing = self.whole.missing + self.planting.lost() + (self.file.missing if self.file else ())
        self._count_losses(gains, CATCH_UP_S)
        self._await_end(tail)
        self._record(tail, gains)
        self._sum_stats()
        self._write_file(finish)
        self._count_late_losses(gains)

    def _recall(self) -> None:
        """Reads the job from the log, and prepares its result file."""
        from crawlog.streams.sink import NOWHERE, sink_of

        job, order, settings = self.job, self.job.order, self.supervisor.settings
        job.recall()
        self.whole = Whole(self.supervisor, job.name, self._shown.say, job.was_back)
        self.summary.resumed = job.is_known
        self.summary.epoch = job.copy.epoch if job.copy else 0
        pipelines = order.pipelines or (job.copy is not None and job.copy.spec.pipelines)
        if order.output or pipelines:
            formulas = settings.results.csv_formulas
            sink = sink_of(job.name, order.output or NOWHERE, job.since, job.voids, formulas=formulas)
            sink = msgspec.structs.replace(sink, pipelines=pipelines)
            self.supervisor.picture.sink = sink.id
            self.file = ResultFile(sink, self.supervisor, self.trouble, self._shown.say)

    def _has_nothing_to_do(self) -> bool:
        """Whether the job is finished, its pages are parsed and its file is unchanged; or cancelled, without a file."""
        if self.job.is_cancelled and self.file is None:
            return True
        if self.supervisor.is_unchecked:
            return False
        may_have_more_seeds = self.job.order.job and not self.job.is_cancelled
        if self.job.end is None or may_have_more_seeds or (self.job.end.reason == "finished" and self.job.starts):
            return False
        if self.watch.lag("parse") or (self.file and self.watch.lag("sink", self.file.sink.id)):
            return False
        ends = self.watch.ends("sink")
        return self.file is None or self.file.is_complete(ends)

    def _end_at_once(self) -> None:
        """Fills the summary of a job that has ended from the log."""
        assert self.job.copy is not None
        self.summary.tell_end(self.job.copy.spec.state, self.job.copy.spec.reason)
        if self.summary.reason != "stopped":
            self.summary.tell_known()
        self.summary.counts = self.job.end.counts if self.job.end else None  # no fold is open to report them
        self.summary.rows = self.file.rows() if self.file and self.summary.output else None
        self.job.note_new_spider()

    def _plant(self) -> None:
        """Writes the job and its seeds, and notes the job's delay per host."""
        from crawlog.streams.http import policy_of
        from crawlog.streams.log import limits_of, own_manner

        copy = self.planting.plant()
        settings = self.supervisor.settings
        rules = policy_of(copy.spec, own_manner(settings), limits_of(settings)).rules
        self._rest_s = rules.delay_s / rules.per_host

    def _follow(self, tail: JobTail, gains: Gains, seeded: tuple[int, ...]) -> Finish:
        """Shows progress until nothing is left of the job, neither in the workers nor in this run's file.

        Raises: JobGone.
        """
        finish = self._finish(seeded)
        while not self._is_finished(finish):
            self.supervisor.look(LOOK_S)
            self._hear(tail)
            if self.planting.look():
                finish = self._finish(self.watch.ends("fetch"))
            gains.look(has_read_seeds=self.supervisor.picture.has_passed("fetch", self._seeded))
            self.trouble.tell()
            if self._shown.is_due(time.monotonic()):
                self._show(tail, gains)
        return finish

    def _finish(self, seeded: tuple[int, ...]) -> Finish:
        return Finish(self.summary.job, seeded, self.file is not None, self.planting.is_starting)

    def _is_finished(self, finish: Finish) -> bool:
        try:
            is_finished = finish.step(self.supervisor.picture, self.watch.ends)
        except EngineError as error:  # the broker may be restarting: a later look succeeds, or raises its own error
            now = time.monotonic()
            self._denied_at = (self._denied_at or now) if isinstance(error, AccessDenied) else None
            if self._denied_at is not None and now - self._denied_at > DENIED_S:
                raise
            self._say_changed(str(error).splitlines()[0])
            return False
        self._denied_at, self._said = None, ""
        return is_finished

    def _holds(self, finish: Finish) -> bool:
        """As `Whole.holds`; False too if the broker died meanwhile: while the job is followed, it is started again."""
        try:
            return self.whole.holds(finish) and (self.file is None or self.file.has_all_rows())
        except EngineError as error:
            self._vain_checks += 1
            if self._vain_checks == MOST_VAIN_CHECKS:
                raise
            self._say_changed(str(error).splitlines()[0])
            return False

    def _say_changed(self, line: str) -> None:
        """Prints an error, unless it is the one printed last."""
        if line != self._said:
            self._shown.say(line)
        self._said = line

    def _show(self, tail: JobTail, gains: Gains) -> None:
        picture, now = self.supervisor.picture, time.monotonic()
        ends = None
        with suppress(EngineError):
            ends = None if self._said else self.watch.all_ends()  # it would wait as long as the look before
        stages = ("fetch", "parse", "sink") if self.file else ("fetch", "parse")
        naming, unanswered = picture.strangers()
        count, passed = len(self._seeded), picture.passed("fetch", self._seeded)
        counts, hosts = picture.counts(self.summary.job), picture.hosts()
        self.trouble.tell_needs(counts.needs)
        longest = max((queued for _, queued, _ in hosts), default=0)
        self._shown.show(
            Frame(
                job=self.summary.job,
                took_s=now - self._started,
                counts=counts,
                rate=gains.pace.rate(),
                lag={stage: picture.lag(stage, ends[stage]) for stage in stages} if ends else {},
                hosts=hosts,
                paused=picture.paused(self.summary.job),
                dead=gains.tally.count,
                reading=f"{passed} of {count} partitions so far" if passed < count else "",
                left_s=gains.pace.left_s(counts, longest, now, self._rest_s),
                commonest=gains.tally.commonest,
                is_starting=self.planting.is_starting,
                naming=naming,
                unanswered=unanswered,
                state=tail.copy.spec.state if tail.copy is not None else "running",
                is_stalled=ends is None,
            )
        )

    def _await_end(self, tail: JobTail) -> None:
        """Waits until the coordinator has recorded the end, unless the job stays open.

        It looks at the same reports as this run, so it is about as fast. A job without any URL never ends by itself.

        Raises: JobGone.
        """
        told_at = time.monotonic() + NOTICE_AFTER_S
        while True:
            self._hear(tail)
            counts = self.supervisor.picture.counts(self.job.name)
            is_running = tail.copy is not None and tail.copy.spec.state == "running"
            if tail.end is not None or (is_running and self._stays_open(tail, counts)):
                return
            if time.monotonic() > told_at:
                told_at = inf
                self._shown.say("no worker has recorded the end of the job yet; waiting for the one with partition 0")
            self.supervisor.look(END_LOOK_S)
            self.trouble.tell()

    def _hear(self, tail: JobTail) -> None:
        """Takes what is new about the job. Raises: JobGone: FILE must not get the rows of another crawl, too."""
        if self._lines is not None:
            self._lines.poll(self.supervisor.settings)
        tail.poll()
        if tail.is_deleted:
            raise JobGone("deleted")
        if tail.has_begun_again(self.summary.epoch):
            raise JobGone("begun_again")

    def _stays_open(self, tail: JobTail, counts: "JobCounts") -> bool:
        """Whether the coordinator leaves a running job open although nothing is left to do for this run."""
        is_closed = tail.command is not None and tail.command.action == "stop" and not tail.is_stopped
        return not is_closed and (tail.is_stopped or bool(counts.held) or not (counts.queued or is_begun(counts)))

    def _record(self, tail: JobTail, gains: Gains) -> None:
        """Notes how the job ended. A job that the operator stopped, or that is held by blocks, has not ended."""
        summary, job, end = self.summary, self.job, tail.end
        if end is not None and tail.copy is not None:
            summary.tell_end(tail.copy.spec.state, tail.copy.spec.reason)
        else:
            self._tell_open()
        is_open = summary.reason in ("stopped", "blocked") or bool(summary.missing)
        if job.end is not None and not gains.pages():
            if not is_open:
                summary.tell_known()
            job.note_new_spider()
        elif end is not None and not is_open:
            job.amend_end(end, summary.dead)
            self._amended = end

    def _tell_open(self) -> None:
        """Notes why nothing is left to do of a job whose record has no end."""
        from crawlog.streams.log import commands_in_force

        counts = self.supervisor.picture.counts(self.job.name)
        orders = commands_in_force(self.supervisor.settings, self.job.topics)
        self.summary.tell_open(orders, is_held=bool(counts.held))

    def _sum_stats(self) -> None:
        """Adds Scrapy's stats to the summary, as Scrapy dumps them at the end."""
        if self.job.order.dumps_stats:
            from .job_closing import job_stats

            self._stats = job_stats(self.supervisor.settings, self.job.name, self.job.since)
            self.summary.stats = named_stats(self._stats)

    def _write_file(self, finish: Finish) -> None:
        """Makes the result file. The rows of an unfinished job stay in the partial file."""
        if self.file is None or self.summary.is_unfinished:
            return
        self._shown.close()  # rows may go to the same terminal
        reason = self.summary.closed or self.summary.known or self.summary.reason
        rows = self.file.make(finish, reason, was_damaged=self.whole.was_damaged)
        self.summary.rows = rows if self.summary.output else None
        if self.job.order.dumps_stats:
            from crawlog.streams.sink import summed

            self.summary.stats = named_stats(summed(self._stats, self.file.stats()))

    def _count_losses(self, gains: Gains, within_s: float) -> None:
        """Adds this run's dead letters to the summary.

        Raises: EngineError: crawl.dead could not be read to its end in time; the summary has the letters read so far.
        """
        try:
            gains.count_losses(within_s)
        finally:
            self.summary.tell_losses(gains.tally)

    def _count_late_losses(self, gains: Gains) -> None:
        """Adds dead letters of the items that went through their pipelines while the file was made.

        Raises: EngineError: as `_count_losses`.
        """
        if self.file is None:
            return
        before = self.summary.dead
        self._count_losses(gains, CATCH_UP_S)
        if self._amended is not None and self.summary.dead != before:
            self.job.amend_end(self._amended, self.summary.dead)

    def sum_up(self) -> None:
        """Fills the summary with the counts known by now, however the run ended."""
        picture, summary = self.supervisor.picture, self.summary
        summary.counts = summary.counts or picture.counts(summary.job)
        summary.start_error, summary.start_items = self.planting.start_error, self.planting.start_items
        summary.pages, summary.parsed = self.gains.pages() if self.gains else 0, picture.parsed(summary.job)
        summary.remarks = remarks_of(picture, summary.job, self.job.copy.epoch if self.job.copy else summary.epoch)
        is_interrupted = summary.reason == "interrupted"
        if is_interrupted and not self.supervisor.engine:
            with suppress(EngineError):
                summary.has_others = self.watch.has_others(self.supervisor.names, HURRY_S)
        if self.gains is not None:
            if is_interrupted:
                with suppress(EngineError):
                    self._count_losses(self.gains, HURRY_S)
            self.gains.close()
        partial = self.file.partial() if self.file else None
        if partial is not None and (summary.is_unfinished or (summary.signal and summary.rows is None)):
            summary.partial = str(partial)
