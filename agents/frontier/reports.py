"""What the frontier stage reports to crawl.progress: one record for each partition, counts by job."""

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from crawlog.schemas.progress import JobCounts, Progress

if TYPE_CHECKING:
    from crawlog.agents.control import Obedience
    from crawlog.streams.fetch import ReportedJobs
    from crawlog.streams.fold import JobState
    from crawlog.streams.frontier import Frontier, OwnedPartition
    from crawlog.streams.state import Partition
    from crawlog.streams.worker import CrawlApp

    from .restoring import Restoring

HOSTS_SHOWN = 5


class Reported(Protocol):
    """The stage, as far as a report needs it.

    Attributes:
        waits: By partition, hosts whose name is being resolved, and requests without an answer so far.
        pages: Pages fetched since the start.
        bytes: Their bodies' bytes.
    """

    app: "CrawlApp"
    frontier: "Frontier"
    live: "dict[int, Partition]"
    restoring: "Restoring"
    orders: "Obedience"
    reported_jobs: "ReportedJobs"
    waits: Callable[[], tuple[Counter[int], Counter[int]]]
    pages: int
    bytes: int


def reports(stage: Reported) -> list[Progress]:
    """One report for each live partition, and for each that is not live yet since it is folded from its start."""
    hosts = stage.frontier.slowest(HOSTS_SHOWN)
    naming, unanswered = stage.waits()
    now = time.time()
    return [
        Progress(
            worker=stage.app.worker_name,
            stage="fetch",
            partition=number,
            at=now,
            offset=partition.offset,
            checkpoint=partition.checkpointed,
            pid=os.getpid(),
            jobs=_counts(stage, number, partition) if number in stage.live else {},
            pages=stage.pages,
            bytes=stage.bytes,
            hosts=hosts.get(number, []),
            naming=naming[number],
            unanswered=unanswered[number],
            paused=stage.orders.paused,
            note=partition.note,
            cut=partition.cut,
        )
        for number, partition in list(stage.restoring.opened.items())
        if number in stage.live or partition.note
    ]


def _counts(stage: Reported, number: int, partition: "Partition") -> dict[str, JobCounts]:
    owned, left_out = stage.frontier.owned[number], stage.reported_jobs.left_out
    return {
        job.name: _reported(stage, owned, job)
        for job in partition.fold.jobs.values()
        if job.name not in left_out or owned.under_way[job.number] or (job.counts.queued and job.running)
    }


def _reported(stage: Reported, owned: "OwnedPartition", job: "JobState") -> JobCounts:
    """A job's counts as a run sees them: it waits for paused URLs, but not for a stopped job or a blocked host."""
    queued = job.counts.queued
    paused, held = owned.held.counts(job)
    if job.spec.state != "running" or stage.frontier.of_job(job.name).stopped:
        held = queued
    if stage.orders.paused:
        paused = queued
    return msgspec.structs.replace(
        job.counts,
        queued=queued - held,
        held=held,
        paused=min(paused, queued - held),
        in_flight=owned.under_way[job.number],
        needs=owned.needs(job.number),
    )
