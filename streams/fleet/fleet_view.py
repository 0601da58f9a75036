"""Reads crawl.control and crawl.progress into a `FleetState`: once for a command, or all the time for the service.

crawl.control, from its beginning ─┐
crawl.progress, its end ───────────┴─► Tail ─► FleetState ─► views

Of crawl.progress, as much of the end is read as has the counts of all partitions. Workers may have been away for long,
or be restoring their partitions: a partition's newest report holds until its next one. If that takes too long, the view
keeps the newest part, and says that its counts are not those of all partitions (`JobView.is_counted`).

One steady clock decides whether a worker lives: the broker's time at the first report that arrives, and from there
this process's monotonic clock. So it does not matter whether the clocks of both machines agree, or are set.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
import structlog
from confluent_kafka import OFFSET_BEGINNING

from crawlog.schemas.codec import decoded
from crawlog.schemas.progress import Progress
from crawlog.streams.cluster import Admin, BrokerLogin, log_bounds, offset_at
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import RECENT_S
from crawlog.streams.log import Topics, read_records

from .fleet_state import FleetState, exits_of
from .lost_workers import LOST_S, LostWorkers, ReportSign
from .readers import OpenLetters, ProgressReader
from .tail import AtEnd, ControlRecord, Item, ReadFault, Report, Tail
from .views import FleetStatus, HostView, JobView, LostWorker, PlaceView, StageView, WorkerView

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

READ_S = 20.0  # How long a view may take to read what is there, seconds

FURTHER_S = 5.0  # How long a view may take to read reports from before `RECENT_S`, seconds; some 500,000 of them

POLL_S = 0.5  # Longest wait of the thread's one poll, seconds

ANSWER_S = 10.0  # How long the broker may take to find a place by its time, seconds

# Factor of the time of crawl.progress that is read when the newest part has not the counts of all partitions.
FURTHER = 16

ENDS_S = 1.0  # How long end offsets are used, seconds

T = TypeVar("T")

_signs = msgspec.json.Decoder(ReportSign)


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
        letters: The dead letters of the log.

    Args:
        login: As that of `Tail`.
        reports: A reader of this process, which polls it: the view takes the reports from there.
    """

    def __init__(
        self, settings: "Settings", login: BrokerLogin | None = None, reports: ProgressReader | None = None
    ) -> None:
        self._settings = settings
        self._topics = Topics(settings.kafka.prefix)
        self._admin = Admin(settings)
        self._state = FleetState()
        self._anew: FleetState | None = None
        self._further: FleetState | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._next = 0
        self._ends: tuple[float, dict[str, tuple[int, ...]]] = (0.0, {})
        self.letters = OpenLetters(settings, self._topics.dead)
        self._age_s = RECENT_S
        self._clock = _LogClock()
        names = self._topics
        begin, end = log_bounds(settings, names.control, [0])[0]
        places, self._upto = {names.control: begin}, {names.control: end}
        self._first = self._start = self._end = 0
        if reports is None:
            self._first, self._end = log_bounds(settings, names.progress, [0])[0]
            places[names.progress] = self._start = self._since(self._age_s)
            self._upto[names.progress] = self._end
        self._tail = Tail(settings, places, login)
        self._reports = reports
        if reports is not None:
            for report in reports.reports.newest.values():
                self._take(Report(report, self._clock.now(), 0))
            reports.listeners.append(self._heard)

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
        if self._reports is not None and self._heard in self._reports.listeners:
            self._reports.listeners.remove(self._heard)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._tail.close()

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
                self._tail.go_to(self._topics.progress, self._read_to())
                self._state.reporting = partitions
                return
            self._state.take_reports_of(self._further)
            self._further = None

    def _reads_to_ends(self, deadline: float) -> bool:
        """Reads the topics to the ends that they had; False if that takes too long."""
        while not self._tail.has_read(self._upto):
            if time.monotonic() > deadline:
                return False
            self.poll(0.1)
        return True

    def read_lost(self, limit_s: float = READ_S) -> bool:
        """Reads which workers reported in the last hour, beside the thread that follows; False if that takes too long.

        Until then `lost` has those alone that ended since the view began.
        """
        deadline, earlier = time.monotonic() + limit_s, LostWorkers()
        start = self._since(LOST_S)
        with closing(read_records(self._settings, self._topics.progress, 0, start, self._start)) as records:
            for record in records:
                if time.monotonic() > deadline:
                    return False
                with suppress(ValueError):
                    earlier.take(decoded(_signs, record.value() or b""), record.timestamp()[1] / 1000)
        self.look(lambda state: state.lost.take_earlier(earlier))
        return True

    def lost(self) -> list[LostWorker]:
        """The processes of workers that ended in the last hour, the last one first."""
        return self.look(lambda state: state.lost.views(self._clock.now()))

    def _read_to(self) -> int:
        """How far crawl.progress was read before the view went back in it."""
        return max(self._end, self._next)

    def _lacks_counts_of(self) -> int:
        """The number of partitions if earlier reports may have counts that those read so far have not; else 0."""
        if self._start <= self._first:
            return 0
        urls = self._admin.metadata(self._topics.urls).topics.get(self._topics.urls)
        partitions = len(urls.partitions) if urls is not None else 0
        return 0 if self._state.has_all_counts(partitions) else partitions

    def poll(self, wait_s: float) -> None:
        """Takes the records that come within `wait_s`."""
        if items := self._tail.poll(wait_s):
            with self._changed:
                for item in items:
                    self._take(item)
                self._changed.notify_all()

    def _heard(self, report: Report) -> None:
        with self._changed:
            self._take(report)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll(POLL_S)
            except Exception as error:
                log.exception("fleet_unread", error=repr(error))
                self._stop.wait(POLL_S)

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
                self._upto[topic] = self._read_to()
                self._tail.go_to(topic, start)
                return True
        return False

    def _take(self, item: Item) -> None:
        control = self._topics.control
        if isinstance(item, Report):
            self._next = max(self._next, item.offset + 1)
            at = self._clock.arrived_at(item.at) if item.offset >= self._end else item.at
            (self._further or self._state).report(item.report, at)
        elif isinstance(item, ControlRecord):
            (self._anew or self._state).hear(item.key, item.record, item.at)
        elif isinstance(item, AtEnd) and item.topic == control and self._anew is not None:
            self._state.control, self._anew = self._anew.control, None
        elif isinstance(item, ReadFault) and item.topic != control:
            self._further = None
        elif isinstance(item, ReadFault) and item.is_lost:
            log.warning("control_read_again", error=str(item.error))  # jobs stay as they are until it was read
            self._anew = FleetState()
            self._tail.go_to(control, OFFSET_BEGINNING)

    # ------------------------------------------------------------------ views

    def look(self, question: Callable[[FleetState], T]) -> T:
        """The answer to a question about the state, which does not change meanwhile."""
        with self._lock:
            self._state.now = self._clock.now()
            return question(self._state)

    def wait_until(self, holds: Callable[[FleetState], bool], timeout_s: float) -> bool:
        """Waits until the live view shows something; False if it did not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self._state), timeout_s)

    def workers(self) -> list[WorkerView]:
        """The living processes of workers, by stage and name."""
        return self.look(lambda state: state.workers(self._clock.now()))

    def hosts(self) -> list[HostView]:
        """The slowest hosts of each partition whose worker lives, the longest queue first."""
        return self.look(lambda state: state.hosts(self._clock.now()))

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
        ends, inputs = self._known_ends(), self._topics.read_by
        with self._lock:
            state, now = self._state, self._clock.now()
            workers, orders = state.workers(now), state.control.commands
            views = []
            for stage, topic in inputs.items():
                own = [one for one in workers if one.stage == stage]
                if stage == "sink":
                    lag = state.sink_lag(ends[topic], now)
                else:
                    lag = state.picture.lag(stage, ends[topic]) if state.supervisors(stage, now) else sum(ends[topic])
                rate = round(sum(one.pages_per_s for one in own), 2)
                views.append(StageView(stage, len(own), lag, rate, orders.of_stage(stage).paused))
        return views

    def places(self) -> list[PlaceView]:
        """How far each stage has come in each partition of its input.

        Raises: EngineError: the broker does not answer.
        """
        ends = self._known_ends()
        newest = self.look(lambda state: dict(state.picture.newest))
        views = []
        for stage, topic in self._topics.read_by.items():
            for number, end in enumerate(ends[topic]):
                report = newest.get((stage, number)) or Progress("", stage, number, 0.0)
                lag = max(end - report.offset, 0)
                place = stage, number, report.worker, report.offset, report.checkpoint, end, lag
                views.append(PlaceView(*place, report.at))
        return views

    def status(self) -> FleetStatus:
        """The whole fleet.

        Raises: EngineError: the broker does not answer.
        """
        stages = self.stages()
        dead = self._known_ends()[self._topics.dead][0]
        with self._lock:
            state, now = self._state, self._clock.now()
            return FleetStatus(
                tuple(state.jobs()),
                tuple(self.workers()),
                tuple(stages),
                tuple(self.hosts()),
                tuple(exits_of(state, now)),
                dead,
            )

    def _known_ends(self) -> dict[str, tuple[int, ...]]:
        at, ends = self._ends
        if not ends or time.monotonic() - at > ENDS_S:
            names = self._topics
            count = self._settings.kafka.partitions
            ends = self._admin.ends((names.urls, names.pages, names.items), count) | self._admin.ends((names.dead,), 1)
            self._ends = time.monotonic(), ends
        return ends
