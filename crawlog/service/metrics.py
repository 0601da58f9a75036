"""`/metrics` for Prometheus: the fleet as crawl.progress and crawl.control show it. And whether the service is well.

    FleetView ─► FleetCollector ─► CollectorRegistry ─► text

The number of labels is bounded: jobs that go on (`MOST_OPEN`), the last ended ones (`MOST_ENDED`), workers. Counts of
pages are folds of the log, so they survive restarts; those of a worker begin again with its process.

`/healthz`: the process answers. `/readyz`: the log answers, too. Both are open, and show nothing else.
"""

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from crawlog import __version__
from crawlog.schemas.progress import TOOK_S
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import SHOWN_STATES, traits
from crawlog.streams.log import stage_group

from .answers import as_json
from .routing import FLEET, SETTINGS, add, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from crawlog.schemas.progress import Progress
    from crawlog.streams.fleet import ExitView, FleetState, FleetStatus, FleetView, JobView, WorkerView
    from crawlog.streams.settings import Settings

MOST_OPEN = 500  # Jobs that go on and have counts of their own: the last submitted ones

MOST_ENDED = 50  # Ended jobs that still have them: the last ended ones

KEPT_S = 2.0  # Age up to which an answer is given again: several scrapers cost as much as one

STAGES = ("fetch", "parse", "sink")

OUTCOMES = ("fetched", "redirected", "failed", "refused")  # Counts of a job that are ends of a URL

# Counts of a job that are URLs in the frontier; `queued` contains the paused ones.
FRONTIER = ("queued", "held", "paused", "in_flight")


class FleetCollector(Collector):
    """Makes all metrics anew for each scrape."""

    def __init__(self, fleet: "FleetView", settings: "Settings") -> None:
        self._fleet = fleet
        self._settings = settings
        self._started: dict[str, tuple[str, float]] = {}
        self._restarts: Counter[tuple[str, str]] = Counter()

    def describe(self) -> "Iterable[Metric]":
        """No metric: the registry would ask the log for their names."""
        return ()

    def collect(self) -> "Iterator[Metric]":
        """The metrics now.

        Raises: EngineError: the broker does not answer.
        """
        status = self._fleet.status()
        frontier, reports = self._fleet.look(_reported)
        yield InfoMetricFamily("crawlog_build", "Version of the service.", {"version": __version__})
        yield from _of_jobs(status.jobs)
        yield _frontier(frontier)
        yield from _of_stages(status, self._settings)
        yield from _of_workers(status.workers)
        yield self._restarted(status.workers)
        yield _took(reports)
        yield from _of_exits(status.exits)

    def _restarted(self, workers: "Iterable[WorkerView]") -> "Metric":
        """Counts new processes of known names; they are noticed at scrapes."""
        for one in workers:
            stage, started = self._started.get(one.id, (one.stage, one.started_at))
            self._restarts[stage, one.id] += one.started_at > started
            self._started[one.id] = one.stage, one.started_at
        family = CounterMetricFamily(
            "crawlog_worker_restarts",
            "New processes of a worker, as this service saw them.",
            labels=("stage", "worker"),
        )
        for one in workers:
            family.add_metric((one.stage, one.id), self._restarts[one.stage, one.id])
        return family


def _reported(state: "FleetState") -> "tuple[dict[str, int], list[Progress]]":
    """Sums over all jobs of all partitions, and the newest reports; the state does not change meanwhile."""
    reports = list(state.picture.newest.values())
    counts = [one for report in reports for one in report.jobs.values()]
    return {name: sum(getattr(one, name) for one in counts) for name in FRONTIER}, reports


def shown_jobs(jobs: "Iterable[JobView]") -> "list[JobView]":
    """The jobs that have metrics of their own."""
    going = [job for job in jobs if not traits(job.state).ended]
    gone = sorted((job for job in jobs if traits(job.state).ended), key=lambda job: -job.ended_at)
    return [*going[:MOST_OPEN], *gone[:MOST_ENDED]]


def _of_jobs(jobs: "Iterable[JobView]") -> "Iterator[Metric]":
    by_state = Counter(job.state for job in jobs)
    states = GaugeMetricFamily("crawlog_jobs", "Jobs by state.", labels=("state",))
    for state in SHOWN_STATES:
        states.add_metric((state,), by_state[state])
    yield states
    pages = CounterMetricFamily("crawlog_pages", "URLs of a job that came to an end.", labels=("job", "outcome"))
    answers = CounterMetricFamily("crawlog_responses", "Final answers of a job.", labels=("job", "status"))
    retries = CounterMetricFamily("crawlog_retries", "Attempts that failed and are repeated.", labels=("job",))
    bodies = CounterMetricFamily(
        "crawlog_body_bytes", "Bytes of the bodies of a job's pages, as they came.", labels=("job",)
    )
    rows = CounterMetricFamily(
        "crawlog_rows", "Rows of a job's pages, as its parse workers count them.", labels=("job",)
    )
    queued = GaugeMetricFamily("crawlog_job_queued_urls", "URLs of a job that wait.", labels=("job",))
    waiting = GaugeMetricFamily(
        "crawlog_output_waiting_records", "Records that are not in an output of a job yet.", labels=("job", "output")
    )
    for job in shown_jobs(jobs):
        for output in job.outputs:
            waiting.add_metric((job.name, output.name), output.waiting)
        if not job.is_counted:
            continue  # a counter that is too low looks like a restarted one: Prometheus would add all pages once more
        for outcome in OUTCOMES:
            pages.add_metric((job.name, outcome), getattr(job.counts, outcome))
        for status, count in job.counts.statuses.items():
            answers.add_metric((job.name, status), count)
        retries.add_metric((job.name,), job.counts.retried)
        bodies.add_metric((job.name,), job.counts.bytes)
        rows.add_metric((job.name,), job.remarks.rows)
        queued.add_metric((job.name,), job.counts.queued)
    yield from (pages, answers, retries, bodies, rows, queued, waiting)


def _frontier(counts: dict[str, int]) -> "Metric":
    family = GaugeMetricFamily("crawlog_frontier_urls", "URLs in the frontier, over all jobs.", labels=("state",))
    for state, count in counts.items():
        family.add_metric((state,), count)
    return family


def _of_stages(status: "FleetStatus", settings: "Settings") -> "Iterator[Metric]":
    lag = GaugeMetricFamily(
        "crawlog_lag_records", "Records of its input that a group has not passed.", labels=("group", "stage")
    )
    paused = GaugeMetricFamily("crawlog_stage_paused", "1 if a command pauses the stage.", labels=("stage",))
    for stage in status.stages:
        lag.add_metric((stage_group(settings, stage.stage), stage.stage), stage.lag)
        paused.add_metric((stage.stage,), stage.is_paused)
    yield from (lag, paused)
    dead = CounterMetricFamily("crawlog_dead_letters", "Records of crawl.dead, the marks of what is closed included.")
    dead.add_metric((), status.dead)
    yield dead


def _of_workers(workers: "Iterable[WorkerView]") -> "Iterator[Metric]":
    by_stage = Counter(one.stage for one in workers)
    count = GaugeMetricFamily("crawlog_workers", "Workers that report.", labels=("stage",))
    for stage in (*STAGES, *sorted(by_stage.keys() - set(STAGES))):
        count.add_metric((stage,), by_stage[stage])
    yield count
    named = ("stage", "worker")
    cpu = GaugeMetricFamily("crawlog_worker_cpu_ratio", "Share of one CPU, with child processes.", labels=named)
    memory = GaugeMetricFamily("crawlog_worker_resident_memory_bytes", "Memory of its process.", labels=named)
    started = GaugeMetricFamily("crawlog_worker_start_time_seconds", "Start of its process.", labels=named)
    troubled = GaugeMetricFamily("crawlog_worker_trouble", "1 if it retries after an error.", labels=named)
    for one in workers:
        labels = one.stage, one.id
        cpu.add_metric(labels, one.cpu)
        memory.add_metric(labels, one.rss)
        started.add_metric(labels, one.started_at)
        troubled.add_metric(labels, bool(one.trouble))
    yield from (cpu, memory, started, troubled)


def _of_exits(views: "Iterable[ExitView]") -> "Iterator[Metric]":
    """Exits of fetch workers."""
    named = ("worker", "exit")
    counters = {
        "requests": "Requests by an exit, with or without an answer.",
        "bans": "Answers by which a site turned an exit away.",
        "failures": "Requests that an exit did not let through, or that nobody answered.",
        "bytes": "Bytes of the bodies of answers.",
    }
    families = {
        name: CounterMetricFamily(f"crawlog_exit_{name}", text, labels=named) for name, text in counters.items()
    }
    median = GaugeMetricFamily("crawlog_exit_median_seconds", "Median duration of the last requests.", labels=named)
    resting = GaugeMetricFamily("crawlog_exit_resting_hosts", "Hosts for which an exit rests.", labels=named)
    rests = GaugeMetricFamily("crawlog_exit_resting", "1 if it rests for all hosts.", labels=named)
    for view in views:
        labels = view.worker, view.name
        for name, family in families.items():
            family.add_metric(labels, getattr(view.figures, name))
        median.add_metric(labels, view.figures.median_s)
        resting.add_metric(labels, view.figures.rests_at)
        rests.add_metric(labels, view.figures.rests_s > 0)
    yield from (*families.values(), median, resting, rests)


def _took(reports: "Iterable[Progress]") -> "Metric":
    """Durations of requests, by worker: each report of a process has the sums of all its partitions."""
    family = HistogramMetricFamily("crawlog_fetch_seconds", "Durations of requests.", labels=("worker",))
    newest: dict[str, Progress] = {}
    for report in reports:
        known = newest.get(report.worker)
        if report.stage == "fetch" and report.took and (known is None or known.at < report.at):
            newest[report.worker] = report
    for worker, report in sorted(newest.items()):
        buckets, total = list[tuple[str, float]](), 0
        for bound, count in zip((*map(str, TOOK_S), "+Inf"), report.took, strict=False):
            total += count
            buckets.append((bound, total))
        family.add_metric((worker,), buckets, report.took_s)
    return family


class Scrapes:
    """Answers scrapes; one answer serves for `KEPT_S`."""

    def __init__(self, fleet: "FleetView", settings: "Settings") -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(FleetCollector(fleet, settings))
        self._kept: dict[str, tuple[float, bytes]] = {}

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Body and content type, for the header Accept.

        Raises: EngineError: the broker does not answer.
        """
        encode, content_type = choose_encoder(accept)
        at, body = self._kept.get(content_type, (0.0, b""))
        if not body or time.monotonic() - at > KEPT_S:
            body = encode(self._registry)
            self._kept = {content_type: (time.monotonic(), body)}
        return body, content_type


SCRAPES: web.AppKey[Scrapes] = web.AppKey("scrapes", Scrapes)


def routes(app: web.Application) -> None:
    """Adds them."""
    app[SCRAPES] = Scrapes(app[FLEET], app[SETTINGS])
    add(app, "GET", "/metrics", _metrics, "read")
    app[READY] = LogHealth()
    add(app, "GET", "/healthz", _healthz, None)
    add(app, "GET", "/readyz", _readyz, None)


async def _metrics(request: web.Request) -> web.Response:
    try:
        scraped = in_thread(request, request.app[SCRAPES].answer, request.headers.get("Accept", ""))
        body, content_type = await scraped
    except EngineError as error:
        return web.Response(status=503, text=f"{error}\n")
    return web.Response(body=body, headers={"Content-Type": content_type})


LOOK_S = 1.0  # Time that a look at the log counts, seconds


class LogHealth:
    """Whether the log answers: anybody may ask, so one look serves all for a while."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._at = -LOOK_S
        self._is_ready = False

    async def look(self, fleet: "FleetView") -> bool:
        async with self._looking:
            if time.monotonic() - self._at >= LOOK_S:
                self._is_ready = await asyncio.to_thread(_answers, fleet)
                self._at = time.monotonic()
            return self._is_ready


READY: web.AppKey[LogHealth] = web.AppKey("ready", LogHealth)


def _answers(fleet: "FleetView") -> bool:
    try:
        fleet.stages()
    except EngineError:
        return False
    return True


async def _healthz(_: web.Request) -> web.Response:
    return as_json({"status": "ok"})


async def _readyz(request: web.Request) -> web.Response:
    if not await request.app[READY].look(request.app[FLEET]):
        return as_json({"status": "the log does not answer"}, 503)
    return as_json({"status": "ok"})
