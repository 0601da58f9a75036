"""Commands that use the broker without the data folder. The last one stops a broker that one of them has started."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from crawlog.streams import files

from . import broker
from .lock import folder_of

WIDTH = 20
"""Bytes of the noted process id."""


class Users:
    """That this command uses the broker: a shared lock of the file `users`, until `close`.

    The file holds the process id of the broker that the last one of them stops. Waits while it does so.

    Raises: OSError: the file cannot be made.
    """

    def __init__(self, data: Path) -> None:
        self._folder = folder_of(data)
        files.own(self._folder)
        self._file = os.fdopen(files.opened(self._folder / "users", os.O_RDWR | os.O_CREAT), "r+b")
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def note(self, pid: int) -> None:
        """Notes the broker that the last one stops. On a full disk there is no note, and it goes on."""
        with contextlib.suppress(OSError):
            os.pwrite(self._file.fileno(), f"{pid:<{WIDTH}}".encode(), 0)

    def is_noted(self) -> bool:
        """Whether the broker that runs now is the one that the last one stops."""
        now = broker.noted(self._folder)
        return now is not None and os.pread(self._file.fileno(), WIDTH, 0).strip() == str(now.pid).encode()

    def is_last(self) -> bool:
        """Ends the use; whether there is no other one. The next one then waits until `close`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # Linux has released the shared lock by now: of two, one is the last
            return False
        return True

    def close(self) -> None:
        """Releases the lock."""
        self._file.close()
