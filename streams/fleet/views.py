"""What commands and the service show of jobs and workers: values, without a decision on how they look."""

from typing import Any

import msgspec

from crawlog.schemas.job_orders import NO_FLOW, CodeRef, JobFlow
from crawlog.schemas.progress import ExitFigures, JobCounts, JobRemarks
from crawlog.schemas.urls import USUAL_PRIORITY

from .estimate import EndEstimate
from .paces import STILL, JobPace


class OutputView(msgspec.Struct, frozen=True):
    """An output of a job.

    Attributes:
        state: `writing`, `complete`, `partial` (of a job that was cancelled) or `failed`.
        place: Where it is, for people: a FILE lies on `machine`.
        worker: Name of the worker that noted this; of an error that stays, the first one that met it.
        stats: Scrapy's, that the job's pipelines counted.
        waiting: Records of crawl.items that were read for it and are not in it yet, by the last report.
    """

    name: str
    state: str
    rows: int = 0
    place: str = ""
    error: str = ""
    required: bool = True
    worker: str = ""
    stats: dict[str, float] = {}
    machine: str = ""
    waiting: int = 0


class HookView(msgspec.Struct, frozen=True):
    """A call at the end of a job.

    Attributes:
        state: `waiting` (for the end), `taken`, `again` (it failed, and is tried again) or `failed`.
        tries: Calls of the present end.
        next_at: UTC epoch seconds of the next one; 0 if there is none.
        error: Why the last one was not taken.
    """

    target: str
    state: str = "waiting"
    tries: int = 0
    next_at: float = 0.0
    error: str = ""


class AgainView(msgspec.Struct, frozen=True):
    """How far the stored pages of a job are parsed again.

    Attributes:
        pages: Pages of the job that were parsed again so far.
        read: Share of the stored pages, of all jobs, that were looked through, from 0 to 1.
    """

    pages: int
    read: float
    is_done: bool


class JobView(msgspec.Struct, frozen=True):
    """A job.

    Attributes:
        state: `pending` (submitted, nothing fetched yet), `running`, `paused`, `stopped`, `finished`, `failed`,
            `cancelled`, `waiting` (for other jobs).
        reason: Why it is so, if there is more to say.
        priority: Its share beside other jobs, 0 to 9.
        spider: Name of the spider as people know it; empty for the default spider.
        submitted_at, ended_at: UTC epoch seconds; 0 if unknown, or not yet.
        started_at: `submitted_at` once it has begun, else 0: the log has no time of the first request, and two copies
            must agree.
        is_counted: Whether `counts` are those of all partitions. After a long rest of a fleet with many jobs, or while
            a partition of a large fleet has long had no worker, they are too low until the workers have reported.
        is_starting: Whether the spider's `start` may give more requests.
        next_start: When the spider's `start` begins again by itself, UTC epoch seconds; 0 if it does not.
        is_fed: Whether its spider is asked for more as long as it runs, so that it does not end by itself.
        rows: Rows that count in its outputs; None if it has none here, or none has reported yet.
        pace: Pages and rows of the last minute, by the reports that this view has met.
        left: How long it needs at least, by its pace and its slowest hosts; None if nobody can know.
        remarks: What the parse workers that report say of its pages.
        flow: How it is connected with other jobs.
        feeds: What became of the feeds from other jobs; their rows are those of the other job.
        hooks: What became of the calls at its end.
        parsed_again: How far the last order to parse its stored pages again is; None without one.
        settings: Those of the job's record, by key, secrets hidden; only where one job is shown.
        paused_workers: Those that an operator paused, so that the job may wait for them; only where one job is shown.
    """

    name: str
    state: str
    epoch: int = 0
    rev: int = 0
    priority: int = USUAL_PRIORITY
    reason: str = ""
    spider: str = ""
    code: CodeRef | None = None
    by: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    counts: JobCounts = msgspec.field(default_factory=JobCounts)
    rows: int | None = None
    pace: JobPace = STILL
    left: EndEstimate | None = None
    remarks: JobRemarks = JobRemarks()
    is_counted: bool = True
    is_starting: bool = False
    is_fed: bool = False
    next_start: float = 0.0
    dead: int = 0
    outputs: tuple[OutputView, ...] = ()
    args: dict[str, str] = msgspec.field(default_factory=dict)
    flow: JobFlow = NO_FLOW
    feeds: tuple[OutputView, ...] = ()
    hooks: tuple[HookView, ...] = ()
    parsed_again: AgainView | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    paused_workers: tuple[str, ...] = ()


class WorkerView(msgspec.Struct, frozen=True):
    """A process of a worker.

    Attributes:
        id: Its name: unique in the fleet.
        partitions: Those that it owns and has restored.
        cpu: Share of one CPU over the last reports.
        rss: Resident memory, bytes.
        reported_s: Seconds since its last report.
        paused: Whether it, or its whole stage, handles nothing now.
        is_held: Whether an operator paused this process alone, until `crawlog workers resume ID` or its end.
        is_coordinator: Whether it decides on changes and ends of jobs: it owns partition 0 of crawl.urls.
        trouble: An error that it retries.
        exits: The exits that a worker of the stage `exit` lends, by name: where the fleet reaches them.
        tunnels: Open through these.
    """

    id: str
    stage: str
    host: str
    pid: int
    partitions: tuple[int, ...] = ()
    pages_per_s: float = 0.0
    cpu: float = 0.0
    rss: int = 0
    version: str = ""
    started_at: float = 0.0
    reported_s: float = 0.0
    supervisor: str = ""
    paused: bool = False
    is_held: bool = False
    is_coordinator: bool = False
    trouble: str = ""
    exits: dict[str, str] = {}
    tunnels: int = 0


# Kinds of an end that an operator should look at, by the first word of its reason.
BAD_ENDS = frozenset({"silent", "killed", "ended", "crashed"})


class LostWorker(msgspec.Struct, frozen=True):
    """A process of a worker that has ended.

    Attributes:
        lost_at: When it ended, or sent its last report, UTC epoch seconds.
        reason: `silent` if its reports only ceased; else what it, or its supervisor, noted.
        is_replaced: Whether another process of its name came after it.
    """

    id: str
    stage: str
    host: str
    pid: int
    version: str
    started_at: float
    lost_at: float
    reason: str
    is_replaced: bool

    @property
    def is_bad(self) -> bool:
        """Whether nobody planned its end, and no other process of its name came."""
        return not self.is_replaced and self.reason.partition(" ")[0].rstrip(":") in BAD_ENDS


class StageView(msgspec.Struct, frozen=True):
    """A stage over all its workers.

    Attributes:
        lag: Records of its input that it has not passed.
    """

    stage: str
    workers: int
    lag: int
    pages_per_s: float = 0.0
    is_paused: bool = False


class PlaceView(msgspec.Struct, frozen=True):
    """How far a stage has come in a partition of its input.

    Attributes:
        worker: That reported it last; it may have ended.
        passed: The offset before which all is folded (fetch), or acknowledged.
        kept: That of the state on disk (fetch), or of the last commit: a new owner goes on there.
        end: The partition's next offset.
        reported_at: UTC epoch seconds by the worker's clock; 0 if nobody ever reported it.
    """

    stage: str
    partition: int
    worker: str
    passed: int
    kept: int
    end: int
    lag: int
    reported_at: float


class HostView(msgspec.Struct, frozen=True):
    """A slow host.

    Attributes:
        wait_s: Seconds until its next request.
        reason: Why it waits, if that is not its delay alone.
    """

    host: str
    queued: int
    wait_s: float
    reason: str = ""


class ExitView(msgspec.Struct, frozen=True):
    """An exit of a fetch worker; the figures are since the worker's start."""

    name: str
    worker: str
    figures: ExitFigures


class FleetStatus(msgspec.Struct, frozen=True):
    """The whole fleet at one moment."""

    jobs: tuple[JobView, ...]
    workers: tuple[WorkerView, ...]
    stages: tuple[StageView, ...]
    hosts: tuple[HostView, ...] = ()
    exits: tuple[ExitView, ...] = ()
    dead: int = 0
