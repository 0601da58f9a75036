"""CSV (RFC 4180): a header of all keys, then a record for each row."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from .layout import write_text
from .result_rows import ResultRows, Sink

FORMULA = tuple("=+-@\t\r\n")  # First characters of texts that spreadsheets calculate; some programs trim blanks first

_number = re.compile(r"[+-](?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class Csv(Sink):
    """A header of all keys in order of first appearance, then a record for each row; lines end as in Unix.

    A missing or null value is empty, a text is itself, everything else is JSON. With `spec.formulas` a text that begins
    like a formula stays so; else an apostrophe before it marks it as text.
    """

    depends_on = ("formulas",)

    def write(self, rows: ResultRows, out: BinaryIO) -> None:
        """Reads the rows twice: the header names all keys."""
        layout = self.spec.layout
        header = [name for _, name in layout.fields] or rows.columns()
        write_text(_records(rows, header, str if self.spec.formulas else _as_text), out, layout)


def _records(rows: ResultRows, header: list[str], as_text: Callable[[str], str]) -> Iterator[bytes]:
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
