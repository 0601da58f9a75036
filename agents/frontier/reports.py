"""What the frontier stage reports to crawl.progress: one record for each partition, counts by job."""

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from crawlog.schemas.progress import MAX_EXITS, JobCounts, Progress
from crawlog.streams.frontier import barred
from crawlog.streams.jobs import traits

if TYPE_CHECKING:
    from crawlog.agents.control import StageCommands
    from crawlog.streams.fetch import Durations, ReportedJobs
    from crawlog.streams.fold import JobState
    from crawlog.streams.frontier import Frontier, OwnedPartition
    from crawlog.streams.state import Partition
    from crawlog.streams.worker import CrawlApp

    from .restoring import Restoring


# The counts of one partition's jobs as its reports say them; made again only for jobs that changed.

# Age from which counts are made again although nothing was folded: what an owner lacks may have changed.
RECOUNT_S = 2.0

RELIST_S = 1.0  # Time between two looks through all finished jobs for those that have something to do again


class JobsNamed(NamedTuple):
    """What crawl.control says about the jobs of reports.

    Attributes:
        left_out: Finished jobs, not to be named unless they have something to do.
        asked: Jobs whose counts somebody waits for: their counts are new objects.
        commands: Number of changes of commands so far.
        is_paused: Whether the stage is paused.
    """

    left_out: frozenset[str]
    asked: set[str]
    commands: int
    is_paused: bool


class _Standing(NamedTuple):
    """What a job's counts depend on. `JobCounts.folded` grows with each of its records."""

    folded: int
    under_way: int
    state: str
    awaited: bool
    epoch: int


class JobCountsCache:
    """The counts of one open partition; a job whose counts did not change has the same object as before."""

    def __init__(self, partition: "Partition", frontier: "Frontier") -> None:
        self.partition = partition
        self._frontier = frontier
        self._look: tuple[object, ...] = ()
        self._commands: tuple[int, bool] = (0, False)
        self._listed: tuple[object, ...] = ()
        self._relist_at = self._recount_at = 0.0
        self._open: list[JobState] = []
        self._again: list[JobState] = []
        self._counts: dict[str, JobCounts] = {}
        self._standings: dict[str, _Standing] = {}

    def counts(self, named: JobsNamed) -> dict[str, JobCounts]:
        """The counts by job; the same dictionary as before if nothing changed."""
        now = time.monotonic()
        owned = self._frontier.owned[self.partition.fold.partition]
        commands = named.commands, named.is_paused
        look = self.partition.offset, +owned.under_way, named.left_out, commands
        if look == self._look and not named.asked and now < self._recount_at:
            return self._counts
        if commands != self._commands or now >= self._recount_at:
            self._standings.clear()
            self._recount_at = now + RECOUNT_S
        self._look, self._commands = look, commands
        counts = {job.name: self._of(job, owned, named) for job in self._named(owned, named.left_out, now)}
        if counts.keys() != self._counts.keys() or any(counts[name] is not self._counts[name] for name in counts):
            self._counts = counts
        return self._counts

    def _named(self, owned: "OwnedPartition", left_out: frozenset[str], now: float) -> "list[JobState]":
        """The jobs that are named: the open ones, and finished ones with something to do."""
        fold = self.partition.fold
        listed = len(fold.jobs), left_out
        if listed != self._listed or now >= self._relist_at:
            self._listed, self._relist_at = listed, now + RELIST_S
            self._open = [job for job in fold.jobs.values() if job.name not in left_out and not job.deleted]
            done = [job for job in fold.jobs.values() if job.name in left_out]
            self._again = [job for job in done if _has_queued(job) or owned.waits.due_again(job)]
        under_way = [fold.numbers[number] for number, count in owned.under_way.items() if count]
        again = {job.name: job for job in (*self._again, *under_way) if job.name in left_out and not job.deleted}
        return [*self._open, *again.values()] if again else self._open

    def _of(self, job: "JobState", owned: "OwnedPartition", named: JobsNamed) -> JobCounts:
        under_way = owned.under_way[job.number]
        standing = _Standing(job.counts.folded, under_way, job.spec.state, job.awaited, job.epoch)
        known = self._counts.get(job.name)
        is_asked = job.name in named.asked
        if known is not None and self._standings.get(job.name) == standing and not is_asked:
            return known
        self._standings[job.name] = standing
        counts = _reported(self._frontier, owned, job, is_paused=named.is_paused)
        return known if known == counts and not is_asked else counts


def _has_queued(job: "JobState") -> bool:
    return bool(job.counts.queued and traits(job.spec.state).queued and not job.awaited)


def _reported(frontier: "Frontier", owned: "OwnedPartition", job: "JobState", *, is_paused: bool) -> JobCounts:
    """A job's counts as a run sees them: it waits for paused URLs, but not for a stopped job or a blocked host."""
    queued = job.counts.queued or owned.waits.due_again(job)
    paused, held = owned.held.counts(job)
    if frontier.is_held(job):
        held = queued
    if is_paused or job.spec.state in ("paused", "waiting"):
        paused = queued
    return msgspec.structs.replace(
        job.counts,
        queued=queued - held,
        held=held,
        paused=min(paused, queued - held),
        in_flight=owned.under_way[job.number],
        needs=owned.needs(job.number),
        dropped=dict(job.counts.dropped),
        statuses=dict(job.counts.statuses),
        no_page=dict(job.counts.no_page),
        epoch=job.epoch,
    )


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
    waiting = barred(stage.frontier.schedule, stage.frontier.queued, HOSTS_SHOWN)
    exits = stage.frontier.schedule.exits.figures(time.monotonic())
    used = sorted(exits, key=lambda name: -exits[name].requests)[:MAX_EXITS]
    first = min(stage.live, default=None)
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
            barred=waiting.get(number, []),
            exits={name: exits[name] for name in used} if number == first else {},
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
