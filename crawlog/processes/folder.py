"""The data folder: all files of a crawl on this machine, and their format.

VERSION   the format's number
kafka/    the local engine      state/   RocksDB, one a partition      logs/, run/   workers' logs, PID files
sinks/    RocksDB, one a FILE   suspects/, trials/   pages that crashed their workers, or may do so

The data folder may belong to another user, for example as the root of a mounted volume. Its subfolders are private.
"""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

OURS = ("kafka", "logs", "run", "sinks", "state", "suspects", "trials")
"""The subfolders that crawlog makes."""

FORMAT = 1
"""Raised when an older crawlog could no longer find the log in a folder. States and sinks have their own versions: a
state or sink of another version is folded again from the log."""


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
