"""What a page gives, on its way to the log: items, founds, what crawl.control shall know; or itself as a dead letter.

A page gives all or nothing: it comes here once all is there, and is done when the last of its outputs is acknowledged.
Founds wait for others of their partition until `flush`, for each record costs the broker a request.
"""

from collections.abc import Callable
from typing import Protocol

import structlog

from crawlog.schemas import control, dead, items, urls
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import UrlsRecord
from crawlog.streams import crash_points
from crawlog.streams.errors import GiveUp
from crawlog.streams.log import Topics, Written
from crawlog.streams.parse import Batch, Founds, Job, Message, Page, SoftErrors
from crawlog.streams.spiders import Parsed, is_redirect
from crawlog.streams.url import hashed_to

log = structlog.get_logger()

PROBE_PRIORITY = 20
"""A probe goes before the pages that it may judge."""

Headers = list[tuple[str, bytes]]


class Sender(Protocol):
    """What parse needs of the producer."""

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int,
        headers: Headers | None = None,
        on_delivery: Callable[[int, int], None] | None = None,
    ) -> None:
        """Put a record on its way."""


class Outputs:
    """Sends what pages give; each of them is told when an output of its own is in the log.

    Args:
        founds: Sends what somebody waits for: founds, joins, dead letters; see `Producer.send`.
        items: Sends item records, for which only the page's acknowledgement waits.
        now: UTC epoch seconds.
        partitions: Of crawl.items.

    Attributes:
        written: Offsets behind the last founds and items that the log has.
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
        self.written = Written(self._found_ends, self._item_ends)

    def give(  # a page, and what came of it
        self, job: Job, message: Message, meta: PageMeta, body: bytes, parsed: Parsed, page: Page
    ) -> None:
        """Put on their way all that a page gave."""
        record = items.ItemsRecord(
            job=meta.job,
            url=meta.url,
            page=(message.partition, message.offset),
            items=parsed.items,
            epoch=meta.epoch,
            spider=job.spider,
        )
        if meta.kind != "robots":  # nobody asked for it as a page, and its URL may be one
            crash_points.point("parse.item.sending")
            key = items.key(meta.job, meta.url)
            at = hashed_to(key, self._partitions)
            self._send_item(
                self._names.items,
                items.encode(record),
                key=key,
                partition=at,
                on_delivery=lambda partition, offset: self._has_item(page, partition, offset),
            )
            page.wait()
        name = job.joining(meta)
        if name is not None:
            self._join(job, name, page)
        dropped: dict[str, int] = {}
        if is_redirect(meta) and not job.is_probe(meta):
            self._follow(job, meta, page, dropped)
        self._look_for_soft_errors(job, meta, body, page)
        sent = job.sent(meta.epoch)
        depth, priorities = meta.depth + 1, parsed.priorities
        if parsed.reached:
            log.warning("limit_reached", url=meta.url, limit=parsed.reached, links=len(parsed.outlinks))
        outlinks = job.followed(meta, body, parsed.outlinks)
        if len(outlinks) < len(parsed.outlinks):
            log.info("links_skipped", url=meta.url, rule="duplicate", links=len(parsed.outlinks))
        batches = self._founds.offer(
            meta.job, meta.epoch, sent, meta.url, depth, outlinks, job.refusal, dropped, priorities
        )
        _await(batches, page)
        for link, found in job.sitemaps(meta, parsed.sitemaps, dropped):
            _await({self._founds.put(meta.job, meta.epoch, sent, link, found)}, page)
        if dropped:
            _await({self._founds.count(meta.job, meta.epoch, sent, message.partition, dropped)} - batches, page)
        page.one_done()

    def give_again(self, job: Job, meta: PageMeta, page: Page) -> None:
        """A page whose body is gone gives one found: its own URL, to be fetched once more."""
        log.info("body_gone", url=meta.url, was=meta.same_as, then="fetched once more")
        link, found = job.again(meta)
        _await({self._founds.put(meta.job, meta.epoch, job.sent(meta.epoch), link, found)}, page)
        page.one_done()

    def bury(self, message: Message, job: str, error: str, page: Page, trace: str = "") -> None:
        """The page goes to crawl.dead as it was, with its own headers; then it is done."""
        letter = dead.DeadLetter(
            topic=self._names.pages,
            partition=message.partition,
            offset=message.offset,
            stage="parse",
            error=error,
            job=job,
            traceback=trace,
        )
        crash_points.point("parse.dead.sending")
        headers = letter.headers() + [(name, value) for name, value in message.headers or ()]
        try:
            self._bury(message.value, message.key, headers, page)
        except GiveUp:  # as large as a record may be: its place in crawl.pages is named, its body stays there
            self._bury(None, message.key, headers, page)

    def _bury(self, value: bytes | None, key: bytes | None, headers: Headers, page: Page) -> None:
        self._send(self._names.dead, value, key=key, partition=0, headers=headers, on_delivery=page.one_done)

    def flush(self) -> None:
        """Send the founds that gathered."""
        self._founds.flush()

    def _tell(self, record: control.Join | control.Missing, page: Page) -> None:
        key = control.key(record)
        self._send(self._names.control, control.encode(record), key=key, partition=0, on_delivery=page.one_done)
        page.wait()

    def _join(self, job: Job, name: str, page: Page) -> None:
        job.joined.add(name)
        self._tell(control.Join(job=job.name, name=name), page)

    def _follow(self, job: Job, meta: PageMeta, page: Page, dropped: dict[str, int]) -> None:
        redirect = job.redirect(meta, dropped)
        if redirect is None:
            return
        if redirect.joins:
            self._join(job, redirect.joins, page)
        batch = self._founds.put(meta.job, meta.epoch, job.sent(meta.epoch), redirect.link, redirect.found)
        _await({batch}, page)

    def _look_for_soft_errors(self, job: Job, meta: PageMeta, body: bytes, page: Page) -> None:
        """Say what a probe was answered, or have a host asked by one."""
        if job.is_probe(meta):
            sketch = SoftErrors.sketch(meta, body)
            log.info("probed", url=meta.url, http=meta.http, soft_404=sketch is not None)
            if sketch is not None:
                self._tell(control.Missing(job.name, meta.url, sketch), page)
            return
        link = job.probe(meta, body)
        if link is not None:
            sent, priorities = job.sent(meta.epoch), {link.url: PROBE_PRIORITY}
            batches = self._founds.offer(
                job.name, meta.epoch, sent, meta.url, meta.depth, [link], job.refusal, {}, priorities
            )
            _await(batches, page)

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


def _await(batches: set[Batch], page: Page) -> None:
    for batch in batches:
        if batch.wait(page.one_done):
            page.wait()
