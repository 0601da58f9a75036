"""Rows that pipelines make of a sink's raw items, kept beside them in the sink's state.

    record ─► RawBatch ─► items.partial ─► blocks ─► pipelines (a child) ─► take ─► FILE.partial
               └ a key's items replaced that had entered the pipelines: all rows are made anew

The raw items lie in their own file, in the order of arrival; the rows lie in FILE.partial in the same order. A row says
which raw items it was made of. Rows are written first; then one batch writes their places and how far the pipelines
are. At the start FILE.partial is cut to that length; if that is impossible, the rows are made anew: the items are kept.

    b"p"                  JSON of `MadeMeta`
    b"r" start:8          of a block of raw items that gave rows: place of the rows
    b"d" start:8          of a block with items that failed: their numbers, as JSON
    b"s" start:8          length:4, page partition:4, offset:8 of the item record, its key
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct as Layout
from typing import NamedTuple

import msgspec
import xxhash
from rocksdict import WriteBatch

from crawlog.schemas.items import add_stats
from crawlog.streams import crash_points
from crawlog.streams.state import Rocks

from .batch import LENGTH, START, Block, Entry, MadeMeta, SinkBatch, SinkMeta, change

_NO_STATS: Mapping[str, float] = {}

MOST_BLOCKS = 200
MOST_BYTES = 1 << 20  # Raw items that are given to the pipelines at a time

READ_BYTES = 1 << 20  # Rows are read in pieces of about this size

_origin = Layout(">IQ")
_place = Layout(">QII")


class RawBlock(NamedTuple):
    """The raw items of one record.

    Attributes:
        start: Offset in the file of raw items.
        partition, offset: Of the record in crawl.items.
        key: Of the record, without the job.
        lines: Its items, each behind its mark.
    """

    start: int
    partition: int
    offset: int
    key: bytes
    lines: list[bytes]


class RawBatch(SinkBatch):
    """A `SinkBatch` of a sink of raw items.

    Args:
        made: How far the pipelines are before the batch.
    """

    def __init__(self, db: Rocks, meta: SinkMeta, made: "PipelineRows") -> None:
        super().__init__(db, meta)
        self.made: MadeMeta = msgspec.structs.replace(made.meta)
        self._taken = 0 if made.goes_on else made.taken

    def _is_same(self, found: Entry, stored: Block) -> bool:
        """Equal items never enter the pipelines again, unless some failed there."""
        return super()._is_same(found, stored) and self._db.get(b"d" + START.pack(stored.start)) is None

    def _note(self, found: Entry, before: int) -> None:
        """Note a key without items; of the others, `PipelineRows.take` notes which rows they became."""
        if not found.block:
            self.made.changes += 1
            self.changes.put(*change(self.made.changes, found.key, before))

    def _origin(self, found: Entry) -> bytes:
        return _origin.pack(*self._source) + found.key

    def _drop(self, stored: Block) -> None:
        super()._drop(stored)
        start = START.pack(stored.start)
        self.changes.delete(b"d" + start)
        if not stored.length:
            return
        self.made.is_stale |= stored.start < self._taken
        if place := self._db.get(b"r" + start):
            _, length, rows = _place.unpack(place)
            self.changes.delete(b"r" + start)
            self.made.live -= length
            self.made.rows -= rows


class PipelineRows:
    """The rows of one sink of raw items, and what the pipelines still have to make.

    Attributes:
        path: The file with the rows so far.
        taken: Offset up to which the pipelines were given raw items.
        goes_on: Whether rows are not made anew when raw items are replaced: the other rows stay.
    """

    def __init__(self, db: Rocks, path: Path, file: int, items: int) -> None:
        self.path = path
        self.goes_on = False
        self._db = db
        self._file = file
        self._items = items
        self.meta = _meta_of(db)
        self.taken = self.meta.at
        start, length, digest = self.meta.tail
        has_rows = os.fstat(file).st_size >= self.meta.length
        if not has_rows or xxhash.xxh3_64_intdigest(os.pread(file, length, start)) != digest:
            self.begin_again()
        os.ftruncate(file, self.meta.length)

    @property
    def rows(self) -> int:
        """Rows that count."""
        return self.meta.rows

    @property
    def is_whole(self) -> bool:
        """Whether the file has only rows that count."""
        return self.meta.live == self.meta.length

    @property
    def is_done(self) -> bool:
        """Whether all raw items became rows, and the pipelines were closed behind them."""
        return self.meta.is_closed and not self.meta.is_stale and not self.has_more

    @property
    def has_items(self) -> bool:
        """Whether there are raw items."""
        return bool(self.meta.at or self._next(1))

    @property
    def has_more(self) -> bool:
        """Whether there are raw items that did not become rows."""
        return self.meta.is_stale or bool(self._next(1))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power cut."""
        os.fsync(self._file)

    def blocks(self, most: int = MOST_BLOCKS) -> list[RawBlock]:
        """The next raw items for the pipelines, in order; empty if there are none now."""
        found: list[RawBlock] = []
        size = 0
        for key, value in self._next(most):
            start, length = START.unpack_from(key, 1)[0], LENGTH.unpack_from(value)[0]
            partition, offset = _origin.unpack_from(value, LENGTH.size)
            lines = os.pread(self._items, length, start).splitlines()
            found.append(RawBlock(start, partition, offset, value[LENGTH.size + _origin.size :], lines))
            self.taken = start + length
            size += length
            if size >= MOST_BYTES:
                break
        return found

    def take(self, made: Iterable[tuple[RawBlock, list[bytes]]], stats: Mapping[str, float] = _NO_STATS) -> None:
        """Append the rows that the pipelines made of blocks, then note how far they are.

        After an exception nothing has changed. Rows of blocks that were replaced meanwhile are left out.
        """
        meta = msgspec.structs.replace(self.meta, is_closed=False, stats=summed(self.meta.stats, stats))
        changes, blocks = WriteBatch(raw_mode=True), list[bytes]()
        for block, rows in made:
            meta.at = block.start + sum(len(line) + 1 for line in block.lines)
            start = START.pack(block.start)
            if self._db.get(b"s" + start) is None:
                continue
            meta.changes += 1
            changes.put(*change(meta.changes, block.key))
            if not rows:
                continue
            text = b"".join(row + b"\n" for row in rows)
            blocks.append(text)
            changes.put(b"r" + start, _place.pack(meta.length, len(text), len(rows)))
            meta.tail = (meta.length, len(text), xxhash.xxh3_64_intdigest(text))
            meta.length += len(text)
            meta.live += len(text)
            meta.rows += len(rows)
        if blocks:
            write_at(self._file, b"".join(blocks), self.meta.length)
            crash_points.point("pipelines.rows.written")
        self.write(changes, meta)
        crash_points.point("pipelines.state.written")

    def untake(self) -> None:
        """The pipelines give no answer for what they were given."""
        self.taken = self.meta.at

    def begin_again(self) -> None:
        """Remove all rows: the pipelines begin with the first raw item."""
        changes = WriteBatch(raw_mode=True)
        changes.delete_range(b"r", b"s")
        self.write(changes, MadeMeta(changes=self.meta.changes))
        self.taken = 0
        os.ftruncate(self._file, 0)

    def anew(self) -> "PipelineRows":
        """The rows of a state that began again. It is another object, so whoever holds this one can tell."""
        return PipelineRows(self._db, self.path, self._file, self._items)

    def go_on(self) -> None:
        """Keep the rows from now on, whatever is replaced."""
        self.goes_on = True
        if self.meta.is_stale:
            self.write(WriteBatch(raw_mode=True), msgspec.structs.replace(self.meta, is_stale=False))

    def closed(self, stats: Mapping[str, float] = _NO_STATS, reason: str = "") -> None:
        """Note that the pipelines were closed, with which reason, and what they counted since the last rows."""
        stats = summed(self.meta.stats, stats)
        meta = msgspec.structs.replace(self.meta, is_closed=True, stats=stats, reason=reason)
        self.write(WriteBatch(raw_mode=True), meta)

    def unclose(self) -> None:
        """Note that the pipelines are to be closed once more."""
        self.write(WriteBatch(raw_mode=True), msgspec.structs.replace(self.meta, is_closed=False))

    def failed(self, block: RawBlock) -> dict[int, str]:
        """The items of a block that failed before, by number, with the errors that crawl.dead has."""
        stored = self._db.get(b"d" + START.pack(block.start))
        return msgspec.json.decode(stored, type=dict[int, str]) if stored else {}

    def fail(self, block: RawBlock, errors: dict[int, str]) -> None:
        """Note that items of a block failed, and that crawl.dead says so."""
        changes = WriteBatch(raw_mode=True)
        changes.put(b"d" + START.pack(block.start), msgspec.json.encode(errors))
        self._db.apply(changes)

    def write(self, changes: WriteBatch, meta: MadeMeta) -> None:
        """Write changes of the state with how far the pipelines are then."""
        changes.put(b"p", msgspec.json.encode(meta))
        self._db.apply(changes)
        self.meta = meta

    def chunks(self) -> Iterator[bytes]:
        """The rows, JSON lines, in pieces that end with a row.

        Raises: Unusable: the state or the file is damaged.
        """
        if (live := sum(length for _, length in self._places())) != self.meta.live:
            self._db.condemn(f"it has {live} bytes of rows, and should have {self.meta.live}")
        rows = 0
        for start, length in joined(self._places()):
            for piece in pieces(self._file, start, length):
                rows += piece.count(b"\n")
                yield piece
        if rows != self.meta.rows:
            self._db.condemn(f"{self.path} has {rows} rows, and should have {self.meta.rows}")

    def of(self, block: Block) -> bytes | None:
        """The rows of a key with this block of raw items; None before the pipelines have made them."""
        if not block.length:
            return b""
        if block.start >= self.meta.at:
            return None
        place = self._db.get(b"r" + START.pack(block.start))
        return b"" if place is None else os.pread(self._file, *reversed(_place.unpack(place)[:2]))

    def _places(self) -> Iterator[tuple[int, int]]:
        """(start, length) of the rows, in the file's order."""
        for key, value in self._db.scan(b"r"):
            if not key.startswith(b"r"):
                return
            start, length, _ = _place.unpack(value)
            yield start, length

    def _next(self, most: int) -> list[tuple[bytes, bytes]]:
        return self._db.read(b"s" + START.pack(self.meta.at), b"t", most)


def summed(stats: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Stats with further changes."""
    sums = dict(stats)
    add_stats(sums, more)
    return sums


def made_length(db: Rocks) -> int:
    """Bytes of rows that FILE.partial must have."""
    return _meta_of(db).length


def _meta_of(db: Rocks) -> MadeMeta:
    return msgspec.json.decode(db.get(b"p") or b"{}", type=MadeMeta)


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
