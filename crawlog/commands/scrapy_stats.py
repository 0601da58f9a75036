"""Scrapy's stats of a job: what its pages changed in them, added up over all workers.

    crawl.items: the stats of each page ──────┐
    the newest of `start`, as `start#stats` ──┴─► `job_stats` ─► the summary

A page that was parsed twice counts once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import xxhash

from crawlog.schemas import items

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

_MARK = b'"stats":{'
"""Only records with this text are decoded."""

WITHOUT = 2_000
"""So many records of a job without stats tell that its spider is none of Scrapy's: each page of those changes some, and
only sitemaps change none."""


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
    from crawlog.streams.log import Topics, read_partitions

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
            items.add_stats(sums, record.stats)
    items.add_stats(sums, of_start)
    return sums


def _bounds(settings: "Settings", topic: str, starts: Sequence[int], ends: Sequence[int]) -> dict[int, tuple[int, int]]:
    """First and last offset of the job's part, by partition; of a log that was made again, all of it."""
    from crawlog.streams.log import log_bounds, partition_count

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
