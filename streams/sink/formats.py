"""`Sink`, the base class of all result formats and stores, and the formats that crawlog brings.

Each format or store has the same two methods: `check` refuses an output before anything is crawled, `write` writes the
rows of a finished job. docs/extending.md adds one, and has the place of stores that take rows as they come.
"""

import csv
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, ClassVar

import msgspec

from crawlog.streams import files
from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import SinkSpec

FORMULA = tuple("=+-@\t\r\n")  # First characters of texts that spreadsheets calculate; some programs trim blanks first

_number = re.compile(r"[+-](?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class ResultRows:
    """The rows of a finished job, only the newest ones of each URL. Each reading starts with the first row.

    Args:
        chunks: Gives all rows as JSON lines, in pieces that end with a row.
    """

    def __init__(self, chunks: Callable[[], Iterable[bytes]]) -> None:
        self.chunks = chunks

    def __iter__(self) -> Iterator[dict[str, object]]:
        decode = msgspec.json.Decoder(dict[str, object]).decode
        for chunk in self.chunks():
            for line in chunk.splitlines():
                yield decode(line)


class Sink(ABC):
    """A result format or a store: it writes the rows of a finished job.

    A class is registered in the entry point group `crawlog.sinks`: a format by the suffix of its files (`.parquet`), a
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


class JsonLines(Sink):
    """One row on each line, as the rows are kept."""

    as_kept = True

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Copies the rows."""
        out.writelines(rows.chunks())


class StandardOutput(JsonLines):
    """JSON lines to standard output, `-o -`."""

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Copies the rows; an output that was closed raises OSError here, not later."""
        super().write(rows, out)
        out.flush()


class Nothing(Sink):
    """No output, `-o none:`: of a job whose pipelines alone keep its items."""

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Writes nothing."""


class JsonArray(Sink):
    """One JSON array, a row on each line."""

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Joins the rows by commas."""
        out.writelines(_array(rows.chunks()))


class Csv(Sink):
    """A header of all keys in order of first appearance, then a record for each row (RFC 4180, lines end as in Unix).

    A missing or null value is empty, a text is itself, everything else is JSON. With `spec.formulas` a text that begins
    like a formula stays so; else an apostrophe before it marks it as text.
    """

    depends_on = ("formulas",)

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Reads the rows twice: the header names all keys."""
        out.writelines(_records(rows, str if self.spec.formulas else _as_text))


def _array(chunks: Iterable[bytes]) -> Iterator[bytes]:
    before = b"[\n"
    for chunk in chunks:
        yield before + chunk[:-1].replace(b"\n", b",\n")
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"


def _records(rows: ResultRows, as_text: Callable[[str], str]) -> Iterator[bytes]:
    header = list(dict.fromkeys(key for row in rows for key in row))
    text = _UnixLines()
    writer = csv.writer(text)
    if header:
        writer.writerow(map(as_text, header))
    for row in rows:
        writer.writerow([_cell(row.get(key), as_text) for key in header])
        if text.tell() > 1 << 20:
            yield text.getvalue().encode("utf-8", "replace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "replace")


class _UnixLines(io.StringIO):
    """Records that end in LF. The writer ends them in CR LF: with another end it would not quote a lone CR."""

    def write(self, line: str, /) -> int:
        """Takes one record."""
        return super().write(line.removesuffix("\r\n") + "\n")


def _cell(value: object, as_text: Callable[[str], str]) -> str:
    if value is None:
        return ""
    return as_text(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_text(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) and not _number.fullmatch(text) else text


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
