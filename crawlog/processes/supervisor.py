"""What `run` and `up` share: the data folder held, the engine kept alive, the workers kept alive, their progress read.

Everything happens in the main thread: workers die with the thread that started them, and signals are heard there.
The first SIGINT, SIGTERM or SIGHUP raises `Stop` wherever the program is; `close` then stops everything within 5 s. The
second one kills at once. Both are safe: the log is the truth.
"""

import contextlib
import os
import platform
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Self

import xxhash

from crawlog import outcome
from crawlog.progress.picture import Picture
from crawlog.streams import engine
from crawlog.streams.errors import EngineError

from .disk import FULL_AGAIN_S, Disk
from .hold import Hold
from .log_care import LogCare
from .workers import Name, Workers

if TYPE_CHECKING:
    from crawlog.progress.watch import Watch
    from crawlog.streams.log import Check, CutPartition
    from crawlog.streams.settings import Settings

WORKERS_STOP_S = 3.8
"""Of the 5 seconds that a clean stop may take; workers need 0.1 s, 4 s at the worst."""

ENGINE_STOP_S = 1.2
"""The rest of them; the broker needs 0.3 s and recovers from a kill."""

ENGINE_TRIES = 3
"""Starts of a broker that died, in a row; a full disk does not count."""

WORKING_LOOK_S = 0.1
"""Between two looks at workers that begin, seconds."""

Report = Callable[[str], None]


class Stop(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Supervisor:
    """Holds a folder and keeps alive what works on it.

    Attributes:
        settings: With the address of the log, once `connect` has returned.
        names: Of the workers.
        picture: What the workers report.
    """

    def __init__(self, settings: "Settings", what: str, names: list[Name], report: Report) -> None:
        self.settings = settings
        self.names = frozenset(who.name for who in names)
        self.picture = Picture(self.names)
        self.engine: engine.Engine | None = None
        self.watch: Watch | None = None
        self.report = report
        if settings.snapshots.to:
            from crawlog.streams.state import store_of

            store_of(settings.snapshots.to)  # a missing package shows here, not in each worker
        self._data = settings.run.data
        self._hold = Hold(self._data, what, settings.kafka.bootstrap)
        self._heard = 0
        self._closing = False
        self._signals = {number: signal.signal(number, self._on_signal) for number in _heard()}
        self._workers = Workers(names, self._data, report, self.picture.has_reported)
        self._noted: dict[str, int] = {}
        self._more: dict[str, dict[str, str]] = {}
        self._disk = Disk(self._data, report)
        self._care: LogCare | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()

    def launch(self) -> None:
        """Has what workers need loaded, while the engine starts."""
        self._workers.launch()

    def connect(self) -> None:
        """Starts or finds the log and its topics."""
        if not self.settings.kafka.bootstrap:
            self._start_engine()
        from crawlog.progress.watch import Watch
        from crawlog.streams.log import ensure_topics
        from crawlog.streams.worker import logs

        logs.configure("debug" if self.settings.log.level == "debug" else "warning")  # standard output is for answers
        ensure_topics(self.settings)
        self._care = LogCare(self.settings, self.report)
        self._care.make_again(self.engine)
        self.watch = Watch(self.settings, self.picture)

    def ends(self, stage: str) -> tuple[int, ...]:
        """The next offset of each partition of a stage's input, now.

        Raises: EngineError: no answer.
        """
        assert self.watch is not None
        return self.watch.ends(stage)

    def mend(self, check: "Check", *, founds: bool) -> None:
        """Makes again what a check of the log has found to be missing.

        Args:
            founds: All pages are parsed again, since founds are gone.
        """
        assert self._care is not None
        self.stop_stage("parse")
        self.picture.forget("parse")
        self._care.mend(check, founds=founds)
        self.go(("parse",))

    @property
    def is_unchecked(self) -> bool:
        """Whether the log may have lost something that its ends do not show: its broker did not end by itself."""
        has_cuts = self._care is not None and bool(self._care.cuts)
        return has_cuts or bool(self.picture.cuts) or (self.engine is not None and self.engine.is_unchecked)

    @property
    def lost_founds(self) -> "Sequence[CutPartition]":
        """Partitions of crawl.urls that were ever found to have lost records: with each, seeds may be gone."""
        return self._care.lost_founds if self._care else ()

    @property
    def has_lost_founds(self) -> bool:
        """Whether crawl.urls was cut, and with it maybe seeds."""
        return self._care is not None and bool(self._care.founds(self._care.cuts))

    def checked(self) -> None:
        """The log has been checked in full, and nothing is missing."""
        if self._care:
            self._care.cuts.clear()
        self.picture.cuts.clear()
        if self.engine:
            self.engine.checked()

    def go(self, stages: tuple[str, ...], more: Mapping[str, str] | None = None) -> None:
        """Lets the workers of some stages begin, with `more` in their environment."""
        self._more |= {stage: dict(more or {}) for stage in stages}
        self._workers.go({stage: self._told(stage) | self._more[stage] for stage in stages})

    def until_working(self, timeout_s: float) -> None:
        """Looks until every stage has a worker that works.

        Raises: EngineError: a stage has none by then, or a worker is broken. Misconfigured: it refuses its settings.
        """
        deadline = time.monotonic() + timeout_s
        while idle := self._workers.idle_stages():
            if time.monotonic() > deadline:
                why = self._workers.ends(idle) or "none of them has started"
                logs = self._data.absolute() / "logs"
                raise EngineError(f"no worker works for {' and '.join(sorted(idle))}: {why}\nTheir logs: {logs}")
            self.look(WORKING_LOOK_S)

    def stop_stage(self, stage: str) -> None:
        """Stops the workers of a stage, until `go`."""
        self._workers.retire(stage, WORKERS_STOP_S)

    def look(self, wait_s: float) -> None:
        """Reads reports for a while, then sees after engine and workers."""
        assert self.watch is not None
        self.watch.poll(wait_s)
        if self.engine and not self.engine.alive():
            self._revive()
        elif self._care is not None and self._was_cut(self._care.due()):
            self._begin_again()
        self._disk.is_full()
        self._workers.look()
        pids = self._workers.pids()
        if pids != self._noted:
            self._noted = pids
            self._hold.note(pids)

    def close(self) -> None:
        """Stops workers and engine, in this order; the folder is free after that."""
        self._closing = True
        try:
            if not self._workers.stop(WORKERS_STOP_S):
                self.report("a worker did not stop in time and was killed; nothing is lost")
            if self.watch:
                self.watch.close()
            if running := self.engine or self._left_behind():
                running.stop(ENGINE_STOP_S)
        finally:
            self._hold.release()
            for number, handler in self._signals.items():
                signal.signal(number, handler)

    def _told(self, stage: str) -> dict[str, str]:
        from crawlog.streams.settings import for_stage, to_environ

        return to_environ(for_stage(self.settings, stage))

    def _start_engine(self, died: engine.Engine | None = None) -> None:
        self.engine = engine.start(self.settings, self._data, self.report, _load, died, checks=True)
        self.settings = self.engine.point(self.settings)

    def _left_behind(self) -> engine.Engine | None:
        """A broker whose start was interrupted."""
        if self.settings.kafka.bootstrap:
            return None
        with contextlib.suppress(EngineError):
            return engine.running(self._data)
        return None

    def _revive(self) -> None:
        """Starts a broker that died; its clients find it again, as it has the same port if that is still free."""
        assert self._care is not None
        before = self.settings.kafka
        died = self.engine
        self.report("Apache Kafka died; it is started again, nothing is lost")
        left = ENGINE_TRIES
        while True:
            try:
                self._start_engine(died)
                break
            except EngineError as error:
                died = None  # another program may have listened at its port meanwhile, and heard the password
                if self._disk.is_full() or "No space left" in str(error):
                    time.sleep(FULL_AGAIN_S)
                    continue
                left -= 1
                if not left:
                    raise
        if self.settings.kafka != before:
            self._care.moved(self.settings)
        if self._was_cut(self._care.lost()) or self.settings.kafka != before:
            self._begin_again()

    def _begin_again(self) -> None:
        """New workers, with what they were told before."""
        from crawlog.progress.watch import Watch

        assert self.watch is not None
        self.watch.close()
        self.watch = Watch(self.settings, self.picture)
        self._workers.restart({stage: self._told(stage) | more for stage, more in self._more.items()})

    def _was_cut(self, found: "Sequence[CutPartition]") -> bool:
        """Whether the log has lost records while workers ran; they were ended so that these can be made again."""
        if not found:
            return False
        assert self._care is not None
        self._workers.end()
        for stage in self._more:
            self.picture.forget(stage)
        self._care.make_again(self.engine, found)
        return True

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._heard += 1
        if self._heard > 1:
            self._end_now(number)
        if not self._closing:
            raise Stop(number)

    def _end_now(self, number: int) -> NoReturn:
        self._workers.kill()
        if self.engine:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.engine.pid, signal.SIGKILL)
        os._exit(128 + number)


def _load() -> None:
    """What is needed once the broker is there: a quarter of a second, which a broker's start leaves."""
    for module in ("progress.watch", "streams.sink", "streams.log.rewind", "agents.seed.planting"):
        import_module(f"crawlog.{module}")


def _heard() -> list[int]:
    """The signals that end it: under `nohup` a closed terminal does not."""
    hangs_on = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in outcome.SIGNALS if number != signal.SIGHUP or not hangs_on]


def names(settings: "Settings", *, with_sink: bool) -> list[Name]:
    """The workers of this machine: on a cluster of the user's, other machines have theirs."""
    mark = ""
    if settings.kafka.bootstrap:
        folder = xxhash.xxh3_64_hexdigest(bytes(settings.run.data.absolute()))[:6]
        mark = f"-{platform.node() or 'host'}-{folder}"
    counts = {"fetch": settings.run.fetch_workers, "parse": settings.run.parse_workers, "sink": int(with_sink)}
    numbers = range(max(counts.values()))  # one of each stage first: so they start
    return [Name(stage, f"{stage}-{at}{mark}") for at in numbers for stage, count in counts.items() if at < count]
