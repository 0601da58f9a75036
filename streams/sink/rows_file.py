"""The file of rows, JSON lines: writing at a place, and reading parts of it in pieces that end with a row."""

import os
from collections.abc import Iterable, Iterator

READ_BYTES = 1 << 20


def write_at(file: int, content: bytes, at: int) -> None:
    """Write all bytes at a place."""
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


def joined(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Places (start, length), neighbours joined to one."""
    start = end = 0
    for at, length in places:
        if at != end:
            if end > start:
                yield start, end - start
            start = at
        end = at + length
    if end > start:
        yield start, end - start


def pieces(file: int, start: int, length: int) -> Iterator[bytes]:
    """Rows in pieces of about READ_BYTES that end with a row; in a damaged file the last piece may not."""
    rest = b""
    for at in range(start, start + length, READ_BYTES):
        piece = rest + os.pread(file, min(READ_BYTES, start + length - at), at)
        cut = piece.rfind(b"\n") + 1
        rest = piece[cut:]
        if cut:
            yield piece[:cut]
    if rest:
        yield rest
