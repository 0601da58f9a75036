"""A sink's state: the fold of crawl.items into one file of rows, with the newest items of each key.

Reads crawl.items; writes FILE.partial, and a RocksDB in the data folder. Invariant: the database never names bytes that
the file does not have. Rows are written first; then one batch writes their places, the input offsets and the file's
length. At the start the file is cut to that length. If that is impossible (the file is shorter, missing, or of another
log), the state is emptied and filled again from offset 0: crawl.items is kept.

Superseded rows stay in the partial file; `finalise` leaves them out. Where the job's items pass pipelines, the file of
this fold is `items.partial` in the data folder, with items as scraped, and `made.py` has the rows.

    b"m"                  JSON of `SinkMeta`: the log, the offsets, the length of the file
    b"k" URL [ID]         its newest items: page partition, page offset, start, length, digest, rows
    b"s" start:8          length:4, of the live blocks in the file's order
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

import msgspec
import xxhash
from rocksdict import BlockBasedOptions, Cache, Options, WriteBatch

from crawlog.streams import crash_points, files
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.log import AGAIN, SINK_FILE, LogIdentity, SinkSpec, known_sinks, ordered_again
from crawlog.streams.state import Rocks, set_aside

from .batch import BLOCK, LENGTH, RAW_VERSION, START, VERSION, Block, Entry, MadeMeta, SinkBatch, SinkMeta
from .closing import CLOSE, CLOSED, ITEMS
from .made import MadeRows, RawBatch, joined, made_length, pieces, write_at

FINAL = "final.json"
"""File with `Final`, in the folder of the sink's state."""

LOCK_S = 1.0
"""Pause before the next try at a lock that another process holds, seconds."""

OPEN_S = 1.0
"""Pause before opening a state again after the machine failed, such as on a full disk, seconds."""

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


WRITE_FAILED = "Writer has previous error"
"""RocksDB's error after a failed write, until the database is opened again."""


class _Offsets(msgspec.Struct):
    offsets: dict[int, int] = {}


class SinkState:  # long: each method is one step of a fold on one database and one file
    """The open state of one sink; a lock keeps other processes out.

    Attributes:
        meta: Its position.
        made: The rows that pipelines make; None where rows are written as they come.

    Args:
        log: The crawl.items that it must be a fold of: a state of another log is emptied. None accepts any.

    Raises: RetryLater: another process has the state, or writes the same file. Unusable: the state is damaged, or of
        another version; every method raises this, too. Misconfigured: the file cannot be written.
    """

    def __init__(self, data: Path, sink: SinkSpec, log: LogIdentity | None) -> None:
        self.sink = sink
        self._folder = sink.folder(data)
        self._rows = sink.partial(data)
        self.made: MadeRows | None = None
        files.own(self._folder.parent)
        files.own(self._folder)
        with ExitStack() as failed:
            self._lock = _locked(self._folder / "lock")
            failed.callback(os.close, self._lock)
            _replace(self._folder / SINK_FILE, msgspec.json.encode(sink))
            self._db = _database(self._folder)
            failed.callback(self._db.close)
            self.meta = self._checked(log)
            if sink.pipelines and not self.meta.raw:
                self._forgotten(self.meta.log, raw=True)
            self._file = self._opened(self.path)
            failed.callback(os.close, self._file)  # it has a lock too
            self._fit()
            self._open_made()
            self._read_again()
            failed.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The file that this fold appends to."""
        return self._folder / ITEMS if self.meta.raw else self._rows

    @property
    def close_note(self) -> Path:
        """The run's order to close the pipelines."""
        return self._folder / CLOSE

    @property
    def closed_note(self) -> Path:
        """Where the run hears that they are closed."""
        return self._folder / CLOSED

    @property
    def rows(self) -> int:
        """Rows that count."""
        return self.meta.rows

    @property
    def is_whole(self) -> bool:
        """Whether the file has only rows that count."""
        return self.meta.live == self.meta.length

    def close(self) -> None:
        """Close the files and the database, then let go of the lock, whatever fails."""
        with ExitStack() as closing:
            closing.callback(os.close, self._lock)
            closing.callback(self._close_db)
            closing.callback(os.close, self._file)
            if self.made:
                closing.callback(self.made.close)

    def _close_db(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            if WRITE_FAILED not in str(error):  # the write that failed has raised an error already
                raise

    def fold(self, records: Iterable[tuple[int, int, Entry | None]]) -> int:
        """Take records, in the order of each partition: append rows to the file, then write one batch to the state.

        After an exception nothing has changed, and the call may be repeated.

        Args:
            records: (partition, offset, entry); None for a record that holds nothing for this sink.

        Returns: The number of rows written.
        """
        batch = self._batch()
        for partition, offset, found in records:
            batch.take(partition, offset, found)
        blocks = b"".join(batch.blocks)
        if blocks:
            crash_points.point("sink.rows.writing")
            write_at(self._file, blocks, self.meta.length)
            crash_points.point("sink.rows.written")
        if batch.meta != self.meta:
            self._write(batch.changes, batch.meta, batch.made)
        return batch.written

    def live(self) -> Iterator[tuple[int, int]]:
        """(start, length) of the rows that are not superseded, in the file's order; neighbours are joined.

        Raises: Unusable: the state is damaged.
        """
        return joined(
            (START.unpack_from(key, 1)[0], LENGTH.unpack_from(value)[0]) for key, value in self._db.scan(b"s")
        )

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
            for piece in pieces(self._file, start, length):
                rows += piece.count(b"\n")
                yield piece
        if rows != self.meta.rows:
            self._db.condemn(f"{self.path} has {rows} rows, and should have {self.meta.rows}")

    def note_final(self, made: Path, other: SinkSpec | None = None) -> None:
        """Note the file that becomes FILE next, or that of another output without a state."""
        there = made.stat()
        rows = self.made.rows if self.made else self.meta.rows
        final = Final(there.st_size, there.st_mtime_ns, self.meta.offsets, rows, (other or self.sink).formulas)
        _replace(_final_path(self._folder, other), msgspec.json.encode(final))

    def begin_again(self, *, raw: bool = False) -> None:
        """Remove all rows; crawl.items is then read from offset 0.

        After any other exception than Unusable nothing has changed, and the call may be repeated.

        Args:
            raw: Items are kept as scraped from now on, for pipelines.

        Raises: Unusable: the state has no rows any more, but its files have; it is to be opened anew.
        """
        becomes_raw = raw and not self.meta.raw
        with ExitStack() as failed:
            file = self._file
            if becomes_raw:
                file = self._opened(self._folder / ITEMS)
                failed.callback(os.close, file)
            self._forgotten(self.meta.log, raw=raw or self.meta.raw, gaps=self.meta.gaps)
            failed.pop_all()
            rows, self._file = self._file, file
            if becomes_raw:
                failed.callback(os.close, rows)
            try:
                os.ftruncate(file, 0)
                if becomes_raw:
                    self.made = MadeRows(self._db, self._rows, rows, file)
                elif self.made:
                    self.made = self.made.anew()
            except OSError as error:
                raise Unusable(f"in need of an opening: {error}") from error
            failed.pop_all()

    def move(self, offsets: Mapping[int, int], gaps: list[tuple[int, int, int]] | None = None) -> None:
        """Read on from other offsets, and note other gaps. The rows stay; a record read twice changes nothing."""
        known = self.meta.gaps if gaps is None else gaps
        moved = msgspec.structs.replace(self.meta, offsets={**self.meta.offsets, **offsets}, gaps=known)
        self._write(WriteBatch(raw_mode=True), moved)

    def page_of(self, key: bytes) -> tuple[int, int]:
        """The page that the items of a key are from; (-1, -1) without items."""
        return (-1, -1) if (raw := self._db.get(b"k" + key)) is None else Block(*BLOCK.unpack(raw))[:2]

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power cut."""
        os.fsync(self._file)

    def _checked(self, log: LogIdentity | None) -> SinkMeta:
        raw = self._db.get(b"m")
        if raw is None and next(self._db.scan(b""), None) is None:
            return SinkMeta(log or LogIdentity("", ""))
        try:
            meta = msgspec.json.decode(raw or b"", type=SinkMeta)
        except msgspec.DecodeError as error:
            raise Unusable(f"of another version: {error}") from None
        if meta.version != (RAW_VERSION if meta.raw else VERSION):
            raise Unusable(f"of another version: {meta.version}, and this crawlog reads {VERSION}")
        return meta if log is None or meta.log == log else self._forgotten(log, raw=meta.raw)

    def _fit(self) -> None:
        """Cut the partial file to where the state is; or all begins again."""
        file = self._file
        start, length, digest = self.meta.tail
        if (
            os.fstat(file).st_size < self.meta.length
            or xxhash.xxh3_64_intdigest(os.pread(file, length, start)) != digest
        ):
            self._forgotten(self.meta.log, raw=self.meta.raw)
        os.ftruncate(file, self.meta.length)

    def _open_made(self) -> None:
        """Open the rows that pipelines make."""
        if not self.meta.raw:
            return
        file = self._opened(self._rows)
        try:
            self.made = MadeRows(self._db, self._rows, file, self._file)
        except BaseException:
            os.close(file)
            raise

    def _read_again(self) -> None:
        """Do what a replay, or the recovery of a cut log, has ordered."""
        ordered = ordered_again(self._folder)
        if ordered is None:
            return
        if ordered.anew:
            self.begin_again()
        self.move(ordered.offsets)
        (self._folder / AGAIN).unlink()  # killed before, the next opening does it once more

    def _batch(self) -> SinkBatch:
        if self.made is None:
            return SinkBatch(self._db, self.meta)
        return RawBatch(self._db, self.meta, self.made)

    def _opened(self, path: Path) -> int:
        """The file of this fold, or of the rows that pipelines made; FILE may have been it: then a copy."""
        output, final = Path(self.sink.output), final_of(self._folder)
        try:
            if path == self._rows and final and not path.exists() and final.is_at(output):
                length = made_length(self._db) if self.meta.raw else self.meta.length
                if length == final.size_bytes:
                    shutil.copyfile(output, path)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Misconfigured(f"cannot write {path}: {error.strerror}") from None
        try:
            _lock(file, f"{path} is being written by another job")
        except RetryLater:
            os.close(file)
            raise
        return file

    def _forgotten(self, log: LogIdentity, *, raw: bool, gaps: Iterable[tuple[int, int, int]] = ()) -> SinkMeta:
        """Begin again from offset 0."""
        changes = WriteBatch(raw_mode=True)
        changes.delete_range(b"", b"\xff")  # in place: a database that was removed may not open again
        self._write(changes, SinkMeta(log, RAW_VERSION if raw else VERSION, raw=raw, gaps=[*gaps]))
        return self.meta

    def _write(self, changes: WriteBatch, meta: SinkMeta, made: MadeMeta | None = None) -> None:
        changes.put(b"m", msgspec.json.encode(meta))
        if self.made and made:
            self.made.write(changes, made)
        else:
            self._db.apply(changes)
        crash_points.point("sink.state.written")
        self.meta = meta


def _database(folder: Path) -> Rocks:
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
        return Rocks(state_of(folder), options)
    except Unusable:
        raise
    except Exception as error:  # rocksdict raises nothing narrower
        raise RetryLater(f"the sink's state in {folder} cannot be opened: {error}", OPEN_S) from error


def offsets_of(data: Path, sink: SinkSpec) -> dict[int, int]:
    """The next input offset of each partition, of a state that no worker has.

    Raises: RetryLater: another process has it. Unusable: it is damaged.
    """
    folder = sink.folder(data)
    lock = _locked(folder / "lock")
    try:
        with closing(_database(folder)) as database:
            return msgspec.json.decode(database.get(b"m") or b"{}", type=_Offsets).offsets
    finally:
        os.close(lock)


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


def forget_output(data: Path, sink: SinkSpec) -> bool:
    """Remove the state and the partial file of a sink; FILE stays. False if another process has it, or a file stays."""
    folder = sink.folder(data)
    try:
        lock = _locked(folder / "lock")
    except FileNotFoundError:
        return True
    except (RetryLater, OSError):
        return False
    try:
        sink.partial(data).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def final_of(folder: Path, other: SinkSpec | None = None) -> Final | None:
    """The note about the file made last, or about that of another output; None when there is none."""
    try:
        return msgspec.json.decode(_final_path(folder, other).read_bytes(), type=Final)
    except (OSError, ValueError):
        return None


def _final_path(folder: Path, other: SinkSpec | None) -> Path:
    return folder / (f"{other.id}.json" if other is not None else FINAL)


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
