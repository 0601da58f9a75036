"""Faust's Kafka consumer with our rules for commits, start positions and rebalances.

It runs in the app's loop; the group's member runs in a thread of its own. Changes to Faust's consumer, and why:
    commits                 `Positions` decides; Faust's acknowledged offsets (#606, #316) are ignored
    perform_seek            start hook, else commit, else the log's start; never a silent reset
    on_partitions_revoked   hooks and waits have limits; Faust waits for events without limit
    _drain_messages         no task per record (30 of 59 µs), no sleep of a second when buffers are full
    Stream.records          no event, no acknowledgement and no turn of the loop per record
    Fetcher                 a stop during a rebalance is no crash; with Faust's the worker exited with 1

A rebalance, seen from the app's loop:
    1 `rebalance_started` (hooks, at once) → 2 flow stopped, buffers cleared, events in flight end (≤ EVENTS_S) →
    3 `revoking` (hooks, ≤ HOOKS_S) → 4 commit → 5 the group rejoins → 6 positions → 7 `owned` (hooks) → 8 flow.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import faust
import structlog
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.structs import TopicPartition
from faust.transport import consumer as driver_base
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service

from crawlog.streams.errors import EngineError
from crawlog.streams.exit_codes import is_for_good
from crawlog.streams.groups import HeldRange, Position, WrittenEnds, merged_ends

from .member import LARGE_BYTES, LIBRARY, ConsumerThread, RebalanceListener
from .positions import first_offset

if TYPE_CHECKING:
    from crawlog.streams.log import Topics

    from .contract import App

log = structlog.get_logger()

EVENTS_S = 0.5  # How long a rebalance or a stop waits for events in flight; an event takes milliseconds

HOOKS_S = 3.5  # How long it then waits for the hooks of `on_revoking`, in total; the group's rebalance timeout is 20 s

COMMIT_S = 1.0  # How long it then waits for the commit; uncommitted records are read again

LEAVE_S = 0.5  # How long a stop waits for the LeaveGroup request

BOUNDS_S = 10.0  # Timeout of a request for the log's bounds; the request is then repeated

# Interval of checks for an empty agent's buffer, while a large record waits for one. A queue has no event for that;
# parsing a large page takes longer than this.
LARGE_LOOK_S = 0.01

YIELD_EVERY = 50  # Records handed over between two turns of the event loop

# An agent with waiting records yields to the event loop this often; each turn of the loop costs a system call.
TURN_S = 0.002

ROOM_SHARE = 0.4  # Records are handed over again when at most this share of the agent's buffer is filled


class Consumer(driver.Consumer):  # long: half of the methods are Faust's, overridden; the rest share its one assignment
    """The consumer as Faust's services see it, in the app's loop."""

    logger = LIBRARY
    RebalanceListener = RebalanceListener
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()
        self.in_hand: Any = None
        """The record that the agent works on, if any."""

    @property
    def crawl(self) -> "App":
        return cast("App", self.app)

    @property
    def thread(self) -> ConsumerThread:
        return self._thread

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    # Commits: `Positions` decides.

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:  # noqa: ARG002  # Faust's signature
        """Commit the offsets that `positions.done` was given."""
        return await self.crawl.positions.flush()

    async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:  # noqa: ARG002  # so too
        """The same: it never commits past `positions.done`."""
        return await self.crawl.positions.flush()

    async def write_commit(self, positions: Mapping[int, Position]) -> bool:
        return await self._thread.run_here(
            self._thread.write_commit({self._tp(partition): position for partition, position in positions.items()})
        )

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.crawl.input_name, partition)

    def behind(self, taken: Mapping[int, int]) -> int:
        """Offsets between those in `taken` and the ends of the partitions, by the broker's last answer."""
        return sum(max(0, end - taken.get(partition, end)) for partition, end in self._thread.ends().items())

    # Assignment: where reading starts.

    async def perform_seek(self) -> None:
        """Set each partition's position and run the hooks; Faust calls this between assignment and flow."""
        rebalance = self._thread.rebalances
        partitions = self.partitions()
        asked = await self._asked(partitions, rebalance)
        held = await self.ranges(partitions, rebalance)
        starts = {partition: self._start(partition, asked.get(partition), held[partition]) for partition in partitions}
        async with self._turn:
            self._same(rebalance)
            before = reduce(merged_ends, (held[partition].written for partition in partitions), WrittenEnds())
            self.crawl.positions.begin(
                starts, {partition: held[partition].position for partition in partitions}, before
            )
            await self.crawl.owned(partitions)
        self._same(rebalance)
        await self._thread.run_here(self._thread.place({self._tp(partition): o for partition, o in starts.items()}))

    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.assignment() if tp.topic == self.crawl.input_name}

    async def ranges(self, partitions: set[int], rebalance: int | None = None) -> dict[int, HeldRange]:
        """Log bounds and commits of these partitions; asks until there is an answer, or another rebalance begins."""
        while partitions:
            with contextlib.suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(BOUNDS_S):
                    held = await self._thread.run_here(self._thread.ranges({self._tp(p) for p in partitions}))
                return {tp.partition: found for tp, found in held.items()}
            log.warning("log_silent", group=self.app.conf.id, asked="offsets")
            self._same(rebalance)
            await asyncio.sleep(0.2)
        return {}

    async def _asked(self, partitions: set[int], rebalance: int) -> dict[int, int]:
        """The stage's own offsets; asks until there is an answer, or another rebalance begins."""
        start = self.crawl.positions.start
        while start is not None and partitions:
            try:
                return await start(set(partitions))
            except EngineError as error:
                if is_for_good(error):
                    raise
                log.warning("log_silent", group=self.app.conf.id, asked="starts", error=str(error))
            self._same(rebalance)
            await asyncio.sleep(0.2)
        return {}

    async def own_nothing(self) -> None:
        """Run the hooks of an empty assignment, unless another one came meanwhile."""
        async with self._turn:
            if not self.assignment():
                await self.crawl.owned(set())

    def _start(self, partition: int, asked: int | None, held: HeldRange) -> int:
        offset, reason = first_offset(asked, held)
        wanted = asked or held.committed or 0
        if wanted > held.end:
            self.crawl.positions.cuts[partition] = wanted
        if reason:
            topic = self.crawl.input_name
            log.warning("position_moved", topic=topic, partition=partition, start=offset, reason=reason)
        return offset

    def _same(self, rebalance: int | None) -> None:
        """Raise aiokafka's error if another rebalance began; Faust then waits for the end of that."""
        if rebalance is not None and self._thread.rebalances != rebalance:
            raise IllegalStateError("another rebalance began")

    # Rebalance and stop: giving partitions up.

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Give up first, within limits; Faust then has nothing left to wait for."""
        if not self.app.should_stop:
            await self.give_up()
        await super().on_partitions_revoked(revoked)

    async def give_up(self) -> None:
        """Stop the flow, let events end, run the hooks, commit: after this nothing of ours is in flight."""
        self.stop_flow()
        self.app.flow_control.suspend()
        self.pause_partitions(self.assignment())
        self.app.flow_control.clear()
        async with self._turn:
            owned = set(self.crawl.positions.owned)
            if owned:
                await self._events_end()
                await self.crawl.revoking(owned, HOOKS_S)
                await finish_within(COMMIT_S, self.crawl.positions.flush(), "commit")
            self.crawl.positions.end()

    async def _events_end(self) -> None:
        end = self.loop.time() + EVENTS_S
        while self.loop.time() < end:
            if self.in_hand is None:
                return
            await asyncio.sleep(0.005)
        log.warning("event_unfinished", group=self.app.conf.id)

    async def wait_empty(self) -> None:
        """Nothing to do: `give_up` has waited already, and Faust's wait has no limit."""

    async def leave(self) -> None:
        """Leave the group, at a planned stop."""
        if not await finish_within(LEAVE_S, self._thread.run_here(self._thread.leave()), "leave"):
            await finish_within(LEAVE_S, self._thread.run_here(self._thread.write_leave()), "leave")

    # Flow.

    def is_ours(self, message: Any) -> bool:
        """Whether a record belongs to the current assignment, and no rebalance is in progress.

        An agent that waited with a record in hand asks again: a record of an ended assignment is read again, here or
        by another worker.
        """
        return message.generation_id == self.app.consumer_generation_id and self.app.flow_control.is_active()

    def has_room(self) -> None:
        self._room.set()

    def resume_partitions(self, tps: Iterable[Any]) -> None:
        """Partitions may be read again."""
        super().resume_partitions(tps)
        self._room.set()

    def stop_flow(self) -> None:
        """Stop handing over records."""
        super().stop_flow()
        self._room.set()

    async def _drain_messages(self, fetcher: Any) -> None:
        """Hand records to the agent's buffer until the fetcher stops."""
        while not (self.should_stop or fetcher.should_stop):
            if not self.flow_active:
                await self.can_resume_flow.wait()
            active = self._get_active_partitions()
            if active:
                await self._hand_over(await self._getmany(active, timeout=1.0))
            else:
                await self._for_room()

    async def _hand_over(self, records: Any) -> None:
        """Put records into the buffer. A full buffer blocks this: that is the back-pressure."""
        generation = self.app.consumer_generation_id
        flow = self.app.flow_control
        [queue] = [channel.queue for channel in self.app.topics]
        for count, (tp, record) in enumerate(self.scheduler.iterate(records)):
            while queue.full() and self.flow_active:
                await self._for_room()
            is_large = len(record.value or b"") >= LARGE_BYTES
            while is_large and self.flow_active and not queue.empty():  # noqa: ASYNC110  # see LARGE_LOOK_S
                await asyncio.sleep(LARGE_LOOK_S)
            if not flow.is_active():
                await flow.acquire()  # a resume empties the buffer
            if not self.flow_active or self.app.consumer_generation_id != generation:
                return
            queue.put_nowait(self._to_message(tp, record))
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _for_room(self) -> None:
        self._room.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._room.wait()

    @Service.task
    async def _commit_handler(self) -> None:
        """Commit at each interval. Faust's handler would add the commits that were missed while the broker was away."""
        while not self.should_stop:
            await self.sleep(self.commit_interval)
            await self.commit()

    @Service.task
    async def _commit_livelock_detector(self) -> None:
        """Off: the watchdog does this."""


class Stream(faust.Stream[Any]):
    """Faust's stream, for agents that need only the records."""

    async def records(self) -> AsyncIterator[Any]:
        """The records handed over, in order. A record is in hand until the agent asks for the next one.

        Records of an ended assignment are left out.
        """
        reader = cast("App", self.app).reader
        queue = cast("faust.ChannelT[Any]", self.channel).queue
        little = int(queue.maxsize * ROOM_SHARE)
        turned_at = time.monotonic()
        while True:
            if queue.qsize() <= little:
                reader.has_room()
            if time.monotonic() - turned_at > TURN_S:
                await asyncio.sleep(0)
                turned_at = time.monotonic()
            try:
                message = await queue.get()
            except StopAsyncIteration:  # Faust's way to end an agent
                return
            if not reader.is_ours(message):
                continue
            reader.in_hand = message
            try:
                yield message
            finally:
                reader.in_hand = None


class ReadingTask(driver_base.Fetcher):
    """Faust's reading task; a cancellation ends it, also during a rebalance."""

    @Service.task
    async def _fetcher(self) -> None:
        reader = cast("App", self.app).reader
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await reader._drain_messages(self)  # noqa: SLF001  # Faust's own name, of our class
        finally:
            self.set_shutdown()


class TopicsConductor(Conductor):
    """Faust's `app.topics`, which also knows the names of crawlog's topics."""

    names: "Topics"

    urls = property(lambda self: self.names.urls)
    pages = property(lambda self: self.names.pages)
    items = property(lambda self: self.names.items)
    dead = property(lambda self: self.names.dead)
    control = property(lambda self: self.names.control)
    progress = property(lambda self: self.names.progress)


class KafkaTransport(driver.Transport):
    """`kafka://` with our consumer."""

    Consumer = Consumer
    Conductor = TopicsConductor
    Fetcher = ReadingTask


async def finish_within(limit_s: float, work: Awaitable[Any], what: str) -> bool:
    """Wait for `work`, at most `limit_s`; False, with a log line, if it took longer or failed."""
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning("gave_up_waiting", on=what, after_s=limit_s)
    except Exception as error:  # the caller is giving up or stopping: no error may delay it
        log.exception("failed_while_leaving", on=what, error=repr(error))
    else:
        return True
    return False
