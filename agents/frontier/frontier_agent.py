"""The frontier stage: takes crawl.urls in order, folds it, checkpoints, and owns partitions.

Reads crawl.urls (group crawlog-fetch), writes nothing but forwarded founds and dead letters. The fetch service beside
it dispatches from what is folded here. For this stage the truth is the state's offset: what is committed to Kafka is
the checkpoint's, for lag display, and whatever Faust delivers twice or skips is left out or read again.

The life of a partition: assigned → opened and restored to the log's end (in a thread, all together) → live: folded as
records arrive, dispatched → a rebalance starts: nothing more dispatched → requests in flight end or are aborted →
checkpoint, close.
"""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from crawlog.agents.control import Obedience, follow
from crawlog.schemas import urls as u
from crawlog.schemas.dead import DeadLetter
from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams import crash_points, exit_codes
from crawlog.streams.errors import DamagedLog, EngineError, RestoreInterrupted, Unusable
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.fetch import ReportedJobs
from crawlog.streams.fold import Effects, JobState
from crawlog.streams.frontier import Commands, Frontier, Tenure
from crawlog.streams.log import Producer, Topics, limits_of, own_manner
from crawlog.streams.state import Partition, Restorer, Snapshots, States, is_machines_fault, restore_changes
from crawlog.streams.url import Place
from crawlog.streams.worker import CrawlApp, boottime

if TYPE_CHECKING:
    from confluent_kafka import Message

log = structlog.get_logger()

LINGER_MS = 50
"""How long a page or a done waits for others of its partition, each a request to the broker; a URL holds its place
among `fetch.concurrency` for both."""

RESTORE_AGAIN_S = 1.0
SIZE_WINDOWS_EVERY = 10
"""Checkpoint rounds between two looks for idle hosts."""

HOSTS_SHOWN = 5


class Stage:
    """What this worker owns, and the one place that opens, folds, checkpoints and closes it."""

    def __init__(self, app: CrawlApp) -> None:
        settings = app.crawl
        self.app = app
        self.settings = settings
        self.names = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, app.worker_name, linger_ms=LINGER_MS)
        self.frontier = Frontier(
            own_manner(settings), time.monotonic, time.time, only=settings.run.job, limits=limits_of(settings)
        )
        self.live: dict[int, Partition] = {}
        self.dispatching = False
        self.orders = Obedience("fetch", self._obey)
        self.wake: Callable[[], None] = lambda: None
        self.waits: Callable[[], tuple[Counter[int], Counter[int]]] = lambda: (Counter(), Counter())
        self.drain: Callable[[], Awaitable[None]] | None = None
        self.abort: Callable[[int], None] = lambda _: None
        self.pages = 0
        self.bytes = 0
        self.folding_s = 0.0
        self.states = States(settings, self.names.urls, came=app.watchdog.beat)
        self.on_opening: list[Callable[[set[int]], None]] = []
        self._opened: dict[int, Partition] = {}
        self._seen_end: dict[int, int] = {}
        self._undelivered: dict[int, int] = {}
        self._tenure = Tenure()
        self._reported_jobs = ReportedJobs()
        self._restoring: asyncio.Task[None] | None = None
        self._interrupt = threading.Event()
        self._stopping = asyncio.Event()
        self._follows = False

    def _obey(self, commands: Commands) -> None:
        self.frontier.obey(commands)
        self.wake()

    def place(self, url: str) -> Place:
        """Where a URL belongs; known since the first partition came."""
        places = self.states.places
        assert places is not None
        return places.of(url)

    # ------------------------------------------------------------------ ownership

    def rebalance_started(self) -> None:
        """Stop dispatching at once; what is in flight goes on until `revoking`."""
        self.dispatching = False
        self._interrupt.set()

    async def starts(self, partitions: set[int]) -> dict[int, int]:
        """Read on from the log's end: what lies before it is restored beside Faust."""
        return await asyncio.to_thread(self._ends, partitions)

    def _ends(self, partitions: set[int]) -> dict[int, int]:
        return Restorer(self.settings, self.names.urls).ends(partitions)

    async def owned(self, partitions: set[int]) -> None:
        """Restore what was assigned; returns at once."""
        if not self._follows:
            self._follows = True
            follow(self.app, self.orders, self._reported_jobs.heard)
        await self._end_restore()
        self._close()  # what a revocation that ran out of time has left
        self._tenure.assigned(self.app.consumer_generation_id, partitions)
        self._interrupt = threading.Event()
        self._seen_end.clear()
        self._begin_restore(partitions)

    def _begin_restore(self, partitions: set[int]) -> None:
        self._restoring = asyncio.create_task(self._restore_until_live(partitions))
        self._restoring.add_done_callback(_restored)

    async def revoking(self, _partitions: set[int]) -> None:
        """End what is in flight, checkpoint, close: a rebalance takes all partitions, whichever come back.

        Whoever runs out of time here closes all the same: another worker may own them the next moment.
        """
        self.rebalance_started()
        crash_points.point("revoke.started")
        try:
            await self._end_restore()
            if self.drain is not None:
                await self.drain()
            crash_points.point("revoke.drained")
            for number in sorted(self.live):
                self.checkpoint(self.live[number])
                self._tenure.given_up(number, self.frontier.rests_of(number))
            crash_points.point("revoke.checkpointed")
        finally:
            self._close()
        crash_points.point("revoke.closed")

    async def _end_restore(self) -> None:
        """Wait for the restoring thread; it stays known until it has ended, for two must never fold one state."""
        self._interrupt.set()
        if self._restoring is not None:
            await asyncio.wait([self._restoring])
            self._restoring = None

    def _close(self) -> None:
        """Close all but what the restoring thread still has in hand."""
        is_restoring = self._restoring is not None and not self._restoring.done()
        for number in list(self._opened):
            if number in self.live or not is_restoring:
                self._opened.pop(number).close()
        for number in self.live:
            self.frontier.disown(number)
            self.abort(number)
        self.live.clear()

    async def _restore_until_live(self, partitions: set[int]) -> None:
        interrupt = self._interrupt
        # One for all tries: what a try has folded, the next one does not meet again.
        outbox = _Outbox(Producer(self.settings, f"{self.app.worker_name}-restore"), self.names)
        while not interrupt.is_set():
            try:
                await asyncio.to_thread(self._restore, partitions - self.live.keys(), interrupt, outbox)
            except RestoreInterrupted:
                return
            except EngineError as error:
                await self._wait_for_the_log(error)
                continue
            except Exception as error:
                if not is_machines_fault(error):
                    raise
                await self._wait_for_the_machine(error)
                continue
            if not any(self._seen_end.get(n, 0) > p.offset for n, p in self._opened.items() if n not in self.live):
                break
        if not interrupt.is_set():
            self._go_live()

    @staticmethod
    async def _wait_for_the_log(error: EngineError) -> None:
        """Kafka is away, or stays as it is: then no later try helps."""
        if isinstance(error, DamagedLog):
            raise error
        log.warning("restore_failed", error=str(error), again_in_s=RESTORE_AGAIN_S)
        await asyncio.sleep(RESTORE_AGAIN_S)

    async def _wait_for_the_machine(self, error: Exception) -> None:
        """A full disk: what was opened may be in an error of its own, so all of it is opened again."""
        log.error("state_not_writable", error=str(error), then="nothing is lost; it goes on when there is space")
        self.app.watchdog.beat()
        for number in self._opened.keys() - self.live.keys():
            self._opened.pop(number).close()
        await asyncio.sleep(RESTORE_AGAIN_S)

    def _go_live(self) -> None:
        crash_points.point("restore.live")
        for number, partition in self._opened.items():
            if number not in self.live:
                self.live[number] = partition
                self.frontier.own(number, partition.fold, partition.db, self._tenure.taken_up(number))
        self.dispatching = True
        self.wake()

    def _restore(self, partitions: set[int], interrupt: threading.Event, outbox: "_Outbox") -> None:
        """In a thread: open and fold to the log's end. Nobody else touches these partitions meanwhile."""
        started = time.monotonic()
        self.states.ask()
        for hook in self.on_opening:
            hook(partitions)
        for number in sorted(partitions):
            if number not in self._opened:
                self._opened[number] = self.states.open(number, interrupt)
        crash_points.point("restore.opened")
        todo = [self._opened[number] for number in sorted(partitions)]
        restorer = Restorer(self.settings, self.names.urls)
        folded = restorer.restore(todo, outbox.send, self._restore_checkpoint(outbox, len(todo)), interrupt)
        outbox.delivered()
        if total := sum(folded.values()):
            log.info("restored", records=total, partitions=len(todo), took_s=round(time.monotonic() - started, 2))

    def _restore_checkpoint(self, outbox: "_Outbox", together: int) -> Callable[[Partition], None]:
        limit = restore_changes(self.settings.state.checkpoint_changes, together)

        def checkpoint(partition: Partition) -> None:
            self.app.watchdog.beat()
            crash_points.point("restore.batch")
            if partition.changes >= limit and not self._undelivered.get(partition.number, 0):
                outbox.delivered()
                partition.checkpoint()
                crash_points.point("restore.checkpointed")

        return checkpoint

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
            self._seen_end[number] = max(self._seen_end.get(number, 0), offset + 1)
            return
        if offset < partition.offset:
            return
        if offset > partition.offset:
            self._fill_gap(number, offset)
            return
        began = time.perf_counter()
        effects = partition.take(value, offset, timestamp_s)
        self.folding_s += time.perf_counter() - began
        crash_points.point("fold.taken")
        if effects.rewind is not None:
            self._restore_again(number, offset + 1)
            return
        if effects.forward or effects.dead:
            self._send(number, offset, key, value, effects)
        if partition.changes >= self.settings.state.checkpoint_changes:
            self.checkpoint(partition)

    def _fill_gap(self, number: int, offset: int) -> None:
        log.info("gap", partition=number, state=self.live[number].offset, record=offset)
        self._restore_again(number, offset + 1)

    def _restore_again(self, number: int, end: int) -> None:
        """Stop dispatching for a partition until it has been folded to `end` at least, beside Faust.

        What is in flight is aborted: who dispatches afterwards does not know of it, and would ask a host beside it.
        """
        self._seen_end[number] = end
        self.frontier.disown(number)
        self.abort(number)
        self.live.pop(number)
        if self._restoring is None or self._restoring.done():
            self._begin_restore({number, *self._opened})

    def _send(self, number: int, offset: int, key: bytes | None, value: bytes | None, effects: Effects) -> None:
        for topic, to, record_key, record, headers in records_of(self.names, number, offset, key, value, effects):
            crash_points.point("forward.sending")
            self._undelivered[number] = self._undelivered.get(number, 0) + 1
            self.producer.send(
                topic, record, key=record_key, partition=to, headers=headers, on_delivery=partial(self._sent, number)
            )

    def _sent(self, number: int, _partition: int, _offset: int) -> None:
        crash_points.point("forward.acknowledged")
        self._undelivered[number] -= 1

    # ------------------------------------------------------------------ checkpoints

    def owned_now(self) -> frozenset[int]:
        """Partitions that are this worker's."""
        return self.app.positions.owned | self.live.keys() | self._opened.keys()

    @property
    def snapshots(self) -> Snapshots | None:
        """Where snapshots of this log are kept, if anywhere."""
        return self.states.snapshots

    def checkpoint(self, partition: Partition) -> None:
        """Write what was folded since the last one, unless what it led to is not in the log yet."""
        if self._undelivered.get(partition.number, 0):
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

    async def acknowledgements(self) -> None:
        """Serve the producer, until stopped."""
        await self.producer.run(self._stopping)

    # ------------------------------------------------------------------ views

    def may_ask(self) -> bool:
        """Whether the partitions are surely still ours; asked last before each request."""
        return self.dispatching and self.app.lease.held(boottime())

    def reports(self) -> list[Progress]:
        """One report for each live partition, and for each that is not live yet since it is folded from its start."""
        hosts = self.frontier.slowest(HOSTS_SHOWN)
        naming, unanswered = self.waits()
        now = time.time()
        return [
            Progress(
                worker=self.app.worker_name,
                stage="fetch",
                partition=number,
                at=now,
                offset=partition.offset,
                checkpoint=partition.checkpointed,
                pid=os.getpid(),
                jobs=self._counts(number, partition) if number in self.live else {},
                pages=self.pages,
                bytes=self.bytes,
                hosts=hosts.get(number, []),
                naming=naming[number],
                unanswered=unanswered[number],
                paused=self.orders.paused,
                note=partition.note,
                cut=partition.cut,
            )
            for number, partition in list(self._opened.items())
            if number in self.live or partition.note
        ]

    def _counts(self, number: int, partition: Partition) -> dict[str, JobCounts]:
        under_way = self.frontier.owned[number].under_way
        left_out = self._reported_jobs.left_out
        return {
            job.name: self._reported(number, job, under_way[job.number])
            for job in partition.fold.jobs.values()
            if job.name not in left_out or under_way[job.number] or (job.counts.queued and job.running)
        }

    def _reported(self, number: int, job: JobState, in_flight: int) -> JobCounts:
        """No run waits for a job that is not to go on, nor for blocked hosts; it does for what is paused."""
        queued = job.counts.queued
        paused, held = self.frontier.owned[number].held.counts(job)
        if job.spec.state != "running" or self.frontier.of_job(job.name).stopped:
            held = queued
        if self.orders.paused:
            paused = queued
        return msgspec.structs.replace(
            job.counts,
            queued=queued - held,
            held=held,
            paused=min(paused, queued - held),
            in_flight=in_flight,
            needs=self.frontier.owned[number].needs(job.number),
        )


def _restored(restoring: "asyncio.Task[None]") -> None:
    """A restore that breaks ends the worker: it has partitions that it would never dispatch for."""
    error = None if restoring.cancelled() else restoring.exception()
    if error is not None and not exit_codes.is_for_good(error):
        log.error("restore_broken", exc_info=error, then="exit for a restart")
    if error is not None:
        exit_codes.end(error, stage="fetch")


Outgoing = tuple[str, int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]


def records_of(
    names: Topics, number: int, offset: int, key: bytes | None, value: bytes | None, effects: Effects
) -> list[Outgoing]:
    """(topic, partition, key, value, headers) of every record that effects ask for."""
    records: list[Outgoing] = [
        (names.urls, to, None, u.encode(forward), None) for to, forward in effects.forward.items()
    ]
    for error in effects.dead:
        letter = DeadLetter(names.urls, number, offset, "frontier", error, key, value)
        records.append((names.dead, 0, key, value, letter.headers()))
    return records


class _Outbox:
    """Sends effects from the restoring thread, with a producer of its own."""

    def __init__(self, producer: Producer, names: Topics) -> None:
        self._producer = producer
        self._names = names

    def send(self, partition: Partition, message: "Message", effects: Effects) -> None:
        """Put the effects of a record on their way."""
        for topic, to, key, value, headers in records_of(
            self._names, partition.number, partition.offset - 1, message.key(), message.value(), effects
        ):
            self._producer.send(topic, value, key=key, partition=to, headers=headers)

    def delivered(self) -> None:
        """Wait until the log has all of them."""
        if not self._producer.flush(30.0):
            raise EngineError("the log did not acknowledge forwarded records for 30 s")


def attach(app: CrawlApp) -> Stage:
    """Make an app the frontier; what is dispatched from it is for the caller to fetch."""
    stage = Stage(app)
    app.on_rebalance_started.append(stage.rebalance_started)
    app.on_owned.append(stage.owned)
    app.on_revoking.append(stage.revoking)
    app.positions.start = stage.starts
    app.reports = stage.reports
    app.agent(app.input, name="frontier")(stage.events)
    app.task(stage.checkpoints)
    app.task(stage.acknowledgements)
    return stage
