"""One worker's Faust app: one stage, its hooks, and the parts of Faust that it replaces or turns off.

Hooks, all called in the app's loop but the first:
    `before_joining`        sync, before there is a loop: may wait, and other workers keep the partitions
    `on_rebalance_started`  sync, before any wait: stop dispatching
    `on_revoking`           async, in parallel, within HOOKS_S: drain work in flight, checkpoint; a commit follows
    `on_owned`              async, after positions are known and before the first record; must return fast
A planned stop (SIGTERM) runs the first two, commits, and leaves the group. `app.rebalancing` becomes true before the
first hook of a rebalance; any thread may read it.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, cast

import faust
import mode.loop
import structlog
from confluent_kafka import KafkaException
from faust.app.base import BootStrategy
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.topics import Topic
from faust.utils import venusian

from crawlog.streams.cluster import aiokafka_credentials
from crawlog.streams.errors import CrawlError
from crawlog.streams.exit_codes import EX_SOFTWARE, EX_TEMPFAIL
from crawlog.streams.groups import Position
from crawlog.streams.log import Topics, stage_group
from crawlog.streams.readiness import OwnReadiness
from crawlog.streams.settings import Settings
from crawlog.streams.stages import STAGES, Stage

from .consumer import HOOKS_S, Consumer, KafkaTransport, Stream, TopicsConductor, finish_within
from .lease import Lease
from .member import LIBRARY, Assignor
from .positions import Positions, Start
from .watchdog import Watchdog

if TYPE_CHECKING:
    from crawlog.schemas.progress import Progress

log = structlog.get_logger()

HEARTBEAT_S = 1.0
# The group's rebalance timeout: its wait for a live member to join. Giving up partitions takes 5 s at most.
REBALANCE_S = 20.0

REQUEST_S = 30.0  # Timeout of a JoinGroup, which takes up to REBALANCE_S; other requests have `hung_brokers.ANSWER_S`

COMMIT_EVERY_S = 1.0
METADATA_MS = 10_000  # Interval of metadata requests: a worker sees added partitions within this time


Owned = Callable[[set[int]], Awaitable[None]]


class StageHooks(Protocol):
    """The agent, hooks and reports of one stage."""

    async def events(self, stream: Any, /) -> None:
        """The agent: it reads the stage's input."""

    def rebalance_started(self) -> None:
        """The hook `on_rebalance_started`."""

    async def revoking(self, partitions: set[int], /) -> None:
        """The hook `on_revoking`."""

    async def owned(self, partitions: set[int], /) -> None:
        """The hook `on_owned`."""

    def reports(self) -> "list[Progress]":
        """The progress of each owned partition; called once a second."""


class Boot(BootStrategy):
    """The services of a worker: consumer, agents, conductor. Faust's producer stays off."""

    enable_web = False
    enable_kafka_producer = False
    enable_sensors = False

    def kafka_consumer(self) -> Iterable[Any]:
        """The consumer, without leader election and replies."""
        return [self.app.consumer] if self._should_enable_kafka_consumer() else []


class Resuming(Recovery):
    """Faust's service that resumes reading after a rebalance.

    Faust limits `perform_seek` to `broker_request_timeout`. After that the service ends without a word, and no later
    rebalance resumes reading. `perform_seek` may wait for a broker longer than that.
    """

    logger = LIBRARY

    async def _wait(self, coro: Any, timeout: Any = None) -> None:  # noqa: ARG002, ASYNC109  # Faust's signature
        await super()._wait(coro)


class NoTables(TableManager):
    """Faust's table manager, without its second of sleep at start."""

    logger = LIBRARY

    @property
    def recovery(self) -> Recovery:
        """It recovers no table; it resumes reading."""
        if self._recovery is None:
            self._recovery = Resuming(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery

    async def on_start(self) -> None:
        """There is no table to wait for."""
        await self._update_channels()
        await self.recovery.start()


class CrawlApp(faust.App):
    """One stage.

    Attributes:
        stage: `fetch`, `parse` or `sink`.
        crawl: The settings; in Faust `settings` means something else.
        worker_name: Unique among live workers; the static member's id.
        sink_name: Id of the sink; empty in other stages.
        input_name: The topic this stage reads.
        positions: The offsets to commit and to start from.
        lease: Tells whether the partitions are certainly still ours.
        watchdog: Ends a worker that is stuck; long deliberate waits call its `beat`.
        reports: The progress of each owned partition, as the stage reports it.
        lacks: What the stage needs and this machine does not have; None while that is not known.
        is_environment_error: Whether the machine caused a database error, such as by a full disk.
    """

    BootStrategy = Boot
    logger = LIBRARY

    def __init__(self, stage: Stage, settings: Settings, worker_name: str, sink_name: str = "") -> None:
        self.stage = stage
        self.crawl = settings
        self.worker_name = worker_name
        self.sink_name = sink_name
        self.lease = Lease(settings.kafka.session_timeout_s)
        self.positions = Positions(self._write_commit)
        self.before_joining: list[Callable[[], None]] = []
        self.on_rebalance_started: list[Callable[[], None]] = []
        self.on_revoking: list[Owned] = []
        self.on_owned: list[Owned] = []
        self.reports: Callable[[], list[Progress]] = list
        self.lacks: Callable[[], str | None] = lambda: ""
        self.is_environment_error: Callable[[BaseException], bool] = lambda _: False
        names = Topics(settings.kafka.prefix)
        self.input_name: str = getattr(names, STAGES[stage].topic)
        self._topic_names = names
        self._discovered: set[str] = set()
        group_id = stage_group(settings, f"{stage}-{sink_name}" if sink_name else stage)
        self._readiness = OwnReadiness(settings.run.ready_file)
        super().__init__(group_id, **_conf(stage, settings, worker_name))
        self.watchdog = Watchdog(self, assignment_s=REBALANCE_S + settings.kafka.session_timeout_s, beacon=self.beacon)

    @cached_property
    def input(self) -> Topic:
        """The stage's topic: raw bytes, a bounded buffer. `App.topic(maxsize=)` drops the bound."""
        return Topic(
            self,
            topics=[self.input_name],
            maxsize=STAGES[self.stage].buffered,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )

    @cached_property
    def topics(self) -> TopicsConductor:
        """Faust's conductor, with our topics' names: `app.topics.pages`."""
        conductor = cast("TopicsConductor", self._new_conductor())
        conductor.names = self._topic_names
        return conductor

    @property
    def reader(self) -> Consumer:
        """Faust's `consumer`, by its own type."""
        return cast("Consumer", self.consumer)

    def run_stage(self, name: str, hooks: StageHooks, starts: Start | None = None) -> None:
        """Register the stage of this worker, once, before the worker starts: its agent, hooks and reports.

        Args:
            starts: The offsets to start from; without it the group's commit.
        """
        self.on_rebalance_started.append(hooks.rebalance_started)
        self.on_owned.append(hooks.owned)
        self.on_revoking.append(hooks.revoking)
        self.positions.start = starts
        self.reports = hooks.reports
        self.agent(self.input, name=name)(hooks.events)

    def check_readiness(self, restored: int) -> str:
        """Let probes know whether it can work; returns what it lacks.

        Args:
            restored: Number of its partitions that it can work on.
        """
        self._readiness.look(self.lacks, is_up=self.watchdog.is_assigned and restored >= len(self.positions.owned))
        return self._readiness.lacks

    # What the consumer calls.

    def rebalance_started(self) -> None:
        """Run the hooks that stop the dispatch. A hook that fails must not prevent the others."""
        for hook in self.on_rebalance_started:
            try:
                hook()
            except Exception as error:
                log.exception("hook_failed", hook="on_rebalance_started", error=repr(error))

    async def revoking(self, partitions: set[int], limit_s: float = HOOKS_S) -> None:
        await asyncio.gather(
            *(finish_within(limit_s, hook(set(partitions)), "on_revoking") for hook in self.on_revoking)
        )

    async def owned(self, partitions: set[int]) -> None:
        """Run the hooks of a new assignment; an error in a hook ends the worker."""
        log.info("assigned", group=self.conf.id, partitions=_ranges(partitions))
        await asyncio.gather(*(hook(set(partitions)) for hook in self.on_owned))
        self.watchdog.assigned()

    async def _write_commit(self, positions: Mapping[int, Position]) -> bool:
        return await self.reader.write_commit(positions)

    # Faust's life cycle.

    def on_init_dependencies(self) -> Iterable[Any]:
        """Start the watchdog with the first services: it must notice an assignment that never comes.

        An empty sensor replaces Faust's statistics, which crawlog does not use. Without any sensor Faust complains at
        each rebalance.
        """
        services = [*super().on_init_dependencies(), self.watchdog]
        self.sensors.remove(self.monitor)
        self.sensors.add(faust.Sensor())
        return services

    def on_rebalance_end(self) -> None:
        """Run the hooks of an empty assignment here: it has no positions to set."""
        super().on_rebalance_end()
        if not self.consumer.assignment():
            self.add_future(self.reader.own_nothing())

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        """End the worker. Faust would go on with the next record, and the next commit would skip this one."""
        record = self.reader.in_hand
        place = {} if record is None else {"partition": record.partition, "offset": record.offset}
        log.error("agent_failed", agent=agent.name, exc_info=exc, **place)
        is_ours = not isinstance(exc, OSError | CrawlError | KafkaException) and not self.is_environment_error(exc)
        self.watchdog.end("agent_failed", exc, EX_SOFTWARE if is_ours else EX_TEMPFAIL, error=repr(exc), **place)

    async def _stop_consumer(self) -> None:
        """Planned stop: give up, commit, leave the group; other members take over our partitions at once."""
        if self._consumer is None or not self.reader.thread.ready:
            return
        self.rebalance_started()
        await self.reader.give_up()
        await self.reader.leave()
        await self._stop_fetcher()
        await self.tables.stop()

    def _on_rebalance_when_stopped(self) -> None:
        """Nothing to do: `_stop_consumer` gives up and leaves."""

    def discover(self, *extra_modules: str, **_: Any) -> None:  # Faust's signature
        """Import the stage's agents. A missing agent is named; other import errors pass through."""
        venusian.attach = _unscanned
        names = [name for name in (*STAGES[self.stage].agents, *extra_modules) if name not in self._discovered]
        self._discovered.update(names)  # `faust -A` calls this twice
        for name in names:
            if find_spec(name) is None:
                raise ModuleNotFoundError(f"{name} is not there, and a {self.stage} worker needs it", name=name)
            attach = getattr(importlib.import_module(name), "attach", None)
            if attach is not None:
                attach(self)

    def worker_init(self) -> None:
        """The first call in a worker process, before the event loop exists."""
        mode.loop.use("uvloop")
        super().worker_init()

    def worker_init_post_autodiscover(self) -> None:
        """Run the hooks; skip Faust's web server: Faust builds it here even when it is off."""
        for hook in self.before_joining:
            hook()
        self.on_worker_init.send()

    def _create_directories(self) -> None:
        """No folder: Faust's is for tables, and there are none."""

    def _new_transport(self) -> KafkaTransport:
        return KafkaTransport(self.conf.broker_consumer, self)


def _unscanned(*_: Any, **_options: Any) -> None:
    """In place of `venusian.attach`, by which Faust records each agent and task for a scan that crawlog does not use.

    That cost 40 ms of CPU at each worker's start, since it reads the path of every module.
    """


def _conf(stage: Stage, settings: Settings, worker_name: str) -> dict[str, Any]:
    kafka = settings.kafka
    return {
        "broker": ";".join(f"kafka://{address.strip()}" for address in kafka.bootstrap.split(",")),
        "broker_credentials": aiokafka_credentials(settings),
        "broker_client_id": worker_name,
        "broker_session_timeout": kafka.session_timeout_s,
        "broker_heartbeat_interval": min(HEARTBEAT_S, kafka.session_timeout_s / 3),
        "broker_rebalance_timeout": REBALANCE_S,
        "broker_request_timeout": max(REQUEST_S, kafka.session_timeout_s),
        "broker_commit_interval": COMMIT_EVERY_S,
        "broker_max_poll_records": STAGES[stage].polled,
        "broker_check_crcs": True,
        "consumer_group_instance_id": worker_name,
        "consumer_auto_offset_reset": "none",
        "consumer_metadata_max_age_ms": METADATA_MS,
        "consumer_max_fetch_size": kafka.max_record_bytes,
        "autodiscover": list(STAGES[stage].agents),
        "origin": "",
        "env_prefix": "CRAWLOG_FAUST_",  # Faust reads names like DEBUG and WEB_PORT from the environment
        "canonical_url": f"http://{_host_label(worker_name)}:6066",  # the assignor identifies members by it
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "reply_create_topic": False,
        "web_enabled": False,
        "store": "memory://",
        "table_standby_replicas": 1,  # 0 would replace the sticky assignor by round-robin
        "stream_wait_empty": True,
        "Stream": Stream,
        "worker_redirect_stdouts": False,
        "TableManager": NoTables,
        "PartitionAssignor": Assignor,
        "Worker": "crawlog.streams.worker.process:StageWorker",
    }


def _host_label(name: str) -> str:
    """The name as a host label: characters but ASCII letters, digits and dashes become codes; names stay distinct."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "-") else f"-{ord(c):x}-" for c in name)


def _ranges(partitions: Iterable[int]) -> str:
    return ",".join(map(str, sorted(partitions))) or "none"
