"""The last lines of a job's log: why it ended; of a spider of Scrapy's, and for Scrapyd's clients, in Scrapy's words.

    crawl.items: the stats of each page ──────┐
    the newest of `start`, as `start#stats` ──┴─► `job_stats` ─► the summary, the last lines

They are made when somebody reads the log. No process of a fleet has seen all pages of a job. A page that was parsed
twice counts once.
"""

import time
from collections.abc import Mapping, Sequence
from pprint import pformat
from typing import TYPE_CHECKING

import xxhash

from crawlog.schemas import items
from crawlog.schemas.items import add_stats, named_stats
from crawlog.schemas.log_lines import GOES_ON, LogLine
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import FleetView, JobView
from crawlog.streams.jobs import finish_reason, traits
from crawlog.streams.log import Topics, partition_count, read_partitions
from crawlog.streams.printable import shown_time

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

_MARK = b'"stats":{'  # Only records with this text are decoded

# So many records of a job without stats tell that its spider is none of Scrapy's: each page of those changes some, and
# only sitemaps change none.
WITHOUT = 2_000

ENGINE, STATS = "scrapy.core.engine", "scrapy.statscollectors"  # Scrapy's own sources of these lines


def last_lines(settings: "Settings", name: str) -> list[LogLine]:
    """The last lines of a job's log; none while it goes on, or if there is no such job.

    Only spiders of Scrapy's have stats: each of their pages changes some.

    Raises: EngineError: the cluster does not answer.
    """
    fleet = FleetView.read(settings)
    job = fleet.job(name)
    if job is None or not traits(job.state).ended:
        return []
    try:
        stats = named(job, page_stats(settings, fleet, job))
    except EngineError as error:
        return [unread(error), *closing_lines(job, {})]
    if not stats:
        return [LogLine(job.ended_at, f"reason={finish_reason(job.state, job.reason)}", source="job_ended")]
    return closing_lines(job, stats)


def stats_of(settings: "Settings", fleet: "FleetView", name: str) -> dict[str, float]:
    """Scrapy's stats of a job by name, those of its pages and those of its pipelines; empty for other spiders.

    Raises: EngineError: crawl.items cannot be read.
    """
    job = fleet.job(name)
    return {} if job is None else named(job, page_stats(settings, fleet, job))


def page_stats(settings: "Settings", fleet: "FleetView", job: "JobView") -> dict[str, float]:
    """The sums of what its pages changed, which takes a read of its part of crawl.items.

    Raises: EngineError: crawl.items cannot be read.
    """
    copy, end = fleet.look(lambda state: ((found := state.copy(job.name)), found and state.end(found)))
    if copy is None or copy.epoch != job.epoch or not copy.spec.spider:
        return {}
    return job_stats(settings, job.name, job.epoch, copy.spec.items, end.items if end else ())


def named(job: "JobView", pages: Mapping[str, float]) -> dict[str, float]:
    """Stats by name: sums of pages, with what the pipelines counted."""
    sums = dict(pages)
    add_stats(sums, next((one.stats for one in job.outputs if one.stats), {}))
    return named_stats(sums)


def closing_lines(job: "JobView", stats: Mapping[str, float]) -> list[LogLine]:
    """The last lines of a job's log; none while it goes on.

    Args:
        stats: By name, as `stats_of`; without any, none are dumped.
    """
    if not traits(job.state).ended:
        return []
    reason = finish_reason(job.state, job.reason)

    def line(source: str, text: str, level: str = "info") -> LogLine:
        return LogLine(job.ended_at, text, level, source)

    if not stats:
        return [line(ENGINE, f"Spider closed ({reason})")]
    counts = {name: int(value) if value == int(value) else value for name, value in stats.items()}
    times = {
        "start_time": shown_time(job.submitted_at),
        "finish_time": shown_time(job.ended_at),
        "elapsed_time_seconds": job.ended_at - job.submitted_at,
    }
    return [
        line(ENGINE, f"Closing spider ({reason})"),
        line(STATS, "Dumping Scrapy stats:"),
        *(line("", text, GOES_ON) for text in pformat(counts | times | {"finish_reason": reason}).split("\n")),
        line(ENGINE, f"Spider closed ({reason})"),
    ]


def unread(error: EngineError) -> LogLine:
    """In place of the stats of a job whose items cannot be read."""
    return LogLine(time.time(), f"Scrapy's stats are not known: {error}", "warning", STATS)


def job_stats(
    settings: "Settings", job: str, epoch: int, starts: Sequence[int] = (), ends: Sequence[int] = ()
) -> dict[str, float]:
    """The sums of a job's stats; `named_stats` has them by name.

    Args:
        epoch: Of the job; pages of earlier epochs do not count.
        starts: By partition of crawl.items, where the records of the epoch begin, for a job whose spider may be none of
            Scrapy's.
        ends: By partition of crawl.items, where they end; empty if that is not known.

    Raises: EngineError: crawl.items cannot be read.
    """
    topic = Topics(settings.kafka.prefix).items
    bounds = _bounds(settings, topic, starts, ends)
    begins, without = f"{job} ".encode(), 0
    known: set[int] = set()
    sums: dict[str, float] = {}
    of_start: dict[str, float] = {}
    for message in read_partitions(settings, topic, bounds):
        value = message.value() or b""
        if _MARK not in value:
            without += (message.key() or b"").startswith(begins)
            if starts and without == WITHOUT and not known:
                break
            continue
        record = _record(value, job, epoch)
        if record is None:
            continue
        if record.url == items.START_STATS:
            of_start = record.stats
            continue
        key = xxhash.xxh3_64_intdigest(items.key(record.job, record.url, record.id))
        if key not in known:
            known.add(key)
            add_stats(sums, record.stats)
    add_stats(sums, of_start)
    return sums


def _bounds(settings: "Settings", topic: str, starts: Sequence[int], ends: Sequence[int]) -> dict[int, tuple[int, int]]:
    """First and last offset of the job's part, by partition; of a log that was made again, all of it."""
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    for at, start in enumerate(starts):
        first, end = bounds.get(at, (0, 0))
        bounds[at] = (start, end) if first <= start <= end else (first, end)
    for at, known_end in enumerate(ends):
        first, end = bounds.get(at, (0, 0))
        bounds[at] = (first, max(first, min(end, known_end)))
    return bounds


def _record(value: bytes, job: str, epoch: int) -> items.ItemsRecord | None:
    """The record of a job in a value; None for others."""
    try:
        record = items.decode(value)
    except ValueError:
        return None
    return record if record.job == job and record.epoch >= epoch else None
