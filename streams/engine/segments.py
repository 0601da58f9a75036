"""Reads the files of the local engine's log while no broker runs: finds damage, and the records after it.

A file of records is batch after batch: `first offset: 8 bytes, length of the rest: 4, leader epoch: 4, version: 1, CRC:
4, …`. A file is cut before its first damaged batch. Readers lose all records after that, those of undamaged batches
too. So these records are written down first, one JSON object per line. A broker cuts files itself, but only where a CRC
is wrong. No CRC covers a batch's first offset. A broker keeps a batch whose offset falls, and does not start with an
offset that its file cannot hold.

    {"cut": "crawl.urls", "partition": 3, "offset": 17, "end": 24, "bytes": 2048, "readable": 5}
    {"topic": "crawl.urls", "partition": 3, "offset": 18, "key": "example.com", "job": "j", "urls": [...], "value": …}

Only records of crawl.urls have a `value`: they hold founds, which can be written to the log again.

Zeros may follow the last record of a partition: a machine that went down leaves them. All other zeros are damage.
"""

import os
import re
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
from crawlog.streams.batches import PREFIX_BYTES, records_of_batch

_HEAD = struct.Struct(">qiibI")  # First offset, length of the rest, leader epoch, version, CRC

VERSION = 2  # Version of batches; Kafka 4 writes no other

OFFSETS = 1 << 31  # Most offsets in one file: its index has four bytes for each

LEAST_BYTES = 49  # Least value of a batch's length field: the head without records

_LIKE_HEAD = re.compile(rb"\0\0.{14}\x02", re.DOTALL)  # The head of a batch of version 2, with an offset below 2^48

_NOT_ZERO = re.compile(rb"[^\0]")


class SegmentBatch(NamedTuple):
    """A batch, as read from its head.

    Attributes:
        offset, end: Its first offset, and its last offset plus one.
        next: Where the next batch begins in the file; 0 if no batch can be read after it.
        records: None if the batch is damaged.
    """

    offset: int
    end: int
    next: int
    records: list[DefaultRecord] | None


class CutOff(msgspec.Struct):
    """The cut of a partition, before it is made.

    Attributes:
        offset: The first record that cannot be read.
        end: Last offset seen after it, plus one; the same as `offset` if none was seen.
        bytes: Size of the files from there on.
        readable: Records after it that could be read.
    """

    topic: str
    partition: int
    offset: int
    end: int
    bytes: int
    readable: int

    def __str__(self) -> str:
        """The message for the user."""
        upto = f" to {self.end - 1}" if self.end > self.offset + 1 else " on"
        return (
            f"{self.topic}[{self.partition}] is cut at offset {self.offset}: {self.bytes:,} bytes, records from"
            f" {self.offset}{upto}; {self.readable:,} of them can be read and are written down"
        )


class LostRange(msgspec.Struct, omit_defaults=True):
    """A record after damage, as far as it can be read.

    Attributes:
        value: The record's value as text, for crawl.urls only.
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
        file, at: File and position of the first damaged batch.
    """

    cut: CutOff
    lost: list[LostRange]
    file: Path
    at: int

    def end(self) -> None:
        """Cut the partition before the damage, which goes last: a repetition finds it if this one does not end.

        Raises: OSError: the files cannot be written.
        """
        for later in sorted(self.file.parent.glob("*.log"), reverse=True):
            if later.stem > self.file.stem:
                later.unlink()
        os.truncate(self.file, self.at)


def damaged(folder: Path) -> Damage | None:
    """The first damage in a partition's folder; None if there is none, or if Kafka is deleting the folder."""
    topic, _, number = folder.name.rpartition("-")
    if not number.isdecimal():  # `crawl.urls-3.UUID-delete`
        return None
    found: CutOff | None = None
    place = (folder, 0)
    lost: list[LostRange] = []
    paths = sorted(folder.glob("*.log"))
    for path in paths:
        start = last = int(path.stem)
        content, at = _content(path), 0
        if found is not None:
            found.bytes += len(content)
        while 0 <= at < len(content) and not (path == paths[-1] and _NOT_ZERO.search(content, at) is None):
            batch = _batch(content, at, last, start + OFFSETS)
            if batch.records is None and found is None:
                found = CutOff(topic, int(number), last, last, len(content) - at, 0)
                place = (path, at)
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


def _batch(content: bytes | mmap, at: int, offset: int, most: int) -> SegmentBatch:
    """The batch at a position of a file; its first offset must be at least `offset` and below `most`."""
    bad = SegmentBatch(offset, offset, 0, None)
    if at + _HEAD.size > len(content):
        return bad
    if _is_zero(content, at):
        return bad._replace(next=_next_head(content, at, offset, most))
    first, length, _, version, _ = _HEAD.unpack_from(content, at)
    behind = at + PREFIX_BYTES + length
    if length < LEAST_BYTES or behind > len(content):
        return bad
    goes_on = _is_head(content, behind, offset, most) or _is_zero(content, behind)
    skipped = SegmentBatch(offset, offset, behind if goes_on else 0, None)
    if version != VERSION or not offset <= first < most:
        return skipped
    try:
        batch = MemoryRecords(content[at:behind]).next_batch()
        records = records_of_batch(content[at:behind]) if batch is not None and batch.validate_crc() else None
    except (KafkaError, ValueError, RuntimeError, OSError):  # a decompressor may raise any of these
        records = None
    return (
        SegmentBatch(first, batch.next_offset, behind, records)
        if records is not None and batch is not None
        else skipped
    )


def _is_zero(content: bytes | mmap, at: int) -> bool:
    """Whether zeros are where a batch should begin."""
    return not any(content[at : at + _HEAD.size])


def _is_head(content: bytes | mmap, at: int, offset: int, most: int) -> bool:
    """Whether a batch with a later offset, but below `most`, seems to begin there."""
    if at + _HEAD.size > len(content):
        return False
    first, length, _, version, _ = _HEAD.unpack_from(content, at)
    is_inside = length >= LEAST_BYTES and at + PREFIX_BYTES + length <= len(content)
    return bool(offset < first < most and is_inside and version == VERSION)


def _next_head(content: bytes | mmap, at: int, offset: int, most: int) -> int:
    """Where the next batch seems to begin; 0 if none does."""
    found = _LIKE_HEAD.search(content, at)
    while found is not None and not _is_head(content, found.start(), offset, most):
        found = _LIKE_HEAD.search(content, found.start() + 1)
    return found.start() if found is not None else 0


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
            meta = pages.meta_in(record.headers)
            found.job, found.urls = meta.job, [meta.url]
        elif kind == "items":
            item = items.decode(record.value)
            found.job, found.urls = item.job, [item.url]
    except ValueError:
        pass  # only its key and offset are known
    return found


def write_down(folders: Iterable[Path], file: Path) -> list[Damage]:
    """Writes down what lies behind damage in these partitions; no file if there is none.

    Raises: OSError: a file cannot be written.
    """
    found = [one for folder in sorted(folders) if (one := damaged(folder)) is not None]
    if found:
        lines = (line for one in found for line in ({"cut": one.cut.topic, **_plain(one.cut)}, *map(_plain, one.lost)))
        file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        file.chmod(0o600)
    return found


def _plain(one: CutOff | LostRange) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(one)
    if isinstance(one, CutOff):
        del plain["topic"]
    return plain


def founds(file: Path) -> Iterator[tuple[str, int, u.UrlsRecord]]:
    """Topic, partition and record of the founds that were written down; results of URLs are left out."""
    for line in file.read_bytes().splitlines():
        one = msgspec.json.decode(line, type=LostRange) if b'"value"' in line else None
        record = u.decode(one.value.encode()) if one is not None else u.UrlsRecord()
        urls = [found for found in record.urls or () if not found.again]
        if one is not None and urls:
            yield one.topic, one.partition, u.founds_again(record, urls)
