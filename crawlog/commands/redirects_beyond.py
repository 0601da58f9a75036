"""Redirects to a URL that were one too many in a row: parse drops such a target, and the log has no found of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from crawlog.schemas import pages
from crawlog.streams.errors import DamagedLog
from crawlog.streams.fold import Event, History
from crawlog.streams.http import shown_page
from crawlog.streams.log import Topics, log_bounds, record_at, record_headers

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


def redirects_beyond(settings: "Settings", history: History, only: str) -> Iterator[Event]:
    """An event for each of these redirects that comes from a page of the URL's own partition, and is stored still.

    Args:
        only: The only job of interest; empty for all.
    """
    topic, hops = Topics(settings.kafka.prefix).pages, history.last_hops
    bounds = log_bounds(settings, topic, sorted({partition for partition, _ in hops})) if hops else {}
    for partition, offset in hops:
        start, end = bounds[partition]
        try:
            record = record_at(settings, topic, partition, offset) if start <= offset < end else None
            meta = pages.meta_in(record_headers(record)) if record is not None else None
        except (ValueError, DamagedLog):
            continue  # a page that cannot be read
        if record is None or meta is None or only not in ("", meta.job) or not history.is_target(meta):
            continue
        if said := history.end_of_redirects(meta):
            at, what = record.timestamp()[1] / 1000, f"redirect to it from {meta.url}: {said}"
            yield Event(at, "pages", partition, offset, "page", what, meta.job, meta.epoch, {"meta": shown_page(meta)})
