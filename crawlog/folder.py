"""The data folder: everything a crawl keeps on this machine, and which format it has.

VERSION   the format's number
kafka/    the local engine      state/   RocksDB, one a partition      logs/, run/   what workers say, PID files
"""

from pathlib import Path
from tempfile import NamedTemporaryFile

from .streams import files
from .streams.errors import Misconfigured

FORMAT = 1
"""Counted up when a folder of the version before can no longer be used; RocksDB's own format has its own number."""


def prepare(data: Path) -> None:
    """Makes the folder if need be, and sees that it can be written and is of this format; others may do so at once.

    Raises: Misconfigured: it cannot be written, is no folder, is of another format, or lies where Java finds no path.
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
        if not version.exists():
            files.write(version, f"{FORMAT}\n")
        found = version.read_text(errors="replace").strip()[:40]
    except OSError as error:
        raise Misconfigured(
            f"cannot use the data folder {data}: {error.strerror or error}.\n"
            "Name one that you may write to with --data DIR."
        ) from None
    if found != str(FORMAT):
        raise Misconfigured(
            f"the data folder {data} is of another version: its VERSION says {found!r}, this crawlog reads {FORMAT}.\n"
            "Use the crawlog that wrote it, or another folder with --data DIR."
        )


def is_utf_8(text: str) -> bool:
    """Whether it has no bytes of another encoding, which Python keeps as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
