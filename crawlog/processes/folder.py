"""The data folder: all files of a crawl on this machine, and their format.

VERSION   the format's number
kafka/    the local engine      state/   RocksDB, one a partition      logs/, run/   workers' logs, PID files
sinks/    RocksDB, one a FILE   suspects/, trials/   pages that crashed their workers, or may do so
query/    Parquet of what `crawlog query` read of the log      service/  its history of rates and alerts

The data folder may belong to another user, for example as the root of a mounted volume. Its subfolders are private.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

# The subfolders that crawlog makes.
OURS = ("kafka", "logs", "query", "run", "service", "sinks", "state", "suspects", "trials")

# Raised when an older crawlog could no longer find the log in a folder. States and sinks have their own versions: a
# state or sink of another version is folded again from the log.
FORMAT = 1


def prepare(data: Path) -> None:
    """Makes the folder if necessary; checks that it is writable and has no newer format. Safe to run concurrently.

    A folder of an older format, or without a readable VERSION, gets this format.

    Raises: Misconfigured: it is not writable, is no folder, has a newer format or a path that Java cannot open, or
        holds files of another user.
    """
    if not files.is_utf_8(str(data.absolute())):
        raise Misconfigured(
            f"cannot use the data folder: its path {str(data.absolute())!r} is not UTF-8, which Kafka cannot open.\n"
            "Name another one with --data DIR."
        )
    try:
        data.mkdir(parents=True, exist_ok=True)
        version = data / "VERSION"
        with NamedTemporaryFile(prefix=".writable.", dir=data):
            pass
        found = _number(version)
        if found < FORMAT:
            files.write(version, f"{FORMAT}\n")
    except OSError as error:
        raise unusable(data, error) from None
    if found > FORMAT:
        raise Misconfigured(
            f"the data folder {data} is of a newer crawlog: its VERSION says {found}, this crawlog reads {FORMAT}.\n"
            "Use the crawlog that wrote it, or another folder with --data DIR."
        )
    try:
        _close(data)
    except OSError as error:
        raise unusable(data, error) from None


def unusable(data: Path, error: OSError) -> Misconfigured:
    """What is said of a data folder that cannot be used."""
    return Misconfigured(
        f"cannot use the data folder {data}: {error.strerror or error}.\n"
        "Name one that you may write to with --data DIR."
    )


def _close(data: Path) -> None:
    """Makes the subfolders private, also those of an older crawlog."""
    for name in OURS:
        if os.path.lexists(data / name):
            files.own(data / name)
            files.check_inside(data / name)


def _number(version: Path) -> int:
    """The format number in VERSION; 0 if there is none."""
    try:
        said = files.read(version).strip()[:20]
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(said) if said.isascii() and said.isdigit() else 0


class ServiceNote(msgspec.Struct, frozen=True):
    """Where the service listens.

    Attributes:
        port: 0 while it has never run.
        pid: Of the process that wrote this.
        token: Of the data folder; it stays the same.
    """

    address: str = ""
    port: int = 0
    pid: int = 0
    token: str = ""

    @property
    def url(self) -> str:
        """Its address for people."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}/"


def _file(data: Path) -> Path:
    return data.absolute() / "run" / "service.json"


def service_note(data: Path) -> ServiceNote | None:
    """The note; None if it is not there or cannot be read."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(files.read(_file(data)), type=ServiceNote)
    return None


def own_token(data: Path) -> str:
    """The token of the folder; made at the first start."""
    noted = service_note(data)
    return noted.token if noted and noted.token else secrets.token_urlsafe(32)


def note_service(data: Path, note: ServiceNote) -> None:
    """Writes the note."""
    files.own(_file(data).parent)
    files.write(_file(data), msgspec.json.encode(note).decode())


# A disk with less free space counts as full: Kafka preallocates indexes of 1 MiB each, and RocksDB its log.
FULL_BYTES = 16 << 20

FULL_AGAIN_S = 2.0  # Pause between two looks at the disk, and between two starts of a broker on a full disk, seconds


class Disk:
    """The disks of a data folder: its states, its log and the folder itself may be on different disks."""

    def __init__(self, data: Path, report: Callable[[str], None]) -> None:
        self._folders = (data / "state", data / "kafka", data)
        self._report = report
        self._full: Path | None = None
        self._looked_at = 0.0

    def is_full(self) -> bool:
        """Whether a disk is full. Reports each change once. Workers and broker wait by themselves."""
        now = time.monotonic()
        if now - self._looked_at >= FULL_AGAIN_S:
            self._looked_at = now
            full = next((path for path in self._folders if _is_full(path)), None)
            if full and not self._full:
                self._report(f"the disk of {full} is full: the crawl goes on by itself as soon as there is space")
            elif self._full and not full:
                self._report(f"the disk of {self._full} has space again")
            self._full = full
        return self._full is not None


def _is_full(path: Path) -> bool:
    try:
        return shutil.disk_usage(path).free < FULL_BYTES
    except FileNotFoundError:
        return False
