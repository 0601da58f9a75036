"""A worker as a member of its group: aiokafka, in a thread of its own, so that heartbeats go on while the app is busy.

Changes to Faust's thread, and why:
    hold until `place`  aiokafka would start at the commit, or fail if the group has none
    `leave`             a static member leaves at once at a planned stop; aiokafka sends no LeaveGroup for one
    `watched`           each answered heartbeat renews the lease from when it was sent; a later worker of the same name
                        ends for good
    `paced`             a fetch waits for many bytes while records come, else for the first byte; refused fetches are
                        repeated after a pause, where aiokafka repeats them 2,500 times a second
    damage              a record that fails its CRC, or that the broker refuses, ends the worker for good
    `take_any_names`    a header's name that is not UTF-8 is an exception in aiokafka, at each try
    `prompt`            requests end after ANSWER_S without an answer: a broker that hangs is left for another one. Only
                        a join waits longer, for its slowest member
    `patient`           a broker that has just started may not name the topic yet; the assignment would then be empty,
                        and static members that come back would get the empty one for ever
    `check_errors`      raises the error that ended the group's coordination; aiokafka would wait for ever instead
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import (
    CommitFailedError,
    CorruptRecordException,
    IllegalStateError,
    KafkaError,
    for_code,
)
from aiokafka.protocol.group import HeartbeatRequest, SyncGroupRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from faust.assignor.partition_assignor import PartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from crawlog.schemas.progress import SUPERVISOR
from crawlog.streams.batches import take_any_names
from crawlog.streams.errors import Misconfigured
from crawlog.streams.groups import HeldRange, Position, WrittenEnds, reached_offset, replay_order, written_ends

from .hung_brokers import ANSWER_S, prompt
from .lease import Lease, Namesakes, boottime

if TYPE_CHECKING:
    from .contract import App

log = structlog.get_logger()
# Where mode logs the life of our services, so that `logs` hides it below warnings.
LIBRARY = logging.getLogger("mode.crawlog")
T = TypeVar("T")

# Least bytes of a fetch's answer, by stage: a round trip of any size costs some 300 µs, 2 ms of CPU on a busy machine.
FETCH_BYTES = {"fetch": 64 << 10, "parse": 512 << 10, "sink": 64 << 10}

# The broker answers after this time with fewer bytes: the longest that a new URL or page waits for a fetch.
FETCH_WAIT_MS = {"fetch": 50, "parse": 50, "sink": 100}

# Most bytes of a fetch's answer; its first batch comes whole at any size (KIP-74). A worker far behind the log gets
# full answers, which take several times their size in memory and push page data out of the processor's caches.
FETCH_MOST_BYTES = 1 << 20

REFUSED_S = 0.005  # An empty answer within this time is a refusal: otherwise the broker waits for the first byte

REFUSED_REST_S = 0.2
REFUSED_TIMES = 20  # Refused fetches in a row after which a plain consumer checks whether the log is damaged

# Wait of a fetch while no records come; the first byte ends it. Rare records still come at once, and an idle worker
# asks twice a second, not 20 times. A new position waits until the fetch ends.
REST_WAIT_MS = 500

# Records are handed to the app's loop in groups of `polled` records, or of this size; a page may have 8 MiB.
POLLED_BYTES = 4 << 20

# Records taken at a time until a group is full: 2 µs a record, while a hand-over costs some 200 µs. After a large
# record one at a time: four large pages have 32 MiB.
POLLED_PIECE = 4

# A record of this size waits until the agent's buffer is empty: that counts records, and a page may have 8 MiB.
LARGE_BYTES = 512 << 10

# aiokafka leaves the group when no records are taken for this long. Back-pressure may last for hours; the watchdog
# distinguishes a stuck worker from a waiting one.
NEVER_MS = 24 * 3600 * 1000

_REBALANCE_IN_PROGRESS = 27
_PUT_OUT = frozenset({25, 82})  # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID
_NOT_A_MEMBER = _PUT_OUT | {22}  # ILLEGAL_GENERATION


class UnknownTopic(Exception):
    """The broker names no partitions of a topic that the group reads."""


class Assignor(PartitionAssignor):
    """Faust's assignor, which leaves out a topic without partitions; this one raises an error instead."""

    def _perform_assignment(self, cluster: Any, member_metadata: Any) -> Any:
        for topic in sorted({topic for member in member_metadata.values() for topic in member.subscription}):
            if not cluster.partitions_for_topic(topic):
                raise UnknownTopic(topic)
        return super()._perform_assignment(cluster, member_metadata)


class RebalanceListener(driver.ConsumerRebalanceListener):
    """Called by aiokafka in the consumer's thread."""

    _thread: "ConsumerThread"

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> Awaitable[None]:
        """Tell the app at once, before any wait."""
        self._thread.rebalances += 1
        self._thread.tell(self._thread.crawl.rebalance_started)
        return super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        """Hold the partitions until `place`: aiokafka would start at the commit, or fail if the group has none.

        This runs before the broker answers aiokafka's fetcher, which then checks again whether a position is set.
        """
        consumer = self._thread.client()
        held = list(assigned)
        for tp in held:
            consumer.seek(tp, 0)
        consumer.pause(*held)
        await super().on_partitions_assigned(held)


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The aiokafka consumer and its loop. Methods are called from the app's loop unless they say otherwise."""

    logger = LIBRARY
    rebalances = 0
    """How many rebalances began; written in this thread only."""
    _piece = POLLED_PIECE

    @property
    def crawl(self) -> "App":
        return cast("App", self.app)

    @property
    def ready(self) -> bool:
        return self._consumer is not None and self._consumer._coordinator is not None

    def client(self) -> AIOKafkaConsumer:
        return self._ensure_consumer()

    def tell(self, call: Callable[[], None]) -> None:
        """From this thread: run `call` in the app's loop, before any later call of ours."""
        self.parent_loop.call_soon_threadsafe(call)

    async def run_here(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this thread. Faust's own queue has two slots, and the fetch in progress takes one."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.thread_loop))

    async def on_start(self) -> None:
        """In the thread: start aiokafka and watch what it sends to the group's coordinator."""
        await super().on_start()
        fetcher: Any = self.client()._fetcher  # aiokafka cannot change a fetch's wait later
        fetcher._proc_fetch_request = paced(fetcher, self.crawl.stage, self.crawl.watchdog.look_at_log)
        prompt(self.client()._client, self.app.conf.broker_request_timeout)
        coordinator: Any = self.client()._coordinator  # aiokafka has no hook for heartbeats
        coordinator._do_rejoin_group = patient(coordinator._do_rejoin_group, coordinator._client.force_metadata_update)
        if not self.app.client_only:
            coordinator._send_req = watched(coordinator._send_req, self.crawl.lease, self._has_namesake)

    def _has_namesake(self) -> None:
        """In the thread: end the worker for good, since a new one would be put out too."""
        name, group = self.crawl.worker_name, self.app.conf.id
        why = f"another worker of {group} has the name {name} too, and each puts the other out"
        remedy = "give one of them another name by CRAWLOG_WORKER"
        if os.environ.get(SUPERVISOR):  # which names its workers by machine and folder
            remedy = "give one machine another host name, or the command there another folder by --data"
        self.crawl.watchdog.end("name_taken", Misconfigured(f"{why}: {remedy}."))

    def _create_worker_consumer(self, transport: "driver.Transport") -> AIOKafkaConsumer:
        conf = self.app.conf
        kafka = self.crawl.crawl.kafka
        take_any_names()
        return AIOKafkaConsumer(
            client_id=self.crawl.worker_name,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[self.app.assignor],
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_uncommitted",
            max_poll_records=conf.broker_max_poll_records,
            max_poll_interval_ms=NEVER_MS,
            max_partition_fetch_bytes=kafka.max_record_bytes,
            fetch_max_bytes=FETCH_MOST_BYTES,
            fetch_min_bytes=1,
            fetch_max_wait_ms=REST_WAIT_MS,
            request_timeout_ms=int(ANSWER_S * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            metadata_max_age_ms=conf.consumer_metadata_max_age_ms,
            connections_max_idle_ms=conf.consumer_connections_max_idle_ms,
            check_crcs=conf.broker_check_crcs,
            **driver.credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
        )

    async def _fetch_records(
        self,
        consumer: AIOKafkaConsumer,
        active: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # Faust's signature
        max_records: int | None = None,
    ) -> Any:
        """In the thread: available records, limited by number and by bytes.

        Also raises the error that ended the group's coordination: without that, the fetch would wait for ever.
        """
        consumer._coordinator.check_errors()
        fetch = super()._fetch_records
        left, size_bytes = max_records or POLLED_PIECE, 0
        found: dict[Any, list[Any]] = {}
        while left > 0 and size_bytes < POLLED_BYTES:
            if found and consumer._subscription.reassignment_in_progress:
                break  # the fetch would wait for its end, and another member may then own these records
            try:
                some = await fetch(
                    consumer, active, timeout=0 if found else timeout, max_records=min(left, self._piece)
                )
            except CorruptRecordException as error:
                log.warning("record_corrupt", group=self.app.conf.id, error=repr(error))
                await self.crawl.watchdog.look_at_log()
                raise  # the records found are dropped too: aiokafka's position is past them
            except KafkaError:
                if found:
                    break  # the next call raises it again
                raise
            if not some:
                break
            for tp, records in some.items():
                found.setdefault(tp, []).extend(records)
            sizes = [len(record.value or b"") for records in some.values() for record in records]
            left -= len(sizes)
            size_bytes += sum(sizes)
            self._piece = 1 if max(sizes, default=0) >= LARGE_BYTES else POLLED_PIECE
        return found

    async def write_commit(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """In the thread: commit; False if a rebalance began or the broker refused. Retries while the broker is away."""
        consumer = self.client()
        assigned = consumer.assignment()
        wanted = {tp: OffsetAndMetadata(at.offset, at.metadata) for tp, at in positions.items() if tp in assigned}
        if len(wanted) < len(positions):
            return False
        try:
            await consumer.commit(wanted)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("commit_refused", group=self.app.conf.id, reason=str(error).split(" and may")[0])
            return False
        except KafkaError as error:
            log.warning("commit_failed", group=self.app.conf.id, error=repr(error))
            return False
        return True

    async def ranges(self, tps: set[TopicPartition]) -> dict[TopicPartition, HeldRange]:
        """In the thread: commits and log bounds of these partitions."""
        consumer = self.client()
        committed, first, end = await asyncio.gather(
            consumer._coordinator.fetch_committed_offsets(list(tps)),  # one request for all partitions
            consumer.beginning_offsets(list(tps)),
            consumer.end_offsets(list(tps)),
        )
        said = {tp: (at.offset, at.metadata or "") for tp, at in committed.items()}
        held = {
            tp: (offset, reached_offset(offset, text), replay_order(text), written_ends(text))
            for tp, (offset, text) in said.items()
        }
        found = {tp: held.get(tp, (None, None, None, WrittenEnds())) for tp in tps}
        return {tp: HeldRange(offset, first[tp], end[tp], *more) for tp, (offset, *more) in found.items()}

    def ends(self) -> dict[int, int]:
        """From any thread: the end of each assigned partition, by the broker's last answer."""
        subscription = self.client()._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        if assignment is None:
            return {}
        return {tp.partition: assignment.state_value(tp).highwater or 0 for tp in assignment.tps}

    async def place(self, starts: dict[TopicPartition, int]) -> None:
        """In the thread: set the positions and resume the partitions."""
        consumer = self.client()
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        consumer.resume(*starts)

    async def leave(self) -> None:
        """In the thread: leave the group now, so that the partitions move now.

        aiokafka sends no LeaveGroup for a static member, so the instance id is removed first.
        """
        coordinator: Any = self.client()._coordinator
        coordinator._group_instance_id = None
        self.crawl.lease.drop()
        await coordinator.close()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the group's coordination, after which no partition is assigned; None while it runs."""
        task = self.client()._coordinator._coordination_task if self.ready else None
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    async def write_leave(self) -> None:
        """In the thread: only send LeaveGroup, when `leave` is stuck behind a rebalance."""
        coordinator: Any = self.client()._coordinator
        await coordinator._maybe_leave_group()

    def close(self) -> None:
        """Nothing to do: Faust would close aiokafka from the wrong loop; the thread closes it when it stops."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Off: the watchdog does this."""


def paced(
    fetcher: Any, stage: str, is_refused: Callable[[], Awaitable[None]] | None = None
) -> Callable[..., Awaitable[bool]]:
    """A `_proc_fetch_request` that sets the wait of the next request by the last answer.

    Args:
        is_refused: Called after each REFUSED_TIMES refused fetches in a row.
    """
    fetch = fetcher._proc_fetch_request
    work_s = FETCH_WAIT_MS[stage] / 1000
    brought_at = -work_s
    refused = 0

    async def proc_fetch_request(*request: Any) -> bool:
        nonlocal brought_at, refused
        asked_at = time.monotonic()
        has_brought: bool = await fetch(*request)
        now = time.monotonic()
        if has_brought:
            brought_at = now
        elif now - asked_at >= REFUSED_S:
            refused = 0
        else:
            refused += 1
            if refused > 1:  # the end of an assignment causes one too
                await asyncio.sleep(REFUSED_REST_S)
            if refused % REFUSED_TIMES == 0 and is_refused is not None:
                await is_refused()
        works = now - brought_at < work_s  # several brokers: any of them brought records
        fetcher._fetch_min_bytes = FETCH_BYTES[stage] if works else 1
        fetcher._fetch_max_wait_ms = FETCH_WAIT_MS[stage] if works else REST_WAIT_MS
        return has_brought

    return proc_fetch_request


def patient(
    rejoin: Callable[[Any], Awaitable[bool]], ask_again: Callable[[], Awaitable[Any]]
) -> Callable[[Any], Awaitable[bool]]:
    """A coordinator's `_do_rejoin_group` that tries again until the broker names the group's topics."""
    has_said = False

    async def do_rejoin_group(subscription: Any) -> bool:
        nonlocal has_said
        try:
            has_joined = await rejoin(subscription)
        except KafkaError as error:
            if not isinstance(error.__cause__, UnknownTopic):
                raise
            if not has_said:
                log.warning("topic_unknown", topic=str(error.__cause__))
            has_said = True
        else:
            has_said = False
            return has_joined
        await asyncio.sleep(REFUSED_REST_S)
        await ask_again()
        return False

    return do_rejoin_group


def watched(
    send: Callable[[Any], Awaitable[Any]], lease: Lease, has_namesake: Callable[[], None] = lambda: None
) -> Callable[[Any], Awaitable[Any]]:
    """The coordinator's `_send_req`, with the lease renewed by each answer that counts us as a member.

    Args:
        has_namesake: Called when an earlier worker of the same name puts this one out.
    """
    namesakes = Namesakes()

    async def send_req(request: Any) -> Any:
        sent_at = boottime()
        response = await send(request)
        if isinstance(request, HeartbeatRequest | SyncGroupRequest):
            code = response.error_code
            if code == 0 or (code == _REBALANCE_IN_PROGRESS and isinstance(request, HeartbeatRequest)):
                lease.renew(sent_at)
                namesakes.joined(sent_at)
            elif code in _NOT_A_MEMBER:
                is_put_out = code in _PUT_OUT and lease.held(now := boottime()) and namesakes.lost(now)
                lease.drop()
                log.warning("membership_lost", error=for_code(code).__name__)
                if is_put_out:
                    has_namesake()
        return response

    return send_req
