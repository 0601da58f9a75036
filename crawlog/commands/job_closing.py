"""The last lines of a job's log: why it ended; of a spider of Scrapy's, and for Scrapyd's clients, in Scrapy's words.

They are made when somebody reads the log. No process of a fleet has seen all pages of a job.
"""

import time
from collections.abc import Mapping
from pprint import pformat
from typing import TYPE_CHECKING

from crawlog.schemas.items import add_stats, named_stats
from crawlog.schemas.job_orders import ENDED
from crawlog.schemas.log_lines import GOES_ON, LogLine
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import finish_reason
from crawlog.streams.printable import shown_time

from .scrapy_stats import job_stats

if TYPE_CHECKING:
    from crawlog.streams.fleet import FleetView, JobView
    from crawlog.streams.settings import Settings

ENGINE, STATS = "scrapy.core.engine", "scrapy.statscollectors"
"""Scrapy's own sources of these lines."""


def last_lines(settings: "Settings", name: str) -> list[LogLine]:
    """The last lines of a job's log; none while it goes on, or if there is no such job.

    Only spiders of Scrapy's have stats: each of their pages changes some.

    Raises: EngineError: the cluster does not answer.
    """
    from crawlog.streams.fleet import FleetView

    fleet = FleetView.read(settings)
    job = fleet.job(name)
    if job is None or job.state not in ENDED:
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
    if job.state not in ENDED:
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
