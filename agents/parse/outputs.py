"""Sends a page's outputs to the log: items, founds, records of crawl.control; or the page as a dead letter.

    PageOutputs ─► crawl.items ─► crawl.control ─► batches of founds ─► crawl.urls, at `flush` or when a batch is full

    each output acknowledged ─► counted by its page ─► after the last one the page is done

All outputs are decided before the first is sent (`streams/parse/outputs.py`). Founds wait for others of their partition
until `flush`, because each record costs the broker a request.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from crawlog.schemas import dead, urls
from crawlog.schemas.urls import UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.groups import WrittenEnds
from crawlog.streams.log import Send, Topics, send_letter
from crawlog.streams.parse import Batch, Encoded, Founds, Job, Message, Page, PageOutputs
from crawlog.streams.url import hashed_to


class Sender(Protocol):
    """The part of the producer that parse uses."""

    @property
    def send(self) -> Send:
        """Send a record."""


class Outputs:
    """Sends the outputs of pages, and counts their acknowledgements on the page.

    Args:
        founds: Producer of records that the crawl waits for: founds, joins, dead letters; see `Producer.send`.
        items: Producer of item records; only the page's own acknowledgement waits for these.
        now: UTC epoch seconds.
        partitions: Of crawl.items.

    Attributes:
        written: Offsets behind the last acknowledged founds and items, by partition.
    """

    def __init__(self, names: Topics, founds: Sender, items: Sender, now: Callable[[], float], partitions: int) -> None:
        self._names = names
        self._partitions = partitions
        self._send = founds.send
        self._send_item = items.send
        self._now = now
        self._founds = Founds(self._send_founds)
        self._found_ends: dict[int, int] = {}
        self._item_ends: dict[int, int] = {}
        self.written = WrittenEnds(self._found_ends, self._item_ends)

    def give(self, job: Job, outputs: PageOutputs, page: Page) -> None:
        """Send all outputs of a page; its founds gather until `flush`."""
        if outputs.item is not None:
            self._give_item(outputs.item, page)
        for key, value in outputs.controls:
            self._send(self._names.control, value, key=key, partition=0, on_delivery=page.one_done)
            page.wait()
        if outputs.joins:
            job.joined.update(outputs.joins)
        name, epoch, sent, put = job.name, outputs.epoch, outputs.sent, self._founds.put
        batches = set(outputs.awaited)
        for link, found in outputs.founds:
            batches.add(put(name, epoch, sent, link, found))
        if outputs.dropped:
            batches.add(self._founds.count(name, epoch, sent, outputs.partition, outputs.dropped))
        for batch in batches:
            if batch.wait(page.one_done):
                page.wait()
        page.one_done()

    def _give_item(self, item: Encoded, page: Page) -> None:
        crash_points.point("parse.item.sending")
        key, value = item
        self._send_item(
            self._names.items,
            value,
            key=key,
            partition=hashed_to(key, self._partitions),
            on_delivery=partial(self._has_item, page),
        )
        page.wait()

    def bury(self, message: Message, job: str, error: str, page: Page, trace: str = "") -> None:
        """Send the page unchanged, with its own headers, to crawl.dead; then it is done."""
        letter = dead.DeadLetter(
            topic=self._names.pages,
            partition=message.partition,
            offset=message.offset,
            stage="parse",
            error=error,
            key=message.key,
            value=message.value,
            job=job,
            traceback=trace,
        )
        crash_points.point("parse.dead.sending")
        send_letter(self._send, self._names.dead, letter, message.headers or (), page.one_done)

    def flush(self) -> None:
        """Send the founds that gathered."""
        self._founds.flush()

    def _send_founds(self, batch: Batch) -> None:
        crash_points.point("parse.founds.sending")
        record = UrlsRecord(job=batch.job, epoch=batch.epoch, at=self._now(), urls=batch.urls, dropped=batch.dropped)
        self._send(
            self._names.urls,
            urls.encode(record),
            key=batch.domain.encode() if batch.domain else None,
            partition=batch.partition,
            on_delivery=lambda partition, offset: self._acknowledged(batch, partition, offset),
        )

    def _acknowledged(self, batch: Batch, partition: int, offset: int) -> None:
        crash_points.point("parse.founds.acknowledged")
        self._found_ends[partition] = max(self._found_ends.get(partition, 0), offset + 1)
        batch.acknowledged()

    def _has_item(self, page: Page, partition: int, offset: int) -> None:
        self._item_ends[partition] = max(self._item_ends.get(partition, 0), offset + 1)
        page.one_done()
