"""Partitions before they are live: opened, and folded to the log's end, in a thread beside Faust.

begin → thread: ask for the log's ends → open → restore → lost dones → read to the end? → go live, one by one
↑                                 │ Kafka is away, or the disk full        │ a record came meanwhile  │ a gap
└──────── wait 1 s ←──────────────┴──────────────── again ←────────────────┴──────────────────────────┘
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas import pages as pg
from crawlog.schemas import urls as u
from crawlog.schemas.urls import UrlsRecord
from crawlog.streams import crash_points, exit_codes
from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import AccessDenied, DamagedLog, EngineError, RestoreInterrupted, SnapshotsAway
from crawlog.streams.fetch import LostDones, first_page, most_pages
from crawlog.streams.job_spec import limits_of, own_policy
from crawlog.streams.log import Producer, Topics, read_partitions, record_headers
from crawlog.streams.settings import Settings
from crawlog.streams.state import Partition, Restorer, States, checkpoint_due, is_environment_error
from crawlog.streams.url import Places
from crawlog.streams.worker import CrawlApp

from .outgoing import Forwarding, Outbox

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger()

RESTORE_AGAIN_S = 1.0


class Restoring:
    """Opens and restores partitions until they can go live; two threads never fold one state.

    Args:
        live: The partitions that are live, by number.
        go_live: Called when all that is opened is restored; it may leave out what is not any more.

    Attributes:
        opened: Every open partition of this worker, by number, the live ones too.
        on_opening: Called in the thread with the partitions that are about to be opened.
    """

    def __init__(
        self,
        app: CrawlApp,
        states: States,
        forwarding: Forwarding,
        live: dict[int, Partition],
        go_live: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._settings = app.crawl
        self._names = Topics(app.crawl.kafka.prefix)
        self._states = states
        self._forwarding = forwarding
        self._live = live
        self._go_live = go_live
        self.opened: dict[int, Partition] = {}
        self.on_opening: list[Callable[[set[int]], None]] = []
        self._seen_end: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._interrupt = threading.Event()

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def interruption(self) -> threading.Event:
        """Set when a rebalance begins; each assignment has its own."""
        return self._interrupt

    def begin(self, partitions: set[int], *, anew: bool = False) -> None:
        """Restore partitions; returns at once.

        Args:
            anew: They were assigned just now: nothing is known of their ends.
        """
        before = None
        if anew:
            before = self._task
            self._interrupt.set()
            self._interrupt = threading.Event()
            self._seen_end.clear()
        self._task = asyncio.create_task(self._after(before, partitions, self._interrupt))
        self._task.add_done_callback(_ended)

    def seen(self, number: int, offset: int) -> None:
        """A record of a partition that is not live has come: it is restored to behind it at least."""
        self._seen_end[number] = max(self._seen_end.get(number, 0), offset + 1)

    def again(self, number: int, end: int) -> None:
        """Restore a partition that was live to `end` at least."""
        self._seen_end[number] = end
        if not self.is_running:
            self.begin({number, *self.opened})

    def interrupt(self) -> None:
        self._interrupt.set()

    async def end(self) -> None:
        """Wait for the thread; it stays known until it has ended, for two must never fold one state."""
        self._interrupt.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def close(self) -> None:
        """Close all partitions but those that the thread still has in hand."""
        is_running = self.is_running
        for number in list(self.opened):
            if number in self._live or not is_running:
                self.opened.pop(number).close()

    async def _after(
        self, before: "asyncio.Task[None] | None", partitions: set[int], interrupt: threading.Event
    ) -> None:
        """Restore partitions once the thread of the assignment before has ended, and what it had in hand is closed."""
        if before is not None:
            await asyncio.wait([before])
            self._close_unfinished()
        if not interrupt.is_set():
            await self._until_live(partitions)

    def _close_unfinished(self) -> None:
        for number in self.opened.keys() - self._live.keys():
            self.opened.pop(number).close()

    async def _until_live(self, partitions: set[int]) -> None:
        interrupt = self._interrupt
        # One for all tries: what a try has folded, the next one does not meet again.
        outbox = Outbox(Producer(self._settings, f"{self._app.worker_name}-restore"), self._names)
        while not interrupt.is_set():
            try:
                await asyncio.to_thread(self._restore, partitions - self._live.keys(), interrupt, outbox)
            except RestoreInterrupted:
                return
            except EngineError as error:
                await self._wait_for_the_log(error)
                continue
            except Exception as error:
                if not is_environment_error(error):
                    raise
                await self._wait_for_the_machine(error)
                continue
            if not self._is_behind() and await self._all_live(interrupt):
                return

    async def _all_live(self, interrupt: threading.Event) -> bool:
        """Have all partitions go live; False if one was left out, or met a gap meanwhile."""
        if not interrupt.is_set():
            await self._go_live()
        return self.opened.keys() <= self._live.keys()

    def _is_behind(self) -> bool:
        """Whether a record of a partition that is not live has come behind what is restored."""
        return any(self._seen_end.get(n, 0) > p.offset for n, p in self.opened.items() if n not in self._live)

    async def _wait_for_the_log(self, error: EngineError) -> None:
        """Pause while Kafka or the snapshots are away; a damaged log stays damaged, so that ends the worker."""
        if isinstance(error, DamagedLog):
            raise error
        if isinstance(error, SnapshotsAway):
            self._app.watchdog.beat()
        log.warning("restore_failed", error=str(error), again_in_s=RESTORE_AGAIN_S)
        await asyncio.sleep(RESTORE_AGAIN_S)

    async def _wait_for_the_machine(self, error: Exception) -> None:
        """Pause while the disk is full. An opened database may hold the error, so all of them are opened again."""
        log.error("state_not_writable", error=str(error), then="nothing is lost; it goes on when there is space")
        self._app.watchdog.beat()
        self._close_unfinished()
        await asyncio.sleep(RESTORE_AGAIN_S)

    def _restore(self, partitions: set[int], interrupt: threading.Event, outbox: Outbox) -> None:
        """In the thread: open and fold to the log's end. Nobody else touches these partitions meanwhile."""
        started = time.monotonic()
        self._states.ask()
        for hook in self.on_opening:
            hook(partitions)
        for number in sorted(partitions):
            if number not in self.opened:
                self.opened[number] = self._states.open(number, interrupt)
        crash_points.point("restore.opened")
        todo = [self.opened[number] for number in sorted(partitions)]
        restorer = Restorer(self._settings, self._names.urls)
        checkpoint = self._checkpoint(outbox, todo)
        folded = restorer.restore(todo, outbox.send, checkpoint, interrupt)
        if lost := self._lost_dones(todo):
            for number, record in lost:
                outbox.send_done(number, record)
            outbox.delivered()
            crash_points.point("restore.dones.acknowledged")
            restorer.restore([self.opened[number] for number, _ in lost], outbox.send, checkpoint, interrupt)
        outbox.delivered()
        if total := sum(folded.values()):
            log.info("restored", records=total, partitions=len(todo), took_s=round(time.monotonic() - started, 2))

    def _lost_dones(self, partitions: list[Partition]) -> list[tuple[int, UrlsRecord]]:
        """The dones of pages that have none, with their partitions."""
        assert self._states.places is not None
        return LostPages(self._settings, self._names).dones(partitions, self._states.places)

    def _checkpoint(self, outbox: Outbox, together: list[Partition]) -> Callable[[Partition], None]:
        is_due = checkpoint_due(self._settings.state.checkpoint_changes, together)

        def checkpoint(partition: Partition) -> None:
            self._app.watchdog.beat()
            crash_points.point("restore.batch")
            if is_due(partition) and not self._forwarding.undelivered[partition.number]:
                outbox.delivered()
                partition.checkpoint()
                crash_points.point("restore.checkpointed")

        return checkpoint


def _ended(restoring: "asyncio.Task[None]") -> None:
    """End the worker if a restore broke: it has partitions that it would never dispatch for."""
    error = None if restoring.cancelled() else restoring.exception()
    if error is not None and not exit_codes.is_for_good(error):
        log.error("restore_broken", exc_info=error, then="exit for a restart")
    if error is not None:
        exit_codes.end(error, stage="fetch")


# Before a partition is live: pages without a done get one, so that their URLs are not requested again.

log = structlog.get_logger()

BATCH = 100  # Dones in a record: each may have the cookies of a jar


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
        own = own_policy(self._settings), limits_of(self._settings)
        lost = {one.number: LostDones(one.fold, places, *own) for one in partitions}
        found: dict[int, list[tuple[pg.PageMeta, u.Result]]] = {}
        for message in read_partitions(self._settings, self._names.pages, ranges):
            number, offset = message.partition() or 0, message.offset() or 0
            meta = _meta(message)
            result = lost[number].of(meta, offset, len(message.value() or b"")) if meta is not None else None
            if meta is not None and result is not None:
                found.setdefault(number, []).append((meta, result))
        for number, of_one in found.items():
            log.info("dones_lost", partition=number, pages=len(of_one), then="made from their pages")
            for (job, epoch), group in groupby(of_one, key=lambda each: (each[0].job, each[0].epoch)):
                results = [result for _, result in group]
                for at in range(0, len(results), BATCH):
                    yield number, u.UrlsRecord(job, epoch, time.time(), results=results[at : at + BATCH])


def _meta(message: "Message") -> pg.PageMeta | None:
    """The metadata of a page; None if the record is not a page, which parse reports."""
    try:
        return pg.meta_in(record_headers(message))
    except ValueError:
        return None
