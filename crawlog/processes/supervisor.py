# long: engine, workers and log of one command are kept alive together
"""The supervisor of `run` and `up`: holds the data folder, keeps engine and workers alive, reads their progress.

All of it runs in the main thread: workers die with the thread that adopted them, and Python handles signals there.
The first SIGINT, SIGTERM or SIGHUP raises `Stop` at any point of the program; `close` then stops everything within 5 s,
under `up` within 20 s. Where Python drops an exception (in a finalizer) `look` raises it again. A second signal, but no
SIGHUP, kills all processes at once. Both are safe: the crawl's state is in the log.
"""

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import inf
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Self

import xxhash

from crawlog import __version__, outcome
from crawlog.schemas import progress
from crawlog.schemas.progress import IDLE, Progress
from crawlog.streams import engine
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import FleetReports
from crawlog.streams.kernel import usable_cores
from crawlog.streams.recovery import Recovery

from .folder import FULL_AGAIN_S, Disk, service_note
from .forkserver import SERVICE
from .hold import Hold
from .workers import Name, Workers, worker_counts

if TYPE_CHECKING:
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.log import CommandProducer
    from crawlog.streams.recovery import Check, CutPartition
    from crawlog.streams.settings import Settings

WORKERS_STOP_S = 3.8  # The workers' share of the 5 s of a clean stop; they need 0.1 s, at worst 4 s

# The broker's share of these 5 s; it needs 0.3 s, and recovers from a kill, after which the whole log is checked.
ENGINE_STOP_S = 1.2

UP_ENGINE_STOP_S = 15.0  # The same for `up`, which nobody waits for at a terminal, seconds; `down` waits longer

INSIST_S = 1.0  # A further signal within this time is no second wish, seconds: a closed terminal sends SIGHUP twice

ENGINE_TRIES = 3  # Attempts in a row to restart a broker that died; attempts on a full disk do not count

WORKING_LOOK_S = 0.1  # Pause between two looks at starting workers, seconds

Report = Callable[[str], None]


class Stop(BaseException):
    """A signal requested the end of the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Supervisor:  # long: all that one command has to keep alive and to stop
    """Holds a data folder, and keeps its engine and workers alive.

    Attributes:
        settings: They contain the address of the log once `connect` has returned; a broker that was started again may
            have another one.
        names: Names of the workers.
        picture: The workers' reports.
    """

    def __init__(self, settings: "Settings", what: str, names: list[Name], report: Report) -> None:
        self.settings = settings
        self.names = frozenset(who.name for who in names)
        self.picture = FleetReports(self.names)
        self.engine: engine.Engine | None = None
        self.watch: ProgressReader | None = None
        self.report = report
        self._when_stopped: Callable[[], None] = lambda: None
        if settings.snapshots.to:
            from crawlog.streams.state import store_of

            store_of(settings.snapshots.to)  # reports a missing package here instead of in each worker
        self._what = what
        self._producer: CommandProducer | None = None
        self._data = settings.run.data
        self._hold = Hold(self._data, what, settings.kafka.bootstrap)
        self._heard_at = 0.0
        self._asked_to_stop: Stop | None = None
        self._closing = False
        self._signals = {number: signal.signal(number, self._on_signal) for number in _heard()}
        self._workers = Workers(names, self._data, report, self._has_worked, command=what, noted=self._note_end)
        self._noted: dict[str, int] = {}
        self._more: dict[str, dict[str, str]] = {}
        self._disk = Disk(self._data, report)
        self._care: Recovery | None = None
        self._is_revived = False  # whether a restarted log is still to be searched for losses
        self._must_begin = False  # whether the workers are to begin again
        self._unmade: dict[int, int] = {}  # where parse was moved back to, for rows that a sink lacks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(error, TypeError) and self._asked_to_stop is not None:  # see `outcome.unmasked`
            raise self._asked_to_stop from error

    def launch(self) -> None:
        """Starts the forkserver, which imports modules while the engine starts."""
        self._workers.launch()

    def connect(self, *, accepts_skipped: bool = False) -> None:
        """Starts or finds the log, creates its topics, and restores records that it has lost.

        Args:
            accepts_skipped: Whether records stay unread that another program had a group skip.
        """
        if not self.settings.kafka.bootstrap:
            self._start_engine()
        from crawlog.streams import logs

        level = "debug" if self.settings.log.level == "debug" else "warning"  # standard output is for answers
        logs.configure(level)
        left = ENGINE_TRIES
        while self.watch is None:
            try:
                self._reach(accepts_skipped=accepts_skipped)
            except EngineError:
                left -= 1
                if not left or self.engine is None or self.engine.alive():
                    raise
                self._start_again()

    def _reach(self, *, accepts_skipped: bool) -> None:
        from crawlog.streams.fleet import ProgressReader
        from crawlog.streams.log import ensure_topics

        ensure_topics(self.settings, self.report)
        self._care = Recovery(self.settings, self.report)
        self._care.make_again(self.engine)
        self._care.tell_moved(accepts=accepts_skipped)
        self.watch = ProgressReader(self.settings, self.picture)

    @property
    def producer(self) -> "CommandProducer":
        """The producer of this process; another one once the broker has another address.

        What the former one had in flight may then not be in the log.
        """
        if self._producer is None:
            from crawlog.streams.log import CommandProducer

            kafka = self.settings.kafka
            login = partial(engine.login, self._data, kafka.bootstrap) if self.engine else None
            self._producer = CommandProducer(self.settings, f"crawlog-{self._what}", login=login, say=self.report)
        return self._producer

    def when_stopped(self, call: Callable[[], None]) -> None:
        """Has this called at the end, between the stop of the workers and that of the engine."""
        self._when_stopped = call

    def ends(self, stage: str) -> tuple[int, ...]:
        """The next offset of each partition of a stage's input, now.

        Raises: EngineError: the broker does not answer.
        """
        assert self.watch is not None
        return self.watch.ends(stage)

    def mend(self, check: "Check", *, founds: bool) -> None:
        """Restores the records that a check of the log has found missing.

        Args:
            founds: Whether founds are lost, so that all pages are parsed again.
        """
        assert self._care is not None
        self.stop_stage("parse")
        self.picture.forget("parse")
        try:
            self._care.mend(check, founds=founds)
        finally:
            self.go(("parse",))

    def parse_again(self, back: Mapping[int, int]) -> None:
        """Has pages whose items are gone parsed again from these offsets on.

        Raises: EngineError: no answer; or other commands' workers have the group of parse.
        """
        assert self._care is not None
        self.stop_stage("parse")
        self.picture.forget("parse")
        try:
            self._care.parse_again(back)
        finally:
            self.go(("parse",))

    def _make_rows(self) -> None:
        """Has parse go back to the pages whose rows a fleet's sink lacks; each only once, as parse needs its time."""
        unmade = [item for report in self.picture.of("sink") for item in report.unmade.items()]
        new = {at: offset for at, offset in sorted(unmade, reverse=True) if offset < self._unmade.get(at, inf)}
        if not unmade:
            self._unmade.clear()
        if new and "parse" in self._more:
            self._unmade |= new
            try:
                self.parse_again(new)
            except EngineError as error:
                self.report(str(error))

    @property
    def is_unchecked(self) -> bool:
        """Whether the log may have lost records: it was cut, or its broker ended uncleanly, which ends do not show."""
        has_cuts = self._care is not None and (self._care.is_doubted or bool(self._care.cuts))
        return has_cuts or bool(self.picture.cuts) or (self.engine is not None and self.engine.is_unchecked)

    @property
    def lost_founds(self) -> "Sequence[CutPartition]":
        """Every partition of crawl.urls that has lost records; seeds may be lost with them."""
        return self._care.lost_founds if self._care else ()

    @property
    def has_lost_founds(self) -> bool:
        """Whether crawl.urls was cut since the last full check; seeds may be lost."""
        return self._care is not None and bool(self._care.founds(self._care.cuts))

    def checked(self) -> None:
        """Notes that the whole log was checked and that nothing is missing."""
        if self._care:
            self._care.is_doubted = False
            self._care.cuts.clear()
        self.picture.cuts.clear()
        if self.engine:
            self.engine.checked()

    def go(self, stages: tuple[str, ...], more: Mapping[str, str] | None = None) -> None:
        """Starts the workers of some stages, with `more` in their environment."""
        self._more |= {stage: dict(more or {}) for stage in stages}
        self._workers.go({stage: self._told(stage) | self._more[stage] for stage in stages})

    def until_working(self, timeout_s: float) -> None:
        """Waits until every stage has a working worker.

        Raises: EngineError: a stage has none in time, or a worker is broken. Misconfigured: one refuses its settings.
        """
        deadline = time.monotonic() + timeout_s
        while idle := self._workers.idle_stages():
            if time.monotonic() > deadline:
                why = self._workers.ends(idle) or "none of them has started"
                logs = self._data.absolute() / "logs"
                raise EngineError(f"no worker works for {' and '.join(sorted(idle))}: {why}\nTheir logs: {logs}")
            self.look(WORKING_LOOK_S)

    def stop_stage(self, stage: str) -> None:
        """Stops the workers of a stage until the next `go`."""
        self._workers.retire(stage, WORKERS_STOP_S)

    def look(self, wait_s: float) -> None:
        """Reads reports, waiting at most `wait_s` for them; then restarts the engine and workers if they died.

        Raises: EngineError: the engine or the workers cannot go on, or `producer` had a record refused.
        """
        if self._asked_to_stop is not None and not self._closing:
            raise self._asked_to_stop
        assert self.watch is not None
        self.watch.poll(wait_s)
        if self.engine and not self.engine.alive():
            self._revive()
        if not self._take_care():
            return
        self._make_rows()
        if self._producer is not None:
            self._producer.poll()
        self._disk.is_full()
        self._workers.look()
        pids = self._workers.pids()
        if pids != self._noted and self._hold.note(pids):
            self._noted = pids

    def close(self) -> None:
        """Stops the workers, then the engine, then releases the folder."""
        self._closing = True
        try:
            try:
                if not self._workers.stop(WORKERS_STOP_S):
                    self.report("a worker did not stop in time and was killed; nothing is lost")
                self._when_stopped()
                if self.watch:
                    self.watch.close()
            finally:
                if running := self.engine or _left_behind(self.settings):
                    _stop(running, self._what, was_told=self._asked_to_stop is not None)
        finally:
            self._hold.release()
            for number, handler in self._signals.items():
                signal.signal(number, handler)

    def _has_worked(self, pid: int) -> bool:
        """Whether a process has ever reported, or has begun to serve."""
        if self.picture.has_reported(pid):
            return True
        note = service_note(self._data) if SERVICE in self.names else None
        return note is not None and note.pid == pid

    def _note_end(self, who: Name, pid: int, why: str) -> None:
        """Reports for a worker that it has ended: its own reports only cease."""
        from crawlog.streams.log import Topics

        report = Progress(who.name, IDLE, -1, time.time(), pid=pid, idle_stage=who.stage, ended=why)
        report.host, report.version = platform.node(), __version__
        topic = Topics(self.settings.kafka.prefix).progress
        with contextlib.suppress(EngineError):  # the next record that a crawl needs raises it
            self.producer.send(topic, progress.encode(report), key=progress.key(report), partition=0)

    def _told(self, stage: str) -> dict[str, str]:
        from crawlog.streams.settings import for_stage, to_environ

        return to_environ(for_stage(self.settings, stage))

    def _start_engine(self, died: engine.Engine | None = None) -> None:
        self.engine = engine.start(self.settings, self._data, self.report, _load, died, checks=True)
        self.settings = self.engine.point(self.settings)

    def _revive(self) -> None:
        """Restarts a broker that died while workers may use it."""
        assert self._care is not None
        before = self.settings.kafka
        self._start_again()
        if self.settings.kafka.bootstrap != before.bootstrap:
            self._producer = None
        if self.settings.kafka != before:
            self._care.moved(self.settings)
            self._must_begin = True
        self._is_revived = True

    def _start_again(self) -> None:
        """Restarts a broker that died, on the same port if it is still free, so that clients reconnect."""
        died = self.engine
        self.report("Apache Kafka died; it is started again, nothing is lost")
        left = ENGINE_TRIES
        while True:
            try:
                self._start_engine(died)
                break
            except EngineError as error:
                died = None  # a new password: another program may have got the old one at the port
                if self._disk.is_full() or "No space left" in str(error):
                    time.sleep(FULL_AGAIN_S)
                    continue
                left -= 1
                if not left:
                    raise

    def _take_care(self) -> bool:
        """Restores the records that the log has lost, and has the workers begin again if they must.

        Returns: False if the broker died meanwhile: the next look starts it again and comes back to this.
        """
        assert self._care is not None
        try:
            if found := self._care.lost() if self._is_revived else self._care.due():
                self._must_begin = True
                self._workers.end()
                for stage in self._more:
                    self.picture.forget(stage)
                self._care.make_again(self.engine, found)
            if self._must_begin:
                self._begin_again()
            self._is_revived = False
        except EngineError:
            if self.engine is None or self.engine.alive():
                raise
            return False
        return True

    def _begin_again(self) -> None:
        """Starts new workers with the environment of the old ones."""
        assert self.watch is not None
        self.watch.at(self.settings)
        self._workers.restart({stage: self._told(stage) | more for stage, more in self._more.items()})
        self._must_begin = False

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._asked_to_stop is not None:
            if number != signal.SIGHUP and time.monotonic() - self._heard_at > INSIST_S:
                self._end_now(number)
            return
        self._heard_at = time.monotonic()
        self._asked_to_stop = Stop(number)
        if not self._closing:
            raise self._asked_to_stop

    def _end_now(self, number: int) -> NoReturn:
        self._workers.kill()
        if self.engine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine.pid, signal.SIGKILL)
        os._exit(128 + number)


def _stop(running: engine.Engine, what: str, *, was_told: bool) -> None:
    """Stops the broker; at the end of a job it may take as long as it needs.

    `run` leaves it to commands that use it, such as `seed`: the last one stops it.
    """
    limit_s = engine.STOP_TIMEOUT_S
    if was_told:
        limit_s = UP_ENGINE_STOP_S if what == "up" else ENGINE_STOP_S
    is_last = True
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a full disk
            users = stack.enter_context(engine.Users(running.data))
            users.note(running.pid)
            is_last = users.is_last()
        if is_last or what == "up":
            running.stop(limit_s)


def _left_behind(settings: "Settings") -> engine.Engine | None:
    """The broker of an interrupted start, if it runs."""
    if settings.kafka.bootstrap:
        return None
    with contextlib.suppress(EngineError):
        return engine.running(settings.run.data)
    return None


def _load() -> None:
    """Imports, while the broker starts, the modules needed afterwards; they take a quarter of a second."""
    for module in ("streams.fleet.readers", "streams.sink", "streams.control.rewind", "agents.seed.planting"):
        import_module(f"crawlog.{module}")


def _heard() -> list[int]:
    """The signals that end the supervisor; not SIGHUP under `nohup`."""
    hangs_on = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in outcome.SIGNALS if number != signal.SIGHUP or not hangs_on]


def names(settings: "Settings", *, with_sink: bool) -> list[Name]:
    """The workers of this machine; on a cluster of the user's, their names contain the machine and the folder."""
    mark = ""
    if settings.kafka.bootstrap:
        folder = xxhash.xxh3_64_hexdigest(bytes(settings.run.data.absolute()))[:6]
        mark = f"-{platform.node() or 'host'}-{folder}"
    counts = worker_counts(settings, usable_cores()) | {"sink": int(with_sink)}
    numbers = range(max(counts.values()))  # workers start in this order: one of each stage first
    return [Name(stage, f"{stage}-{at}{mark}") for at in numbers for stage, count in counts.items() if at < count]
