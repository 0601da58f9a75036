"""JSON lines, one JSON array, and the outputs that are no files."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from .layout import write_text
from .result_rows import ResultRows, Sink


class JsonLines(Sink):
    """One row on each line, as the rows are kept."""

    as_kept = True

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Copies the rows."""
        write_text(rows.chunks(), out, self.spec.layout)


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
        write_text(_array(rows.chunks(), self.spec.layout.indent), out, self.spec.layout)


def _array(chunks: Iterable[bytes], indent: int) -> Iterator[bytes]:
    before = b"[\n"
    for chunk in chunks:
        lines = chunk[:-1].split(b"\n")
        yield before + b",\n".join([msgspec.json.format(line, indent=indent) for line in lines] if indent else lines)
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"
