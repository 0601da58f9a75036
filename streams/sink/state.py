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
    b"f" number:8         rows before:4, and a key that has changed, in the order of the changes; for stores
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
import xxhash
from rocksdict import WriteBatch

from crawlog.streams import crash_points, files
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.sink_groups import AGAIN, SINK_FILE, SinkSpec, ordered_again
from crawlog.streams.stores import CHANGES_BYTES, MOST_CHANGES, Feed, KeyRows, RowChanges, feed_of

from .batch import BLOCK, LENGTH, RAW_VERSION, START, VERSION, Block, Entry, MadeMeta, SinkBatch, SinkMeta
from .made import PipelineRows, RawBatch, joined, made_length, pieces, write_at
from .state_folder import ITEMS, Final, database, final_of, final_path, lock_file, locked

WRITE_FAILED = "Writer has previous error"  # RocksDB's error after a failed write, until the database is opened again


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
        self.made: PipelineRows | None = None
        files.own(self._folder.parent)
        files.own(self._folder)
        with ExitStack() as failed:
            self._lock = locked(self._folder / "lock")
            failed.callback(os.close, self._lock)
            files.write(self._folder / SINK_FILE, msgspec.json.encode(sink))
            self._db = database(self._folder)
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

    @property
    def feed(self) -> Feed:
        """What a store gets of this state."""
        return self.feed_for(self.sink)

    def feed_for(self, sink: SinkSpec) -> Feed:
        """The same for another output of its job: what counts, and which of several fillings this is."""
        counting = sink.epoch, sink.voids, sink.fill, self.meta.fills
        return feed_of(sink.job, self.meta.log, counting, f"{self.meta.serial} {sink.fill}")

    @property
    def changed(self) -> int:
        """Number of the last change that stores are to take."""
        return self.made.meta.changes if self.made else self.meta.changes

    def changes(self, after: int, most: int = MOST_CHANGES) -> RowChanges:
        """The changes behind a number, the newest rows of each key once; its end is `after` if there are none.

        A key whose rows the pipelines have not made yet is left out: they note it when they have.
        """
        found: dict[bytes, KeyRows] = {}
        size, end = 0, after
        noted = self._db.read(b"f" + START.pack(after + 1), b"g", most)
        keys = [value[LENGTH.size :] for _, value in noted]
        blocks = self._db.get_many([b"k" + key for key in keys])
        for (row, value), key, stored in zip(noted, keys, blocks, strict=True):
            end, (before,) = START.unpack_from(row, 1)[0], LENGTH.unpack_from(value)
            block = Block(*BLOCK.unpack(stored)) if stored else Block(0, 0, 0, 0, 0, 0)
            rows = self.made.of(block) if self.made else os.pread(self._file, block.length, block.start)
            if key in found:
                found[key] = found[key]._replace(before=max(before, found[key].before))
            if rows is None or key in found:
                continue
            found[key] = KeyRows(key, block[:2], rows, before)
            size += len(rows)
            if size >= CHANGES_BYTES:
                break
        return RowChanges(after, end, [*found.values()])

    def note_final(self, made: Path, other: SinkSpec | None = None) -> None:
        """Note the file that becomes FILE next, or that of another output without a state."""
        there = made.stat()
        rows, stats = (self.made.rows, self.made.meta.stats) if self.made else (self.meta.rows, {})
        spec, at = other or self.sink, self.meta.offsets
        final = Final(there.st_size, there.st_mtime_ns, at, rows, spec.formulas, stats, spec.layout)
        files.write(final_path(self._folder, other), msgspec.json.encode(final))

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
                    self.made = PipelineRows(self._db, self._rows, rows, file)
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
            return SinkMeta(log or LogIdentity("", ""), serial=uuid.uuid4().hex)
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
            self.made = PipelineRows(self._db, self._rows, file, self._file)
        except BaseException:
            os.close(file)
            raise

    def _read_again(self) -> None:
        """Do what a replay, or the recovery of a cut log, has ordered."""
        ordered = ordered_again(self._folder)
        if ordered is None:
            return
        if ordered.anew:
            fills = self.meta.fills + 1
            self.begin_again()
            self.meta.fills = fills
        self.move(ordered.offsets)
        (self._folder / AGAIN).unlink()  # killed before, the next opening does it once more

    def _batch(self) -> SinkBatch:
        if self.made is None:
            return SinkBatch(self._db, self.meta, notes=self.sink.is_store)
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
            lock_file(file, f"{path} is being written by another job")
        except RetryLater:
            os.close(file)
            raise
        return file

    def _forgotten(self, log: LogIdentity, *, raw: bool, gaps: Iterable[tuple[int, int, int]] = ()) -> SinkMeta:
        """Begin again from offset 0."""
        changes = WriteBatch(raw_mode=True)
        changes.delete_range(b"", b"\xff")  # in place: a database that was removed may not open again
        serial = uuid.uuid4().hex
        self._write(changes, SinkMeta(log, RAW_VERSION if raw else VERSION, raw=raw, gaps=[*gaps], serial=serial))
        return self.meta

    def _write(self, changes: WriteBatch, meta: SinkMeta, made: MadeMeta | None = None) -> None:
        changes.put(b"m", msgspec.json.encode(meta))
        if self.made and made:
            self.made.write(changes, made)
        else:
            self._db.apply(changes)
        crash_points.point("sink.state.written")
        self.meta = meta
