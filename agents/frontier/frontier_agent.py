"""The frontier stage: takes crawl.urls in order, folds it, checkpoints, and owns partitions.

Reads crawl.urls (group crawlog-fetch); writes only forwarded founds and dead letters. The fetch service beside it
dispatches from what is folded here. The truth is the state's offset: the offset committed to Kafka is the
checkpoint's, for lag displays. A record that Faust delivers twice is left out, one that it skips is read again.

The life of a partition: assigned → opened and restored to the log's end (in a thread, all together) → live: folded as
records arrive, dispatched → a rebalance starts: nothing more dispatched → requests in flight end or are aborted →
checkpoint, close.

Rules

    1  The fold takes the record at the state's own offset alone. A lower one is dropped; at a higher one the partition
       stops being live, and the gap is read from the log.
    2  Only a live partition is dispatched from: it was folded to the log's end, with the records that came meanwhile.
    3  Rows and offset are written in one batch. It waits until forwarded founds and dead letters that follow from
       these records are in the log, so a kill repeats them and loses none.
    4  A request is sent only while `may_ask` holds: no rebalance has begun, and the lease is held.
    5  A rebalance takes every partition, whichever come back. All are closed at its end, even without a checkpoint:
       then the next owner folds more.

The worst race: a rebalance begins while partition 3 is loaded, and partition 5 has requests in flight.

    1  `rebalance_started`: rule 4 stops the dispatch of 5. The restoring thread and `_take_over` are interrupted.
    2  `_take_over` is between two steps. It gives up 3, which was never live, so nothing of it is checkpointed.
    3  The requests of 5 end, or are aborted without a trace. Their dones are acknowledged; checkpoint; both are closed.
    4  Another worker gets 5. It folds from the checkpoint on, which includes these dones; an aborted URL has its row.
    5  If this worker slept in 3, its lease has run out when it goes on: no request (rule 4). Its late dones name rows
       that the fold of the new owner has removed or will ask for once more; its late checkpoint is that of a copy which
       nobody takes (`streams/state/newest_copy.py`).
"""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog

from crawlog.agents.control import StageCommands, follow
from crawlog.schemas.control import Command
from crawlog.schemas.progress import Progress
from crawlog.streams import crash_points
from crawlog.streams.errors import Unusable
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.fetch import Durations, ReportedJobs, robots_answer
from crawlog.streams.frontier import Frontier, KeptRests
from crawlog.streams.job_spec import limits_of, own_policy
from crawlog.streams.jobs import Commands
from crawlog.streams.log import Producer, Topics
from crawlog.streams.state import Partition, Restorer, Snapshots, States
from crawlog.streams.url import Place
from crawlog.streams.worker import CrawlApp, boottime

from .outgoing import Forwarding
from .reports import reports
from .restoring import Restoring

if TYPE_CHECKING:
    from crawlog.schemas.control import Control
    from crawlog.streams.fold import Answered

    from .reports import JobCountsCache

log = structlog.get_logger()

# How long a page or a done waits for others of its partition, to share a request to the broker; its URL counts in
# `fetch.concurrency` meanwhile.
LINGER_MS = 50

SIZE_WINDOWS_EVERY = 10  # Checkpoint rounds between two looks for idle hosts

EarlyRecord = tuple[int, int, bytes | None, bytes | None, float]  # Partition, offset, key, value and timestamp


class OwnedFrontier:  # long: the whole life of a partition is here, in its order
    """The partitions that this worker owns; it alone folds, checkpoints and closes them.

    Attributes:
        ownerships: By partition, the identity of its ownership: a new one where another worker may have owned it since.
        listeners: Called with each record of crawl.control.
        on_changed: Called when partitions came or went, and after each command.
        on_report: Called in another thread with each report of crawl.progress.
        on_answered: Called with the orders that the fold of partition 0 has answered.
    """

    def __init__(self, app: CrawlApp) -> None:
        settings = app.crawl
        self.app = app
        self.settings = settings
        self.names = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, app.worker_name, linger_ms=LINGER_MS)
        self.frontier = Frontier(
            own_policy(settings), time.monotonic, time.time, only=settings.run.job, limits=limits_of(settings)
        )
        self.live: dict[int, Partition] = {}
        self.ownerships: dict[int, object] = {}
        self.dispatching = False
        self.orders = StageCommands("fetch", self._obey)
        self.obeyed = 0
        self.reported_jobs = ReportedJobs()
        self.job_counts: dict[int, JobCountsCache] = {}
        self.durations = Durations()
        self.listeners: list[Callable[[Control], None]] = [self.reported_jobs.heard]
        self.on_changed: Callable[[], None] = lambda: None
        self.on_answered: Callable[[list[Answered]], None] = lambda _: None
        self.on_report: Callable[[Progress], None] = lambda _: None
        self.wake: Callable[[], None] = lambda: None
        self.waits: Callable[[], tuple[Counter[int], Counter[int]]] = lambda: (Counter(), Counter())
        self.drain: Callable[[], Awaitable[None]] | None = None
        self.abort: Callable[[int], None] = lambda _: None
        self.pages = 0
        self.bytes = 0
        self.folding_s = 0.0
        self.states = States(settings, self.names.urls, came=app.watchdog.beat)
        self._forwarding = Forwarding(self.producer, self.names)
        self.restoring = Restoring(app, self.states, self._forwarding, self.live, self._go_live)
        self._kept_rests = KeptRests()
        self._early: dict[int, list[EarlyRecord]] = {}
        """Records that came while their partition was loaded, or one before it."""
        self._stopping = asyncio.Event()
        self._follows = False

    def serve(
        self,
        *,
        wake: Callable[[], None],
        waits: Callable[[], tuple[Counter[int], Counter[int]]],
        drain: Callable[[], Awaitable[None]],
        abort: Callable[[int], None],
    ) -> None:
        """Name the service that requests the URLs; without one nothing waits and nothing is in flight."""
        self.wake, self.waits, self.drain, self.abort = wake, waits, drain, abort

    def _obey(self, commands: Commands) -> None:
        self.frontier.obey(commands)
        self.obeyed += 1
        self.on_changed()
        self.wake()

    def _heard(self, record: "Control") -> None:
        if isinstance(record, Command) and record.action == "clear" and self.orders.is_known:
            self._clear(record.host)
        for listener in self.listeners:
            listener(record)

    def _clear(self, name: str) -> None:
        """End the back-off of a host; a command from before the worker's start has done so."""
        for host in self.frontier.clear(name):
            rest = robots_answer.Rest(0.0, 0.0)
            host.partition.cache(robots_answer.rest_key(host.key), robots_answer.pack(rest))
        self.wake()

    def _reported(self, report: Progress) -> None:
        self.on_report(report)

    @property
    def partitions(self) -> int:
        """How many partitions crawl.urls has; known since the first partition came."""
        assert self.states.places is not None
        return self.states.places.partitions

    def place(self, url: str) -> Place:
        """Where a URL belongs; known since the first partition came."""
        places = self.states.places
        assert places is not None
        return places.of(url)

    # ------------------------------------------------------------------ ownership

    def rebalance_started(self) -> None:
        """Stop dispatching at once; requests in flight go on until `revoking`."""
        self.dispatching = False
        self.restoring.interrupt()

    async def starts(self, partitions: set[int]) -> dict[int, int]:
        """The offsets from which Faust reads: the log's ends, for all before them is restored beside Faust."""
        return await asyncio.to_thread(lambda: Restorer(self.settings, self.names.urls).ends(partitions))

    async def owned(self, partitions: set[int]) -> None:
        """Restore what was assigned; returns at once."""
        if not self._follows:
            self._follows = True
            follow(self.app, self.orders, self._heard, reported=self._reported)
        self._close()  # what a revocation that ran out of time has left
        self._kept_rests.assigned(self.app.consumer_generation_id, partitions)
        kept = {number: one for number, one in self.ownerships.items() if self._kept_rests.is_kept(number)}
        self.ownerships = {number: kept.get(number, object()) for number in partitions}
        self.restoring.begin(partitions, anew=True)

    async def _go_live(self) -> None:
        """Take over all that is restored; the event loop goes on meanwhile."""
        crash_points.point("restore.live")
        interruption = self.restoring.interruption
        restored = {number: opened for number, opened in self.restoring.opened.items() if number not in self.live}
        self._early = {number: [] for number in restored}
        try:
            for number, partition in restored.items():
                await self._take_over(number, partition, interruption)
                if interruption.is_set():
                    return
        finally:
            self._early.clear()
        self.dispatching = True
        self.on_changed()
        self.wake()

    async def _take_over(self, number: int, partition: Partition, interruption: threading.Event) -> None:
        """Load a partition in steps, then fold the records that came meanwhile: nothing may change while it is loaded.

        With requests in flight, which belong to other partitions, it is loaded at once: none of its hosts may be asked.
        """
        rests = self._kept_rests.taken_up(number)
        for _ in self.frontier.take_over(number, partition.fold, partition.db, rests):
            if not self.dispatching:
                await asyncio.sleep(0)
            if interruption.is_set():
                self.frontier.disown(number)
                return
        self.live[number] = partition
        for record in self._early.pop(number):
            self.take(*record)

    async def revoking(self, _partitions: set[int]) -> None:
        """End requests in flight, checkpoint, close: a rebalance takes all partitions, whichever come back.

        All is closed even if the time runs out here: another worker may own them the next moment.
        """
        self.rebalance_started()
        crash_points.point("revoke.started")
        try:
            await self.restoring.end()
            if self.drain is not None:
                await self.drain()
            crash_points.point("revoke.drained")
            for number in sorted(self.live):
                self.checkpoint(self.live[number])
                self._kept_rests.given_up(number, self.frontier.rests_of(number))
            crash_points.point("revoke.checkpointed")
        finally:
            self._close()
        crash_points.point("revoke.closed")

    def _close(self) -> None:
        """Close all but what the restoring thread still has in hand."""
        self.restoring.close()
        for number in self.live:
            self.frontier.disown(number)
            self.abort(number)
        self.live.clear()
        self.job_counts.clear()
        self.on_changed()

    def owned_now(self) -> frozenset[int]:
        return self.app.positions.owned | self.live.keys() | self.restoring.opened.keys()

    def may_ask(self) -> bool:
        """Whether the partitions are surely still ours; asked last before each request."""
        return self.dispatching and self.app.lease.held(boottime())

    # ------------------------------------------------------------------ live reading

    async def events(self, stream: Any) -> None:
        """The agent: folds crawl.urls as it arrives."""
        async for message in stream.records():
            self.take(message.partition, message.offset, message.key, message.value, message.timestamp)
            self.wake()

    def take(self, number: int, offset: int, key: bytes | None, value: bytes | None, timestamp_s: float) -> None:
        """Fold a record if it is the next one; a gap before it is read with a plain consumer."""
        partition = self.live.get(number)
        if partition is None:
            self._came_early(number, offset, key, value, timestamp_s)
            return
        if offset < partition.offset:
            return
        if offset > partition.offset:
            log.info("gap", partition=number, state=partition.offset, record=offset)
            self._restore_again(number, offset + 1)
            return
        began = time.perf_counter()
        effects = partition.take(value, offset, timestamp_s)
        self.folding_s += time.perf_counter() - began
        crash_points.point("fold.taken")
        if effects.rewind is not None:
            self._restore_again(number, offset + 1)
            return
        if effects.forward or effects.dead:
            self._forwarding.send(number, offset, key, value, effects)
        if effects.answered:
            self.on_answered(effects.answered)
        if partition.changes >= self.settings.state.checkpoint_changes:
            self.checkpoint(partition)

    def _came_early(self, *record: *EarlyRecord) -> None:
        number, offset, *_ = record
        if number in self._early:
            self._early[number].append(record)
        else:
            self.restoring.seen(number, offset)

    def _restore_again(self, number: int, end: int) -> None:
        """Stop dispatching for a partition until it has been folded to `end` at least, beside Faust.

        Requests in flight are aborted: the next dispatcher of the partition would not know of them, and ask their hosts
        again.
        """
        self.frontier.disown(number)
        self.abort(number)
        self.live.pop(number)
        self.on_changed()
        self.restoring.again(number, end)

    # ------------------------------------------------------------------ checkpoints

    @property
    def snapshots(self) -> Snapshots | None:
        return self.states.snapshots

    def checkpoint(self, partition: Partition) -> None:
        """Write what was folded since the last one, unless a record that follows from it is not in the log yet."""
        if self._forwarding.undelivered[partition.number]:
            return
        try:
            offset = partition.checkpoint()
            if partition.db.damage:  # met by a task that went on
                raise Unusable(partition.db.damage)
        except Exception as error:  # noqa: BLE001  # the supervisor shows this line
            log.critical(
                "checkpoint_failed", partition=partition.number, error=str(error), then="opened again from the last one"
            )
            os._exit(EX_TEMPFAIL)
        self.app.positions.done(partition.number, offset)

    async def checkpoints(self) -> None:
        """Checkpoint every partition once in a while, until stopped."""
        rounds = 0
        while not self._stopping.is_set():
            await asyncio.sleep(self.settings.state.checkpoint_s)
            for partition in list(self.live.values()):
                self.checkpoint(partition)
            rounds += 1
            if rounds % SIZE_WINDOWS_EVERY == 0:
                self.frontier.size_windows()
                self.wake()  # there may be room for hosts that sleep

    def reports(self) -> list[Progress]:
        return reports(self)

    async def acknowledgements(self) -> None:
        """Serve the producer, until stopped."""
        await self.producer.run(self._stopping)


def attach(app: CrawlApp) -> OwnedFrontier:
    """Make an app the frontier; what is dispatched from it is for the caller to fetch."""
    stage = OwnedFrontier(app)
    app.before_joining.append(stage.states.wait_for_space)  # partitions stay with workers that can open them
    app.run_stage("frontier", stage, stage.starts)
    app.task(stage.checkpoints)
    app.task(stage.acknowledgements)
    return stage
