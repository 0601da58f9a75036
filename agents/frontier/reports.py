"""What the frontier stage reports to crawl.progress: one record for each partition, counts by job."""

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from crawlog.schemas.progress import JobCounts, Progress

from .job_counts import JobCountsCache, JobsNamed

if TYPE_CHECKING:
    from crawlog.agents.control import StageCommands
    from crawlog.streams.fetch import Durations, ReportedJobs
    from crawlog.streams.frontier import Frontier
    from crawlog.streams.state import Partition
    from crawlog.streams.worker import CrawlApp

    from .restoring import Restoring

HOSTS_SHOWN = 5


class Reported(Protocol):
    """The stage, as far as a report needs it.

    Attributes:
        waits: By partition, hosts whose name is being resolved, and requests without an answer so far.
        obeyed: Changes of commands since the start.
        job_counts: By partition, the counts that were reported last.
        pages: Pages fetched since the start.
        bytes: Their bodies' bytes.
    """

    app: "CrawlApp"
    frontier: "Frontier"
    live: "dict[int, Partition]"
    restoring: "Restoring"
    orders: "StageCommands"
    obeyed: int
    reported_jobs: "ReportedJobs"
    job_counts: dict[int, JobCountsCache]
    durations: "Durations"
    waits: Callable[[], tuple[Counter[int], Counter[int]]]
    pages: int
    bytes: int


def reports(stage: Reported) -> list[Progress]:
    """One report for each live partition, and for each that is not live yet since it is folded from its start."""
    hosts = stage.frontier.slowest(HOSTS_SHOWN)
    naming, unanswered = stage.waits()
    now = time.time()
    named = JobsNamed(stage.reported_jobs.left_out, stage.reported_jobs.take_asked(), stage.obeyed, stage.orders.paused)
    return [
        Progress(
            worker=stage.app.worker_name,
            stage="fetch",
            partition=number,
            at=now,
            offset=partition.offset,
            checkpoint=partition.checkpointed,
            pid=os.getpid(),
            jobs=_counts(stage, number, partition, named) if number in stage.live else {},
            pages=stage.pages,
            bytes=stage.bytes,
            hosts=hosts.get(number, []),
            naming=naming[number],
            unanswered=unanswered[number],
            paused=stage.orders.paused,
            note=partition.note,
            cut=partition.cut,
            took=stage.durations.counts,
            took_s=round(stage.durations.sum_s, 3),
        )
        for number, partition in list(stage.restoring.opened.items())
        if number in stage.live or partition.note
    ]


def _counts(stage: Reported, number: int, partition: "Partition", named: JobsNamed) -> dict[str, JobCounts]:
    cache = stage.job_counts.get(number)
    if cache is None or cache.partition is not partition:
        cache = stage.job_counts[number] = JobCountsCache(partition, stage.frontier)
    return cache.counts(named)
