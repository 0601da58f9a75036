"""How rows look in a file: JSON lines as they are kept, one JSON array, or CSV."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from .errors import Misconfigured

SUFFIXES = (".jsonl", ".json", ".csv")

Chunks = Callable[[], Iterable[bytes]]
"""All rows from the first one on, JSON lines, in pieces that end with a row."""


def known(path: Path) -> str:
    """The format that a file's name asks for, in any case. Raises: Misconfigured: none of ours."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise Misconfigured(f"-o {path.name}: the name must end in {', '.join(SUFFIXES)}, or be - for standard output")
    return suffix


def one_line(line: bytes) -> bytes:
    """JSON without the three characters beyond ASCII at which some readers end a line (`str.splitlines`)."""
    if b"\xc2\x85" in line:
        line = line.replace(b"\xc2\x85", b"\\u0085")
    if b"\xe2\x80" in line:
        line = line.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return line


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


def written(suffix: str, chunks: Chunks) -> Iterator[bytes]:
    """The content of a file of a known format."""
    if suffix == ".json":
        return as_array(chunks())
    if suffix == ".csv":
        return as_csv(chunks)
    return iter(chunks())


def as_array(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """One JSON array, a row on each line."""
    before = b"[\n"
    for chunk in chunks:
        yield before + chunk[:-1].replace(b"\n", b",\n")
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"


def as_csv(chunks: Chunks) -> Iterator[bytes]:
    """A header of all keys in order of first appearance, then a record for each row (RFC 4180, lines end as in Unix).

    A missing or null value is empty, a text itself, everything else its JSON.
    """
    header = list(dict.fromkeys(key for row in _rows(chunks()) for key in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(header)
    for row in _rows(chunks()):
        writer.writerow([_cell(row.get(key)) for key in header])
        if text.tell() > 1 << 20:
            yield text.getvalue().encode("utf-8", "replace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "replace")


def _rows(chunks: Iterable[bytes]) -> Iterator[dict[str, object]]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    for chunk in chunks:
        for line in chunk.splitlines():
            yield decode(line)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
