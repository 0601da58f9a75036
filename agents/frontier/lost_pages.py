"""Before a partition is live: pages without a done get one, so that their URLs are not requested again.

folded to the log's end ─► the last pages of crawl.pages ─► `streams/fetch/lost_dones.py` ─► dones ─► folded too
"""

import time
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.streams.errors import AccessDenied, DamagedLog
from crawlog.streams.fetch import LostDones, first_page, most_pages
from crawlog.streams.log import Topics, limits_of, log_bounds, own_manner, read_partitions, record_headers
from crawlog.streams.settings import Settings
from crawlog.streams.state import Partition
from crawlog.streams.url import Places

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger()

BATCH = 100
"""Dones in a record: each may have the cookies of a jar."""


class LostPages:
    """Reads the last pages of partitions, headers alone, and makes dones of those that have none."""

    def __init__(self, settings: Settings, names: Topics) -> None:
        self._settings = settings
        self._names = names

    def dones(self, partitions: list[Partition], places: Places) -> list[tuple[int, u.UrlsRecord]]:
        """The dones that are missing, with their partitions. The partitions are folded to the end of crawl.urls.

        A log that cannot be read here is no reason to stop: the URLs are requested again.

        Raises: EngineError: the cluster does not answer.
        """
        try:
            return list(self._dones(partitions, places))
        except (AccessDenied, DamagedLog) as error:
            log.warning("pages_unreadable", error=str(error), then="URLs of pages without a done are requested again")
            return []

    def _dones(self, partitions: list[Partition], places: Places) -> Iterator[tuple[int, u.UrlsRecord]]:
        firsts = {one.number: first_page(one.fold) for one in partitions}
        wanted = {number: first for number, first in firsts.items() if first is not None}
        if not wanted:
            return
        most = most_pages(self._settings.fetch.concurrency)
        bounds = log_bounds(self._settings, self._names.pages, list(wanted))
        ranges = {number: (max(low, end - most, wanted[number]), end) for number, (low, end) in bounds.items()}
        own = own_manner(self._settings), limits_of(self._settings)
        lost = {one.number: LostDones(one.fold, places, *own) for one in partitions}
        found: dict[int, list[tuple[pg.PageMeta, u.Result]]] = {}
        for message in read_partitions(self._settings, self._names.pages, ranges):
            number, offset = message.partition() or 0, message.offset() or 0
            meta = _meta(message)
            result = lost[number].of(meta, offset) if meta is not None else None
            if meta is not None and result is not None:
                found.setdefault(number, []).append((meta, result))
        for number, of_one in found.items():
            log.info("dones_lost", partition=number, pages=len(of_one), then="made from their pages")
            for (job, epoch), group in groupby(of_one, key=lambda each: (each[0].job, each[0].epoch)):
                results = [result for _, result in group]
                for at in range(0, len(results), BATCH):
                    yield number, u.UrlsRecord(job, epoch, time.time(), results=results[at : at + BATCH])


def _meta(message: "Message") -> pg.PageMeta | None:
    """The metadata of a page; None for a record that is none: parse tells of it."""
    try:
        return pg.meta_in(record_headers(message))
    except ValueError:
        return None
