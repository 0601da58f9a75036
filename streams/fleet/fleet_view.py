"""Reads crawl.control and crawl.progress into a `FleetState`: once for a command, or all the time for the service.

crawl.control, from its beginning ─┐
crawl.progress, its end ───────────┴─► one plain consumer ─► FleetState ─► views

Of crawl.progress, as much of the end is read as has the counts of all partitions. Workers may have been away for long,
or be restoring their partitions: a partition's newest report holds until its next one. If that takes too long, the view
keeps the newest part, and says that its counts are not those of all partitions (`JobView.is_counted`).

Whether a worker lives is told by one steady clock: the broker's time at the first report that arrives, and from there
this process's monotonic clock. So it does not matter whether the clocks of both machines agree, or are set.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

from crawlog.schemas import control, progress
from crawlog.streams.cluster import (
    BROKER_AWAY,
    DAMAGE_CODES,
    Admin,
    BrokerLogin,
    consumer_config,
    log_bounds,
    offset_at,
    weak_callback,
)
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import RECENT_S
from crawlog.streams.log import Topics, is_log_end

from .fleet_state import FleetState
from .open_letters import OpenLetters
from .views import FleetStatus, JobView, StageView, WorkerView

if TYPE_CHECKING:
    from confluent_kafka import Message

    from crawlog.streams.settings import Settings

log = structlog.get_logger()

BATCH = 1_000  # Records taken at a time


READ_S = 20.0  # How long a view may take to read what is there, seconds

FURTHER_S = 5.0  # How long a view may take to read reports from before `RECENT_S`, seconds; some 500,000 of them

POLL_S = 0.5  # Longest wait of the thread's one poll, seconds

ANSWER_S = 10.0  # How long the broker may take to find a place by its time, seconds

# Factor of the time of crawl.progress that is read when the newest part has not the counts of all partitions.
FURTHER = 16

ENDS_S = 1.0  # How long end offsets are used, seconds

T = TypeVar("T")


def letters_of(view: "FleetView") -> Counter[str]:
    """Open dead letters by job, of its present epoch; those of no job under an empty name.

    Raises: EngineError: the broker does not answer.
    """
    return view.letters.by_job(view.look(_begun))


def _begun(state: FleetState) -> dict[str, float]:
    """By job, the time from which on what names it is its own."""
    copies = ((name, state.copy(name)) for name in state.names())
    return {name: state.control.since(copy) for name, copy in copies if copy is not None}


class _LogClock:
    """The broker's time, UTC epoch seconds, on a steady clock; this machine's time until a report has arrived."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()
        self._is_set = False

    def now(self) -> float:
        """The time now."""
        return self._ahead_s + time.monotonic()

    def arrived_at(self, logged_at: float) -> float:
        """The time of a report that arrives now; the broker's time of the first one sets the clock."""
        if not self._is_set:
            self._is_set, self._ahead_s = True, logged_at - time.monotonic()
        return self.now()


class FleetView:  # long: each question of the service to the fleet is a method of one line or two
    """The fleet's state, read from the log.

    Use `read` for one look, or `start` and `close` for a live view. All methods may be called from any thread.

    Attributes:
        letters: Counts the open dead letters of each job.

    Args:
        login: Returns a new user and password when the cluster is away or refuses those of the settings.
    """

    def __init__(self, settings: "Settings", login: BrokerLogin | None = None) -> None:
        self._settings = settings
        self._topics = Topics(settings.kafka.prefix)
        self._login = login
        self._admin = Admin(settings)
        self._is_away = False
        self._at_end: set[str] = set()
        self._state = FleetState()
        self._anew: FleetState | None = None
        self._further: FleetState | None = None
        self._next = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._ends: tuple[float, dict[str, tuple[int, ...]]] = (0.0, {})
        config = {"error_cb": weak_callback(self._error), "enable.partition.eof": True}
        self._consumer = Consumer(consumer_config(settings) | config)
        self.letters = OpenLetters(settings, self._topics.dead)
        self._age_s = RECENT_S
        self._clock = _LogClock()
        self._upto = self._assign()

    # ------------------------------------------------------------------ reading

    @classmethod
    def read(
        cls, settings: "Settings", *, until: "Callable[[FleetView], bool] | None" = None, wait_s: float = 0
    ) -> Self:
        """One look: all that is in the log now.

        Args:
            until: Reads on until this holds, for at most `wait_s` seconds more.
        """
        view = cls(settings)
        try:
            view.catch_up()
            deadline = time.monotonic() + wait_s
            while until is not None and not until(view) and time.monotonic() < deadline:
                view.poll(0.1)
        finally:
            view.close()
        return view

    def start(self) -> Self:
        """Reads what is there, then follows in a thread until `close`."""
        self.catch_up()
        self._thread = threading.Thread(target=self._run, name="fleet-view", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Asks the thread to end, and waits for nothing: a `close` that follows is short."""
        self._stop.set()

    def close(self) -> None:
        """Ends the thread and the consumer; the state stays as it is."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._consumer.close()

    def catch_up(self) -> None:
        """Reads what was in the log when the view began.

        Raises: EngineError: it does not come in time, or the broker does not answer.
        """
        if not self._reads_to_ends(time.monotonic() + READ_S):
            raise EngineError(f"{self._topics.control} was not read within {READ_S:.0f} s; see `crawlog doctor`")
        deadline = time.monotonic() + FURTHER_S
        while (partitions := self._lacks_counts_of()) and self._go_back():
            if not self._reads_to_ends(deadline) or self._further is None:
                self._further = None
                self._go_to(self._topics.progress, max(self._end, self._next))
                self._state.reporting = partitions
                return
            self._state.take_reports_of(self._further)
            self._further = None

    def _reads_to_ends(self, deadline: float) -> bool:
        """Reads the topics to the ends that they had; False if that takes too long."""
        places = [TopicPartition(topic, 0) for topic in self._upto]

        def unread() -> set[str]:
            read_to = self._consumer.position(places)
            found = {one.topic for one in read_to if one.offset < self._upto[one.topic]}
            return found - self._at_end  # a compacted topic may have no record just before its end

        while unread():
            if time.monotonic() > deadline:
                return False
            self.poll(0.1)
        return True

    def _lacks_counts_of(self) -> int:
        """The number of partitions if earlier reports may have counts that those read so far have not; else 0."""
        if self._start <= self._first:
            return 0
        urls = self._admin.metadata(self._topics.urls).topics.get(self._topics.urls)
        partitions = len(urls.partitions) if urls is not None else 0
        return 0 if self._state.has_all_counts(partitions) else partitions

    def poll(self, wait_s: float) -> None:
        """Takes the records that are there; waits at most `wait_s` for the first one."""
        records = self._consumer.consume(BATCH, wait_s)
        if records:
            with self._changed:
                for record in records:
                    self._take(record)
                self._changed.notify_all()
        if self._is_away and self._login is not None:
            self._is_away = False
            self._consumer.set_sasl_credentials(*self._login())

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll(POLL_S)
            except Exception as error:
                log.exception("fleet_unread", error=repr(error))
                self._stop.wait(POLL_S)

    def _assign(self) -> dict[str, int]:
        """Begins at the start of crawl.control and near the end of crawl.progress; returns the ends to be read to."""
        names = self._topics
        begin, end = log_bounds(self._settings, names.control, [0])[0]
        self._first, self._end = log_bounds(self._settings, names.progress, [0])[0]
        self._start = start = self._since(self._age_s)
        self._consumer.assign([TopicPartition(names.control, 0, begin), TopicPartition(names.progress, 0, start)])
        ranges = ((names.control, begin, end), (names.progress, start, self._end))
        return {topic: upto for topic, begun, upto in ranges if begun < upto}

    def _since(self, age_s: float) -> int:
        """The offset of the first report that is no older."""
        since_ms = max(int((time.time() - age_s) * 1000), 0)
        return max(offset_at(self._settings, self._topics.progress, 0, since_ms, self._end), self._first)

    def _go_back(self) -> bool:
        """Goes to an earlier report, to read all reports from there into another state; False if there is none."""
        topic = self._topics.progress
        while self._start > self._first and self._age_s < time.time():
            self._age_s *= FURTHER
            if (start := self._since(self._age_s)) < self._start:
                self._start = start
                self._further = FleetState()
                self._upto[topic] = max(self._end, self._next)
                self._at_end.discard(topic)
                self._go_to(topic, start)
                return True
        return False

    def _take(self, record: "Message") -> None:
        if (error := record.error()) is not None:
            self._meet(error, record.topic() or "")
            return
        if record.topic() == self._topics.progress:
            offset, report = record.offset() or 0, progress.decode(record.value())
            self._next = max(self._next, offset + 1)
            if report is not None:
                at = record.timestamp()[1] / 1000
                state = self._further or self._state
                state.report(report, self._clock.arrived_at(at) if offset >= self._end else at)
            return
        key = record.key() or b""
        if key.startswith(control.JOINS):
            return
        try:
            entry = control.decode(key, record.value())
            (self._anew or self._state).hear(key, entry, record.timestamp()[1] / 1000)
        except ValueError:
            return  # the live reader of crawl.control sends it to crawl.dead

    def _meet(self, error: KafkaError, topic: str) -> None:
        """Handles an error that came in place of a record."""
        if is_log_end(error):
            self._at_end.add(topic)
            if topic == self._topics.control and self._anew is not None:
                known, anew = self._state, self._anew
                known.control = anew.control
                self._anew = None
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and topic == self._topics.control:
            log.warning("control_read_again", error=error.str())  # jobs stay as they are until it was read
            self._anew = FleetState()
            self._go_to(topic, OFFSET_BEGINNING)
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, *DAMAGE_CODES} and topic == self._topics.progress:
            self._further = None
            self._go_to(topic, OFFSET_END)  # the next report replaces the lost one

    def _go_to(self, topic: str, offset: int) -> None:
        """Reads a topic on from there. A position that was lost cannot be sought: librdkafka answers with _STATE."""
        self._consumer.incremental_unassign([TopicPartition(topic, 0)])
        self._consumer.incremental_assign([TopicPartition(topic, 0, offset)])

    def _error(self, error: KafkaError) -> None:
        self._is_away |= error.code() in BROKER_AWAY

    # ------------------------------------------------------------------ views

    def look(self, question: Callable[[FleetState], T]) -> T:
        """The answer to a question about the state, which does not change meanwhile."""
        with self._lock:
            return question(self._state)

    def wait_until(self, holds: Callable[[FleetState], bool], timeout_s: float) -> bool:
        """Waits until the live view shows something; False if it did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self._state), timeout_s)

    def workers(self) -> list[WorkerView]:
        """The living processes of workers, by stage and name."""
        return self.look(lambda state: state.workers(self._clock.now()))

    def jobs(self) -> list[JobView]:
        """All jobs, the last submitted first."""
        return self.look(lambda state: state.jobs())

    def job(self, name: str) -> JobView | None:
        """One job; None if there is none."""
        return self.look(lambda state: state.job(name))

    def has_fleet(self, stage: str = "fetch") -> bool:
        """Whether workers of a stage have partitions that do not belong to a `run`, which may end at any time."""
        return bool(self.look(lambda state: state.supervisors(stage, self._clock.now())) - {"run"})

    def stages(self) -> list[StageView]:
        """The stages with their lag.

        Raises: EngineError: the broker does not answer.
        """
        ends = self._known_ends()
        inputs = {"fetch": self._topics.urls, "parse": self._topics.pages, "sink": self._topics.items}
        with self._lock:
            state, now = self._state, self._clock.now()
            workers = state.workers(now)
            views = []
            for stage, topic in inputs.items():
                own = [one for one in workers if one.stage == stage]
                if stage == "sink":
                    lag = state.sink_lag(ends[topic], now)
                else:
                    lag = state.picture.lag(stage, ends[topic]) if state.supervisors(stage, now) else sum(ends[topic])
                rate = round(sum(one.pages_per_s for one in own), 2)
                views.append(StageView(stage, len(own), lag, rate, any(one.paused for one in own)))
        return views

    def status(self) -> FleetStatus:
        """The whole fleet.

        Raises: EngineError: the broker does not answer.
        """
        stages = self.stages()
        dead = self._known_ends()[self._topics.dead][0]
        with self._lock:
            state, now = self._state, self._clock.now()
            return FleetStatus(tuple(state.jobs()), tuple(self.workers()), tuple(stages), tuple(state.hosts(now)), dead)

    def _known_ends(self) -> dict[str, tuple[int, ...]]:
        at, ends = self._ends
        if not ends or time.monotonic() - at > ENDS_S:
            names = self._topics
            count = self._settings.kafka.partitions
            ends = self._admin.ends((names.urls, names.pages, names.items), count) | self._admin.ends((names.dead,), 1)
            self._ends = time.monotonic(), ends
        return ends
