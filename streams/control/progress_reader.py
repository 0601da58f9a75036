"""Reads crawl.progress into a picture and crawl.dead into a tally, and asks for end offsets. Clients stay open."""

import time
from math import inf
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

from crawlog.schemas import progress
from crawlog.streams.cluster import BROKER_AWAY, DAMAGE_CODES, Admin, BrokerLogin, consumer_config, weak_callback
from crawlog.streams.dead_letters import LetterTally
from crawlog.streams.errors import EngineError
from crawlog.streams.log import Topics, read_error, record_headers, stage_group

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from crawlog.schemas.progress import Progress
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.settings import Settings

BATCH = 500  # Records taken at a time; a worker sends at most one report per second and partition

RECENT = 200  # Earlier reports that are read at most; with eight partitions all stages send some 20 a second

CATCH_UP_S = 0.02  # Longest wait of one poll while catching up, seconds

# After this time without a report, reading goes on at the end: a broker returns nothing from behind file damage.
SILENT_S = 10.0


class ProgressReader:
    """Reads the workers' reports from now on.

    Args:
        picture: Gets every report.
        login: Returns a new user and password when the cluster is away or refuses those of the settings.
        since: Earlier reports that are no older than this are taken too; UTC epoch seconds.
    """

    def __init__(
        self, settings: "Settings", picture: "FleetReports", login: BrokerLogin | None = None, since: float = inf
    ) -> None:
        names = Topics(settings.kafka.prefix)
        self._inputs = names.read_by
        self._dead = names.dead
        self._control = names.control
        self._picture = picture
        self._admin = Admin(settings)
        self._count = settings.kafka.partitions
        self._login = login
        self._is_away = False
        self._consumer = Consumer(consumer_config(settings) | {"error_cb": weak_callback(self._error)})
        self._progress = names.progress
        self._since = since
        self._begin(None)

    def poll(self, wait_s: float) -> None:
        """Reads the available reports; waits at most `wait_s` for the first. The broker may be away meanwhile."""
        for record in self._consumer.consume(BATCH, wait_s):
            if record.error() is not None:
                self._begin(record.error())
                continue
            self._heard_at = time.monotonic()
            report = progress.decode(record.value())
            if report is not None and ((record.offset() or 0) >= self._now or report.at >= self._since):
                self._picture.take(report)
        if time.monotonic() - self._heard_at > SILENT_S:
            self._go_to(OFFSET_END)  # needs no request: the broker may be away
        if self._is_away and self._login is not None:
            self._is_away = False
            self._consumer.set_sasl_credentials(*self._login())

    def folds(self, wait_s: float) -> "Iterable[Progress]":
        """The newest report of each partition of crawl.urls, after a wait of at most `wait_s` for the next one."""
        self.poll(wait_s)
        return self._picture.of("fetch")

    def _begin(self, error: KafkaError | None) -> None:
        """Starts reading at the end, or at recent reports if `since` is set.

        After an error, reading restarts at the end only if the position was lost or a report is damaged: the next
        report replaces it.
        """
        if error is not None and error.code() not in {KafkaError._AUTO_OFFSET_RESET, *DAMAGE_CODES}:
            return
        self._now = end = self._admin.ends((self._progress,), 1)[self._progress][0]
        has_before = error is None and self._since < inf
        self._go_to(max(end - RECENT, 0) if has_before else end)

    def _go_to(self, offset: int) -> None:
        self._consumer.assign([TopicPartition(self._progress, 0, offset)])
        self._heard_at = time.monotonic()

    def _error(self, error: KafkaError) -> None:
        self._is_away |= error.code() in BROKER_AWAY

    def ends(self, stage: str) -> tuple[int, ...]:
        """The next offset of each partition of a stage's input.

        Raises: EngineError: the broker does not answer.
        """
        return self.all_ends((stage,))[stage]

    def all_ends(self, stages: tuple[str, ...] = ("fetch", "parse", "sink")) -> dict[str, tuple[int, ...]]:
        """The same for several stages, in one request."""
        found = self._admin.ends((self._inputs[stage] for stage in stages), self._count)
        return {stage: found[self._inputs[stage]] for stage in stages}

    def dead_end(self) -> int:
        """The next offset of crawl.dead."""
        return self._admin.ends((self._dead,), 1)[self._dead][0]

    def control_end(self) -> int:
        """The next offset of crawl.control."""
        return self._admin.ends((self._control,), 1)[self._control][0]

    def lag(self, stage: str, sink: str = "") -> int:
        """Records that a stage's group has not committed; `sink` is the id of one of the sink's groups."""
        name, ends = self._inputs[stage], self.ends(stage)
        committed = self._admin.committed(stage_group(self._admin.settings, f"{stage}-{sink}" if sink else stage), name)
        return sum(max(0, end - committed.get((name, partition), 0)) for partition, end in enumerate(ends))

    def has_others(self, own: "Container[str]", within_s: float) -> bool:
        """Whether workers of other names fetch too, by the members of the group.

        Reports do not suffice: a run may end before it has received a report of each worker.

        Raises: EngineError: the broker does not answer in time.
        """
        from crawlog.streams.groups import member_names

        found = member_names(self._admin, stage_group(self._admin.settings, "fetch"), within_s)
        return any(name not in own for name in found)

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


class DeadLetterReader:
    """Reads the new dead letters of one job.

    Args:
        start: End offset of crawl.dead when the run began.
        login: As that of `ProgressReader`.

    Attributes:
        tally: The letters read so far.
    """

    def __init__(self, settings: "Settings", job: str, start: int, login: BrokerLogin | None = None) -> None:
        self.tally = LetterTally(job)
        self._next = start
        self._topic = Topics(settings.kafka.prefix).dead
        self._login = login
        self._begin(settings)

    def _begin(self, settings: "Settings") -> None:
        self._kafka = settings.kafka
        self._is_away = False
        self._consumer = Consumer(consumer_config(settings) | {"error_cb": weak_callback(self._error)})
        self._consumer.assign([TopicPartition(self._topic, 0, self._next)])

    def _error(self, error: KafkaError) -> None:
        self._is_away |= error.code() in BROKER_AWAY

    def at(self, settings: "Settings") -> None:
        """Goes on with these settings: a broker that was started again may have another address or password."""
        if settings.kafka != self._kafka:
            self.close()
            self._begin(settings)

    def poll(self, wait_s: float = 0.0) -> None:
        """Takes the available records; waits at most `wait_s` for the first.

        Raises: DamagedLog: a record differs from the one that was written.
        """
        for record in self._consumer.consume(BATCH, wait_s):
            error = record.error()
            if error is not None and error.code() in DAMAGE_CODES:
                raise read_error(record)
            if error is None:
                self.tally.take(record_headers(record))
                self._next = (record.offset() or 0) + 1
        if self._is_away and self._login is not None:
            self._is_away = False
            self._consumer.set_sasl_credentials(*self._login())

    def catch_up(self, end: int, within_s: float) -> None:
        """Takes all records before an offset.

        Raises: EngineError: they do not arrive in time.
        """
        deadline = time.monotonic() + within_s
        while self._next < end:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self._topic} gave nothing for {within_s:.0f} s, at {self._next} of {end}; see `crawlog doctor`"
                )
            self.poll(CATCH_UP_S)

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()
