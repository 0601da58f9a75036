"""The files of the local engine's log, read while no broker runs: where each is damaged, and what lies behind that.

A file of records is batch after batch: `first offset: 8 bytes, length of the rest: 4, leader epoch: 4, version: 1, CRC:
4, …`. A broker that checks a file ends it before the first batch that is damaged. What is behind is lost to readers of
the log, whole batches too. So it is written down first, one JSON object a line. No CRC covers a batch's first offset,
and a broker does not start with one that its file cannot hold: such a file is ended here.

    {"cut": "crawl.urls", "partition": 3, "offset": 17, "end": 24, "bytes": 2048, "readable": 5}
    {"topic": "crawl.urls", "partition": 3, "offset": 18, "key": "example.com", "job": "j", "urls": [...], "value": …}

`value` is there for records of crawl.urls alone, which can be given to the log again: they hold founds.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import msgspec
from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecord
from aiokafka.record.memory_records import MemoryRecords

from crawlog.schemas import items, pages
from crawlog.schemas import urls as u

_HEAD = struct.Struct(">qiibI")
"""First offset, length of what comes behind it, leader epoch, version, CRC."""

PREFIX_BYTES = 12
"""Of a batch, before what its length counts."""

VERSION = 2
"""Of batches; Kafka 4 writes no other."""

OFFSETS = 1 << 31
"""In one file, at most: its index has four bytes for each."""

LEAST_BYTES = 49
"""Of a batch's length: its head without a record."""


class SegmentBatch(NamedTuple):
    """A batch as its head tells; `records` is None where it is damaged, and `next` 0 where nothing can be read behind.

    Attributes:
        offset, end: Its first offset, and the one behind its last.
        next: Where the next batch begins in the file.
    """

    offset: int
    end: int
    next: int
    records: list[DefaultRecord] | None


class CutOff(msgspec.Struct):
    """What a partition is about to lose.

    Attributes:
        offset: The first record that cannot be read.
        end: The offset behind the last one that was seen behind it; the same as `offset` where none was.
        bytes: Of its files from there on.
        readable: Records behind it that could be read.
    """

    topic: str
    partition: int
    offset: int
    end: int
    bytes: int
    readable: int

    def __str__(self) -> str:
        """For people."""
        upto = f" to {self.end - 1}" if self.end > self.offset + 1 else " on"
        return (
            f"{self.topic}[{self.partition}] is cut at offset {self.offset}: {self.bytes:,} bytes, records from"
            f" {self.offset}{upto}; {self.readable:,} of them can be read and are written down"
        )


class LostRange(msgspec.Struct, omit_defaults=True):
    """A record behind damage, as far as it can be read.

    Attributes:
        value: Of crawl.urls, as text.
    """

    topic: str
    partition: int
    offset: int
    key: str = ""
    job: str = ""
    urls: list[str] = []
    value: str = ""


class Damage(NamedTuple):
    """The first damage of a partition.

    Attributes:
        file, at: The batch's place.
        stops_brokers: Whether no broker starts with it.
    """

    cut: CutOff
    lost: list[LostRange]
    file: Path
    at: int
    stops_brokers: bool

    def end(self) -> None:
        """End the partition before it. Raises: OSError: the files cannot be written."""
        os.truncate(self.file, self.at)
        for later in self.file.parent.glob("*.log"):
            if later.stem > self.file.stem:
                later.unlink()


def damaged(folder: Path) -> Damage | None:
    """What a partition's folder loses when a broker checks it; None where its files are whole."""
    topic, _, number = folder.name.rpartition("-")
    found: CutOff | None = None
    place = (folder, 0, False)
    lost: list[LostRange] = []
    for path in sorted(folder.glob("*.log")):
        start = last = int(path.stem)
        content, at = _content(path), 0
        if found is not None:
            found.bytes += len(content)
        while 0 <= at < len(content) and any(content[at : at + _HEAD.size]):  # else it is longer than what was written
            batch = _batch(content, at, last, start + OFFSETS)
            if batch.records is None and found is None:
                found = CutOff(topic, int(number), last, last, len(content) - at, 0)
                place = (path, at, not 0 <= _first(content, at, start) - start < OFFSETS)
            if found is not None and batch.records is not None:
                lost += [_lost(topic, int(number), record) for record in batch.records]
                found.end = max(found.end, batch.end)
            at, last = batch.next or -1, max(last, batch.end)
    if found is None:
        return None
    found.readable = len(lost)
    return Damage(found, lost, *place)


def _content(path: Path) -> bytes | mmap:
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ) if path.stat().st_size else b""


def _first(content: bytes | mmap, at: int, otherwise: int) -> int:
    """The first offset that a head tells, if there is one."""
    return int(_HEAD.unpack_from(content, at)[0]) if at + _HEAD.size <= len(content) else otherwise


def _batch(content: bytes | mmap, at: int, offset: int, most: int) -> SegmentBatch:
    """The batch that begins at a place of a file, where this offset is expected, and one below `most` is possible."""
    bad = SegmentBatch(offset, offset, 0, None)
    if at + _HEAD.size > len(content):
        return bad
    first, length, _, version, _ = _HEAD.unpack_from(content, at)
    behind = at + PREFIX_BYTES + length
    if length < LEAST_BYTES or behind > len(content):
        return bad
    skipped = SegmentBatch(offset, offset, behind if _is_head(content, behind, offset) else 0, None)
    if version != VERSION or not offset <= first < most:
        return skipped
    try:
        batch = MemoryRecords(content[at:behind]).next_batch()
        records = list(batch) if batch is not None and batch.validate_crc() else None
    except (KafkaError, ValueError, RuntimeError, OSError):  # what a decompressor makes of it
        records = None
    return (
        SegmentBatch(first, batch.next_offset, behind, records)
        if records is not None and batch is not None
        else skipped
    )


def _is_head(content: bytes | mmap, at: int, offset: int) -> bool:
    """Whether a batch of a later offset seems to begin there."""
    if at + _HEAD.size > len(content):
        return False
    first, length, _, version, _ = _HEAD.unpack_from(content, at)
    return bool(first > offset and length >= LEAST_BYTES and version == VERSION)


def _lost(topic: str, partition: int, record: DefaultRecord) -> LostRange:
    key = (record.key or b"").decode("utf-8", "replace")
    found = LostRange(topic, partition, record.offset, key)
    kind = topic.rpartition(".")[2]
    try:
        if kind == "urls":
            urls = u.decode(record.value)
            found.job = urls.job or ""
            found.urls = [one.url for one in (*(urls.urls or ()), *(urls.results or ()))]
            found.value = (record.value or b"").decode()
        elif kind == "pages":
            meta = pages.decode(dict(record.headers).get(pages.HEADER))
            found.job, found.urls = meta.job, [meta.url]
        elif kind == "items":
            item = items.decode(record.value)
            found.job, found.urls = item.job, [item.url]
    except ValueError:
        pass  # its key and offset are all that is known
    return found


def write_down(folders: Iterable[Path], file: Path) -> list[CutOff]:
    """Writes down what these partitions lose when a broker checks them; no file where that is nothing.

    A partition that would stop the broker is ended here, as the broker ends the others.

    Raises: OSError: it cannot be written.
    """
    found = [one for folder in sorted(folders) if (one := damaged(folder)) is not None]
    if found:
        lines = (line for one in found for line in ({"cut": one.cut.topic, **_plain(one.cut)}, *map(_plain, one.lost)))
        file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        file.chmod(0o600)
    for one in found:
        if one.stops_brokers:
            one.end()
    return [one.cut for one in found]


def _plain(one: CutOff | LostRange) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(one)
    if isinstance(one, CutOff):
        del plain["topic"]
    return plain


def founds(file: Path) -> Iterator[tuple[str, int, u.UrlsRecord]]:
    """Topic, partition and record of the founds that were written down; what became of URLs is left out."""
    for line in file.read_bytes().splitlines():
        one = msgspec.json.decode(line, type=LostRange) if b'"value"' in line else None
        record = u.decode(one.value.encode()) if one is not None else u.UrlsRecord()
        urls = [found for found in record.urls or () if not found.again]
        if record.url is not None:
            urls = [u.FoundUrl(record.url, record.depth, record.priority, record.source, record.parent, record.hops)]
        if one is not None and urls:
            yield one.topic, one.partition, u.UrlsRecord(job=record.job, epoch=record.epoch, urls=urls)
