"""Records of the log from its bytes, for aiokafka and for files. Names of headers may have any bytes.

Kafka takes a name that is not UTF-8 from any client. aiokafka raises UnicodeDecodeError for it, after it has moved on
past the records before; so one record would end each worker that reads its partition. Here such bytes become U+FFFD:
the answer is read again in Python, slowly, from the first record that was not given.
"""

import struct
from collections.abc import Iterator
from typing import Any, SupportsIndex, overload

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecord, _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

PREFIX_BYTES = 12  # Bytes of a batch that its length field does not count: first offset and length


class _AnyText(bytearray):
    """Bytes whose slices decode as UTF-8, whatever they are."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> "_AnyText": ...

    def __getitem__(self, at: SupportsIndex | slice) -> "int | _AnyText":
        found = super().__getitem__(at)
        return _AnyText(found) if isinstance(found, bytearray) else found

    def decode(self, *_: object, **__: object) -> str:
        return bytes(self).decode("utf-8", "replace")


class _AnyNames(_DefaultRecordBatchPy):  # type: ignore[misc]  # final for its author; it has no other hook
    """A batch whose names of headers are decoded with U+FFFD for what is not UTF-8."""

    _buffer: bytearray

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _AnyText(self._buffer)


def records_of_batch(content: bytes) -> list[DefaultRecord]:
    """The records of one batch, whose CRC was checked."""
    try:
        batch = MemoryRecords(content).next_batch()
        return list(batch) if batch is not None else []
    except UnicodeDecodeError:
        return list(_AnyNames(content))


class _Answer(MemoryRecords):  # type: ignore[misc]  # so too
    """aiokafka's, which also keeps the bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.content = content


class _AnswerAgain:
    """The batches of an answer that end behind an offset, read in Python."""

    def __init__(self, content: bytes, offset: int) -> None:
        self._content, self._at = content, 0
        while self.has_next() and _AnyNames(self._content[self._at : self._end()]).next_offset <= offset:
            self._at = self._end()

    def _end(self) -> int:
        if self._at + PREFIX_BYTES > len(self._content):
            return len(self._content) + 1
        return int(self._at + PREFIX_BYTES + struct.unpack_from(">i", self._content, self._at + 8)[0])

    def has_next(self) -> bool:
        """Whether the answer holds another whole batch."""
        return self._end() <= len(self._content)

    def next_batch(self) -> _AnyNames:
        """The next batch."""
        start, self._at = self._at, self._end()
        return _AnyNames(self._content[start : self._at])


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types here
    """aiokafka's, which reads an answer again where a name is not UTF-8; it leaves out records that were given."""

    def _unpack_records(self) -> Iterator[Any]:
        content: bytes = self._records.content
        try:
            yield from super()._unpack_records()
        except UnicodeDecodeError:
            self._records: Any = _AnswerAgain(content, self.next_fetch_offset)
            yield from super()._unpack_records()


def take_any_names() -> None:
    """Have aiokafka's consumers read names of any bytes; it has no setting for this."""
    fetcher.MemoryRecords, fetcher.PartitionRecords = _Answer, _PartitionRecords
