"""The fleet's state as crawl.control and crawl.progress hold it: jobs, workers, hosts. Pure.

Reports are taken in the order of the topic. Two copies that have read the same records give the same answers; only
rates belong to one copy, since they are made of the reports that it has met.
"""

from collections.abc import Iterator

import msgspec

from crawlog.schemas.control import CodeNote, Control, Finished, JobCopy, ParsedAgain
from crawlog.schemas.job_orders import NO_FLOW, OutputSpec, feed_name
from crawlog.schemas.progress import FLEET, JobCounts, Progress, stage_of
from crawlog.schemas.urls import DEFAULT_JOB, DEFAULT_SPEC, JobSpec
from crawlog.streams.jobs import ControlState, FleetReports, Flow, ended, is_offered, traits

from .estimate import estimate
from .job_views import JobViews, changed_jobs, is_other
from .lost_workers import GONE_S, LostWorkers
from .paces import STILL, Paces
from .reporting import Passed, WorkerProcess
from .views import AgainView, ExitView, HookView, HostView, JobView, OutputView, WorkerView

# What stands for the record of the job of bare records, which has none.
DEFAULT_COPY = JobCopy(DEFAULT_JOB, DEFAULT_SPEC)


class FleetState:  # long: every view of jobs and workers is made of one state
    """Jobs, workers and hosts.

    Attributes:
        control: The state of crawl.control, joins left out.
        picture: The newest reports.
        lost: The processes that have ended.
        processes: Those of workers, by stage, name and pid, the last one to report at the end.
        reporting: Partitions of crawl.urls that have reports, if some of these were not read; else 0.
        paces: How fast jobs go, by the reports that this copy has met.
        now: UTC epoch seconds: of the last report, or later as a live view has it.
    """

    def __init__(self) -> None:
        self.control = ControlState()
        self.picture = FleetReports()
        self.picture.sink = FLEET
        self.lost = LostWorkers()
        self.reporting = 0
        self.processes: dict[tuple[str, str, int], WorkerProcess] = {}
        self.paces = Paces()
        self.now = 0.0
        self._views = JobViews()

    # ------------------------------------------------------------------ taking

    def hear(self, key: bytes, record: Control | None, at: float = 0.0) -> None:
        """Takes the next record of crawl.control, None for a tombstone; `at` is its time in the log."""
        self.control.take(key, record, at)
        if isinstance(record, JobCopy) and record.spec.state == "deleted":
            self.picture.rows.pop(record.job, None)
        self._views.clear()

    def report(self, report: Progress, at: float) -> None:
        """Takes the next report; `at` is its time of arrival in the log, UTC epoch seconds."""
        self.now = max(at, self.now)
        was = self.picture.newest.get((report.stage, report.partition))
        self._views.drop(self.paces.take(report, at, self.picture) | changed_jobs(was, report))
        self.picture.take(report)
        if is_other(was, self.picture.newest.get((report.stage, report.partition))):
            self._views.clear()
        self.lost.take(report, at)
        if not report.worker:
            return  # a replay wrote it
        who = stage_of(report), report.worker, report.pid
        process = self.processes.pop(who, None)
        if report.ended:  # of its partitions its earlier reports are still the newest
            if process is not None:
                process.has_ended = True
                self.processes[who] = process
            return
        if process is None:
            process = WorkerProcess(report, at)
        else:
            process.take(report, at)
        self.processes[who] = process  # the last one is the one that reported last

    def has_all_counts(self, partitions: int) -> bool:
        """Whether the counts of all jobs are known in these partitions of crawl.urls, by their number."""
        newest = (self.picture.newest.get(("fetch", number)) for number in range(partitions))
        return all(report is not None and not report.is_partial for report in newest)

    def take_reports_of(self, other: "FleetState") -> None:
        """Replaces all reports by those of a state that has read from earlier on."""
        self.picture, self.processes = other.picture, other.processes
        self.paces, self.lost = other.paces, other.lost
        self._views.clear()

    # ------------------------------------------------------------------ jobs

    def copy(self, name: str) -> JobCopy | None:
        """The record of a job; None if there is none, or if it was deleted.

        That of the job of bare records is built in; the job is there when it was offered a URL.
        """
        if name == DEFAULT_JOB and name in self.unrecorded():
            return DEFAULT_COPY
        copy = self.control.job(name)
        return copy if copy is not None and copy.spec.state != "deleted" else None

    def end(self, copy: JobCopy) -> Finished | None:
        """How a job ended; None while it goes on, and until the end of its present revision is noted."""
        end = self.control.end(copy.job)
        if end is None:
            return None
        is_later = not end.rev and copy.spec.state == "running" and copy.spec.changed_at > end.at
        return None if is_later else end

    def names(self) -> list[str]:
        """Names of all jobs that have a record."""
        return [one.job for one in self.control.of(JobCopy) if one.spec.state != "deleted"]

    def unrecorded(self) -> set[str]:
        """Names of jobs that have URLs and no record: that of bare records, or one whose record was lost.

        Every rewind of the crawl makes the job of bare records known to all partitions.
        """
        names = {name for name in self.picture.jobs() if self.control.job(name) is None}
        return {name for name in names if any(map(is_offered, self.picture.counts_of(name, 0)))}

    def jobs(self) -> list[JobView]:
        """All jobs, the last submitted first."""
        views = [view for name in (*self.names(), DEFAULT_JOB) if (view := self.job(name)) is not None]
        return sorted(views, key=lambda one: (-one.submitted_at, one.name))

    def job(self, name: str) -> JobView | None:
        """One job; None if there is none."""
        return self._views.of(name, (self.control, self.reporting), self.now, self._job)

    def _job(self, name: str) -> JobView | None:
        copy = self.copy(name)
        if copy is None:
            return None
        spec, end = copy.spec, self.end(copy)
        counts = self.counts(copy, end)
        state, reason = self._state(copy, end, counts)
        reason = reason or self._start_error(copy)
        return JobView(
            name=name,
            state=state,
            epoch=copy.epoch,
            rev=spec.rev,
            priority=spec.priority,
            reason=reason,
            spider=spider_name(spec),
            code=spec.code,
            by=spec.by,
            submitted_at=spec.at,
            started_at=spec.at if state != "pending" else 0.0,
            ended_at=self._ended_at(copy, end) if traits(state).ended else 0.0,
            counts=counts,
            is_counted=self.is_counted(copy, end),
            rows=self._rows(copy),
            pace=(pace := self.paces.of(name, self.now)),
            left=estimate(counts, pace, self._queues(copy) if pace != STILL else (), _delay_s(spec)),
            remarks=self.picture.remarks_of(name, copy.epoch),
            is_starting=self.is_starting(copy),
            is_fed=spec.fed,
            next_start=coming.at if (coming := self.control.next_start(copy)) is not None else 0.0,
            dead=end.dead if end is not None else 0,
            outputs=tuple(_output_of(self, copy, one) for one in spec.outputs),
            feeds=tuple(self._feeds(copy)),
            hooks=tuple(_hook_of(self, copy, one) for one in (spec.flow or NO_FLOW).on_finish),
            args=dict(spec.args),
            flow=spec.flow or NO_FLOW,
            parsed_again=_again_of(copy, self.control.parsed_again(copy)),
        )

    def _queues(self, copy: JobCopy) -> list[int]:
        """The longest queues of hosts, if they hold URLs of this job alone: others share the hosts' delays."""
        reports = list(self.picture.of("fetch"))
        if any(one.queued and name != copy.job for report in reports for name, one in report.jobs.items()):
            return []
        return [queued for _, queued, _ in self.picture.hosts()]

    def _rows(self, copy: JobCopy) -> int | None:
        """Rows of a job in its outputs: of those that are complete, or as their workers report them."""
        notes = [self.control.output(copy.job, one.name) for one in copy.spec.outputs]
        noted = [one.rows for one in notes if one is not None and one.epoch == copy.epoch and one.rev >= copy.spec.rev]
        return max(noted, default=None) or self.picture.rows_of(copy.job, copy.epoch) or (0 if noted else None)

    def _ended_at(self, copy: JobCopy, end: Finished | None) -> float:
        """When a job ended that has; a command that stops it changes nothing in its record."""
        if end is not None:
            return end.at
        return self.control.commands.given_at(copy.job) if copy.spec.state == "running" else copy.spec.changed_at

    def _start_error(self, copy: JobCopy) -> str:
        """Why the `start` of the job's spider ended early; empty if it did not."""
        note = self.control.start(copy.job)
        if note is None or note.epoch != copy.epoch or not note.error:
            return ""
        return f"its `start` failed: {note.error}"

    def counts(self, copy: JobCopy, end: Finished | None) -> JobCounts:
        """The counts of a job: of its reports, or of its end where reports leave it out."""
        if end is not None and end.counts is not None and not self._is_named(copy):
            return end.counts
        return self.picture.counts(copy.job, copy.epoch)

    def _is_named(self, copy: JobCopy) -> bool:
        """Whether the reports of all partitions name a job in its present epoch."""
        named = sum(1 for _ in self.picture.counts_of(copy.job, copy.epoch))
        return named > 0 and named == sum(1 for _ in self.picture.of("fetch"))

    def is_counted(self, copy: JobCopy, end: Finished | None) -> bool:
        """Whether the counts of a job are known in each partition that has ever been reported."""
        if end is not None and end.counts is not None:
            return True
        reports = list(self.picture.of("fetch"))
        has_all = len(reports) >= self.reporting
        return has_all and all(copy.job in one.jobs or not one.is_partial for one in reports)

    def is_starting(self, copy: JobCopy) -> bool:
        """Whether the `start` of the job's spider may give more requests."""
        if not copy.spec.starts or copy.spec.state != "running":
            return False
        note = self.control.start(copy.job)
        return note is None or not note.is_of(copy)

    def _state(self, copy: JobCopy, end: Finished | None, counts: JobCounts) -> tuple[str, str]:
        spec, orders = copy.spec, self.control.commands.of_job(copy.job)
        if spec.state == "waiting":
            return spec.state, Flow(self.control).shown(spec.flow or NO_FLOW)
        if spec.state != "running":
            return spec.state, spec.reason
        if end is not None and not counts.queued:
            is_plain = end.reason in ("finished", "cancelled")
            return (end.reason, "") if is_plain else ("stopped", end.reason)
        if orders.stopped:
            return "stopped", self.control.commands.reason(copy.job)
        if orders.paused:
            return "paused", ""
        has_begun = ended(counts) or counts.in_flight or counts.refused or counts.retried
        has_begun = has_begun or not self.is_counted(copy, end)
        return ("running" if has_begun else "pending"), spec.reason

    def _feeds(self, copy: JobCopy) -> Iterator[OutputView]:
        for job, fields in (copy.spec.flow or NO_FLOW).sources.items():
            if (source := self.copy(job)) is not None:
                view = _output_of(self, source, OutputSpec(feed_name(copy.job, copy.epoch)))
                yield msgspec.structs.replace(view, name=f"{job}:{','.join(fields)}", place="")

    # ------------------------------------------------------------------ the rest

    def workers(self, now: float) -> list[WorkerView]:
        """The living processes of workers, by stage and name.

        Args:
            now: UTC epoch seconds.
        """
        gone = [one for one, process in self.processes.items() if now - process.at > GONE_S]
        for one in gone:
            del self.processes[one]
        living = (one for one in self.processes.values() if not one.has_ended)
        newest = {(stage_of(one.report), one.report.worker): one for one in living}
        first = self.picture.newest.get(("fetch", 0))
        return [newest[name].view(now, self.control, first) for name in sorted(newest)]

    def sink_lag(self, ends: tuple[int, ...], now: float) -> int:
        """Records of crawl.items that the slowest sink of a living worker has not passed; each sink reads all of them.

        Args:
            ends: The ends of crawl.items.
            now: UTC epoch seconds.
        """
        sinks: dict[str, dict[int, Passed]] = {}
        for process in self.processes.values():
            is_sink = stage_of(process.report) == "sink"
            if is_sink and process.partitions and now - process.at <= GONE_S:
                places = sinks.setdefault(process.report.sink, {})
                for number, place in process.partitions.items():
                    places[number] = max(place, places.get(number, place))
        behind = [
            sum(max(0, end - places[number].offset) if number in places else end for number, end in enumerate(ends))
            for places in sinks.values()
        ]
        return max(behind, default=sum(ends))

    def had_fleet(self) -> bool:
        """Whether a partition was reported last by a worker that does not belong to a `run`; it may live."""
        return any(one.supervisor != "run" for one in self.picture.of("fetch"))

    def supervisors(self, stage: str, now: float) -> set[str]:
        """The commands whose living workers have partitions of a stage, `Progress.supervisor` each.

        A process that was just started again has none yet, and takes nothing from the one before it.
        """
        living = (one for one in self.processes.values() if one.partitions and now - one.at <= GONE_S)
        owners = {one.report.worker: one.report for one in living if stage_of(one.report) == stage}
        return {one.supervisor for one in owners.values()}

    def hosts(self, now: float) -> list[HostView]:
        """The slowest hosts, the longest queue first, of partitions whose worker lives.

        Args:
            now: UTC epoch seconds.
        """
        hosts: list[HostView] = []
        for report in self.picture.of("fetch"):
            process = self.processes.get((report.stage, report.worker, report.pid))
            if process is not None and process.has(report.partition, now):
                barred = {host[0] for host in report.barred}
                hosts.extend(HostView(*host) for host in report.hosts if host[0] not in barred)
                hosts.extend(HostView(*host, "all its exits rest") for host in report.barred)
        return sorted(hosts, key=lambda host: -host.queued)

    def code_notes(self) -> list[CodeNote]:
        """The versions and projects that were hidden or shown again."""
        return self.control.of(CodeNote)


def exits_of(state: FleetState, now: float) -> list[ExitView]:
    """The exits of living fetch workers, by worker, those with the most requests first.

    Args:
        now: UTC epoch seconds.
    """
    reports: dict[str, Progress] = {}
    for report in state.picture.of("fetch"):
        process = state.processes.get((report.stage, report.worker, report.pid))
        if report.exits and process is not None and now - process.at <= GONE_S:
            reports[report.worker] = max(report, reports.get(report.worker, report), key=lambda one: one.at)
    views = [ExitView(name, worker, of) for worker, one in reports.items() for name, of in one.exits.items()]
    return sorted(views, key=lambda view: (view.worker, -view.figures.requests, view.name))


def _delay_s(spec: JobSpec) -> float:
    """Least time between two requests to a host, divided by the requests at a time; 0 if the workers' settings hold."""
    rules = spec.requests
    return (rules.delay_s or 0.0) / (rules.per_host or 1) if rules is not None else 0.0


def spider_name(spec: JobSpec) -> str:
    """The name of a job's spider as people know it; empty for the default spider.

    Deployed code names its spiders itself; else the record has `FILE.py:Class`.
    """
    return spec.spider if spec.code is not None else spec.spider.rpartition(":")[2].rpartition("/")[2]


def _again_of(copy: JobCopy, notes: list[ParsedAgain]) -> AgainView | None:
    order = copy.spec.parse_again
    if order is None:
        return None
    left = sum(max(0, one.end - one.next) for one in notes)
    every = sum(max(0, end - start) for start, end in zip(order.start, order.end, strict=False))
    read = max(0.0, 1 - left / max(every, 1))
    return AgainView(sum(one.pages for one in notes), read, is_done=not left)


def _hook_of(state: FleetState, copy: JobCopy, target: str) -> HookView:
    note = state.control.hook(copy.job, target)
    if note is None or (note.epoch, note.rev) != (copy.epoch, copy.spec.rev):
        return HookView(target)
    became = "again" if note.next_at else "failed" if note.error else "taken"
    return HookView(target, became, note.tries, note.next_at, note.error)


def _output_of(state: FleetState, copy: JobCopy, output: OutputSpec) -> OutputView:
    """An output of a job, as its last note and the reports have it."""
    name = output.name
    waiting = max((one.waiting.get(copy.job, {}).get(name, 0) for one in state.picture.of("sink")), default=0)
    note = state.control.output(copy.job, name)
    if note is None or note.epoch < copy.epoch:
        return OutputView(name, "writing", required=output.required, waiting=waiting)
    is_about_now = note.rev and note.rev >= copy.spec.rev  # an old error may be mended by now
    became = note.became if is_about_now else "writing"
    about = name, became, note.rows, note.place, note.error, output.required, note.worker, note.stats
    return OutputView(*about, note.machine, waiting)
