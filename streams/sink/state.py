"""A sink's state: the fold of crawl.items into one file of rows, with the newest items of each key.

Reads crawl.items; writes FILE.partial, and a RocksDB in the data folder. Invariant: the database never names bytes that
the file does not have. Rows are written first; then one batch writes their places, the input offsets and the file's
length. At the start the file is cut to that length. If that is impossible (the file is shorter, missing, or of another
log), the state is emptied and filled again from offset 0: crawl.items is kept.

Superseded rows stay in the partial file; `finalise` leaves them out.

    b"m"                  JSON of `SinkMeta`: the log, the offsets, the length of the file
    b"k" URL [ID]         its newest items: page partition, page offset, start, length, digest, rows
    b"s" start:8          length:4, of the live blocks in the file's order
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import xxhash
from rocksdict import BlockBasedOptions, Cache, Options, WriteBatch

from crawlog.streams import crash_points, files
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.log import SINK_FILE, LogIdentity, SinkSpec, known_sinks
from crawlog.streams.state import Rocks, set_aside

from .batch import LENGTH, START, VERSION, Entry, SinkBatch, SinkMeta

FINAL = "final.json"
"""File with `Final`, in the folder of the sink's state."""

LOCK_S = 1.0
"""Pause before the next try at a lock that another process holds, seconds."""

OPEN_S = 1.0
"""Pause before opening a state again after the machine failed, such as on a full disk, seconds."""

READ_BYTES = 1 << 20
MEMORY_BYTES = 4 << 20
"""Of each of RocksDB's two write buffers and of its cache: a row is 100 bytes."""


class Final(msgspec.Struct, frozen=True):
    """The file made last: size and time tell whether it is unchanged; the offsets tell which records it holds.

    Attributes:
        formulas: As in the sink's `SinkSpec`. Older crawlogs did not write this field, and kept all formulas.
    """

    size_bytes: int
    modified_ns: int
    offsets: dict[int, int]
    rows: int = 0
    formulas: bool = True

    def is_at(self, path: Path) -> bool:
        """Whether the file is unchanged since then."""
        with suppress(OSError):
            there = path.stat()
            return (there.st_size, there.st_mtime_ns) == (self.size_bytes, self.modified_ns)
        return False


class SinkState:
    """The open state of one sink; a lock keeps other processes out.

    Args:
        log: The crawl.items that it must be a fold of: a state of another log is emptied. None accepts any.

    Raises: RetryLater: another process has the state, or writes the same file. Unusable: the state is damaged, or of
        another version; every method raises this, too. Misconfigured: the file cannot be written.
    """

    def __init__(self, data: Path, sink: SinkSpec, log: LogIdentity | None) -> None:
        self.sink = sink
        self._folder = sink.folder(data)
        self.path = sink.partial(data)
        files.own(self._folder.parent)
        files.own(self._folder)
        self._lock = _locked(self._folder / "lock")
        try:
            _replace(self._folder / SINK_FILE, msgspec.json.encode(sink))
            self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self.meta = self._checked(log)
            self._file = self._fitted()
        except BaseException:
            self._db.close()
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and the database, then let go of the lock."""
        os.close(self._file)
        self._db.close()
        os.close(self._lock)

    def fold(self, records: Iterable[tuple[int, int, Entry | None]]) -> int:
        """Take records, in the order of each partition: append rows to the file, then write one batch to the state.

        After an exception nothing has changed, and the call may be repeated.

        Args:
            records: (partition, offset, entry); None for a record that holds nothing for this sink.

        Returns: The number of rows written.
        """
        batch = SinkBatch(self._db, self.meta)
        for partition, offset, found in records:
            batch.take(partition, offset, found)
        blocks = b"".join(batch.blocks)
        if blocks:
            crash_points.point("sink.rows.writing")
            _write_at(self._file, blocks, self.meta.length)
            crash_points.point("sink.rows.written")
        if batch.meta != self.meta:
            self._write(batch.changes, batch.meta)
        return batch.written

    def live(self) -> Iterator[tuple[int, int]]:
        """(start, length) of the rows that are not superseded, in the file's order; neighbours are joined.

        Raises: Unusable: the state is damaged.
        """
        start = end = 0
        for key, value in self._db.scan(b"s"):
            at, length = START.unpack_from(key, 1)[0], LENGTH.unpack(value)[0]
            if at != end:
                if end > start:
                    yield start, end - start
                start = at
            end = at + length
        if end > start:
            yield start, end - start

    def chunks(self) -> Iterator[bytes]:
        """The newest rows, JSON lines, in pieces that end with a row.

        Raises: Unusable: the state or the partial file is damaged: the rows do not have the bytes and the number that
            the state names. Damage of the state is raised before the first piece.
        """
        live = sum(length for _, length in self.live())
        if live != self.meta.live:
            self._db.condemn(f"it has {live} bytes of rows, and should have {self.meta.live}")
        rows = 0
        for start, length in self.live():
            for piece in _pieces(self._file, start, length):
                rows += piece.count(b"\n")
                yield piece
        if rows != self.meta.rows:
            self._db.condemn(f"{self.path} has {rows} rows, and should have {self.meta.rows}")

    def note_final(self, made: Path) -> None:
        """Note the file that becomes FILE next."""
        there = made.stat()
        final = Final(there.st_size, there.st_mtime_ns, self.meta.offsets, self.meta.rows, self.sink.formulas)
        _replace(self._folder / FINAL, msgspec.json.encode(final))

    def begin_again(self) -> None:
        """Remove all rows; crawl.items is then read from offset 0."""
        self._forgotten(self.meta.log)
        os.ftruncate(self._file, 0)

    def move(self, offsets: Mapping[int, int]) -> None:
        """Read on from other offsets. The rows stay; a record that is read twice changes nothing."""
        moved = msgspec.structs.replace(self.meta, offsets={**self.meta.offsets, **offsets})
        self._write(WriteBatch(raw_mode=True), moved)

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power cut."""
        os.fsync(self._file)

    def _open(self) -> Rocks:
        table = BlockBasedOptions()
        table.set_block_cache(Cache(MEMORY_BYTES))
        table.set_bloom_filter(10, block_based=False)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(MEMORY_BYTES)
        options.set_max_write_buffer_number(2)
        options.set_max_open_files(64)
        options.set_keep_log_file_num(1)
        try:
            return Rocks(state_of(self._folder), options)
        except Unusable:
            raise
        except Exception as error:  # rocksdict raises nothing narrower
            raise RetryLater(f"the sink's state in {self._folder} cannot be opened: {error}", OPEN_S) from error

    def _checked(self, log: LogIdentity | None) -> SinkMeta:
        raw = self._db.get(b"m")
        if raw is None and next(self._db.scan(b""), None) is None:
            return SinkMeta(log or LogIdentity("", ""))
        try:
            meta = msgspec.json.decode(raw or b"", type=SinkMeta)
        except msgspec.DecodeError as error:
            raise Unusable(f"of another version: {error}") from None
        if meta.version != VERSION:
            raise Unusable(f"of another version: {meta.version}, and this crawlog reads {VERSION}")
        return meta if log is None or meta.log == log else self._forgotten(log)

    def _fitted(self) -> int:
        """The partial file, cut to where the state is; or all begins again."""
        file = self._opened()
        start, length, digest = self.meta.tail
        if (
            os.fstat(file).st_size < self.meta.length
            or xxhash.xxh3_64_intdigest(os.pread(file, length, start)) != digest
        ):
            self.meta = self._forgotten(self.meta.log)
        os.ftruncate(file, self.meta.length)
        return file

    def _opened(self) -> int:
        output, final = Path(self.sink.output), final_of(self._folder)
        try:
            if final and final.size_bytes == self.meta.length and final.is_at(output) and not self.path.exists():
                shutil.copyfile(output, self.path)  # FILE was the partial file: go on from a copy
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Misconfigured(f"cannot write {self.path}: {error.strerror}") from None
        try:
            _lock(file, f"{self.path} is being written by another job")
        except RetryLater:
            os.close(file)
            raise
        return file

    def _forgotten(self, log: LogIdentity) -> SinkMeta:
        """Begin again from offset 0."""
        self._db.close()
        shutil.rmtree(state_of(self._folder))
        self._db = self._open()
        self._write(WriteBatch(raw_mode=True), SinkMeta(log))
        return self.meta

    def _write(self, changes: WriteBatch, meta: SinkMeta) -> None:
        changes.put(b"m", msgspec.json.encode(meta))
        self._db.apply(changes)
        crash_points.point("sink.state.written")
        self.meta = meta


def state_of(folder: Path) -> Path:
    """The database in a sink's folder."""
    return folder / "state"


def empty(data: Path, sink: SinkSpec) -> Path:
    """Set the state of a sink aside, so that its file is filled again from offset 0; returns its new place.

    Raises: RetryLater: another process has it.
    """
    folder = sink.folder(data)
    lock = _locked(folder / "lock")
    try:
        return set_aside(state_of(folder))
    finally:
        os.close(lock)


def forget_others(data: Path, sink: SinkSpec) -> list[SinkSpec]:
    """Remove the states that are of no use beside `sink`, which is open; returns their sinks.

    Another state of this FILE would find it cut, and begin again. In a store, or on standard output, only states of the
    same job end: they are of earlier epochs.
    """
    ended = [
        other
        for other in known_sinks(data)
        if other.id != sink.id and other.output == sink.output and (sink.is_file or other.job == sink.job)
    ]
    removed = []
    for other in ended:
        folder = other.folder(data)
        with suppress(RetryLater, FileNotFoundError):
            lock = _locked(folder / "lock")
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(other)
    return removed


def final_of(folder: Path) -> Final | None:
    """The note about the file made last; None when there is none."""
    try:
        return msgspec.json.decode((folder / FINAL).read_bytes(), type=Final)
    except (OSError, ValueError):
        return None


def _replace(path: Path, content: bytes) -> None:
    made = path.with_suffix(".new")
    made.write_bytes(content)
    made.replace(path)


def _locked(path: Path) -> int:
    file = files.opened(path, os.O_RDWR | os.O_CREAT)
    try:
        _lock(file, f"another sink worker has {path.parent}")
    except RetryLater:
        os.close(file)
        raise
    return file


def _lock(file: int, held: str) -> None:
    """Lock the file until it is closed; the end of the process closes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RetryLater(held, LOCK_S) from None


def _write_at(file: int, content: bytes, at: int) -> None:
    view = memoryview(content)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done


def _pieces(file: int, start: int, length: int) -> Iterator[bytes]:
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
