"""The worker processes of one supervisor: started, watched, started again, stopped.

A worker that was killed is started again for ever; one that ends by itself several times without having worked is
broken and ends the run. A name is used again only after the death of its last bearer: it is the static member of
its group.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .streams.errors import EngineError, Misconfigured

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 8.0
"""So that a crawl goes on within 15 s of a full disk's being freed, the start of the worker included."""
KILLED_BACKOFF_S = 1.0
"""After a kill -9, which says nothing against a worker: where kills come every few seconds, a longer wait would come to
lie between all of them, and leave each life too little time to work."""
HEALTHY_S = 5.0
"""A worker that lived this long was healthy: its next death starts the back-off anew."""

MAX_FAILURES = 6
"""Ends by itself, in a row and without a single report, after which a worker is given up."""

RESTART_WANTED = (75, 3)
"""Exit codes of a worker that asks for a restart (EX_TEMPFAIL): its watchdog, a state that has to be opened anew, Kafka
being away; and of one that Kafka gave no answer, as it did when the run began."""

MAX_LOG_BYTES = 32 << 20
"""A longer log becomes NAME.log.1 at the next start of its worker."""

POLL_S = 0.02

AT_A_TIME = max(1, len(os.sched_getaffinity(0)) // 2)
"""Workers that load at a time, a CPU second each; the other half of the cores is for those that work."""

LOADING_S = 10.0
"""After this one that still loads keeps nobody waiting: it may have been stopped."""


class Name(NamedTuple):
    """A worker's stage and its name, unique among live workers."""

    stage: str
    name: str


class Worker:
    """One name and the process that bears it now."""

    def __init__(self, who: Name, data: Path) -> None:
        self.who = who
        self.log = data.absolute() / "logs" / f"{who.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        self.backoff_s = FIRST_BACKOFF_S
        self.start_at = 0.0
        self._started_at = 0.0

    def start(self, now: float) -> None:
        """Starts a process, which waits at its gate."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "crawlog.child", self.who.stage, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"CRAWLOG_WORKER": self.who.name},
                start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor alone
            )
        self._started_at = now

    def loads(self, now: float) -> bool:
        """Whether the process has yet to read what it was told: it imports what it needs first."""
        if not self.process or not self.process.stdin or now - self._started_at > LOADING_S:
            return False
        unread = bytearray(4)
        fcntl.ioctl(self.process.stdin, termios.FIONREAD, unread)
        return any(unread)

    def open_gate(self, environ: dict[str, str]) -> None:
        """Tells the process where the log is."""
        if self.process and self.process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it died meanwhile: the next look sees it
                self.process.stdin.write(json.dumps(environ).encode() + b"\n")
                self.process.stdin.flush()

    def bury(self, now: float, *, has_worked: bool) -> str:
        """Notes the death of the process and when the next one starts; says why it ended."""
        assert self.process is not None
        code = self.process.returncode
        if now - self._started_at >= HEALTHY_S:
            self.backoff_s = FIRST_BACKOFF_S
        if code == -signal.SIGKILL:
            self.backoff_s = min(self.backoff_s, KILLED_BACKOFF_S)
        self.failures = 0 if has_worked or code < 0 or code in RESTART_WANTED else self.failures + 1
        self.start_at = now + self.backoff_s
        self.backoff_s = min(2 * self.backoff_s, MAX_BACKOFF_S)
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process = None
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended with code {code}: {self.last_words()}"

    def last_words(self) -> str:
        """The last line of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()
            return lines[-1][:300] if lines else "it said nothing"
        return "its log cannot be read"


class Workers:
    """All workers of one supervisor; only its main thread may call this: they die with the thread that started them.

    Args:
        report: Takes one line for the user.
        has_worked: Whether a process, by its pid, ever got so far as to report.
    """

    def __init__(
        self, names: list[Name], data: Path, report: Callable[[str], None], has_worked: Callable[[int], bool]
    ) -> None:
        self._workers = [Worker(who, data) for who in names]
        self._data = data
        self._told: dict[str, dict[str, str]] = {}
        self._report = report
        self._has_worked = has_worked

    def launch(self, most: int) -> None:
        """Starts the processes of the first so many workers, which wait at their gates; `look` starts the others."""
        for worker in self._workers[:most]:
            if worker.process is None:
                worker.start(time.monotonic())

    def go(self, told: dict[str, dict[str, str]]) -> None:
        """Opens the gates of some stages, with what their workers are told; who is started later passes at once."""
        self._told |= told
        for worker in self._workers:
            if worker.who.stage in told:
                worker.open_gate(told[worker.who.stage])

    def pids(self) -> dict[str, int]:
        """Live processes by name."""
        return {worker.who.name: worker.process.pid for worker in self._workers if worker.process}

    def look(self) -> None:
        """Buries the dead and starts who is due, a few at a time.

        Raises: EngineError, Misconfigured: a worker is broken.
        """
        now = time.monotonic()
        loading = sum(worker.loads(now) for worker in self._workers)
        for worker in self._workers:
            if worker.process is None:
                if now >= worker.start_at and loading < AT_A_TIME:
                    self._start_again(worker, now)
                    loading += 1
            elif worker.process.poll() is not None:
                self._bury(worker, now)

    def _start_again(self, worker: Worker, now: float) -> None:
        worker.start(now)
        if worker.who.stage in self._told:
            worker.open_gate(self._told[worker.who.stage])

    def _bury(self, worker: Worker, now: float) -> None:
        assert worker.process is not None
        code = worker.process.returncode
        why = worker.bury(now, has_worked=self._has_worked(worker.process.pid))
        if code == 2:  # it does not like its settings: it will not tomorrow
            raise Misconfigured(f"worker {worker.who.name} {why}\nIts log: {worker.log}")
        if worker.failures >= MAX_FAILURES:
            raise EngineError(f"worker {worker.who.name} fails again and again; it {why}\nIts log: {worker.log}")
        self._report(f"worker {worker.who.name} {why}; started again in {worker.start_at - now:.1f} s")

    def restart(self, told: dict[str, dict[str, str]]) -> None:
        """Ends all processes and starts them anew: the log is at another address."""
        self.kill()
        self.launch(AT_A_TIME)
        self.go(told)

    def retire(self, stage: str, timeout_s: float) -> None:
        """Stops the workers of a stage and forgets them."""
        leaving = Workers([], self._data, self._report, self._has_worked)
        leaving._workers = [worker for worker in self._workers if worker.who.stage == stage]
        self._workers = [worker for worker in self._workers if worker.who.stage != stage]
        leaving.stop(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Stops all workers; who has not ended in time is killed. True when all ended by themselves."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while self._any_alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        clean = not self._any_alive()
        self.kill()
        return clean

    def kill(self) -> None:
        """Ends all processes at once, and waits until they are gone."""
        self._signal(signal.SIGKILL)
        for worker in self._workers:
            if worker.process:
                worker.process.wait()
                if worker.process.stdin:
                    with contextlib.suppress(BrokenPipeError):
                        worker.process.stdin.close()
                worker.process = None

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process and worker.process.poll() is None:
                worker.process.send_signal(number)

    def _any_alive(self) -> bool:
        return any(worker.process and worker.process.poll() is None for worker in self._workers)
