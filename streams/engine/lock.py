"""Locks on the broker's folder: one command at a time starts a broker there, and the last one that uses it stops it."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TextIO

from crawlog.streams import files
from crawlog.streams.errors import EngineError

from . import broker

# How long to wait for another command that starts or stops the broker; a first start fetches 44 MB, then has 60 s.
LOCK_TIMEOUT_S = 180.0

LOCK_AGAIN_S = 0.02


def folder_of(data: Path) -> Path:
    return data.absolute() / "kafka"


@contextlib.contextmanager
def held(data: Path) -> Iterator[Path]:
    """The broker's folder, locked against other commands that start or stop the broker."""
    folder = folder_of(data)
    try:
        files.own(folder)
        file = os.fdopen(files.opened(folder / "lock", os.O_RDWR | os.O_CREAT), "r+")
    except OSError as error:
        raise EngineError(unwritable(data, error)) from None
    with file:  # the broker does not inherit it: Python's files close on exec
        _wait_for(file, folder / "lock")
        yield folder


def _wait_for(file: TextIO, path: Path) -> None:
    """Takes the lock, and writes our process id into it, for the message of a command that waits in vain."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EngineError(_is_held(path, file.read(20).strip())) from None
            time.sleep(LOCK_AGAIN_S)
    with contextlib.suppress(OSError):  # a full disk
        os.truncate(file.fileno(), 0)
        os.pwrite(file.fileno(), str(os.getpid()).encode(), 0)


def check_unused(folder: Path) -> None:
    """Refuses a folder where a broker runs that broker.json does not name, or whose process is not visible here.

    A broker holds Kafka's own lock of its files all its life. The lock counts in every container of the machine.

    Raises: EngineError: there is one.
    """
    try:
        with os.fdopen(files.opened(folder / "log" / ".lock", os.O_RDONLY)) as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise EngineError(
            f"Apache Kafka runs on {folder}, its process is not known here: another container may have started it.\n"
            "Stop it with `crawlog down` where it was started, or use another folder with `--data DIR`."
        ) from None
    except OSError:  # no broker has run yet
        pass


def _is_held(path: Path, pid: str) -> str:
    is_known = pid.isdigit()
    who, end = (f"pid {pid}", f", or end it with `kill {pid}`") if is_known else ("another crawlog", "")
    return (
        f"Apache Kafka has been started or stopped by {who} for {LOCK_TIMEOUT_S:g} s, which holds {path}.\n"
        f"Wait until that is done{end}; then run the command again."
    )


def unwritable(data: Path, error: OSError) -> str:
    return (
        f"Cannot write to the data folder {data}: {error.strerror or error}.\n"
        "Free some space, or use another folder with `--data DIR`."
    )


WIDTH = 20  # Bytes of the noted process id


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
        self._file.close()
