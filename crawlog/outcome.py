"""How a command ends: one clear message on standard error, and one exit code.

Only this module prints an error of a command and chooses the exit code for it.
"""

import contextlib
import errno
import io
import math
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from crawlog.streams.errors import CrawlError, EngineError, Misconfigured, Unreadable
from crawlog.streams.exit_codes import EX_DATAERR

from .terminal import tell

if TYPE_CHECKING:
    from crawlog.schemas.progress import JobCounts
    from crawlog.streams.fleet import EndEstimate

FINISHED = 0
BROKEN = 1  # A bug in crawlog; Python exits with the same code after an exception
USAGE = 2
ENGINE = 3
# Finished, with new records of this job in crawl.dead, or an error of the spider's `start`, which is no record.
DEAD_LETTERS = 4
# `verify`: a state is not the fold of its log, or the log lacks records. `run`: lost records cannot be restored.
DIFFERENT = 5
NOTHING_FETCHED = 6  # Finished, and no URL could be fetched
CANCELLED = 7  # The job is cancelled, deleted, or begun again by another command: its rows stay partial
PARTIAL = 8  # `export`: not all rows of the job are in the file: it goes on, or it was stopped
INTERRUPTED = 130  # 128 + SIGINT; a SIGTERM gives 143
READER_GONE = 141  # 128 + SIGPIPE, as for any Unix filter: `crawlog topics | head -1`

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Signals that end a command

UNWINDING_S = 10.0  # A command ends its processes in less time after a signal, seconds

# Errors of the operating system that mean a wrong path. All others mean a broken engine (disk full, no network).
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


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def written_to(output: str) -> str:
    """What an output counts: pages in WARC files, else rows."""
    from crawlog.streams.sink_groups import ARCHIVE

    return "page" if output.startswith(ARCHIVE) else "row"


def by_rule(dropped: Mapping[str, int]) -> str:
    """Counts of dropped links in words, the largest first."""
    ordered = sorted(dropped.items(), key=lambda one: -one[1])
    return ", ".join(f"{count:,} by {rule}" for rule, count in ordered)


def without_page(counts: "JobCounts") -> list[str]:
    """Lines about final results that gave no page, by class, the largest first.

    Redirects are left out: what they lead to counts.
    """
    errors = {f"status {code}": count for code, count in counts.statuses.items() if code[:1] not in "23"}
    types = {name: count for name, count in counts.no_page.items() if "/" in name}
    failures = {name: count for name, count in counts.no_page.items() if "/" not in name}
    told = [f"no page: {_by_class(errors | failures)}"] if errors or failures else []
    kept = "the setting fetch.content_types lists the types that are"
    return [*told, f"body not kept: {_by_class(types)}; {kept}"] if types else told


def span(seconds: float) -> str:
    """A duration, rounded as an estimate."""
    if seconds <= 90:
        return f"{5 * math.ceil(seconds / 5)} s"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} days"


def left_text(left: "EndEstimate") -> str:
    """How long a job needs at least, in words, and what decides that."""
    if not left.hosts:
        return f"about {span(left.left_s)}"
    return f"≥ {span(left.left_s)}: {counted(left.hosts, 'host')} decide{'s' if left.hosts == 1 else ''}"


def by_status_class(statuses: Mapping[str, int]) -> dict[str, int]:
    """Counts of answers by class of their status: `2xx`."""
    classes: dict[str, int] = {}
    for code, count in sorted(statuses.items()):
        name = f"{code[0]}xx" if code.isdigit() else code
        classes[name] = classes.get(name, 0) + count
    return classes


def _by_class(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1]))


def needed(needs: Mapping[str, int]) -> str:
    """Settings that URLs wait for because their workers lack them, in words; empty if there are none."""
    return ", ".join(f"{count:,} wait for a worker with {setting}" for setting, count in sorted(needs.items()))


def open_streams() -> None:
    """Opens the null device for each standard stream that the process was started without (`>&-`).

    Otherwise the next file to be opened, a log or a database, would take the stream's place and get the printed text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for standard error: not every terminal is UTF-8


def complain(message: str) -> None:
    """Writes a message for the user to standard error."""
    tell(*f"crawlog: {message}".split("\n"))


def hear_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt; during the imports it ended the process at once (`__main__.py`)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def unmasked(raised: Callable[[], BaseException | None]) -> Iterator[None]:
    """Raises what a signal's handler has raised where confluent-kafka (2.16) makes a TypeError of it.

    It does so while it reads the configuration of a client.

    Args:
        raised: Returns what the handler has raised; None if there was no signal.
    """
    try:
        yield
    except TypeError as error:
        if (given := raised()) is None:
            raise
        raise given from error


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP unwind the block, as Ctrl-C does; further signals are ignored for `UNWINDING_S`.

    Otherwise a `kill`, or a second Ctrl-C, would leave processes of the command behind. If the block goes on for longer
    Python has dropped the exception, as it does in a finalizer, and the next signal raises it again. A signal that is
    ignored before the block stays ignored (`nohup`).
    """
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    ignored_until = 0.0
    raised: BaseException | None = None

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal ignored_until, raised
        if time.monotonic() < ignored_until:
            return
        ignored_until = time.monotonic() + UNWINDING_S
        raised = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise raised

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        with unmasked(lambda: raised):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code(command: Callable[[], int], *, verbose: Callable[[], bool]) -> int:
    """Runs a command; turns any exception into one message and one exit code.

    Args:
        command: Returns its own exit code.
        verbose: Called after the command; whether to print the traceback too.
    """
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # click turns a broken pipe into SystemExit with code 1
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
        return (EX_DATAERR if isinstance(error, Unreadable) else ENGINE), str(error)
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
    """Redirects standard output to the null device: Python flushes it at exit and would print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE


def _reader_is_gone() -> bool:
    """Whether standard output is the broken pipe."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def partitions(numbers: Sequence[int]) -> str:
    """Numbers of partitions, ranges drawn together: `0-3,7`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges) or "-"
