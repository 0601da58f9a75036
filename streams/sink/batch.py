"""From records of crawl.items to changes of a sink's state: `entry` reads one record, `SinkBatch` gathers many.

The file gets the new rows (`blocks`); the database gets their places (`changes`). Both belong to one write.
"""

import base64
from struct import Struct as Layout
from typing import Any, NamedTuple

import msgspec
import xxhash
from rocksdict import WriteBatch

from crawlog.schemas import items
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.printable import one_line
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.state import Rocks

VERSION = 1  # Of a sink's state, counted up where an older crawlog could not read it

RAW_VERSION = 3  # Of the state of a sink of raw items

TAGGED, PLAIN = b"~", b"="  # First byte of a line of raw items: an item as scraped, or one that was a row already

START = Layout(">Q")
LENGTH = Layout(">I")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_EMPTY = xxhash.xxh3_64_intdigest(b"")
BLOCK = Layout(">IQQIQI")


class RawItems(Exception):  # no error: the sink becomes one of raw items
    """A record has items as scraped, and the state has rows only."""


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


def change(number: int, key: bytes, before: int = 0) -> tuple[bytes, bytes]:
    """The row that notes a change of a key, and how many rows it had before."""
    return b"f" + START.pack(number), LENGTH.pack(before) + key


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
        raw: Whether the file has items as scraped, of which pipelines make the rows.
        gaps: Partition, start and end of records of crawl.items that were gone before they were read, until the rows of
            their pages are there.
        serial: Of the state: another one, with other numbers of changes, has another serial.
        changes: Number of the last change of a key that was noted for stores.
        fills: How often a replay emptied the state.
    """

    log: LogIdentity
    version: int = VERSION
    offsets: dict[int, int] = {}
    length: int = 0
    live: int = 0
    rows: int = 0
    tail: tuple[int, int, int] = (0, 0, _EMPTY)
    raw: bool = False
    gaps: list[tuple[int, int, int]] = []
    serial: str = ""
    changes: int = 0
    fills: int = 0


class MadeMeta(msgspec.Struct):
    """How far the pipelines are.

    Attributes:
        at: Offset in the file of raw items up to which they became rows.
        length, live, rows, tail: Of FILE.partial, as in `SinkMeta`.
        is_stale: Whether raw items were replaced that had entered the pipelines.
        is_closed: Whether the pipelines were closed behind all raw items up to `at`.
        stats: Stats that the pipelines counted, by name.
        reason: With which they were closed last.
        changes: As in `SinkMeta`, of the rows that the pipelines made.
    """

    at: int = 0
    length: int = 0
    live: int = 0
    rows: int = 0
    tail: tuple[int, int, int] = (0, 0, _EMPTY)
    is_stale: bool = False
    is_closed: bool = False
    stats: dict[str, float] = {}
    reason: str = ""
    changes: int = 0


def entry(value: bytes | None, sink: SinkSpec, *, raw: bool = False, plain: bool = False) -> Entry | None:
    """The rows of a record; None when the sink leaves the record out.

    Args:
        raw: Whether the sink keeps raw items.
        plain: Whether raw items become rows as they are, without pipelines.

    Raises: ValueError: not an item record, or an item is not a JSON object. RawItems: of raw items, for other sinks.
    """
    record = items.decode(value)
    if not all(0 <= number < 1 << bits for number, bits in zip(record.page, (32, 64), strict=True)):
        raise ValueError(f"no such page: {record.page}")
    if not sink.wants(record.job, record.epoch, record.page):
        return None
    if record.raw and not (raw or plain):
        raise RawItems
    mark = b"" if not raw else TAGGED if record.raw else PLAIN
    gave = record.items if not plain else plain_rows(record)
    if sink.is_store and record.change == "gone":  # `on_gone` says what becomes of the rows that it had
        gave = []
    block = lines(gave, mark)
    return Entry(_key(record), record.page, block, xxhash.xxh3_64_intdigest(block), len(gave))


def _key(record: items.ItemsRecord) -> bytes:
    """The record's key without the job. A URL has no space, so two keys are never the same."""
    return items.key("", record.url, record.id)[1:]


def plain_rows(record: items.ItemsRecord) -> list[msgspec.Raw]:
    """The rows of a record without the marks of a spider's values, each of them one line.

    Raises: ValueError: an item is not a JSON object.
    """
    rows = (plain_row(bytes(one)) if record.raw else bytes(one) for one in record.items)
    return [msgspec.Raw(_line(row)) for row in rows]


def plain_row(item: bytes) -> bytes:
    """The row of a raw item, without the spider's classes: `{"$object": ["shop:Book", {"n": 1}]}` ─► `{"n": 1}`.

    `streams/spiders/values.py` has the tags.

    Raises: ValueError: not JSON, or no object.
    """
    row = _plain(_decode(item))
    if not isinstance(row, dict):
        raise ValueError(f"an item is not a JSON object: {item[:80]!r}")  # noqa: TRY004  # the record is wrong
    return _encode(row)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))).startswith("$"):
        return _untagged(tag, value[tag])
    return {key: _plain(one) for key, one in value.items()}


def _untagged(tag: str, content: Any) -> Any:
    if tag in ("$bytes", "$text") and isinstance(content, str):
        return base64.b64decode(content).decode(errors="replace")
    if tag == "$int" and isinstance(content, str):
        return str(int(content, 16))  # not every reader of JSON has integers of this size
    if tag == "$dict" and isinstance(content, list):
        return {str(_plain(key)): _plain(one) for key, one in content}
    if tag == "$timedelta" and isinstance(content, list):
        days, seconds, microseconds = content
        return days * 86_400 + seconds + microseconds / 1e6
    is_of_class = isinstance(content, list) and len(content) == 2 and isinstance(content[0], str)
    if is_of_class and tag not in ("$tuple", "$set", "$frozenset"):
        return _plain(content[1])
    return _plain(content)


def lines(rows: list[msgspec.Raw], mark: bytes = b"") -> bytes:
    """The rows, one on each line, behind a mark. Raises: ValueError: a row is not a JSON object in UTF-8."""
    return b"".join(mark + _line(bytes(row)) + b"\n" for row in rows)


def _line(row: bytes) -> bytes:
    """A row as one line. Raises: ValueError: it is not a JSON object in UTF-8."""
    if row[:1] != b"{":
        raise ValueError(f"an item is not a JSON object: {row[:80]!r}")
    if not row.isascii():
        row.decode()
    if b"\n" in row or b"\r" in row:
        row = msgspec.json.format(row, indent=-1)  # only between its parts: in a text it is \n
    return one_line(row)


class SinkBatch:
    """The changes that several records make in a state; nothing is written here.

    Args:
        notes: Whether the changes of keys are noted, for a store.
    """

    made: MadeMeta | None = None
    """How far pipelines are after the batch."""

    def __init__(self, db: Rocks, meta: SinkMeta, *, notes: bool = False) -> None:
        self._notes = notes
        self.meta = msgspec.structs.replace(meta, offsets=dict(meta.offsets))
        self.changes = WriteBatch(raw_mode=True)
        self.blocks: list[bytes] = []
        self.written = 0
        self._db = db
        self._known: dict[bytes, Block] = {}
        self._source = (0, 0)

    def take(self, partition: int, offset: int, found: Entry | None) -> None:
        """Take one record; a record below the state's offset changes nothing."""
        if offset < self.meta.offsets.get(partition, 0):
            return
        self.meta.offsets[partition] = offset + 1
        if found is None:
            return
        self._source = (partition, offset)
        stored = self._stored(found.key)
        if stored is None:
            self._put(found, self._append(found))
            if found.block:
                self._note(found, 0)
        elif found.page < (stored.partition, stored.offset):
            return
        elif self._is_same(found, stored):
            self._put(found, stored)
        else:
            self._drop(stored)
            self._put(found, self._append(found))
            self._note(found, stored.rows)

    def _note(self, found: Entry, before: int) -> None:
        """Note that a key has changed, and its rows before."""
        if self._notes:
            self.meta.changes += 1
            self.changes.put(*change(self.meta.changes, found.key, before))

    def _is_same(self, found: Entry, stored: Block) -> bool:
        return (found.digest, len(found.block)) == (stored.digest, stored.length)

    def _stored(self, key: bytes) -> Block | None:
        if key in self._known:
            return self._known[key]
        raw = self._db.get(b"k" + key)
        return None if raw is None else Block(*BLOCK.unpack(raw))

    def _put(self, found: Entry, at: Block) -> None:
        block = at._replace(partition=found.page[0], offset=found.page[1])
        self._known[found.key] = block
        self.changes.put(b"k" + found.key, BLOCK.pack(*block))

    def _append(self, found: Entry) -> Block:
        start, length = self.meta.length, len(found.block)
        if length:
            self.blocks.append(found.block)
            self.changes.put(b"s" + START.pack(start), LENGTH.pack(length) + self._origin(found))
            self.meta.tail = (start, length, found.digest)
        self.meta.length += length
        self.meta.live += length
        self.meta.rows += found.rows
        self.written += found.rows
        return Block(0, 0, start, length, found.digest, found.rows)

    def _origin(self, found: Entry) -> bytes:  # noqa: ARG002  # sinks of raw items use it
        """What a state of raw items notes of a block's record."""
        return b""

    def _drop(self, stored: Block) -> None:
        if stored.length:
            self.changes.delete(b"s" + START.pack(stored.start))
        self.meta.live -= stored.length
        self.meta.rows -= stored.rows
