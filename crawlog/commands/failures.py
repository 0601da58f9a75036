"""The newest results of a job that gave no page, from the end of the log: a page of the dashboard may ask at any time.

`crawlog query` reads all of them.
"""

from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import urls as u
from crawlog.streams.cluster import log_bounds
from crawlog.streams.log import Topics, partition_count, read_partitions

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

RESULTS_READ = 40_000  # Records of crawl.urls that are read


class JobFailure(msgspec.Struct, frozen=True):
    """A result without a page, or with an error status.

    Attributes:
        why: A word for it, or the rule that refused the URL.
        next_at: When it is tried again, UTC epoch seconds; 0 if it is final.
    """

    url: str
    at: float
    status: str
    http: int | None
    why: str
    attempt: int
    next_at: float


def newest_failures(settings: "Settings", job: str, epoch: int, limit: int) -> list[JobFailure]:
    """The newest results of a job that gave no page or an error status, one of each URL, the newest first.

    Args:
        epoch: The job's present one.

    Raises: EngineError: the log cannot be read.
    """
    count, topic = partition_count(settings), Topics(settings.kafka.prefix).urls
    bounds = log_bounds(settings, topic, list(range(count)))
    ranges = {number: (max(first, end - RESULTS_READ // count), end) for number, (first, end) in bounds.items()}
    newest: dict[str, JobFailure | None] = {}
    for message in read_partitions(settings, topic, ranges):
        value = message.value()
        if value is None or b'"results"' not in value:
            continue
        try:
            record = u.decode(value)
        except ValueError:
            continue  # a dead letter
        if record.job == job and record.epoch == epoch:
            at = message.timestamp()[1] / 1000
            newest |= {one.url: failure_of(one, at) for one in record.results or () if one.status != "began"}
    failures = [one for one in newest.values() if one is not None]
    return sorted(failures, key=lambda one: -one.at)[:limit]


def failure_of(result: u.Result, at: float) -> JobFailure | None:
    """The failure that a result is; None if it is none.

    Args:
        at: The time of its record, UTC epoch seconds.
    """
    if result.status not in ("failed", "refused") and (result.http or 0) < 400:
        return None
    why = result.rule or result.reason or result.why_no_page
    return JobFailure(result.url, result.at or at, result.status, result.http, why, result.attempt, result.next_at)
