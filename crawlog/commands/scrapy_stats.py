"""Scrapy's stats of a job: what its pages changed in them, added up over all workers.

    crawl.items: the stats of each page ─┐
    the parts of `start`, as `start#N` ──┴─► `job_stats` ─► the summary

A page that was parsed twice counts once.
"""

from typing import TYPE_CHECKING

import xxhash

from crawlog.schemas import items

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

_MARK = b'"stats":{'
"""Only records with this text are decoded."""


def job_stats(settings: "Settings", job: str, epoch: int) -> dict[str, float]:
    """The sums of a job's stats, by name.

    Args:
        epoch: Of the job; pages of earlier epochs do not count.

    Raises: EngineError: crawl.items cannot be read.
    """
    from crawlog.streams.log import Topics, log_bounds, partition_count, read_partitions

    topic = Topics(settings.kafka.prefix).items
    bounds = log_bounds(settings, topic, list(range(partition_count(settings))))
    known: set[int] = set()
    sums: dict[str, float] = {}
    for message in read_partitions(settings, topic, bounds):
        value = message.value() or b""
        if _MARK not in value:
            continue
        for name, change in _stats_of(value, job, epoch, known).items():
            sums[name] = sums.get(name, 0) + change
    return dict(sorted(sums.items()))


def _stats_of(value: bytes, job: str, epoch: int, known: set[int]) -> dict[str, float]:
    """The stats of a record that counts; empty for others."""
    try:
        record = items.decode(value)
    except ValueError:
        return {}
    key = xxhash.xxh3_64_intdigest(items.key(record.job, record.url, record.id))
    if record.job != job or record.epoch < epoch or key in known:
        return {}
    known.add(key)
    return record.stats
