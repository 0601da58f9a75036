"""Keeps one page from harming the others: limits its time and memory, and records which page is being parsed.

    page                                  answer
    may be too complex for the parser     a child process parses it first, and dies in the worker's place (`Trial`)
    takes too long in Python code         a tick of the alarm clock (every TICK_S, main thread) raises `TimeUp`
    catches `TimeUp` and continues        the process ends itself (`blame`), and the supervisor restarts it
    hangs in C code                       no tick is handled; the kernel's CPU timer ends the process
    ends the process                      the next process finds it on record (`Suspects`): once alone, then dead letter

A page that takes less than a tick costs only its record: no timer is set for it.
"""

import atexit
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

import structlog

from crawlog.agents.sandbox import Trial, TrialHistory
from crawlog.streams.errors import Misconfigured
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.settings import RECORD_HEADROOM, Settings
from crawlog.streams.spiders import Bounds, Trust, file_of, trust_of
from crawlog.streams.worker import Suspects, Verdict, give_back_memory

log = structlog.get_logger()

TICK_S = 0.25  # Time between two checks of the page that is being parsed

# Kills from outside (such as `kill -9`) during the same page, after which that page is given up.
#
# Parsing takes less than a millisecond, so unrelated kills do not hit one page so often. The limit is lower than the
# number of deaths at which a supervisor takes the worker for broken.
KILLS_LIMIT = 4

INSISTENT = 3  # Multiple of its limits at which a page ends the process: it catches the exceptions raised in it

# Multiple of the CPU limit that a page may take in ticks: it may sleep, or get little CPU on a busy machine. With the
# largest limit this is less than the watchdog's limit for a blocked loop (`STUCK_S`).
PATIENCE = 3

BREATH_S = 0.001  # Pause at each tick within a page. C code may hold the GIL, and a thread sends the heartbeats.

P = ParamSpec("P")
T = TypeVar("T")


class TimeUp(BaseException):
    """A page took too long. It is no Exception, because spiders catch Exception."""


class Notes(Protocol):
    """The part of `Suspects` that parse uses."""

    def touch(self, key: str) -> None:
        """Record that parsing of this page begins."""

    def release(self, key: str) -> None:
        """Drop the record: the page is parsed, and the process lives."""

    def lift(self, key: str) -> None:
        """Drop the record of a page that is not parsed yet: deaths that it caused stand."""

    def verdict(self, key: str) -> Verdict:
        """How to parse this page: normally, alone, or not at all."""

    def blame(self, why: str) -> None:
        """Record that the process ends now because of the page on record."""

    def catch(self, number: signal.Signals) -> None:
        """Count a death by this signal as a fault of the page on record."""


class NoNotes:
    """Records nothing; for a stage without a worker."""

    def touch(self, key: str) -> None:
        """Nothing."""

    def release(self, key: str) -> None:
        """Nothing."""

    def lift(self, key: str) -> None:
        """Nothing."""

    def verdict(self, key: str) -> Verdict:  # noqa: ARG002  # as `Notes` has it
        """Always normal: no death is on record."""
        return "normal"

    def blame(self, why: str) -> None:
        """Nothing."""

    def catch(self, number: signal.Signals) -> None:
        """Nothing."""


class PageClock:
    """Ends calls that take too long; it has no effect before `start`.

    Two limits count. One is CPU time of the main thread, from the first tick within a call. The other is the number of
    handled ticks, `PATIENCE` times as long. A process that was stopped and continued uses up neither meanwhile.

    Args:
        limit_s: CPU seconds of one call.
        blame: Called with the reason before the process ends itself.

    Attributes:
        used_s: CPU seconds of the last call.
    """

    def __init__(self, limit_s: float, blame: Callable[[str], None]) -> None:
        self.limit_s = limit_s
        self._most_ticks = max(2, round(PATIENCE * limit_s / TICK_S) + 1)  # the first may come at once
        self._began_s = 0.0
        self._blame = blame
        self._ticks = 0
        self.used_s = 0.0
        self._is_running = False

    @property
    def is_slow(self) -> bool:
        """Whether the last call was long enough for a tick."""
        return self._ticks > 0

    def start(self) -> None:
        """Start the ticks. Call this in the main thread, where pages are parsed."""
        signal.signal(signal.SIGALRM, self._tick)
        atexit.register(self.stop)  # a tick after the handler is gone would kill the process
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def stop(self) -> None:
        """Stop the ticks."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result. Raises: TimeUp: it took too long; and every exception of the function."""
        self._ticks = 0
        began_s = time.thread_time()  # measured here too, because no tick is handled within C code
        self._is_running = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_running = False
            self.used_s = time.thread_time() - began_s

    def _tick(self, *_: object) -> None:
        # A handled tick restarts the kernel's CPU timer. C code handles no tick, so the timer ends a hung process.
        signal.setitimer(signal.ITIMER_VIRTUAL, INSISTENT * self.limit_s)
        if not self._is_running:
            return
        used_s = time.thread_time()
        if not self._ticks:
            self._began_s = used_s
        used_s -= self._began_s
        self._ticks += 1
        used = max(used_s / self.limit_s, self._ticks / self._most_ticks)
        if used >= INSISTENT:
            why = f"a page goes on after {self._ticks * TICK_S:.0f} s ({used_s:.0f} of CPU), whatever is raised in it"
            log.critical("worker_stuck", why=why)
            self._blame(why)
            os._exit(EX_TEMPFAIL)
        if used >= 1:
            raise TimeUp(f"parsing took longer than parse.timeout_s = {self.limit_s:g}")
        time.sleep(BREATH_S)


class Guard(NamedTuple):
    """The limits of a page, and the spiders that may be run.

    Attributes:
        trial: Parses suspicious pages in a child process first; None for no trials.
        make_room: Called with the size of each page before it is parsed.
    """

    bounds: Bounds = Bounds()
    clock: PageClock = PageClock(10.0, lambda _: None)
    notes: Notes = NoNotes()
    trial: Trial | None = None
    make_room: Callable[[int], None] = lambda _: None
    trust: Trust = Trust()

    def check(self, path: str) -> None:
        """Check a spider before its process starts, which checks it again. Raises: Misconfigured: it may not be run."""
        try:
            file = file_of(path)
        except Misconfigured:  # no FILE.py: a project or a module, whose files only its process knows
            return
        if refusal := self.trust.refusal(file):
            raise Misconfigured(f"--spider {file}: {refusal}")


def guard_of(settings: Settings, worker: str) -> Guard:
    """A worker's guard, with its clock started. Call this in the main thread, where pages are parsed."""
    _limit_memory(settings.parse.max_memory_mb << 20)
    notes = Suspects(settings.run.data / "suspects" / worker, KILLS_LIMIT, shared=True)
    clock = PageClock(settings.parse.timeout_s, notes.blame)
    notes.catch(signal.SIGVTALRM)
    clock.start()
    bounds = Bounds(settings.spider.max_items, settings.kafka.max_record_bytes - RECORD_HEADROOM)
    trial = Trial(settings.parse, TrialHistory(settings.run.data / "trials" / f"{worker}.jsonl"))
    return Guard(bounds, clock, notes, trial, give_back_memory, trust_of(settings))


def _limit_memory(size_bytes: int) -> None:
    """Limit the private memory of this process; beyond it an allocation fails, in Python with a MemoryError."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
