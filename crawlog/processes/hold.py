"""The data folder, held by one command at a time.

<data>/run/lock         held by the one supervisor of the folder
<data>/run/holder.json  its pid, what it is, its workers' pids
"""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

from .folder import unusable

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

LOOKS_S = 1.0  # A lock that stays taken for longer counts as held, seconds; `holder` takes it for some 20 µs

LOOK_AGAIN_S = 0.005  # Pause between two attempts to take the lock, seconds


class Holder(NamedTuple):
    """The command that holds a data folder; `bootstrap` is the user's cluster, empty for the local engine."""

    pid: int
    what: str
    workers: dict[str, int]
    bootstrap: str = ""


class Hold:
    """The data folder, held until this process ends."""

    def __init__(self, data: Path, what: str, bootstrap: str = "") -> None:
        self._folder = data.absolute() / "run"
        files.own(self._folder)
        self._file = files.append(self._folder / "lock")
        self._what = what
        self._bootstrap = bootstrap
        if not _locked(self._file):
            self._file.close()
            raise Misconfigured(_in_use(data, holder(data)))
        (self._folder / "holder.json").unlink(missing_ok=True)  # that of a holder which was killed
        self.note({})

    def note(self, workers: dict[str, int]) -> bool:
        """Writes holder.json; returns False where that is impossible, as on a full disk."""
        held = Holder(os.getpid(), self._what, workers, self._bootstrap)
        try:
            files.write(self._folder / "holder.json", json.dumps(held._asdict()))
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Releases the folder."""
        (self._folder / "holder.json").unlink(missing_ok=True)
        self._file.close()


def _locked(file: IO[bytes]) -> bool:
    """Takes the lock of a folder; False if another process holds it. Retries, since `holder` takes it briefly."""
    deadline = time.monotonic() + LOOKS_S
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_AGAIN_S)


def holder(data: Path) -> Holder | None:
    """The holder of the folder; None if it is free. Takes a shared lock, so that two calls do not collide.

    Raises: Misconfigured: it is no folder.
    """
    try:
        with os.fdopen(files.opened(data / "run" / "lock", os.O_RDONLY)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise unusable(data, error) from None
    except OSError:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Holder(**json.loads(files.read(data / "run" / "holder.json")))
        return Holder(0, "another crawlog", {})
    return None


def same_log(settings: "Settings") -> "Settings":
    """The settings; if they name no cluster, with the cluster of the folder's holder: a folder has one log."""
    held = None if settings.kafka.bootstrap else holder(settings.run.data)
    if held is None:
        return settings
    if not held.bootstrap:
        return settings
    kafka = settings.kafka.model_copy(update={"bootstrap": held.bootstrap})
    return settings.model_copy(update={"kafka": kafka})


def _in_use(data: Path, by: Holder | None) -> str:
    who = f"`crawlog {by.what}` (pid {by.pid})" if by and by.pid else "another crawlog"
    then = "Wait until it ends"
    if by is not None and by.what == "up":
        then = "`crawlog submit` gives it a job, `crawlog seed` more URLs, `crawlog down` stops it"
    return f"the data folder {data} is in use by {who}.\n{then}, or use another folder with --data DIR."


def wait_for_end(data: Path, held: Holder, timeout_s: float) -> bool:
    """Waits until a holder has given the folder up; False if it has not in time.

    Its lock tells: its process may be a zombie for long, and its pid another process's.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = holder(data)
        if now is None or now.pid not in (held.pid, 0):
            return True
        time.sleep(0.05)
    return False
