"""A sink: the fold of crawl.items into one file of rows, with the newest items of each URL.

Reads crawl.items, writes FILE.partial and a RocksDB beside it. The invariant: the state never speaks of bytes that the
file does not have, since rows are written first and the state after them, in one batch: the rows' places, the input
offsets, the file's length. At the start the file is cut to that length. Where it cannot be (shorter, missing, another
log's) all is forgotten and filled again from offset 0: crawl.items is kept.

Superseded rows stay in the partial file until `finalise` leaves them out.

    b"m"                  where this state is: JSON of `Meta`
    b"k" URL              its newest items: page partition, page offset, start, length, digest, rows
    b"s" start:8          length:4, of the live blocks in the file's order
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct as Layout
from typing import BinaryIO, NamedTuple, Self

import msgspec
import xxhash
from rocksdict import BlockBasedOptions, Cache, Options, WriteBatch

from crawlog.streams import crash_points, files
from crawlog.streams.errors import Misconfigured, RetryLater, Unusable
from crawlog.streams.log import SINK, STDOUT, LogIdentity, SinkSpec, Void, known_sinks
from crawlog.streams.state import Rocks, set_aside

from . import formats
from .base import Entry

VERSION = 1
FINAL = "final.json"
LOCK_S = 1.0
"""Pause before asking again for what another process has, seconds."""

OPEN_S = 1.0
"""Pause before opening a state again after the machine failed, such as on a full disk, seconds."""

READ_BYTES = 1 << 20
MEMORY_BYTES = 4 << 20
"""Of each of RocksDB's two write buffers and of its cache: a row is 100 bytes."""

_EMPTY = xxhash.xxh3_64_intdigest(b"")
_block = Layout(">IQQIQI")
_start = Layout(">Q")
_length = Layout(">I")


def sink_of(job: str, output: str, epoch: int = 0, voids: tuple[Void, ...] = (), *, formulas: bool = False) -> SinkSpec:
    """The sink of `-o OUTPUT`.

    Raises: Misconfigured: no such format, or not a place where a file can be written.
    """
    if output == STDOUT:
        return SinkSpec(job, output, epoch, voids, formulas)
    path = Path(output).absolute()
    formats.known(path)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise Misconfigured(f"cannot write {output}: {path.parent} is no folder that can be written to")
    if path.exists() and not path.is_file():
        raise Misconfigured(
            f"cannot write {output}: it is no regular file, and would be replaced by one;"
            " -o - writes to standard output, which may go anywhere"
        )
    return SinkSpec(job, str(path), epoch, voids, formulas)


class Behind(RetryLater):
    """The sink has more of crawl.items to read."""


class Block(NamedTuple):
    """Where the newest items of a URL are in the partial file."""

    partition: int
    offset: int
    start: int
    length: int
    digest: int
    rows: int


class Final(msgspec.Struct, frozen=True):
    """The file that was made: size and time show whether it is still the same; the offsets, what it holds.

    Attributes:
        formulas: As the sink's; a file that does not say so was made when every formula stayed one.
    """

    size_bytes: int
    modified_ns: int
    offsets: dict[int, int]
    rows: int = 0
    formulas: bool = True

    def is_at(self, path: Path) -> bool:
        """Whether the file is still the one that was made."""
        with suppress(OSError):
            there = path.stat()
            return (there.st_size, there.st_mtime_ns) == (self.size_bytes, self.modified_ns)
        return False


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


class Results:
    """The state of one sink, open: one process has it at a time.

    Args:
        log: The crawl.items to be a fold of; None to take it as it is.

    Raises: RetryLater: another process has it, or writes the same file. Unusable: the state is damaged, or of another
        version; every method raises this, too. Misconfigured: a place that cannot be written.
    """

    def __init__(self, data: Path, sink: SinkSpec, log: LogIdentity | None) -> None:
        self.sink = sink
        self._folder = sink.folder(data)
        self.path = sink.partial(data)
        files.own(self._folder.parent)
        files.own(self._folder)
        self._lock = _locked(self._folder / "lock")
        try:
            _replace(self._folder / SINK, msgspec.json.encode(sink))
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
        """Let others have it."""
        os.close(self._file)
        self._db.close()
        os.close(self._lock)

    def fold(self, records: Iterable[tuple[int, int, Entry | None]]) -> int:
        """Take records, in the order of each partition: rows to the file, then one batch to the state.

        When it raises nothing has changed, and it may be called again.

        Args:
            records: (partition, offset, entry); None for a record that holds nothing for this sink.

        Returns: How many rows were written.
        """
        batch = _Batch(self._db, self.meta)
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
        """(start, length) of what is not superseded, in the file's order, neighbours joined.

        Raises: Unusable: the state is damaged.
        """
        start = end = 0
        for key, value in self._db.scan(b"s"):
            at, length = _start.unpack_from(key, 1)[0], _length.unpack(value)[0]
            if at != end:
                if end > start:
                    yield start, end - start
                start = at
            end = at + length
        if end > start:
            yield start, end - start

    def chunks(self) -> Iterator[bytes]:
        """The newest rows, JSON lines, in pieces that end with a row; as many bytes and rows as the state knows of.

        Raises: Unusable: the state or the partial file is damaged. Damage of the state shows before the first piece.
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
        """Remember what is about to become FILE."""
        there = made.stat()
        final = Final(there.st_size, there.st_mtime_ns, self.meta.offsets, self.meta.rows, self.sink.formulas)
        _replace(self._folder / FINAL, msgspec.json.encode(final))

    def begin_again(self) -> None:
        """Forget all rows: crawl.items is read from offset 0."""
        self._forgotten(self.meta.log)
        os.ftruncate(self._file, 0)

    def move(self, offsets: Mapping[int, int]) -> None:
        """Go on reading elsewhere; rows stay, and a record that comes a second time changes nothing."""
        moved = msgspec.structs.replace(self.meta, offsets={**self.meta.offsets, **offsets})
        self._write(WriteBatch(raw_mode=True), moved)

    def sync(self) -> None:
        """What was written survives a power cut."""
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

    def _checked(self, log: LogIdentity | None) -> Meta:
        raw = self._db.get(b"m")
        if raw is None and next(self._db.scan(b""), None) is None:
            return Meta(log or LogIdentity("", ""))
        try:
            meta = msgspec.json.decode(raw or b"", type=Meta)
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

    def _forgotten(self, log: LogIdentity) -> Meta:
        """Begin again from offset 0."""
        self._db.close()
        shutil.rmtree(state_of(self._folder))
        self._db = self._open()
        self._write(WriteBatch(raw_mode=True), Meta(log))
        return self.meta

    def _write(self, changes: WriteBatch, meta: Meta) -> None:
        changes.put(b"m", msgspec.json.encode(meta))
        self._db.apply(changes)
        crash_points.point("sink.state.written")
        self.meta = meta


class _Batch:
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
            self.changes.put(b"s" + _start.pack(start), _length.pack(length))
            self.meta.tail = (start, length, found.digest)
        self.meta.length += length
        self.meta.live += length
        self.meta.rows += found.rows
        self.written += found.rows
        return Block(0, 0, start, length, found.digest, found.rows)

    def _drop(self, stored: Block) -> None:
        if stored.length:
            self.changes.delete(b"s" + _start.pack(stored.start))
        self.meta.live -= stored.length
        self.meta.rows -= stored.rows


def finalise(data: Path, sink: SinkSpec, ends: Mapping[int, int], out: BinaryIO) -> int:
    """Make FILE of the newest rows, whole or not at all, or write them to `out` where the output is `-`.

    A file that is there as it was made stays, unless a worker has gone on since.

    Args:
        ends: What must have been folded: offsets of crawl.items, by partition.

    Returns: How many rows it has.

    Raises: Behind: the state is behind `ends`. Unusable: it is damaged. RetryLater: a worker has it. OSError: the disk
        is full, `out` is closed.
    """
    final = final_of(sink.folder(data))
    if final is not None and is_complete(data, sink, ends) and not sink.partial(data).exists():
        return final.rows
    with Results(data, sink, None) as results:
        behind = {at: end for at, end in ends.items() if results.meta.offsets.get(at, 0) < end}
        if behind:
            raise Behind(f"the sink has not passed {behind} yet, it is at {results.meta.offsets}")
        if sink.output == STDOUT:
            out.writelines(results.chunks())
            out.flush()
        else:
            _make(results, Path(sink.output))
        return results.meta.rows


def is_complete(data: Path, sink: SinkSpec, ends: Mapping[int, int]) -> bool:
    """Whether FILE is there, as it was made, and holds all up to `ends`; never for standard output."""
    final = final_of(sink.folder(data))
    if final is None or sink.output == STDOUT or not final.is_at(Path(sink.output)):
        return False
    if final.formulas != sink.formulas and formats.known(Path(sink.output)) == ".csv":
        return False
    return all(final.offsets.get(at, 0) >= end for at, end in ends.items())


def state_of(folder: Path) -> Path:
    """The database in a sink's folder."""
    return folder / "state"


def empty(data: Path, sink: SinkSpec) -> Path:
    """Set the state of a sink aside, so that its file is filled again from offset 0; returns where the state is now.

    Raises: RetryLater: another process has it.
    """
    folder = sink.folder(data)
    lock = _locked(folder / "lock")
    try:
        return set_aside(state_of(folder))
    finally:
        os.close(lock)


def forget_others(data: Path, sink: SinkSpec) -> list[SinkSpec]:
    """Remove the states that `sink`, which is open, has put an end to; returns whose those are.

    Another one of its FILE would find that file cut and begin again; one of standard output is of an earlier epoch.
    """
    ended = [
        other
        for other in known_sinks(data)
        if other.id != sink.id and other.output == sink.output and (other.output != STDOUT or other.job == sink.job)
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
    """What is remembered of the file made last."""
    try:
        return msgspec.json.decode((folder / FINAL).read_bytes(), type=Final)
    except (OSError, ValueError):
        return None


def _make(results: Results, path: Path) -> None:
    suffix = formats.known(path)
    if suffix == ".jsonl" and results.meta.live == results.meta.length:
        results.sync()
        results.note_final(results.path)
        crash_points.point("finish.noted")
        results.path.replace(path)
        crash_points.point("finish.renamed")
        return
    made = path.with_name(f"{path.name}.new.partial")
    try:
        with made.open("wb") as file:
            file.writelines(formats.written(suffix, results.chunks, formulas=results.sink.formulas))
            file.flush()
            os.fsync(file.fileno())
    except Unusable:
        made.unlink(missing_ok=True)
        raise
    except OSError as error:
        made.unlink(missing_ok=True)  # half a file, of no use to anybody, on a disk that may be full
        then = "nothing is lost, and the same command makes it once it can be written"
        raise OSError(error.errno, f"{error.strerror}; {then}", str(path)) from error
    results.note_final(made)
    crash_points.point("finish.noted")
    made.replace(path)
    crash_points.point("finish.renamed")
    results.path.unlink()


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
    """Hold the file until it is closed, at the latest by the process's end."""
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
    """A range of rows in pieces of about READ_BYTES, each cut after a row; in a damaged file the last one is not."""
    rest = b""
    for at in range(start, start + length, READ_BYTES):
        piece = rest + os.pread(file, min(READ_BYTES, start + length - at), at)
        cut = piece.rfind(b"\n") + 1
        rest = piece[cut:]
        if cut:
            yield piece[:cut]
    if rest:
        yield rest
