"""`Sink`, the base class of all result formats and stores, and the rows that they get.

Each format or store has the same two methods: `check` refuses an output before anything is crawled, `write` writes the
rows of a finished job. docs/extending.md adds one, and has the place of stores that take rows as they come.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import SinkSpec

_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class ResultRows:
    """The rows of a finished job, only the newest ones of each URL. Each reading starts with the first row.

    Args:
        chunks: Gives all rows as JSON lines, in pieces that end with a row.
        folder: On the disk that they lie on; None for that of temporary files.
    """

    def __init__(self, chunks: Callable[[], Iterable[bytes]], folder: Path | None = None) -> None:
        self.chunks = chunks
        self.folder = folder

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for rows in self.lists(0):
            yield from rows

    def lists(self, least_bytes: int) -> Iterator[list[dict[str, Any]]]:
        """The rows in lists, each but the last made of at least so many bytes of JSON."""
        waiting = bytearray()
        for chunk in self.chunks():
            waiting += chunk
            if len(waiting) >= least_bytes:
                yield _listed(waiting)
                waiting.clear()
        if waiting:
            yield _listed(waiting)

    def columns(self) -> list[str]:
        """All keys, in order of first appearance."""
        return list(dict.fromkeys(key for row in self for key in row))


def _listed(lines: bytearray) -> list[dict[str, Any]]:
    return _decode(b"[" + lines.strip(b"\n").replace(b"\n", b",") + b"]")  # a row is one line: in a text it is \n


class Sink(ABC):
    """A result format or a store: it writes the rows of a finished job.

    A class is registered in the entry point group `crawlog.sinks`: a format by the suffix of its files (`.xml`), a
    store by the scheme of its addresses (`redis`). `-o` selects it. One object checks the output before the crawl
    begins; another one writes when the job is finished.

    Args:
        spec: Its `job` and its `output`: the absolute path of FILE, or the store's address.

    Attributes:
        as_kept: Whether FILE holds the very bytes of `ResultRows.chunks`: the kept rows are then renamed, not copied.
        depends_on: Fields of `spec` that change the content of FILE: FILE is made again after a change of one.
    """

    as_kept: ClassVar[bool] = False
    depends_on: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: SinkSpec) -> None:
        self.spec = spec

    def check(self) -> None:
        """Refuse an output that cannot be written; by default a FILE without a place for it. Raises: Misconfigured."""
        if self.spec.is_file:
            _check_place(Path(self.spec.output))

    @abstractmethod
    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Write all rows.

        A run that was killed, or that is repeated, writes them again: in a store, a row must replace its older copy.

        Args:
            out: For a format, a new file that replaces FILE when this returns, and is removed when this raises. For a
                store, standard output.
        """


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise Misconfigured(f"cannot write {path}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise Misconfigured(f"cannot write {path}: there is no folder {path.parent}; `mkdir -p` makes it")
    if not os.access(path.parent, os.W_OK):
        raise Misconfigured(f"cannot write {path}: this user may not write in {path.parent}; name another folder")
    if path.is_symlink():
        raise Misconfigured(
            f"cannot write {path}: it is a link, and would be replaced by a file; name {files.real_path(path)}"
        )
    if path.exists() and not path.is_file():
        raise Misconfigured(
            f"cannot write {path}: it is no regular file, and would be replaced by one;"
            " -o - writes to standard output, which may go anywhere"
        )
