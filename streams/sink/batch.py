"""From records of crawl.items to changes of a sink's state: `entry` reads one record, `SinkBatch` gathers many.

The file gets the new rows (`blocks`); the database gets their places (`changes`). Both belong to one write.
"""

from struct import Struct as Layout
from typing import NamedTuple

import msgspec
import xxhash
from rocksdict import WriteBatch

from crawlog.schemas import items
from crawlog.streams.log import LogIdentity, SinkSpec
from crawlog.streams.printable import one_line
from crawlog.streams.state import Rocks

VERSION = 1
"""Of a sink's state, counted up where an older crawlog could not read it."""

START = Layout(">Q")
LENGTH = Layout(">I")

_EMPTY = xxhash.xxh3_64_intdigest(b"")
_block = Layout(">IQQIQI")


class Entry(NamedTuple):
    """A record of crawl.items, as a sink keeps it.

    Attributes:
        key: The URL, with the request's identity behind it where that is not a plain GET's.
        page: (partition, offset) of the page that the items were parsed from.
        block: Its rows, one JSON line each.
        digest: xxh3_64 of the block.
        rows: Number of rows.
    """

    key: bytes
    page: tuple[int, int]
    block: bytes
    digest: int
    rows: int


class Block(NamedTuple):
    """The place of a key's newest items in the partial file, and the page that they are from."""

    partition: int
    offset: int
    start: int
    length: int
    digest: int
    rows: int


class SinkMeta(msgspec.Struct):
    """The position of a state.

    Attributes:
        log: Cluster id and topic id of its crawl.items.
        offsets: Next input offset of each partition.
        length: Length of the partial file, bytes.
        live: Bytes of the rows that are not superseded.
        rows: Number of these rows.
        tail: Start, length and digest of the last block. It tells our file from another one of that name.
    """

    log: LogIdentity
    version: int = VERSION
    offsets: dict[int, int] = {}
    length: int = 0
    live: int = 0
    rows: int = 0
    tail: tuple[int, int, int] = (0, 0, _EMPTY)


def entry(value: bytes | None, sink: SinkSpec) -> Entry | None:
    """The rows of a record; None when the sink leaves the record out.

    Raises: ValueError: not an item record, or an item is not a JSON object.
    """
    record = items.decode(value)
    if not all(0 <= number < 1 << bits for number, bits in zip(record.page, (32, 64), strict=True)):
        raise ValueError(f"no such page: {record.page}")
    if not sink.wants(record.job, record.epoch, record.page):
        return None
    block = lines(record.items)
    return Entry(_key(record), record.page, block, xxhash.xxh3_64_intdigest(block), len(record.items))


def _key(record: items.ItemsRecord) -> bytes:
    """The record's key without the job. A URL has no space, so two keys are never the same."""
    return items.key("", record.url, record.id)[1:]


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


class SinkBatch:
    """The changes that several records make in a state; nothing is written here."""

    def __init__(self, db: Rocks, meta: SinkMeta) -> None:
        self.meta = msgspec.structs.replace(meta, offsets=dict(meta.offsets))
        self.changes = WriteBatch(raw_mode=True)
        self.blocks: list[bytes] = []
        self.written = 0
        self._db = db
        self._known: dict[bytes, Block] = {}

    def take(self, partition: int, offset: int, found: Entry | None) -> None:
        """Take one record; a record below the state's offset changes nothing."""
        if offset < self.meta.offsets.get(partition, 0):
            return
        self.meta.offsets[partition] = offset + 1
        if found is None:
            return
        stored = self._stored(found.key)
        if stored is None:
            self._put(found, self._append(found))
        elif found.page < (stored.partition, stored.offset):
            return
        elif (found.digest, len(found.block)) == (stored.digest, stored.length):
            self._put(found, stored)
        else:
            self._drop(stored)
            self._put(found, self._append(found))

    def _stored(self, key: bytes) -> Block | None:
        if key in self._known:
            return self._known[key]
        raw = self._db.get(b"k" + key)
        return None if raw is None else Block(*_block.unpack(raw))

    def _put(self, found: Entry, at: Block) -> None:
        block = at._replace(partition=found.page[0], offset=found.page[1])
        self._known[found.key] = block
        self.changes.put(b"k" + found.key, _block.pack(*block))

    def _append(self, found: Entry) -> Block:
        start, length = self.meta.length, len(found.block)
        if length:
            self.blocks.append(found.block)
            self.changes.put(b"s" + START.pack(start), LENGTH.pack(length))
            self.meta.tail = (start, length, found.digest)
        self.meta.length += length
        self.meta.live += length
        self.meta.rows += found.rows
        self.written += found.rows
        return Block(0, 0, start, length, found.digest, found.rows)

    def _drop(self, stored: Block) -> None:
        if stored.length:
            self.changes.delete(b"s" + START.pack(stored.start))
        self.meta.live -= stored.length
        self.meta.rows -= stored.rows
