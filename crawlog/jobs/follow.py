"""Follows a job to its end and sums it up: of a `run` by its own workers or those of a fleet, and of `submit --wait`.

    fleet.look: keeps workers alive, or hears Ctrl-C ─┐
    crawl.control, crawl.progress ─► FleetView ───────┴─► JobFollower ─► frames ─► the end ─► Summary

The coordinator alone decides that a job has ended. Whoever follows reads that, and waits for outputs behind the end.
`joined.py` follows on a fleet that is there, `run.py` on workers of its own.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from crawlog.commands.job_logs import SpiderLines
from crawlog.schemas.control import Finished, JobCopy, Rewound
from crawlog.streams.cluster import Admin, log_bounds, log_end
from crawlog.streams.control import has_begun_again, pages_done
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import DeadLetterReader, FleetState, FleetView, JobView, OutputView, ProgressReader
from crawlog.streams.jobs import EndSteps, ended, is_begun, is_final, traits
from crawlog.streams.log import Topics, has_topics, partition_count, read_partitions

from .job_closing import stats_of
from .job_outputs import JobOutputs
from .live import Frame, Pace, View
from .summary import Summary

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

LOOK_S = 0.1  # Between two looks at the job

END_LOOK_S = 0.02  # The same while only outputs are waited for, which take some 0.1 s

END_NOTED_S = 10.0  # How long the note of a job's end may come after its state, seconds

LETTERS_S = 60.0  # How long crawl.dead may be read at the end, seconds


class Fleet(Protocol):
    """The workers that crawl the job, as this command sees them."""

    @property
    def settings(self) -> "Settings":
        """With the address and the password of the log; those of a local engine change with each start."""

    @property
    def watch(self) -> "ProgressReader | None":
        """This command's own reader of the workers' reports; None if it has none."""

    def look(self, wait_s: float) -> None:
        """Waits a moment, and keeps alive what this command has started. May raise the end of the command."""


class Before(NamedTuple):
    """The log before a job is submitted: this command counts what the job gains from then on.

    Attributes:
        dead: The next offset of crawl.dead.
        view: The jobs; None if the log has none.
        unreported: Pages of the job that the log has, and no report counts yet: those of workers that were killed.
    """

    dead: int = 0
    view: "FleetView | None" = None
    unreported: int = 0

    @classmethod
    def read(cls, settings: "Settings", job: str = "") -> "Before":
        """The log as it is now; it may have no topics yet.

        Args:
            job: A job that no worker crawls now.
        """
        if not has_topics(settings):
            return cls()
        view = FleetView.read(settings)
        return cls(log_end(settings, Topics(settings.kafka.prefix).dead), view, _unreported(settings, view, job))

    def job(self, name: str) -> "JobView | None":
        """A job as it was; None if there was none."""
        return self.view.job(name) if self.view is not None else None


def _unreported(settings: "Settings", view: "FleetView", name: str) -> int:
    job = view.job(name)
    if job is None or traits(job.state).ended:
        return 0
    topic = Topics(settings.kafka.prefix).urls
    passed = view.look(lambda state: {one.partition: one.offset for one in state.picture.of("fetch")})
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    unread = {at: (max(low, passed.get(at, low)), end) for at, (low, end) in bounds.items()}
    unread = {at: (start, end) for at, (start, end) in unread.items() if start < end}
    return sum(pages_done(one.value(), name) for one in read_partitions(settings, topic, unread))


class JobFollower:  # long: one reader of the log follows the job, shows it and sums it up
    """A job, as this command sees it.

    Args:
        fleet: The workers that crawl it.
        before: The log before the job was submitted.
        is_own: Whether the workers are this command's own, and end with it: then the end is waited for also where the
            rows stay partial.

    Attributes:
        end: How the job ended; None while it goes on, and of a job that is left open.
        known: The job before it was submitted, if it has not begun again since.
        outputs: Those of the job's record.
    """

    def __init__(self, fleet: Fleet, summary: Summary, before: Before, shown: View, *, is_own: bool = False) -> None:
        self._fleet = fleet
        self._count = partition_count(fleet.settings)
        self._settings = fleet.settings
        self._summary = summary
        self._shown = shown
        self._is_own = is_own
        self._pace = Pace()
        self._began = time.monotonic()
        self._admin = Admin(fleet.settings)
        self.seeded_again()  # before a thread and consumers are there: the log may give no answer
        self._is_left_open = False
        self.end: Finished | None = None
        self.known: JobView | None = None
        self.outputs = JobOutputs(summary.job, shown.say)
        self._letters = DeadLetterReader(fleet.settings, summary.job, before.dead)
        self._lines = SpiderLines(fleet.settings, summary.job, shown.say)
        self._view: FleetView = FleetView(self._counted(fleet.settings), reports=fleet.watch).start()
        self._before, self._unreported = before.job(summary.job), before.unreported
        summary.is_clean = not before.dead or self._before is None

    def _counted(self, settings: "Settings") -> "Settings":
        """The settings with the log's number of partitions."""
        return settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"partitions": self._count})})

    def seeded_again(self) -> None:
        """Notes that the log may have new seeds up to its present end: the job has not ended before they are read."""
        self._renew()
        self._seeded = self._ends("fetch")
        self._finish = EndSteps(self._summary.job, self._seeded)

    def _ends(self, stage: str) -> tuple[int, ...]:
        topic = Topics(self._settings.kafka.prefix).read_by[stage]
        return self._admin.ends((topic,), self._count)[topic]

    def _renew(self) -> None:
        """Goes on with the clients of a local engine that was stopped and started again."""
        settings = self._fleet.settings
        if settings.kafka == self._settings.kafka:
            return
        with contextlib.suppress(EngineError):  # it is being started
            with contextlib.ExitStack() as opened:
                view = FleetView(self._counted(settings), reports=self._fleet.watch)
                opened.enter_context(contextlib.closing(view))
                view.start()
                opened.pop_all()
            self._view.close()
            self._settings, self._admin, self._view = settings, Admin(settings), view
            self._letters.at(settings)

    def stop(self) -> None:
        """Reads no more of the job; `close` follows."""
        self._view.stop()

    def close(self) -> None:
        """Closes the consumers, after the last lines of the spider, which workers send when they stop."""
        self._lines.finish(self._fleet.settings)
        for one in (self._view, self._letters):
            one.close()

    # ------------------------------------------------------------------ following

    def until_ended(self) -> None:
        """Shows the job until it has ended and its outputs are made; fills the summary.

        Raises: Misconfigured: the job failed. EngineError: crawl.dead cannot be read.
        """
        self.end, self._is_left_open = None, False
        while not self._view.look(self._is_through):
            self.look()
            self.outputs.tell_failed()
            self.outputs.tell_wait(time.monotonic())
        self.outputs.tell_unmade()
        self._view.wait_until(lambda state: self._is_left_open or self._end(state) is not None, END_NOTED_S)
        self._view.look(self._sum_up)
        self.count_letters(LETTERS_S)

    def look(self, wait_s: float = LOOK_S) -> None:
        """Waits a moment, and shows what is new."""
        self._fleet.look(wait_s)
        now = time.monotonic()
        self._renew()
        self._lines.poll(self._settings)
        self._letters.poll()
        self._view.look(self._count_pages)
        if self._shown.is_due(now):
            self._show(now)

    def until_made(self, views: Callable[[], "Iterable[OutputView]"]) -> bool:
        """Waits for outputs that only this command has; False if the job goes on, or ended again, meanwhile.

        Args:
            views: Returns them as they are now.

        Raises: EngineError: one could not be made.
        """
        outputs, ended_so = JobOutputs(self._summary.job, self._shown.say), self.end
        while True:
            outputs.look(views(), has_sink=True)
            if not outputs.are_awaited:
                outputs.check()
                return True
            if self._view.look(self._end_now) != ended_so:
                return False
            self.look(END_LOOK_S)
            outputs.tell_wait(time.monotonic())

    def _end_now(self, state: "FleetState") -> "Finished | None":
        return self._end(state)

    def count_letters(self, within_s: float) -> None:
        """Counts the dead letters up to now.

        Raises: EngineError: not all could be read in time; the summary has those that were.
        """
        dead = Topics(self._settings.kafka.prefix).dead
        try:
            self._letters.catch_up(self._admin.ends((dead,), 1)[dead][0], within_s)
        finally:
            self._summary.tell_losses(self._letters.tally)

    def sum_stats(self) -> None:
        """Adds Scrapy's stats to the summary, those of its pages and those of its pipelines."""
        self._summary.stats = stats_of(self._settings, self._view, self._summary.job)

    # ------------------------------------------------------------------ the end

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
        if job is None:  # deleted, or its record is not read yet
            return state.control.job(self._summary.job) is not None
        if self._has_begun_again(state):
            self._is_left_open = True  # the end of what was submitted does not come
            return True
        if end is None and self._is_open(state, job):
            self._is_left_open = self._is_finished(state, job)
            return self._is_left_open
        if not traits(job.state).ended:
            return False
        if not traits(job.state).done:
            return end is not None or not (self._is_own or is_final(job.state, job.reason))
        covers = end is not None and all(now >= then for now, then in zip(end.urls, self._seeded, strict=False))
        return covers or (state.picture.has_passed("fetch", self._seeded) and not job.counts.queued)

    def _has_begun_again(self, state: "FleetState") -> bool:
        """Whether another command has begun the job again: its rows are not those of what was submitted."""
        return has_begun_again(state.control.of(Rewound), state.control.job(self._summary.job), self._summary.epoch)

    def _is_open(self, state: "FleetState", job: "JobView") -> bool:
        """Whether the coordinator leaves the job open with nothing to do: its URLs are held, or it has none."""
        copy = self._copy(state)
        if copy is None or copy.spec.state != "running":
            return False
        if state.control.commands.of_job(job.name).stopped:
            return not state.control.commands.reason(job.name)  # the coordinator ends a job that its spider closed
        counts = job.counts
        if counts.held:
            return not counts.queued and any(one.action == "block" for one in state.control.commands.in_force)
        return self._is_own and not (counts.queued or copy.spec.starts or is_begun(counts))

    def _is_finished(self, state: "FleetState", job: "JobView") -> bool:
        """Whether nothing is left to do of an open job."""
        is_parsing = job.parsed_again is not None and not job.parsed_again.is_done
        self._finish.gives_more = (job.is_starting and job.state != "stopped") or is_parsing
        try:
            return self._finish.step(state.picture, self._ends)
        except EngineError:  # the broker may be restarting
            return False

    # ------------------------------------------------------------------ showing

    def _count_pages(self, state: "FleetState") -> None:
        if state.picture.has_passed("fetch", self._seeded) and (job := state.job(self._summary.job)) is not None:
            self._pace.look(ended(job.counts), time.monotonic())

    def _show(self, now: float) -> None:
        lag = {}
        with contextlib.suppress(EngineError):
            lag = {one.stage: one.lag for one in self._view.stages() if one.stage != "sink" or one.workers}
        if (frame := self._view.look(lambda state: self._frame(state, lag, now))) is not None:
            self._shown.show(frame)

    def _frame(self, state: "FleetState", lag: dict[str, int], now: float) -> Frame | None:
        """The job as it stands; None if it was deleted just now."""
        name, picture = self._summary.job, state.picture
        job, copy = state.job(name), self._copy(state)
        passed, count = picture.passed("fetch", self._seeded), len(self._seeded)
        if job is None or copy is None:
            return None
        naming, unanswered = picture.strangers()
        hosts, tally = picture.hosts(), self._letters.tally
        return Frame(
            job=name,
            took_s=now - self._began,
            counts=job.counts,
            rate=self._pace.rate(),
            lag=lag,
            hosts=hosts,
            paused="paused" if job.state == "paused" else picture.paused(name),
            dead=tally.count,
            commonest=tally.commonest,
            left=job.left,
            reading=f"{passed} of {count} partitions so far" if passed < count else "",
            is_starting=job.is_starting,
            naming=naming,
            unanswered=unanswered,
            state=copy.spec.state,
            is_stalled=not lag,
            rows=job.rows,
            pace=job.pace,
        )

    # ------------------------------------------------------------------ the summary

    def count(self) -> None:
        """Fills the counts of the summary, for a job whose end is not waited for."""
        self._view.look(self._sum_counts)

    def _sum_counts(self, state: "FleetState") -> None:
        job, end = state.job(self._summary.job), self._end(state)
        if job is None:
            return
        self._summary.remarks = state.picture.remarks_of(job.name, job.epoch)
        self._summary.counts = counts = end.counts if end is not None and end.counts is not None else job.counts
        before = self._before
        self.known = before if before is not None and before.epoch == job.epoch else None
        had = ended(self.known.counts) + self._unreported if self.known is not None else 0
        self._summary.pages = max(ended(counts) - had, 0)
        self._note_start(state, job)

    def _note_start(self, state: "FleetState", job: "JobView") -> None:
        note = state.control.start(job.name)
        if note is not None and note.epoch == job.epoch:
            self._summary.start_error, self._summary.start_items = note.error, note.items

    def _sum_up(self, state: "FleetState") -> None:
        """Fills the summary.

        Raises: Misconfigured: the job failed.
        """
        summary, job = self._summary, state.job(self._summary.job)
        if job is None:
            summary.reason = "deleted"
            return
        if self._has_begun_again(state):
            summary.reason = "begun_again"
            return
        self.end = self._end(state)
        if self._is_left_open:
            summary.tell_open(state.control.commands, is_held=bool(job.counts.held))
        else:
            summary.tell_end(job.state, job.reason)
        self._sum_counts(state)
        known = self.known
        if known is not None and traits(known.state).ended and known.rev == job.rev and summary.reason != "stopped":
            summary.tell_known()
