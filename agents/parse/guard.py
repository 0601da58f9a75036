"""Keeps one page from harming the others: limits its time and memory, and notes which page is being parsed.

    one that may be too much for the parser a child process parses it first, and dies in our place (`Trial`)
    a page in Python too long               the alarm clock ticks every TICK_S in the main thread → `TimeUp` in it
    one that goes on all the same           the process ends itself (`blame`), and the supervisor starts it anew
    one stuck in C                          no tick is heard; the kernel's timer of CPU time ends the process
    one that ends the process               the next process finds it noted (`Suspects`): alone once more, then dead

A page that takes less than a tick costs its note alone: no timer is set for it.
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
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.settings import RECORD_HEADROOM, Settings
from crawlog.streams.spiders import Bounds, Parse, Trust, load_spider, trust_of
from crawlog.streams.worker import Suspects, Verdict, give_back_memory

log = structlog.get_logger()

TICK_S = 0.25
"""Between two looks at the page that is being parsed."""

KILLS_LIMIT = 4
"""Deaths that look as if they came from outside, after which the page that was being parsed each time is given up.

A page is parsed within a millisecond, so a storm of kills does not meet the same one so often. Fewer than a supervisor
takes for a broken worker."""

INSISTENT = 3
"""Multiple of its limits at which a page ends the process: it catches the exceptions that are raised in it."""

PATIENCE = 3
"""Multiple of its CPU limit that a page may take by the clock: it may sleep, or get little CPU on a busy machine.
With the largest limit this is less than the watchdog's limit for a loop that stands still (`STUCK_S`)."""

BREATH_S = 0.001
"""Pause at each tick within a page: code in C may hold the interpreter's lock, and heartbeats are sent by a thread."""

P = ParamSpec("P")
T = TypeVar("T")


class TimeUp(BaseException):
    """A page took too long. No Exception: a spider that catches those must not catch this."""


class Notes(Protocol):
    """What parse needs of `Suspects`."""

    def touch(self, key: str) -> None:
        """About to be handled."""

    def release(self, key: str) -> None:
        """Handled, and we live."""

    def verdict(self, key: str) -> Verdict:
        """How to handle it."""

    def blame(self, why: str) -> None:
        """What is held is at fault for the end that comes now."""

    def catch(self, number: signal.Signals) -> None:
        """Death by this signal is a fault of what is held."""


class NoNotes:
    """Notes nothing: for a stage without a worker, whose successor could read it."""

    def touch(self, key: str) -> None:
        """Nothing."""

    def release(self, key: str) -> None:
        """Nothing."""

    def verdict(self, key: str) -> Verdict:  # noqa: ARG002  # as `Notes` has it
        """Nobody died."""
        return "normal"

    def blame(self, why: str) -> None:
        """Nothing."""

    def catch(self, number: signal.Signals) -> None:
        """Nothing."""


class PageClock:
    """Ends calls that take too long, once it is started; before that it lets them be.

    What counts is CPU time of the main thread, from the first tick within a call; and ticks that were heard, `PATIENCE`
    times as many: a process that was stopped and continued has used up neither.

    Args:
        limit_s: CPU seconds of one call.
        blame: Told why the process ends.

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
        """Tick; to be called in the main thread, where the calls are."""
        signal.signal(signal.SIGALRM, self._tick)
        atexit.register(self.stop)  # or the last tick would meet no handler, and end the process by its signal
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)

    def stop(self) -> None:
        """Tick no more."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns. Raises: TimeUp: it took too long; and whatever it raises."""
        self._ticks = 0
        began_s = time.thread_time()  # no tick is heard within code in C
        self._is_running = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_running = False
            self.used_s = time.thread_time() - began_s

    def _tick(self, *_: object) -> None:
        # While ticks are heard the kernel's timer never runs out; its signal ends a process that is stuck in C.
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
    """What a page may take, and which spiders may be run for it; without a trial none is tried.

    `give_back_memory` is told the size of each page before it is parsed.
    """

    bounds: Bounds = Bounds()
    clock: PageClock = PageClock(10.0, lambda _: None)
    notes: Notes = NoNotes()
    trial: Trial | None = None
    make_room: Callable[[int], None] = lambda _: None
    trust: Trust = Trust()

    def load(self, path: str) -> tuple[str, Parse]:
        """A spider's `NAME@VERSION` and what it does. Raises: Misconfigured: it may not be run, or it is broken."""
        loaded = load_spider(path, self.trust)
        return loaded.label, loaded.parser(self.bounds)


def guard_of(settings: Settings, worker: str) -> Guard:
    """A worker's guard, on the watch; to be called in the main thread, where its pages are parsed."""
    _limit_memory(settings.parse.max_memory_mb << 20)
    notes = Suspects(settings.run.data / "suspects" / worker, KILLS_LIMIT, shared=True)
    clock = PageClock(settings.parse.timeout_s, notes.blame)
    notes.catch(signal.SIGVTALRM)
    clock.start()
    bounds = Bounds(settings.spider.max_items, settings.kafka.max_record_bytes - RECORD_HEADROOM)
    trial = Trial(settings.parse, TrialHistory(settings.run.data / "trials" / f"{worker}.jsonl"))
    return Guard(bounds, clock, notes, trial, give_back_memory, trust_of(settings))


def _limit_memory(size_bytes: int) -> None:
    """Let this process have so much of its own; beyond it an allocation fails, in Python with a MemoryError."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY:
        size_bytes = min(size_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))
