"""From records of crawl.items to changes of a sink's state: `entry` reads one record, `Batch` gathers many changes.

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
        key: The URL.
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
    """Where the newest items of a URL are in the partial file."""

    partition: int
    offset: int
    start: int
    length: int
    digest: int
    rows: int


class Meta(msgspec.Struct):
    """Where a state is.

    Attributes:
        log: Cluster id and topic id of the crawl.items that it is a fold of.
        offsets: Next input offset of each partition.
        length: Of the partial file, bytes.
        live: Of these, bytes that are not superseded.
        tail: Start, length and digest of the last block: another job's file of the same name is not ours.
    """

    log: LogIdentity
    version: int = VERSION
    offsets: dict[int, int] = {}
    length: int = 0
    live: int = 0
    rows: int = 0
    tail: tuple[int, int, int] = (0, 0, _EMPTY)


def entry(value: bytes | None, sink: SinkSpec) -> Entry | None:
    """What a record means for a sink; None when it is not among its rows.

    Raises: ValueError: not an item record, or an item is not a JSON object.
    """
    record = items.decode(value)
    if not all(0 <= number < 1 << bits for number, bits in zip(record.page, (32, 64), strict=True)):
        raise ValueError(f"no such page: {record.page}")
    if not sink.wants(record.job, record.epoch, record.page):
        return None
    block = lines(record.items)
    return Entry(record.url.encode(), record.page, block, xxhash.xxh3_64_intdigest(block), len(record.items))


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


class Batch:
    """Records on their way into a state: what they change, gathered."""

    def __init__(self, db: Rocks, meta: Meta) -> None:
        self.meta = msgspec.structs.replace(meta, offsets=dict(meta.offsets))
        self.changes = WriteBatch(raw_mode=True)
        self.blocks: list[bytes] = []
        self.written = 0
        self._db = db
        self._known: dict[bytes, Block] = {}

    def take(self, partition: int, offset: int, found: Entry | None) -> None:
        """One record; one that was taken before changes nothing."""
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
