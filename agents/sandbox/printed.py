"""Lines that a spider's child prints, for the worker's log."""

import contextlib
import os
import time
from collections.abc import Iterator

import structlog

from crawlog.streams.printable import escaped

log = structlog.get_logger()

MAX_LINE = 2000  # Longest line, characters; the rest is cut

LINES, WINDOW_S = 500, 10.0  # Lines logged in a window of time; further ones are counted

READS = 4  # Reads in a row of 64 KiB each


class Printed:
    """The pipe behind a child's standard output and error.

    Args:
        path: Of the spider, for the log.
        job: The job that it works for: its lines go to crawl.logs as well.
    """

    def __init__(self, path: str, job: str = "") -> None:
        self._path = path
        self._about = {"job": job} if job else {}
        self._file = -1
        self._begun = b""
        self._lines = 0
        self._left_out = 0
        self._window_s = 0.0

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
        self._tell_left_out()

    def _take(self, text: bytes) -> None:
        *lines, self._begun = (self._begun + text).split(b"\n")
        self._begun = self._begun[:MAX_LINE]
        for line in lines:
            self._log(line)

    def _log(self, line: bytes) -> None:
        now_s = time.monotonic()
        if now_s - self._window_s > WINDOW_S:
            self._tell_left_out()
            self._window_s, self._lines = now_s, 0
        self._lines += 1
        if self._lines > LINES:
            self._left_out += 1
        elif line.strip():
            text = escaped(line[:MAX_LINE].decode(errors="backslashreplace"))
            log.info("spider_printed", spider=self._path, line=text, **self._about)

    def _tell_left_out(self) -> None:
        if self._left_out and time.monotonic() - self._window_s > WINDOW_S:
            log.warning("spider_prints_much", spider=self._path, lines_left_out=self._left_out, **self._about)
            self._left_out = 0

    def close(self) -> None:
        """Log the rest, and close the pipe."""
        self.read()
        if self._begun:
            self._take(b"\n")
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
