"""The data folder: everything a crawl keeps on this machine, and which format it has.

VERSION   the format's number
kafka/    the local engine      state/   RocksDB, one a partition      logs/, run/   what workers say, PID files
sinks/    RocksDB, one a FILE   suspects/, trials/   pages that ended their workers, or might

The folder itself may belong to another user, as the root of a mounted volume does; these folders are for us alone.
"""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured

OURS = ("kafka", "logs", "run", "sinks", "state", "suspects", "trials")
"""The folders that we make in it."""

FORMAT = 1
"""Counted up when an older crawlog would not find the log in a folder any more. States and sinks have versions of their
own: those of another version are folded again from the log."""


def prepare(data: Path) -> None:
    """Makes the folder if need be, and sees that it can be written and is of no newer format; others may do so at once.

    A folder of an older format, or whose VERSION cannot be read, becomes one of this format.

    Raises: Misconfigured: it cannot be written, is no folder, is of a newer format, lies where Java finds no path, or
        holds files of another user.
    """
    if not is_utf_8(str(data.absolute())):
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
        raise _unusable(data, error) from None
    if found > FORMAT:
        raise Misconfigured(
            f"the data folder {data} is of a newer crawlog: its VERSION says {found}, this crawlog reads {FORMAT}.\n"
            "Use the crawlog that wrote it, or another folder with --data DIR."
        )
    try:
        _close(data)
    except OSError as error:
        raise _unusable(data, error) from None


def _unusable(data: Path, error: OSError) -> Misconfigured:
    return Misconfigured(
        f"cannot use the data folder {data}: {error.strerror or error}.\n"
        "Name one that you may write to with --data DIR."
    )


def _close(data: Path) -> None:
    """Closes our folders to others, those that an older crawlog made too."""
    for name in OURS:
        if os.path.lexists(data / name):
            files.own(data / name)
            files.check_inside(data / name)


def _number(version: Path) -> int:
    """The format that a folder says it has; 0 where it says none."""
    try:
        said = files.read(version).strip()[:20]
    except (FileNotFoundError, UnicodeDecodeError):
        return 0
    return int(said) if said.isascii() and said.isdigit() else 0


def is_utf_8(text: str) -> bool:
    """Whether it has no bytes of another encoding, which Python keeps as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
