"""Rows as a feed of Scrapy's wants them: the ones that it accepts, its fields under their names, its encoding."""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from crawlog.schemas.job_orders import FEEDS_KEY, FeedLayout

from .result_rows import ResultRows

_encode = msgspec.json.Encoder().encode


def laid_out(rows: ResultRows, layout: FeedLayout) -> ResultRows:
    """The rows as an output writes them."""
    if layout.keeps_rows:
        return rows

    def chunks() -> Iterator[bytes]:
        for part in rows.lists(0):
            wanted = (one for one in part if layout.feed in (None, -1, *one.get(FEEDS_KEY, (layout.feed,))))
            if lines := b"".join(_line(row, layout) for row in wanted):
                yield lines

    return ResultRows(chunks, rows.folder)


def _line(row: dict[str, Any], layout: FeedLayout) -> bytes:
    row.pop(FEEDS_KEY, None)
    if layout.fields:
        row = {name: row[key] for key, name in layout.fields if key in row}
    return (json.dumps(row).encode() if layout.encoding else _encode(row)) + b"\n"  # ASCII is in each encoding


def write_text(pieces: Iterable[bytes], out: BinaryIO, layout: FeedLayout) -> None:
    """Write a text format. Each piece ends with a row."""
    if not layout.encoding:
        out.writelines(pieces)
        return
    encode = codecs.getincrementalencoder(layout.encoding)("replace").encode
    out.writelines(encode(piece.decode()) for piece in pieces)
