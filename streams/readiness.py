"""Whether this process can do its work: for its log, for systemd, and for a probe that looks at a file.

    its partitions are restored ─┐
    nothing lacks: key, browser ─┴─► ready ─► log line, `READY=1`, `run.ready_file` (its time is a sign of life)

A process that was ready stays so: what lacks later is trouble in its reports. Otherwise one deployment with a foreign
key would make all workers of a cluster not ready at once.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger()

TOUCH_S = 1.0  # Time between two looks

LACKS_S = 20.0  # Time between two looks at what a ready process lacks


class OwnReadiness:
    """The readiness of this process.

    Attributes:
        lacks: What it lacks, for its reports; empty if nothing.

    Args:
        file: `run.ready_file`.
    """

    def __init__(self, file: Path | None) -> None:
        self.lacks = ""
        self._file = file
        self._is_ready = self._is_file_bad = False
        self._said: str | None = None
        self._touch_at = self._find_at = 0.0

    def look(self, find: Callable[[], str | None] = str, *, is_up: bool = True) -> None:
        """Look whether it is ready, at most once in TOUCH_S.

        Args:
            find: Finds what it lacks; None while that is not known.
            is_up: Whether it has its partitions, or an address to listen on.
        """
        now = time.monotonic()
        if now < self._touch_at:
            return
        if not self._touch_at and self._file is not None:
            with contextlib.suppress(OSError):  # of an earlier process
                self._file.unlink(missing_ok=True)
        self._touch_at = now + TOUCH_S
        found: str | None = self.lacks
        if now >= self._find_at:
            found = find()
            self.lacks = found or ""
            self._find_at = now + (LACKS_S if self._is_ready else 0.0)
        if self._is_ready:
            self._touch()
        elif self.lacks and self.lacks != self._said:
            self._said = self.lacks
            log.warning("not_ready", lacks=self.lacks)
            notify(f"STATUS=not ready: {self.lacks}")
        elif is_up and found == "":
            self._is_ready = True
            log.info("ready")
            notify("READY=1\nSTATUS=ready")
            self._touch()

    def _touch(self) -> None:
        if self._file is None:
            return
        try:
            self._file.touch()
        except OSError as error:
            if not self._is_file_bad:
                self._is_file_bad = True
                log.exception("ready_file_not_written", file=str(self._file), error=error.strerror)


def notify(state: str) -> None:
    """Send a state to systemd (sd_notify(3)) if it started this process and wants to know."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
