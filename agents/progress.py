"""Tells crawl.progress where this worker is: one report for each owned partition, once a second.

A partition that has come to rest is told within `2 * LOOK_S`, so that the end of a crawl is not waited for. Reads what
the stage's `app.reports` gives, decides nothing. A report is worthless when it is late: while the log takes none, none
is added. Serves every stage, hence `attach`.
"""

import asyncio
import os
import time
from collections.abc import Iterable

import structlog

from crawlog.schemas import progress
from crawlog.schemas.progress import Progress
from crawlog.streams.log import Producer
from crawlog.streams.worker import CrawlApp

log = structlog.get_logger()

EVERY_S = 1.0
"""Rest between two reports of a partition that moves."""

LOOK_S = 0.2
"""Rest between two looks: what rested since the last look, and differs from what was told, is told."""

SHARE = 50
"""A look takes at most one part in this many of a processor, however many hosts a stage has to look through."""

MOST_OUTSTANDING = 256
"""Reports on their way to the log; 8 partitions for half a minute."""

State = tuple[int, int, int, int]
"""Of a report: offset, checkpoint, queued, in flight."""


class ReportPace:
    """Which reports are due; pure."""

    def __init__(self) -> None:
        self._last: dict[int, State] = {}
        self._told: dict[int, tuple[State, float]] = {}

    def due(self, reports: Iterable[Progress], now: float) -> list[Progress]:
        """Those told last a second ago, and those that came to rest; `now` on any steady clock."""
        seen = {report.partition: (report, _state(report)) for report in reports}
        due = [report for partition, (report, state) in seen.items() if self._is_due(partition, state, now)]
        self._last = {partition: state for partition, (_, state) in seen.items()}
        self._told = {partition: told for partition, told in self._told.items() if partition in seen}
        self._told |= {report.partition: (self._last[report.partition], now) for report in due}
        return due

    def _is_due(self, partition: int, state: State, now: float) -> bool:
        told, told_at = self._told.get(partition, (None, now - EVERY_S))
        rests = self._last.get(partition) == state
        return now - told_at >= EVERY_S or (rests and state != told)


class Reporter:
    """Sends what is due, until cancelled."""

    def __init__(self, app: CrawlApp) -> None:
        self._app = app
        self._topic: str = app.topics.progress
        self._pace = ReportPace()

    async def run(self) -> None:
        """Look, send, rest. A failing report is told in the log; Faust would end the worker over it."""
        producer = Producer(self._app.crawl, f"{self._app.worker_name}-progress")
        while True:
            rest_s = LOOK_S
            began_s = time.thread_time()  # CPU: a process stopped in here for 10 s would not be heard for 500
            try:
                self._send(producer)
            except Exception as error:
                log.exception("progress_failed", error=repr(error))
                rest_s = EVERY_S
            spent_s = time.thread_time() - began_s  # before anything else has its turn in this thread
            await asyncio.sleep(max(rest_s, SHARE * spent_s))

    def _send(self, producer: Producer) -> None:
        producer.poll()
        if producer.outstanding > MOST_OUTSTANDING:
            return
        for report in self._pace.due(self._app.reports(), time.monotonic()):
            producer.send(self._topic, progress.encode(report), key=progress.key(report), partition=0)


def _state(report: Progress) -> State:
    jobs = report.jobs.values()
    return report.offset, report.checkpoint, sum(job.queued for job in jobs), sum(job.in_flight for job in jobs)


def positions(
    app: CrawlApp, pages: int, size_bytes: int, *, paused: bool, trouble: str = "", note: str = ""
) -> list[Progress]:
    """One report for each partition of a stage that only reads on: how far it is, and what this worker has done."""
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
    """Let a stage's worker tell its progress."""
    app.task(Reporter(app).run)
