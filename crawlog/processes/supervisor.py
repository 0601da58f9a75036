"""What `run` and `up` share: the data folder held, the engine kept alive, the workers kept alive, their progress read.

    <data>/run/lock         held by the one supervisor of the folder
    <data>/run/holder.json  its pid, what it is, its workers' pids

Everything happens in the main thread: workers die with the thread that started them, and signals are heard there.
The first SIGINT, SIGTERM or SIGHUP raises `Stop` wherever the program is; `close` then stops everything within 5 s. The
second one kills at once. Both are safe: the log is the truth.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, NamedTuple, NoReturn, Self

import xxhash

from crawlog import outcome
from crawlog.progress.picture import Picture
from crawlog.streams import files
from crawlog.streams.engine import engine
from crawlog.streams.errors import EngineError, Misconfigured

from .workers import Name, Workers

if TYPE_CHECKING:
    from crawlog.progress.watch import Watch
    from crawlog.streams.log import Check, Cut, Marks
    from crawlog.streams.settings import Settings

WORKERS_STOP_S = 3.8
"""Of the 5 seconds that a clean stop may take; workers need 0.1 s, 4 s at the worst."""

ENGINE_STOP_S = 1.2
"""The rest of them; the broker needs 0.3 s and recovers from a kill."""

ENGINE_TRIES = 3
"""Starts of a broker that died, in a row; a full disk does not count."""

WORKING_LOOK_S = 0.1
"""Between two looks at workers that begin, seconds."""

FULL_BYTES = 16 << 20
"""A disk with less space is full: Kafka preallocates its indexes, 1 MiB each, RocksDB its log."""

FULL_AGAIN_S = 2.0
"""Between two looks at the disk, and two starts of a broker on a full one."""

LOOKS_S = 1.0
"""How long the lock of a folder may be taken before it counts as held: a look at its holder takes some 20 µs."""

LOOK_AGAIN_S = 0.005
"""Between two tries to take it."""

Report = Callable[[str], None]


class Stop(BaseException):
    """A signal asked for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Holder(NamedTuple):
    """Who holds a data folder; the address is that of a cluster of the user's, empty for the folder's own engine."""

    pid: int
    what: str
    workers: dict[str, int]
    bootstrap: str = ""


class Hold:
    """The data folder, held until this process ends."""

    def __init__(self, data: Path, what: str, bootstrap: str = "") -> None:
        self._folder = data.absolute() / "run"
        files.own(self._folder)
        self._file = files.append(self._folder / "lock")
        self._what = what
        self._bootstrap = bootstrap
        if not _locked(self._file):
            self._file.close()
            raise Misconfigured(_in_use(data, holder(data)))
        self.note({})

    def note(self, workers: dict[str, int]) -> None:
        """Puts on record who holds the folder."""
        held = Holder(os.getpid(), self._what, workers, self._bootstrap)
        files.write(self._folder / "holder.json", json.dumps(held._asdict()))

    def release(self) -> None:
        """Lets go."""
        (self._folder / "holder.json").unlink(missing_ok=True)
        self._file.close()


def _locked(file: IO[bytes]) -> bool:
    """Takes the lock of a folder; whether nobody else holds it. `holder` shares it for an instant: that passes."""
    deadline = time.monotonic() + LOOKS_S
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_AGAIN_S)


def holder(data: Path) -> Holder | None:
    """Who holds the folder, or None. A shared lock answers, so that two looks at a time do not see each other."""
    try:
        with os.fdopen(files.opened(data / "run" / "lock", os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except OSError:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Holder(**json.loads(files.read(data / "run" / "holder.json")))
        return Holder(0, "another crawlog", {})
    return None


def same_log(settings: "Settings") -> "Settings":
    """The settings, with the cluster that the folder is worked on with where they name none: no other log beside it."""
    held = None if settings.kafka.bootstrap else holder(settings.run.data)
    if held is None:
        return settings
    if not held.bootstrap:
        engine.check_private(settings.run.data)  # to start it again would end the work of the older crawlog
        return settings
    kafka = settings.kafka.model_copy(update={"bootstrap": held.bootstrap})
    return settings.model_copy(update={"kafka": kafka})


def _in_use(data: Path, by: Holder | None) -> str:
    who = f"`crawlog {by.what}` (pid {by.pid})" if by and by.pid else "another crawlog"
    is_up = by is not None and by.what == "up"
    then = "`crawlog seed` gives it more URLs, `crawlog down` stops it" if is_up else "Wait until it ends"
    return f"the data folder {data} is in use by {who}.\n{then}, or use another folder with --data DIR."


class Supervisor:
    """Holds a folder and keeps alive what works on it.

    Attributes:
        settings: With the address of the log, once `connect` has returned.
        names: Of the workers.
        picture: What the workers report.
        cuts: Partitions that were found to have lost records, until the log has been checked.
        lost_founds: Those of crawl.urls that were ever found so: with each, seeds may be gone.
    """

    def __init__(self, settings: "Settings", what: str, names: list[Name], report: Report) -> None:
        self.settings = settings
        self.names = frozenset(who.name for who in names)
        self.picture = Picture(self.names)
        self.engine: engine.Engine | None = None
        self.watch: Watch | None = None
        self.cuts: list[Cut] = []
        self.lost_founds: list[Cut] = []
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
        self._full: Path | None = None
        self._looked_at = 0.0
        self._said: set[str] = set()
        self._marks: Marks | None = None

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
        from crawlog.streams.log import Marks, ensure
        from crawlog.streams.worker import logs

        logs.configure("debug" if self.settings.log.level == "debug" else "warning")  # standard output is for answers
        ensure(self.settings)
        self._marks = Marks(self.settings, self.settings.kafka.partitions)
        self._look_for_damage()
        self.watch = Watch(self.settings, self.picture)

    def _lost(self) -> "list[Cut]":
        """The partitions that have lost records since anybody looked, by their ends or by their leaders' epochs."""
        from crawlog.streams.log import Topics, cuts

        assert self._marks is not None
        return [*cuts(self.settings, Topics(self.settings.kafka.prefix), self._say_once), *self._marks.look()]

    def _look_for_damage(self, found: "Sequence[Cut]" = ()) -> None:
        """Makes again what the log has lost. No worker may write meanwhile.

        Args:
            found: What is known already.
        """
        from crawlog.streams.log import power_cut

        if self.engine and self.engine.lost_power:
            power_cut.after_power_cut(self.settings, self.report)
            self.engine.mended()
        found = list(dict.fromkeys([*found, *self._lost()]))
        if found:
            self.cuts += found
            self.lost_founds += self._founds(found)
            power_cut.after_cuts(self.settings, self.report, found)
            assert self._marks is not None
            self._marks.mended()
        if self.engine and (cut_off := self.engine.cut_off) is not None:
            power_cut.offer_again(self.settings, self.report, cut_off.name, self.engine.founds_cut_off())
            self.engine.offered()

    def _founds(self, cuts: "Iterable[Cut]") -> "list[Cut]":
        """Those of these partitions that are of crawl.urls."""
        from crawlog.streams.log import Topics

        return [one for one in cuts if one.topic == Topics(self.settings.kafka.prefix).urls]

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.report(line)

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
        from crawlog.streams.log import Topics, cuts, power_cut

        self.stop_stage("parse")
        self.picture.forget("parse")
        found = cuts(self.settings, Topics(self.settings.kafka.prefix), self._say_once)
        power_cut.after_cuts(self.settings, self.report, found, check, founds=founds)
        self.go(("parse",))

    @property
    def is_unchecked(self) -> bool:
        """Whether the log may have lost something that its ends do not show: its broker did not end by itself."""
        return bool(self.cuts or self.picture.cuts) or (self.engine is not None and self.engine.is_unchecked)

    @property
    def has_lost_founds(self) -> bool:
        """Whether crawl.urls was cut, and with it maybe seeds."""
        return bool(self._founds(self.cuts))

    def checked(self) -> None:
        """The log has been checked in full, and nothing is missing."""
        self.cuts.clear()
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
        elif self._marks is not None and self._was_cut(self._marks.due()):
            self._begin_again()
        self._look_at_disk()
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
        from crawlog.streams.log import Marks

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
                if self._look_at_disk() or "No space left" in str(error):
                    time.sleep(FULL_AGAIN_S)
                    continue
                left -= 1
                if not left:
                    raise
        if self.settings.kafka != before:
            self._marks = Marks(self.settings, self.settings.kafka.partitions)
        if self._was_cut(self._lost()) or self.settings.kafka != before:
            self._begin_again()

    def _begin_again(self) -> None:
        """New workers, with what they were told before."""
        from crawlog.progress.watch import Watch

        assert self.watch is not None
        self.watch.close()
        self.watch = Watch(self.settings, self.picture)
        self._workers.restart({stage: self._told(stage) | more for stage, more in self._more.items()})

    def _was_cut(self, found: "Sequence[Cut]") -> bool:
        """Whether the log has lost records while workers ran; they were ended so that these can be made again."""
        if not found:
            return False
        self._workers.end()
        for stage in self._more:
            self.picture.forget(stage)
        self._look_for_damage(found)
        return True

    def _look_at_disk(self) -> bool:
        """Whether a disk is full; says so once, and once that it is not. Workers and broker wait by themselves."""
        now = time.monotonic()
        if now - self._looked_at >= FULL_AGAIN_S:
            self._looked_at = now
            folders = (self._data / "state", self._data / "kafka", self._data)
            full = next((path for path in folders if _is_full(path)), None)
            if full and not self._full:
                self.report(f"the disk of {full} is full: the crawl goes on by itself as soon as there is space")
            elif self._full and not full:
                self.report(f"the disk of {self._full} has space again")
            self._full = full
        return self._full is not None

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
    for module in ("progress.watch", "streams.sink", "streams.log.rewind", "agents.seed.producer"):
        import_module(f"crawlog.{module}")


def _heard() -> list[int]:
    """The signals that end it: under `nohup` a closed terminal does not."""
    hangs_on = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in outcome.SIGNALS if number != signal.SIGHUP or not hangs_on]


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path).free < FULL_BYTES
    except FileNotFoundError:
        return False


def names(settings: "Settings", *, with_sink: bool) -> list[Name]:
    """The workers of this machine: on a cluster of the user's, other machines have theirs."""
    mark = ""
    if settings.kafka.bootstrap:
        folder = xxhash.xxh3_64_hexdigest(bytes(settings.run.data.absolute()))[:6]
        mark = f"-{platform.node() or 'host'}-{folder}"
    counts = {"fetch": settings.run.fetch_workers, "parse": settings.run.parse_workers, "sink": int(with_sink)}
    numbers = range(max(counts.values()))  # one of each stage first: so they start
    return [Name(stage, f"{stage}-{at}{mark}") for at in numbers for stage, count in counts.items() if at < count]


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether a process that is not our child has ended in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
