"""How a command ends: one clear message on standard error, and one exit code.

Nothing else in crawlog prints an error of a command or chooses its exit code.
"""

import contextlib
import errno
import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from crawlog.streams.errors import CrawlError, EngineError, Misconfigured

from .terminal import tell

FINISHED = 0
BROKEN = 1
"""A bug in crawlog: what Python itself answers after an exception."""
USAGE = 2
ENGINE = 3
DEAD_LETTERS = 4
"""Finished, and crawl.dead gained records of this job."""
DIFFERENT = 5
"""`verify`: a state is not the fold of its log, or the log lacks something; `run`: it could not be made again."""
NOTHING_FETCHED = 6
"""Finished, and nothing could be fetched."""
CANCELLED = 7
"""The job is cancelled: its rows stay partial."""
INTERRUPTED = 130
"""128 + SIGINT; a SIGTERM gives 143."""
READER_GONE = 141
"""128 + SIGPIPE: `crawlog topics | head -1`, as any Unix filter."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a command, from whoever sends it."""

OF_THE_USER = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENAMETOOLONG,
    }
)
"""Operating system errors that name a wrong path; every other one is a broken engine (disk full, no network)."""


def counted(number: int, noun: str) -> str:
    """How many of something there are, for people: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def open_streams() -> None:
    """Gives a process that was started without standard streams (`>&-`) the null device in their place.

    Else the next file that is opened, a log or a database, would be what is printed to.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it: not every terminal is UTF-8


def complain(message: str) -> None:
    """Writes a message for the user to standard error; a closed one is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        tell(*f"crawlog: {message}".split("\n"))


def hear_interrupts() -> None:
    """From now on Ctrl-C unwinds what runs; while modules were loaded it ended the process at once (`__main__.py`)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind what runs inside, as Ctrl-C does; while that is on its way, further ones do nothing.

    Else what a command has started would be left behind, by one `kill` or by an impatient second Ctrl-C. A signal that
    is ignored stays so (`nohup`).
    """
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def stop(number: int, _: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(command: Callable[[], int], *, verbose: Callable[[], bool]) -> int:
    """Runs a command; whatever it raises becomes one message and one exit code.

    Args:
        command: Returns its own exit code.
        verbose: Asked after the command: whether the traceback is wanted as well.
    """
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # click turns a broken pipe into this one with code 1
        if _reader_is_gone():
            return _silent()
        return end.code if isinstance(end.code, int) else BROKEN
    except Exception as error:  # noqa: BLE001  # the one place where every error of a command ends
        return _told(error, with_traceback=verbose())
    return code


def _told(error: Exception, *, with_traceback: bool) -> int:
    if isinstance(error, BrokenPipeError) and _reader_is_gone():
        return _silent()
    code, message = _verdict(error)
    complain(message)
    if with_traceback:
        tell(*"".join(traceback.format_exception(error)).splitlines())
    return code


def _verdict(error: Exception) -> tuple[int, str]:
    if isinstance(error, EngineError):
        return ENGINE, str(error)
    if isinstance(error, CrawlError):
        return (USAGE if isinstance(error, Misconfigured) else BROKEN), str(error)
    if isinstance(error, OSError):
        return (USAGE if error.errno in OF_THE_USER else ENGINE), _of_the_system(error)
    what = f"{type(error).__name__}: {error}"
    return (
        BROKEN,
        f"internal error: {what}\nThis is a bug in crawlog; -v shows where. The crawl's log is intact: run again.",
    )


def _of_the_system(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _silent() -> int:
    """Python flushes standard output at its end and would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE


def _reader_is_gone() -> bool:
    """Whether the pipe that broke is standard output."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False
