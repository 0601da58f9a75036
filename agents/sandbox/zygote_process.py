"""A zygote as its worker sees it: started once, then forks and kills a child at orders."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec
import structlog

from crawlog.streams.line_rate import LineRate
from crawlog.streams.printable import escaped

from .limits import ChildLimits
from .zygote import GRACE_S, TRIALS, ForkRequest, PageTrial, ZygoteWord

log = structlog.get_logger()

MAX_LINE = 2000  # Longest line, characters; the rest is cut

LINES_S, BURST = 40.0, 400  # Lines logged a second, and at once: fewer than crawl.logs takes. Further ones are counted

READS = 4  # Reads in a row of 64 KiB each


class Printed:
    """The pipe behind a child's standard output and error.

    Args:
        path: Of the spider, for the log.
        job: The job that it works for: its lines go to crawl.logs as well.
        take: Takes the lines instead of the log.
    """

    def __init__(self, path: str, job: str = "", take: Callable[[str], None] | None = None) -> None:
        self._path, self._take_line = path, take
        self._about = {"job": job} if job else {}
        self._file = -1
        self._begun = b""
        self._rate = LineRate(LINES_S, BURST, time.monotonic())
        self._left_out = 0

    def fileno(self) -> int:
        """The reading end; -1 if it is closed."""
        return self._file

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """The writing end of a new pipe, for a new process."""
        self._file, end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._file, False)
        try:
            yield end
        finally:
            os.close(end)

    def read(self) -> None:
        """Log the lines that are there."""
        for _ in range(READS):
            if self._file < 0:
                return
            try:
                text = os.read(self._file, 1 << 16)
            except BlockingIOError:
                break
            if not text:
                break
            self._take(text)

    def _take(self, text: bytes) -> None:
        *lines, self._begun = (self._begun + text).split(b"\n")
        self._begun = self._begun[:MAX_LINE]
        for line in lines:
            self._log(line)

    def _log(self, line: bytes) -> None:
        if not line.strip():
            return
        if not self._rate.has_room(time.monotonic()):
            self._left_out += 1
            return
        self._tell_left_out()
        self._rate.use()
        text = escaped(line[:MAX_LINE].decode(errors="backslashreplace"))
        if self._take_line is not None:
            self._take_line(text)
        else:
            log.info("spider_printed", spider=self._path, line=text, **self._about)

    def _tell_left_out(self) -> None:
        """Logs a line in place of those that were left out, if the next one passes, or none follows."""
        if self._left_out:
            text = f"({self._left_out:,} lines left out: more than {LINES_S:.0f} a second)"
            log.warning("spider_printed", spider=self._path, line=text, **self._about)
            self._left_out = 0

    def close(self) -> None:
        """Log the rest, and close the pipe."""
        self.read()
        if self._begun:
            self._take(b"\n")
        self._tell_left_out()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# Variables of the environment that each child gets, beside those of `spider.env`.
PASSED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH"),
    *("SCRAPY_PROJECT", "SCRAPY_SETTINGS_MODULE"),  # which settings of a project
)

CLOSE_S = 1.0  # Time for a zygote to kill what is below it, before it is killed itself

LOOK_S = 0.01  # Time between two looks at a zygote that ends

_decode = msgspec.json.Decoder(ZygoteWord).decode
_encode = msgspec.json.Encoder().encode


class ZygoteProcess:
    """A running zygote.

    Args:
        path: Of its spider, for the log.
        env: Names of further variables of the environment that it gets.
        job: The job that its spider works for.
        tries: Whether it tries pages instead.
        take_line: Takes the lines that its child prints, instead of the log.

    Attributes:
        printed: What its child prints.
    """

    def __init__(
        self,
        path: str,
        env: Collection[str] = (),
        job: str = "",
        *,
        tries: bool = False,
        take_line: Callable[[str], None] | None = None,
    ) -> None:
        self.printed = Printed(path, job, take_line)
        self._ending: threading.Thread | None = None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        environment = {name: os.environ[name] for name in (*PASSED, *env) if name in os.environ}
        command = [sys.executable, "-P", "-m", "crawlog.agents.sandbox.zygote", *([TRIALS] if tries else [])]
        try:
            with theirs, self.printed.opened() as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
        except BaseException:
            self._control.close()
            self.printed.close()
            raise

    def fileno(self) -> int:
        """The socket of its orders; -1 if it is closed."""
        return self._control.fileno()

    def fork(self, limits: ChildLimits, preload: tuple[str, ...] = ()) -> socket.socket:
        """Order a child; returns the socket to it.

        Args:
            preload: Modules that the zygote imports before.
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # a zygote that is gone shows in `words`
            socket.send_fds(self._control, [_encode(ForkRequest(limits, preload))], [theirs.fileno()])
        return ours

    def try_page(self, trial: PageTrial) -> socket.socket:
        """Order a child that parses what it gets on the returned socket, up to its end."""
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(self._control, [_encode(ForkRequest(trial=trial))], [theirs.fileno()])
        return ours

    def kill(self) -> None:
        """Order the end of the child, and of all that it started."""
        with contextlib.suppress(OSError):
            self._control.send(_encode(ForkRequest()))

    def words(self) -> Iterator[ZygoteWord]:
        """What it says. Raises: EOFError: it is gone."""
        while self._control.fileno() >= 0:
            try:
                told = self._control.recv(1 << 12)
            except BlockingIOError:
                return
            except OSError:
                told = b""
            if not told:
                raise EOFError("the zygote ended")
            yield _decode(told)

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """End it, with its child, which has `GRACE_S` to end by itself. Does not wait: a thread does.

        Args:
            then: Called by that thread once they have ended.
        """
        self._control.close()
        self.printed.read()
        self._ending = threading.Thread(target=self._end, args=(then,), name="zygote-ends")
        try:
            self._ending.start()
        except RuntimeError:  # no thread left
            self._ending = None
            self._end(then)

    def _end(self, then: Callable[[], None]) -> None:
        until_s = time.monotonic() + GRACE_S + CLOSE_S
        while self._process.poll() is None and time.monotonic() < until_s:
            self.printed.read()
            time.sleep(LOOK_S)
        self._process.kill()
        self._process.wait()
        self.printed.close()
        then()

    def end_now(self) -> None:
        """End it at once, with its child. A thread that waits for its socket is woken."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._process.kill()
        self._process.wait()
        self._control.close()
        self.printed.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self) -> None:
        """Wait for the end, after `close`. Blocks."""
        if self._ending is not None:
            self._ending.join()


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
