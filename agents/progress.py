"""Writes the worker's progress to crawl.progress: one report per owned partition, every second, at rest every other.

A worker that owns no partition, or is still restoring its own, reports itself, every other second.

    app.reports of the stage ─► ReportPace: which are due? ─► ToldJobs: which jobs changed? ─► crawl.progress

A partition that came to rest is reported within `2 * LOOK_S`, so that the end of a crawl is seen soon. A late report is
worthless, so no report is sent while many wait for the log. `attach` adds this to any stage.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import structlog

from crawlog import __version__
from crawlog.schemas import progress
from crawlog.schemas.progress import IDLE, JobCounts, Progress
from crawlog.streams.fetch import ToldJobs
from crawlog.streams.log import Producer
from crawlog.streams.worker import CrawlApp, OwnProcess, why_ended

log = structlog.get_logger()

EVERY_S = 1.0  # Time between two reports of a partition that moves or has URLs waiting

REST_S = 2.0  # The same for any other: each report wakes the broker and all readers of the topic

# Age from which a report is sent with one that is due: each send wakes the broker and all readers of the topic.
TOGETHER_S = 0.6

# Time between two looks. A partition that rested since the last look is reported if its last report is out of date.
LOOK_S = 0.2

SHARE = 50  # Looks take at most 1/50 of a CPU, however many hosts a stage has

LAST_S = 0.3  # Longest wait for the last report of a process, seconds; it takes some milliseconds

MOST_OUTSTANDING = 256  # Most reports in flight: 8 partitions for half a minute

State = tuple[int, int, int, int]  # A report's offset, checkpoint, queued URLs and URLs in flight


class ReportPace:
    """Decides which reports are due. Pure."""

    def __init__(self) -> None:
        self._last: dict[int, State] = {}
        self._reported: dict[int, tuple[State, float]] = {}
        self._sums: dict[int, tuple[Mapping[str, JobCounts], int, int]] = {}

    def due(self, reports: Iterable[Progress], now: float) -> list[Progress]:
        """Reports whose time has come, and those of partitions that came to rest; `now` is of any steady clock."""
        seen = {report.partition: (report, self._state(report)) for report in reports}
        due = [report for partition, (report, state) in seen.items() if self._is_due(partition, state, now)]
        if any(now - self._reported_at(report.partition, now) >= EVERY_S for report in due):
            late = {report.partition for report in due}
            due += [
                report
                for partition, (report, _) in seen.items()
                if partition not in late and now - self._reported_at(partition, now) >= TOGETHER_S
            ]
        self._last = {partition: state for partition, (_, state) in seen.items()}
        self._reported = {partition: reported for partition, reported in self._reported.items() if partition in seen}
        self._reported |= {report.partition: (self._last[report.partition], now) for report in due}
        return due

    def _reported_at(self, partition: int, now: float) -> float:
        return self._reported.get(partition, (None, now - EVERY_S))[1]

    def _is_due(self, partition: int, state: State, now: float) -> bool:
        reported, reported_at = self._reported.get(partition, (None, now - EVERY_S))
        rests = self._last.get(partition) == state
        is_empty = rests and state == reported and not any(state[2:])
        return now - reported_at >= (REST_S if is_empty else EVERY_S) or (rests and state != reported)

    def _state(self, report: Progress) -> State:
        jobs, queued, in_flight = self._sums.get(report.partition, ({}, 0, 0))
        if jobs is not report.jobs:
            queued = sum(job.queued for job in report.jobs.values())
            in_flight = sum(job.in_flight for job in report.jobs.values())
            self._sums[report.partition] = report.jobs, queued, in_flight
        return report.offset, report.checkpoint, queued, in_flight


class Reporter:
    """Sends the reports that are due, until cancelled."""

    def __init__(self, app: CrawlApp) -> None:
        self._app = app
        self._topic: str = app.topics.progress
        self._pace = ReportPace()
        self._own = OwnProcess(__version__)
        self._reported: dict[int, ToldJobs] = {}
        self._pages = 0

    async def run(self) -> None:
        """Look, send, sleep. An error is only logged: otherwise Faust would end the worker."""
        producer = Producer(self._app.crawl, f"{self._app.worker_name}-progress")
        await asyncio.to_thread(producer.connect)  # the supervisor waits for the first report
        try:
            while True:
                rest_s = LOOK_S
                began_s = time.thread_time()  # CPU time: after a stop of 10 s, the clock's would silence it for 500 s
                try:
                    self._send(producer)
                except Exception as error:
                    log.exception("progress_failed", error=repr(error))
                    rest_s = EVERY_S
                spent_s = time.thread_time() - began_s  # taken before this thread yields to other tasks
                await asyncio.sleep(max(rest_s, SHARE * spent_s))
        finally:
            self._send_last(producer)

    def _send_last(self, producer: Producer) -> None:
        """Report that this process ends, and why; a broker that is away is not waited for."""
        report, crash = self._idle(), self._app.crash_reason
        report.ended = f"crashed: {type(crash).__name__}" if crash is not None else why_ended()
        self._own.sign([report])
        producer.send(self._topic, progress.encode(report), key=progress.key(report), partition=0)
        producer.flush(LAST_S)

    def _send(self, producer: Producer) -> None:
        producer.poll()
        live = self._app.reports()
        lacks = self._app.check_readiness(len(live))
        if producer.outstanding > MOST_OUTSTANDING:
            return
        reports = live or [self._idle()]
        self._pages = reports[0].pages
        due = self._pace.due(reports, time.monotonic())
        self._own.sign(due)
        for report in due:
            report.trouble = report.trouble or lacks
            for record in self._records(report):
                producer.send(self._topic, progress.encode(record), key=progress.key(record), partition=0)
        held = {report.partition for report in reports}
        self._reported = {partition: reported for partition, reported in self._reported.items() if partition in held}

    def _idle(self) -> Progress:
        """The report of a worker without a live partition: it lives, and says nothing of its stage's input."""
        name, pid, sink = self._app.worker_name, os.getpid(), self._app.sink_name
        idle_stage, pages = self._app.stage, self._pages
        return Progress(name, IDLE, -1, time.time(), pid=pid, pages=pages, sink=sink, idle_stage=idle_stage)

    def _records(self, report: Progress) -> Iterator[Progress]:
        """The report without jobs that did not change; several records if very many changed, the last with the offset.

        A record with the offset says that no other job has changed up to there.
        """
        reported = self._reported.setdefault(report.partition, ToldJobs())
        before, gone = reported.offset, reported.gone(report.jobs)
        pieces = reported.named(report.jobs, report.offset)
        is_partial, last = len(pieces[-1]) < len(report.jobs), len(pieces) - 1
        for number, jobs in enumerate(pieces):
            record = msgspec.structs.replace(report, jobs=jobs, is_partial=is_partial, piece=number, pieces=len(pieces))
            if number == last:
                yield msgspec.structs.replace(record, gone=gone)
            else:
                yield msgspec.structs.replace(record, offset=before)


def positions(
    app: CrawlApp, pages: int, size_bytes: int, *, paused: bool, trouble: str = "", note: str = ""
) -> list[Progress]:
    """One report for each partition of a stage without queues: its position, and this worker's counts."""
    held, now, pid = app.positions, time.time(), os.getpid()
    return [
        Progress(
            worker=app.worker_name,
            stage=app.stage,
            partition=partition,
            at=now,
            offset=held.next(partition) or 0,
            checkpoint=held.committed(partition) or 0,
            pid=pid,
            pages=pages,
            bytes=size_bytes,
            paused=paused,
            trouble=trouble,
            note=note,
            cut=held.cuts.get(partition, 0),
            sink=app.sink_name,
        )
        for partition in sorted(held.owned)
    ]


def attach(app: CrawlApp) -> None:
    """Make a stage's worker report its progress."""
    app.task(Reporter(app).run)
