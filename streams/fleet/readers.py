"""Reads crawl.progress into `FleetReports`, and the letters of crawl.dead; asks for end offsets."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING

from confluent_kafka import Message

from crawlog.streams.cluster import Admin, BrokerLogin, log_bounds
from crawlog.streams.dead_letters import Letter, Letters, LetterTally
from crawlog.streams.errors import DamagedLog, EngineError
from crawlog.streams.log import Topics, read_records, record_headers, stage_group

from .tail import ReadFault, Report, Tail

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from crawlog.schemas.progress import Progress
    from crawlog.streams.jobs import FleetReports
    from crawlog.streams.settings import Settings

RECENT = 200  # Earlier reports that are read at most; with eight partitions all stages send some 20 a second

CATCH_UP_S = 0.02  # Longest wait of one poll while catching up, seconds


class ProgressReader:
    """Reads the workers' reports from now on.

    Args:
        reports: Gets every report.
        login: As that of `Tail`.
        since: Earlier reports that are no older than this are taken too; UTC epoch seconds.

    Attributes:
        reports: Those that were read.
        listeners: Called with each new report.
    """

    def __init__(
        self, settings: "Settings", reports: "FleetReports", login: BrokerLogin | None = None, since: float = inf
    ) -> None:
        names = Topics(settings.kafka.prefix)
        self._inputs = names.read_by
        self._dead = names.dead
        self._control = names.control
        self._progress = names.progress
        self.reports = reports
        self.listeners: list[Callable[[Report], None]] = []
        self._count = settings.kafka.partitions
        self._login = login
        self._since = since
        self._admin, self._tail = self._opened(settings)

    def _opened(self, settings: "Settings") -> tuple[Admin, Tail]:
        admin = Admin(settings)
        self._now = end = admin.ends((self._progress,), 1)[self._progress][0]
        start = max(end - RECENT, 0) if self._since < inf else end
        return admin, Tail(settings, {self._progress: start}, self._login)

    def at(self, settings: "Settings") -> None:
        """Goes on with these settings: a broker that was started again may have another address or password.

        Raises: EngineError: the broker does not answer; nothing has changed then.
        """
        before = self._tail
        self._admin, self._tail = self._opened(settings)
        before.close()

    def poll(self, wait_s: float) -> None:
        """Reads the reports that come within `wait_s`. The broker may be away meanwhile."""
        for item in self._tail.poll(wait_s):
            if isinstance(item, Report) and (item.offset >= self._now or item.report.at >= self._since):
                self.reports.take(item.report)
                for listener in self.listeners:
                    listener(item)
            elif isinstance(item, ReadFault):
                self._now = 0  # all that follow are new: reading goes on at the end, also of a topic made again

    def folds(self, wait_s: float) -> "Iterable[Progress]":
        """The newest report of each partition of crawl.urls, after `wait_s`."""
        self.poll(wait_s)
        return self.reports.of("fetch")

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
        self._tail.close()


class DeadLetterReader:
    """Reads the new dead letters of one job.

    Args:
        start: End offset of crawl.dead when the run began.
        login: As that of `Tail`.

    Attributes:
        tally: The letters read so far.
    """

    def __init__(self, settings: "Settings", job: str, start: int, login: BrokerLogin | None = None) -> None:
        self.tally = LetterTally(job)
        self._topic = Topics(settings.kafka.prefix).dead
        self._login = login
        self._kafka = settings.kafka
        self._next = start  # behind the last record in the tally
        self._tail = Tail(settings, {self._topic: start}, login)

    def at(self, settings: "Settings") -> None:
        """Goes on with these settings: a broker that was started again may have another address or password."""
        if settings.kafka != self._kafka:
            self._kafka = settings.kafka
            self._tail.close()
            self._tail = Tail(settings, self._tail.next, self._login)

    def poll(self, wait_s: float = 0.0) -> None:
        """Takes the records that come within `wait_s`.

        Raises: DamagedLog: a record differs from the one that was written.
        """
        try:
            for item in self._tail.poll(wait_s):
                if isinstance(item, Message):
                    self.tally.take(record_headers(item))
                    self._next = (item.offset() or 0) + 1
                elif isinstance(item, ReadFault) and isinstance(item.error, DamagedLog):
                    raise item.error
        except BaseException:
            self._tail.go_to(self._topic, self._next)  # a signal came behind the consumer's read: it is done again
            raise

    def catch_up(self, end: int, within_s: float) -> None:
        """Takes all records before an offset.

        Raises: EngineError: they do not arrive in time.
        """
        deadline = time.monotonic() + within_s
        while self._tail.next[self._topic] < end:
            if time.monotonic() > deadline:
                at = self._tail.next[self._topic]
                raise EngineError(
                    f"{self._topic} gave nothing for {within_s:.0f} s, at {at} of {end}; see `crawlog doctor`"
                )
            self.poll(CATCH_UP_S)

    def close(self) -> None:
        """Closes the consumer."""
        self._tail.close()


class OpenLetters:
    """Keeps the letters of crawl.dead, without their records, and counts open ones. A thread at a time reads.

    Args:
        topic: crawl.dead.
    """

    def __init__(self, settings: "Settings", topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._lock = threading.Lock()
        self._letters = Letters()
        self._next = 0

    def by_job(self, since: Mapping[str, float]) -> Counter[str]:
        """Open letters of each job now, those of no job under an empty name.

        Args:
            since: By job, the time from which on letters count, UTC epoch seconds: older ones are of an earlier epoch.

        Raises: EngineError: the broker does not answer.
        """
        return Counter(one.job for one in self.all() if not one.handled and one.at >= since.get(one.job, 0.0))

    def all(self) -> list[Letter]:
        """All letters that the log has now, handled ones too, the oldest first.

        Raises: EngineError: the broker does not answer.
        """
        with self._lock:
            start, end = log_bounds(self._settings, self._topic, [0])[0]
            for record in read_records(self._settings, self._topic, 0, max(self._next, start), end):
                at, offset = record.timestamp()[1] / 1000, record.offset() or 0
                self._letters.take(offset, at, record_headers(record), record.value())
                self._next = offset + 1
            return [one for one in self._letters.all.values() if one.offset >= start]
