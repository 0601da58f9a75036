"""Damage to the files of a broker's log, batch by batch, while it runs: it hands out what its files hold."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crawlog.streams.engine.engine import Engine

HEAD_BYTES = 12
"""A batch's first offset and its length; the length counts from here."""


class Batch(NamedTuple):
    """Where a batch lies."""

    file: Path
    offset: int
    start: int
    size: int


def batches(engine: Engine | Path, topic: str, partition: int) -> list[Batch]:
    """Those of a partition, in their order; of an engine or its data folder."""
    found = []
    data = engine if isinstance(engine, Path) else engine.data
    for file in sorted((data / "kafka" / "log" / f"{topic}-{partition}").glob("*.log")):
        content, at = file.read_bytes(), 0
        while at + HEAD_BYTES <= len(content):
            offset, length = struct.unpack_from(">qi", content, at)
            if not length:  # the file is longer than what was written
                break
            found.append(Batch(file, offset, at, HEAD_BYTES + length))
            at += HEAD_BYTES + length
    return found


def write(batch: Batch, at: int, data: bytes) -> None:
    """Overwrite bytes of a batch, from its start or, where `at` is negative, from its end."""
    with batch.file.open("r+b") as file:
        file.seek(batch.start + at % batch.size)
        file.write(data)


def flip_record(batch: Batch) -> None:
    """Change what a record holds: the batch's CRC shows it."""
    write(batch, -10, b"\xff\xfe\xff")


def flip_magic(batch: Batch) -> None:
    """Change the version of the batch's format, which no CRC covers."""
    write(batch, 16, b"\x07")


def shorten(batch: Batch) -> None:
    """Change the batch's length to one that no batch has: the broker itself refuses it."""
    write(batch, 8, struct.pack(">i", 5))


def misplace(batch: Batch) -> None:
    """Change the batch's first offset, which no CRC covers, to one behind the log's end."""
    write(batch, 0, struct.pack(">q", 1 << 40))


def cut_in_half(batch: Batch) -> None:
    """End the file in the middle of a batch."""
    with batch.file.open("r+b") as file:
        file.truncate(batch.start + batch.size // 2)


def overflow(batch: Batch) -> None:
    """Change the batch's first offset to one too large for the file's index: no broker starts with it."""
    write(batch, 4, b"\xff")


def shift(batch: Batch) -> None:
    """Change the batch's first offset to one that the log has, further on."""
    write(batch, 0, struct.pack(">q", batch.offset + 2))


def repeat(batch: Batch) -> None:
    """Claim an offset that an earlier batch has."""
    write(batch, 0, struct.pack(">q", batch.offset - 2))


WAYS: dict[str, Callable[[Batch], None]] = {
    "record": flip_record,
    "magic": flip_magic,
    "length": shorten,
    "offset-past-the-end": misplace,
    "offset": shift,
    "offset-too-large": overflow,
    "offset-too-small": repeat,
}
