"""Starts, watches, restarts and stops the worker processes of one supervisor, and the forkserver.

A killed worker is always restarted. A worker that exits several times in a row without having worked is broken, and
ends the run. A name gets a new process only after the old one has died, because the name is the worker's static member
id in its group. The forkserver (`forkserver.py`) is watched in the same way. Its death delays only new workers.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from crawlog.schemas.progress import SUPERVISOR
from crawlog.streams import exit_codes, files
from crawlog.streams.errors import EngineError, Misconfigured, Unreadable
from crawlog.streams.kernel import PR_SET_CHILD_SUBREAPER, prctl

from .forkserver import READY, SERVICE

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0  # After a full disk is freed, a crawl continues within 15 s, including the start of the worker
# Longest backoff after a kill -9, which is not the worker's fault. If kills come every few seconds, a longer backoff
# would leave each process too little time to work.
KILLED_BACKOFF_S = 1.0
HEALTHY_S = 5.0  # A worker that lived this long was healthy: its backoff is reset

MAX_FAILURES = 6  # A worker is broken after this many exits in a row without a report, or at the same record

# Exit codes after which a restart may help. EX_TEMPFAIL: the watchdog ended the worker, its state must be reopened, or
# Kafka is away. 3: Kafka did not answer the worker, although it answered when the run began.
RESTART_WANTED = (exit_codes.EX_TEMPFAIL, 3)

# Exits in a row because the cluster denied access; fewer may be due to a change of passwords or ACLs under way.
MAX_DENIALS = 3

# A worker that fails again within this time with the same message met the same record. Half may go to its start.
SAME_S = 120.0

MAX_LOG_BYTES = 32 << 20  # A longer log becomes NAME.log.1 at the next start of its worker

POLL_S = 0.02

_WHY = re.compile(r"\bwhy\W+([a-z_]+)")  # The watchdog's reason in the last line of a log, of either format

# A forkserver that does not answer for this long, perhaps stopped, is killed and replaced. A fork takes 5 ms.
FORK_S = 5.0

# Characters shown of the last line in a worker's log: room for an error with place, cause and advice.
LAST_WORDS = 1_000

LOADED_S = 30.0  # How long the first start of workers waits for the forkserver, whose imports take a CPU second


MOST_PARSE = 8  # Parse workers that `auto` starts at most: the local engine's topics have as many partitions


class Name(NamedTuple):
    """A worker's stage and its name, unique among live workers."""

    stage: str
    name: str


def worker_counts(settings: "Settings", cores: int) -> dict[str, int]:
    """Workers of fetch and parse, by the settings or by the cores that they may use; a page costs parse more."""
    auto = {"fetch": max(1, cores // 4), "parse": min(cores, MOST_PARSE)}
    given = {"fetch": settings.run.fetch_workers, "parse": settings.run.parse_workers}
    return {stage: auto[stage] if count == "auto" else count for stage, count in given.items()}


class Forked:
    """A worker's process, forked by the forkserver and adopted by the supervisor; used like a `subprocess.Popen`.

    Args:
        gate: Pipe to the worker's standard input, for its environment.
    """

    def __init__(self, pid: int, gate: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = gate
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def tell(self, environ: dict[str, str]) -> None:
        """Opens the gate: sends the worker its environment."""
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):  # the worker died meanwhile: the next look notes it
                self.stdin.write(json.dumps(environ).encode() + b"\n")
                self.stdin.flush()

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class KeptProcess:
    """A name, its present process, and the time of the next start."""

    def __init__(self, title: str, log: Path) -> None:
        self.title = title
        self.log = log
        self.process: Forked | subprocess.Popen[bytes] | None = None
        self.failures = 0
        self.denials = 0
        self.backoff_s = FIRST_BACKOFF_S
        self.start_at = 0.0
        self.ended = self.why = ""
        self.is_vital = True  # a crawl goes on without a service that has worked before
        self.broke_at = ""
        self.started_at = 0.0

    def open_log(self) -> IO[bytes]:
        """Its log, for one more process."""
        files.own(self.log.parent)
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return files.append(self.log)

    def bury(self, now: float, *, has_worked: bool) -> str:
        """Notes the end of the process and the time of the next start; returns why it ended."""
        assert self.process is not None
        code = self.process.returncode
        assert code is not None
        if now - self.started_at >= HEALTHY_S:
            self.backoff_s = FIRST_BACKOFF_S
        if code == -signal.SIGKILL:
            self.backoff_s = min(self.backoff_s, KILLED_BACKOFF_S)
        words = self.last_words()
        same = code == exit_codes.EX_SOFTWARE and _timeless(words) == self.broke_at and now - self.started_at < SAME_S
        self.broke_at = _timeless(words) if code == exit_codes.EX_SOFTWARE else ""
        is_right = (has_worked and not same) or code < 0 or code in RESTART_WANTED
        self.failures = 0 if is_right else self.failures + 1
        self.denials = self.denials + 1 if code == exit_codes.EX_NOPERM else 0
        self.start_at = now + self.backoff_s
        self.backoff_s = min(2 * self.backoff_s, MAX_BACKOFF_S)
        self.forget()
        killed = f"killed by {_signal_name(-code)}" if code < 0 else ""
        self.ended = killed or f"ended with code {code}: {words}"
        why = f" ({found[1]})" if (found := _WHY.search(words)) else ""
        self.why = killed or f"ended with exit code {code}{why}"
        return self.ended

    def forget(self) -> None:
        """Drops a process that has ended."""
        if self.process and self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process = None

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Ends the process at once, and waits until it is gone."""
        if self.process:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.forget()

    def last_words(self) -> str:
        """The last line of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()
            return exit_codes.heard(lines[-1])[:LAST_WORDS] if lines else "it said nothing"
        return "its log cannot be read"


class Forkserver(KeptProcess):
    """The process that workers are forked from; it imports modules before it is needed."""

    def __init__(self, data: Path) -> None:
        super().__init__("forkserver", data.absolute() / "logs" / "forkserver.log")
        self.has_worked = False
        self._control: socket.socket | None = None

    def start(self, now: float) -> None:
        """Starts a process, which begins its imports."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self.open_log() as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "crawlog.processes.forkserver", str(os.getpid())],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal sends Ctrl-C to the supervisor alone
            )
        self._control = ours
        self.started_at = now
        self.has_worked = False

    def is_ready(self, timeout_s: float = 0) -> bool:
        """Whether it has finished its imports; waits at most `timeout_s`."""
        if self._control and not self.has_worked:
            self.has_worked = self._answer(timeout_s) == READY
        return self._control is not None and self.has_worked

    def fork(self, who: Name, log: IO[bytes]) -> Forked | None:
        """A new worker process, which waits at its gate. None if the forkserver does not answer: it is replaced."""
        assert self._control is not None
        assert self.process is not None
        theirs, ours = os.pipe()
        with os.fdopen(theirs) as gate, os.fdopen(ours, "wb") as way_in:
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # only meanwhile: other orphans keep their usual parent
            try:
                socket.send_fds(self._control, [" ".join(who).encode()], [log.fileno(), gate.fileno()])
                answer = self._answer(FORK_S)
            except OSError:
                answer = b""
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
            if not answer:
                self.process.send_signal(signal.SIGKILL)  # the next look notes it
                self.has_worked = False
                return None
            return Forked(int(answer), os.fdopen(os.dup(way_in.fileno()), "wb"))

    def _answer(self, timeout_s: float) -> bytes:
        """The forkserver's answer; empty if there is none in time."""
        assert self._control is not None
        self._control.settimeout(timeout_s)
        try:
            return self._control.recv(64)
        except (TimeoutError, BlockingIOError, ConnectionError):
            return b""

    def forget(self) -> None:
        """Drops a process that has ended."""
        super().forget()
        if self._control:
            self._control.close()
            self._control = None


class Worker(KeptProcess):
    """One worker's name and its present process."""

    def __init__(self, who: Name, data: Path) -> None:
        super().__init__(f"worker {who.name}", data.absolute() / "logs" / f"{who.name}.log")
        self.who = who

    def start(self, now: float, forkserver: Forkserver, told: dict[str, str]) -> None:
        """Forks a process and sends it its environment."""
        with self.open_log() as log:
            self.process = forked = forkserver.fork(self.who, log)
        self.started_at = now
        if forked:
            forked.tell(told | {"CRAWLOG_WORKER": self.who.name})


class Workers:
    """All workers of one supervisor. Only the main thread may call this: workers die with the thread that adopted them.

    Args:
        report: Takes one line for the user.
        has_worked: Whether the process of this pid has ever sent a report.
        noted: Called with each worker that ended unplanned, its pid, and the reason without any text of the log.
        command: The command that keeps them alive, `up` or `run`; their reports say it.
    """

    def __init__(
        self,
        names: list[Name],
        data: Path,
        report: Callable[[str], None],
        has_worked: Callable[[int], bool],
        forkserver: Forkserver | None = None,
        command: str = "",
        noted: Callable[[Name, int, str], None] = lambda *_: None,
    ) -> None:
        self._workers = [Worker(who, data) for who in names]
        self._retired: list[Worker] = []
        self._forkserver = forkserver or Forkserver(data)
        self._told: dict[str, dict[str, str]] = {}
        self._who_told = {SUPERVISOR: command} if command else {}
        self._report = report
        self._has_worked = has_worked
        self._noted = noted

    def launch(self) -> None:
        """Starts the forkserver, which imports the workers' modules."""
        if self._workers:
            self._forkserver.start(time.monotonic())

    def go(self, told: dict[str, dict[str, str]]) -> None:
        """Starts the workers of some stages with their environment; `look` starts those that cannot start yet."""
        self._told |= told
        self._workers += [worker for worker in self._retired if worker.who.stage in told]
        self._retired = [worker for worker in self._retired if worker.who.stage not in told]
        if self._workers and self._forkserver.is_ready(LOADED_S):
            self._start_due(time.monotonic())

    def pids(self) -> dict[str, int]:
        return {worker.who.name: worker.process.pid for worker in self._workers if worker.process}

    def idle_stages(self) -> set[str]:
        """Stages without a working worker: none has reported, or lived for `HEALTHY_S`."""
        now = time.monotonic()
        working = {
            worker.who.stage
            for worker in self._workers
            if worker.process and worker.is_alive()
            if (now - worker.started_at >= HEALTHY_S and worker.who.stage != SERVICE)
            or self._has_worked(worker.process.pid)
        }
        return {worker.who.stage for worker in self._workers} - working

    def ends(self, stages: set[str]) -> str:
        """How the last processes of these stages' workers ended; empty where none has."""
        ended = [f"{one.title} {one.ended}" for one in self._workers if one.who.stage in stages and one.ended]
        return "; ".join(ended)

    def look(self) -> None:
        """Notes which processes have ended, and starts each worker whose backoff is over.

        Raises: EngineError, Misconfigured: a worker is broken.
        """
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.process and worker.process.poll() == exit_codes.DRAINED:
                self._let_go(worker)
            elif worker.process and worker.process.poll() is not None:
                pid, code = worker.process.pid, worker.process.returncode
                self._bury(worker, now, has_worked=self._has_worked(pid))
                if code and worker.who.stage != SERVICE:  # which sends no reports
                    self._noted(worker.who, pid, worker.why)
        server = self._forkserver
        if server.process and server.process.poll() is not None:
            self._bury(server, now, has_worked=server.has_worked)
        elif server.process is None and self._workers and now >= server.start_at:
            server.start(now)
        self._start_due(now)

    def _let_go(self, worker: Worker) -> None:
        """Forgets a worker that an operator drained: no other one of its name is started."""
        worker.forget()
        self._workers.remove(worker)
        self._report(f"{worker.title} was drained; the next start of this command starts it again")

    def _start_due(self, now: float) -> None:
        for worker in self._workers:
            told = self._told.get(worker.who.stage)
            if worker.process is None and told is not None and now >= worker.start_at and self._forkserver.is_ready():
                worker.start(now, self._forkserver, told | self._who_told)

    def _bury(self, one: KeptProcess, now: float, *, has_worked: bool) -> None:
        assert one.process is not None
        code = one.process.returncode
        why = one.bury(now, has_worked=has_worked)
        if has_worked and one.title == f"worker {SERVICE}":
            one.is_vital = False
        if not one.is_vital:
            self._report(f"{one.title} {why}; started again in {one.start_at - now:.1f} s")
            return
        if code in exit_codes.FOR_GOOD or one.denials >= MAX_DENIALS:
            met = Unreadable if code == exit_codes.EX_DATAERR else EngineError
            kind = Misconfigured if code == 2 else met
            raise kind(f"{one.title} {why}\nIts log: {one.log}")
        if one.failures >= MAX_FAILURES:
            raise EngineError(f"{one.title} fails again and again; it {why}\nIts log: {one.log}")
        if one.denials:
            why = "was denied access by the Kafka cluster"  # the full message follows if the denial lasts
        self._report(f"{one.title} {why}; started again in {one.start_at - now:.1f} s")

    def restart(self, told: dict[str, dict[str, str]]) -> None:
        """Kills all worker processes, and starts new ones with this environment."""
        self.end()
        self.go(told)

    def end(self) -> None:
        """Kills all worker processes; `restart` starts new ones."""
        _kill(self._workers)

    def retire(self, stage: str, timeout_s: float) -> None:
        """Stops the workers of a stage; `go` starts them again."""
        leaving = [worker for worker in self._workers if worker.who.stage == stage]
        self._retired += leaving
        self._workers = [worker for worker in self._workers if worker.who.stage != stage]
        _stop(leaving, timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Stops everything; kills each worker that has not ended in time. True if none had to be killed."""
        self._forkserver.kill()
        return _stop(self._workers, timeout_s)

    def kill(self) -> None:
        """Ends all processes at once, and waits until they are gone."""
        _kill([*self._workers, self._forkserver])


def _signal_name(number: int) -> str:
    """Its name; real-time signals have none but the first and the last."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _timeless(words: str) -> str:
    """A log line without its time: that of a text comes first, that of a JSON line as its first field."""
    return words.partition(",")[2] if words.startswith("{") else words.partition(" ")[2]


def _stop(workers: Sequence[KeptProcess], timeout_s: float) -> bool:
    for worker in workers:
        if worker.process:
            worker.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while any(worker.is_alive() for worker in workers) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    clean = not any(worker.is_alive() for worker in workers)
    _kill(workers)
    return clean


def _kill(all_of: Sequence[KeptProcess]) -> None:
    for one in all_of:  # signals all of them before it waits for each
        if one.process:
            one.process.send_signal(signal.SIGKILL)
    for one in all_of:
        one.kill()
