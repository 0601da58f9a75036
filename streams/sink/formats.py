"""How rows look in a file: JSON lines as they are kept, one JSON array, or CSV."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import one_line

SUFFIXES = (".jsonl", ".json", ".csv")

Chunks = Callable[[], Iterable[bytes]]
"""All rows from the first one on, JSON lines, in pieces that end with a row."""


FORMULA = tuple("=+-@\t\r\n")
"""Begins a text that spreadsheets take for a formula, some of them after they have trimmed it."""

_number = re.compile(r"[+-](?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def known(path: Path) -> str:
    """The format that a file's name asks for, in any case. Raises: Misconfigured: none of ours."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise Misconfigured(f"-o {path.name}: the name must end in {', '.join(SUFFIXES)}, or be - for standard output")
    return suffix


def lines(rows: list[msgspec.Raw]) -> bytes:
    """The rows, one on each line. Raises: ValueError: a row is not a JSON object."""
    block = bytearray()
    for row in rows:
        line = bytes(row)
        if line[:1] != b"{":
            raise ValueError(f"an item is not a JSON object: {line[:80]!r}")
        if b"\n" in line or b"\r" in line:
            line = msgspec.json.format(line, indent=-1)  # only between its parts: in a text it is \n
        block += one_line(line)
        block += b"\n"
    return bytes(block)


def written(suffix: str, chunks: Chunks, *, formulas: bool) -> Iterator[bytes]:
    """The content of a file of a known format; `formulas`: of a CSV, as in `as_csv`."""
    if suffix == ".json":
        return as_array(chunks())
    if suffix == ".csv":
        return as_csv(chunks, formulas=formulas)
    return iter(chunks())


def as_array(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """One JSON array, a row on each line."""
    before = b"[\n"
    for chunk in chunks:
        yield before + chunk[:-1].replace(b"\n", b",\n")
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"


def as_csv(chunks: Chunks, *, formulas: bool) -> Iterator[bytes]:
    """A header of all keys in order of first appearance, then a record for each row (RFC 4180, lines end as in Unix).

    A missing or null value is empty, a text itself, everything else its JSON.

    Args:
        formulas: Whether a text that begins like a formula stays so; else an apostrophe before it says that it is text.
    """
    as_text = str if formulas else _as_text
    header = list(dict.fromkeys(key for row in _rows(chunks()) for key in row))
    text = _UnixLines()
    writer = csv.writer(text)
    if header:
        writer.writerow(map(as_text, header))
    for row in _rows(chunks()):
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


def _rows(chunks: Iterable[bytes]) -> Iterator[dict[str, object]]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    for chunk in chunks:
        for line in chunk.splitlines():
            yield decode(line)


def _cell(value: object, as_text: Callable[[str], str]) -> str:
    if value is None:
        return ""
    return as_text(value) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_text(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) and not _number.fullmatch(text) else text
