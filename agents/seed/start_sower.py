"""Sends what the `start` of a spider gives: requests as founds of crawl.urls, items as records of crawl.items.

A request of `start` is a seed: its host or domain joins the scope. The names that join are in crawl.control before the
founds, because parse drops links to names that it does not know. Each item has a record of its own, `start#N`, where N
is its number, and the stats have one, `start#stats`: where a part ends is a matter of time, so a `start` that begins
again replaces them, whatever parts it comes in.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from crawlog.schemas import items
from crawlog.schemas.control import JobCopy
from crawlog.schemas.urls import FoundUrl, UrlsRecord, encode
from crawlog.streams import crash_points
from crawlog.streams.control import write_joins, write_names
from crawlog.streams.errors import GiveUp
from crawlog.streams.fetch import Sown
from crawlog.streams.log import Topics
from crawlog.streams.spiders import CallResult, RequestOut
from crawlog.streams.url import Canonicaliser, InvalidUrl, Place, Places, hashed, hashed_to, scope_name

from .sower import SeedBatch, SeedBatches

if TYPE_CHECKING:
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.log import Producer

# How long the acknowledgement of new scope names is waited for, seconds: the caller restarts a broker that died.
NAMES_S = 2.0

NO_PAGE = (0, 0)  # The page of an item of `start`: it has none, and an equal page replaces the item


class StartSower:
    """Sends the parts of one `start`. The job's record must be in the log already.

    Args:
        count: Partitions of crawl.urls and of crawl.items.
        copy: The job's record in crawl.control.
        label: `NAME@VERSION` of the spider.
        known: Scope names that the job has.

    Attributes:
        requests, items: Sent so far.
        refused: Requests whose URL cannot be fetched.
    """

    def __init__(
        self, producer: "Producer", topics: Topics, count: int, copy: JobCopy, label: str, known: Iterable[str] = ()
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._count = count
        self._copy = copy
        self._label = label
        self._canonical = Canonicaliser(copy.spec.canonical).canonical
        self._place = Places(count).of
        self._known = {hashed(name) for name in (*copy.spec.scope.names, *known)}
        self._sown = Sown()
        self._items_in = hashed_to(items.key(copy.job, "start"), count)  # one partition: sinks read them in their order
        self._stats: dict[str, float] = {}
        self.requests = self.items = self.refused = 0

    def sow(self, result: CallResult) -> None:
        """Send one part: names first, then founds and items.

        Raises: EngineError: the names were not acknowledged; nothing else was sent, so the part may be sown again.
        ValueError: a request or an item is too large for a record.
        """
        placed = [one for out in result.requests if (one := self._found(out)) is not None]
        self._join([place for _, place in placed])
        self.refused += len(result.requests) - len(placed)
        batches = SeedBatches()
        for found, place in placed:
            full = batches.add(found, place)
            if full is not None:
                self._send(full)
        for batch in batches.rest():
            self._send(batch)
        self.requests += len(placed)
        for item in result.items:
            self._give(items.of_start(self.items), [item], is_raw=result.is_raw)
            self.items += 1
        if result.stats:
            items.add_stats(self._stats, result.stats)
            self._give(items.START_STATS, [], is_raw=result.is_raw, stats=self._stats)
        self._producer.poll()

    def waiting(self, reports: "FleetReports") -> int:
        """Requests of the job that are queued, or were sent here and are not folded yet."""
        self._producer.poll()
        self._sown.heard(reports.of("fetch"), time.monotonic())
        return reports.counts(self._copy.job).queued + self._sown.unfolded

    def _found(self, out: RequestOut) -> tuple[FoundUrl, Place] | None:
        try:
            url = self._canonical(out.url)
        except InvalidUrl:
            return None
        found = FoundUrl(url, max(out.depth, 0), out.priority, id=out.id, request=out.request)
        if out.timing is not None:
            found = out.timing.on(found, time.time())
        return found, self._place(url)

    def _join(self, places: Iterable[Place]) -> None:
        """Add the scope names of new hosts to the job."""
        kind = self._copy.spec.scope.kind
        if kind == "any":
            return
        names = {name: hashed(name) for name in {scope_name(kind, place) for place in places}}
        new = {name for name, number in names.items() if number not in self._known}
        if new:
            write_names(self._producer, self._topics, self._copy, new, self._count, NAMES_S)
            write_joins(self._producer, self._topics, self._copy.job, new, NAMES_S)
            self._known.update(names[name] for name in new)

    def _send(self, batch: SeedBatch) -> None:
        crash_points.point("start.sending")
        record = UrlsRecord(self._copy.job, self._copy.epoch, urls=batch.urls)
        self._sown.sent(batch.partition, len(batch.urls))
        acknowledged = partial(self._sown.acknowledged, len(batch.urls))
        with _fits("a request"):
            self._producer.send(
                self._topics.urls, encode(record), key=batch.key, partition=batch.partition, on_delivery=acknowledged
            )

    def _give(self, url: str, rows: list[msgspec.Raw], *, is_raw: bool, stats: dict[str, float] | None = None) -> None:
        job = self._copy.job
        record = items.ItemsRecord(
            job, url, NO_PAGE, rows, self._copy.epoch, self._label, raw=is_raw, stats=stats or {}
        )
        crash_points.point("start.item.sending")
        with _fits("an item"):
            self._producer.send(
                self._topics.items, items.encode(record), key=items.key(job, url), partition=self._items_in
            )


@contextmanager
def _fits(what: str) -> Iterator[None]:
    """Raises: ValueError: what is sent is too large for a record."""
    try:
        yield
    except GiveUp as error:
        raise ValueError(f"`start` gives {what} that is {error.reason} for one record") from None
