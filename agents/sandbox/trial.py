"""Parses suspicious pages in a child process first, under limits of time and memory.

    a page ─ simple ───────────────────────────────────────────► may be parsed
           └ else: its readings ─► the child ─ succeeded ──────► may be parsed
                                             ├ too much ───────► `too_complex`
                                             └ no child ───────► `TrialError`: the caller has only its own limits

A zygote (`zygote.py`) starts at the first such page, and forks a child for each. It ends with its parent. If it ends
earlier, it is started again.
"""

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import TrialError
from crawlog.streams.html import Allowances, TrialLimits, TrialOutcome, is_simple, readings
from crawlog.streams.settings import Parse

from .zygote import REFUSED, ChildGone, PageTrial
from .zygote_process import ZygoteProcess

TOO_COMPLEX = "too_complex"  # First word of the dead letter of a page that was not parsed

TRIES = 3  # Tries of a page whose process ended for an external or temporary reason

NICE = 5  # Niceness of trials, which may be useless: they get a third of the CPU share of fetching and parsing

# With this many pages waiting, pages of a domain whose pages mostly failed are refused; a redrive tries them again.
MANY_WAIT = 16

OUTCOMES_BYTES = 1 << 20  # Size at which the history file is emptied; an outcome takes 80 bytes

# Timeout of an answer in clock time, far above the CPU limit on a busy machine; it ends a stopped process. Below the
# watchdog's limit, as every wait of a worker.
PATIENCE_S = 45.0


class TrialHistory:
    """The outcomes of trials, in a file, so that a worker that is killed often does not reset the allowances.

    One process at a time uses a path. No fsync: the file need only outlive the process. If it cannot be opened or
    written, the history is lost and the worker goes on.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def read(self) -> Iterator[TrialOutcome]:
        """The outcomes of earlier runs of this worker that were killed."""
        lines = []
        with contextlib.suppress(OSError):
            lines = self._path.read_bytes().splitlines()
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=TrialOutcome)

    def add(self, outcome: TrialOutcome) -> None:
        """Append an outcome."""
        with contextlib.suppress(OSError):
            if self._file < 0:
                files.own(self._path.parent)
                self._file = files.opened(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            if os.fstat(self._file).st_size > OUTCOMES_BYTES:
                os.ftruncate(self._file, 0)
            os.write(self._file, msgspec.json.encode(outcome) + b"\n")

    def close(self) -> None:
        """Remove the file, at a clean end of the worker."""
        with contextlib.suppress(OSError):
            if self._file >= 0:
                os.close(self._file)
            self._path.unlink(missing_ok=True)
        self._file = -1


class Trial:
    """Tries pages, one at a time; costs nothing until the first one that is not simple.

    Args:
        outcomes: The history that outlives the worker; None for none.
    """

    def __init__(self, settings: Parse, outcomes: TrialHistory | None = None) -> None:
        self._allowances = Allowances(settings.timeout_s, settings.max_memory_mb)
        self._outcomes = outcomes
        for outcome in outcomes.read() if outcomes else ():
            self._allowances.count(outcome)
        self._thread = ThreadPoolExecutor(1, "trial")  # its queue is that of the pages; the shared threads stay free
        self._zygote: ZygoteProcess | None = None
        self._is_closed = False
        self.tried = 0
        """Pages given to the child."""

    async def refusal(self, body: bytes, content_type: str, domain: str) -> str:
        """As `refused`, without blocking."""
        return "" if is_simple(body) else await self.verdict(body, content_type, domain)

    async def verdict(self, body: bytes, content_type: str, domain: str, waiting: int = 0) -> str:
        """As `refusal`, for a page that is tried even if it looks simple."""
        asked = body, content_type, domain, waiting
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._verdict, *asked)

    def refused(self, body: bytes, content_type: str, domain: str, waiting: int = 0) -> str:
        """Why a page must not be parsed; empty if it may be. Blocks.

        Args:
            domain: The registrable domain whose allowance counts.
            waiting: Pages that wait for this trial.
        Raises: TrialError: no trial was possible.
        """
        if is_simple(body):
            return ""
        return self._thread.submit(self._verdict, body, content_type, domain, waiting).result()

    def _verdict(self, body: bytes, content_type: str, domain: str, waiting: int) -> str:
        if waiting >= MANY_WAIT and self._allowances.is_odd(domain):
            return f"{TOO_COMPLEX}: most pages of {domain} were, and {waiting} others wait for their trial"
        self.tried += 1
        refusals = (self._refused(html, domain) for html in readings(body, content_type))
        return next(filter(None, refusals), "")

    def _refused(self, html: bytes, domain: str) -> str:
        limits = self._allowances.limits(domain, html)
        for tries in range(1, TRIES + 1):
            ended = self._ended(html, limits, is_last=tries == TRIES)
            if ended is None:
                continue
            passed = not ended.signal and ended.code != REFUSED
            outcome = self._allowances.spent(domain, html, ended.cpu_s, passed=passed)
            if self._outcomes:
                self._outcomes.add(outcome)
            if passed:
                return ""
            if ended.signal == signal.SIGPROF:
                return f"{TOO_COMPLEX}: its HTML takes the parser more than {limits.cpu_s:.2f} s of CPU"
            if ended.code == REFUSED:
                return f"{TOO_COMPLEX}: the parser refuses its HTML, or wants more than {limits.memory_bytes >> 20} MiB"
            if ended.signal != signal.SIGKILL:
                return f"{TOO_COMPLEX}: its HTML ends the parser by signal {ended.signal}"
        return f"{TOO_COMPLEX}: what parsed its HTML was killed {TRIES} times"  # for want of memory, as a rule

    def _ended(self, html: bytes, limits: TrialLimits, *, is_last: bool) -> ChildGone | None:
        """How a trial ended; None if the child is gone and a try is left. Raises: TrialError: none is left."""
        try:
            return self._asked(html, limits)
        except OSError as error:
            self._drop()
            if is_last or self._is_closed:
                raise TrialError(f"no trial of a page: {type(error).__name__}: {error}") from error
            return None

    def _asked(self, html: bytes, limits: TrialLimits) -> ChildGone:
        """How the trial ended. Raises: OSError: the zygote cannot be started, is gone, or does not answer."""
        if self._is_closed:
            raise ConnectionAbortedError("the worker stops")
        zygote = self._zygote or self._start()
        with zygote.try_page(PageTrial(limits.cpu_s, limits.memory_bytes)) as page:
            page.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):  # its child died: the zygote tells of what
                page.sendall(html)
        try:
            while zygote.fileno() >= 0 and _is_readable(zygote.fileno()):
                for word in zygote.words():
                    if word.gone is not None:
                        return word.gone
        except (EOFError, ValueError) as error:  # it is gone, or was closed
            raise ConnectionResetError("the process that tries pages ended") from error
        raise TimeoutError("the process that tries pages does not answer")

    def _start(self) -> ZygoteProcess:
        self._zygote = zygote = ZygoteProcess("trial of a page", tries=True)
        nice = os.getpriority(os.PRIO_PROCESS, 0) + NICE
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, zygote.pid, min(nice, 19))
        return zygote

    def close(self) -> None:
        """End the child, and try no more."""
        self._is_closed = True
        self._drop()
        if self._outcomes:
            self._outcomes.close()

    def _drop(self) -> None:
        """End the child; the next page that needs one starts a new child."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.end_now()


def _is_readable(descriptor: int) -> bool:
    """Whether there is something to read within PATIENCE_S; `select` would refuse descriptors from 1,024 on."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(PATIENCE_S * 1000))
