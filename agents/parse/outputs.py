"""Sends a page's outputs to the log: items, founds, records of crawl.control; or the page as a dead letter.

    PageOutputs ─► crawl.items ─► crawl.control ─► batches of founds ─► crawl.urls, at `flush` or when a batch is full
                   └─► acknowledged: its place ─► batches of changes ─► crawl.urls, at the next `flush`

    each output acknowledged ─► counted by its page ─► after the last one the page is done

All outputs are decided before the first is sent (`streams/parse/outputs.py`). Founds wait for others of their partition
until `flush`, because each record costs the broker a request.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec

from crawlog.schemas import dead, urls
from crawlog.schemas.urls import PageChange, UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.groups import WrittenEnds
from crawlog.streams.log import Send, Topics, send_letter
from crawlog.streams.parse import Batch, Encoded, Founds, Job, Message, Page, PageOutputs
from crawlog.streams.url import hashed_to

MOST_CHANGES = 64  # Changes in one record: half a megabyte, with the longest URLs


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
        lacks_flush: Called when a change waits for a `flush`.

    Attributes:
        written: Offsets behind the last acknowledged founds and items, by partition.
    """

    def __init__(  # where to, and when
        self,
        names: Topics,
        founds: Sender,
        items: Sender,
        now: Callable[[], float],
        partitions: int,
        lacks_flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._names = names
        self._partitions = partitions
        self._send = founds.send
        self._send_item = items.send
        self._now = now
        self._founds = Founds(self._send_founds)
        self._changes: dict[tuple[str, int, int], list[tuple[PageChange, Page]]] = {}
        self._lacks_flush = lacks_flush
        self._found_ends: dict[int, int] = {}
        self._item_ends: dict[int, int] = {}
        self.written = WrittenEnds(self._found_ends, self._item_ends)

    def give(self, job: Job, outputs: PageOutputs, page: Page) -> None:
        """Send all outputs of a page; its founds gather until `flush`."""
        if outputs.item is not None:
            self._give_item(job.name, outputs.item, outputs, page)
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

    def _give_item(self, job: str, item: Encoded, outputs: PageOutputs, page: Page) -> None:
        crash_points.point("parse.item.sending")
        key, value = item
        number = hashed_to(key, self._partitions)
        has_item = partial(self._has_item, job, outputs, page)
        self._send_item(self._names.items, value, key=key, partition=number, on_delivery=has_item)
        page.wait()
        if outputs.is_news:
            self._send_item(self._names.changes, value, key=key, partition=number, on_delivery=page.one_done)
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
        """Send the founds and the changes that gathered."""
        self._founds.flush()
        for place in list(self._changes):
            self._send_changes(place)

    def _send_changes(self, place: tuple[str, int, int]) -> None:
        crash_points.point("parse.changes.sending")
        (job, epoch, partition), gathered = place, self._changes.pop(place)
        record = UrlsRecord(job, epoch, self._now(), changes=[change for change, _ in gathered])
        written = partial(self._has_changes, [page for _, page in gathered])
        self._send(self._names.urls, urls.encode(record), key=None, partition=partition, on_delivery=written)

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

    def _has_item(self, job: str, outputs: PageOutputs, page: Page, partition: int, offset: int) -> None:
        """Count an item; what the state learns of its page goes on with the item's place."""
        self._item_ends[partition] = max(self._item_ends.get(partition, 0), offset + 1)
        change = outputs.change
        if change is None:
            page.one_done()
            return
        if outputs.takes_place:
            change = msgspec.structs.replace(change, item=(partition, offset))
        place = (job, outputs.epoch, outputs.partition)
        self._changes.setdefault(place, []).append((change, page))
        if len(self._changes[place]) >= MOST_CHANGES:
            self._send_changes(place)
        else:
            self._lacks_flush()

    def _has_changes(self, pages: list[Page], partition: int, offset: int) -> None:
        crash_points.point("parse.changes.acknowledged")
        self._found_ends[partition] = max(self._found_ends.get(partition, 0), offset + 1)
        for page in pages:
            page.one_done()
