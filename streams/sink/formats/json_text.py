"""JSON lines, one JSON array, and the outputs that are no files."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

from .result_rows import ResultRows, Sink


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


def _array(chunks: Iterable[bytes]) -> Iterator[bytes]:
    before = b"[\n"
    for chunk in chunks:
        yield before + chunk[:-1].replace(b"\n", b",\n")
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"
