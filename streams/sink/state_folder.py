"""The folder of a sink's state: its lock, its database, the note about FILE; and how it is set aside or removed."""

import fcntl
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path

import msgspec
from rocksdict import BlockBasedOptions, Cache, Options

from crawlog.schemas.job_orders import NO_LAYOUT, FeedLayout
from crawlog.streams import files
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import RetryLater, Unusable
from crawlog.streams.sink_groups import SinkSpec, known_sinks
from crawlog.streams.state import Rocks, set_aside

from .batch import SinkMeta

FINAL = "final.json"  # File with `Final`

ITEMS = "items.partial"  # File of raw items, of a job with pipelines

LOCK_S = 1.0  # Pause before the next try at a lock that another process holds, seconds

OPEN_S = 1.0  # Pause before opening a state again after the machine failed, such as on a full disk, seconds

MEMORY_BYTES = 4 << 20  # Of each of RocksDB's two write buffers and of its cache: a row is 100 bytes


_NEW = msgspec.json.encode(SinkMeta(LogIdentity("", "")))


class Final(msgspec.Struct, frozen=True):
    """The file made last: size and time tell whether it is unchanged; the offsets tell which records it holds.

    Attributes:
        formulas, layout: As in the sink's `SinkSpec`.
        stats: Stats that the job's pipelines counted, by name.
    """

    size_bytes: int
    modified_ns: int
    offsets: dict[int, int]
    rows: int = 0
    formulas: bool = False
    stats: dict[str, float] = {}
    layout: FeedLayout = NO_LAYOUT

    def is_at(self, path: Path) -> bool:
        """Whether the file is unchanged since then."""
        with suppress(OSError):
            there = path.stat()
            return (there.st_size, there.st_mtime_ns) == (self.size_bytes, self.modified_ns)
        return False


def database(folder: Path) -> Rocks:
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


def meta_of(data: Path, sink: SinkSpec) -> SinkMeta:
    """The position of a state that no worker has.

    Raises: RetryLater: another process has it. Unusable: it is damaged.
    """
    folder = sink.folder(data)
    lock = locked(folder / "lock")
    try:
        with closing(database(folder)) as opened:
            return msgspec.json.decode(opened.get(b"m") or _NEW, type=SinkMeta)
    finally:
        os.close(lock)


def state_of(folder: Path) -> Path:
    """The database in a sink's folder."""
    return folder / "state"


def has_pipelines(data: Path, sink: SinkSpec) -> bool:
    """Whether the sink's rows are made by pipelines."""
    return sink.pipelines or (sink.folder(data) / ITEMS).exists()


def empty(data: Path, sink: SinkSpec) -> Path:
    """Set the state of a sink aside, so that its file is filled again from offset 0; returns its new place.

    Raises: RetryLater: another process has it.
    """
    folder = sink.folder(data)
    lock = locked(folder / "lock")
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
            lock = locked(folder / "lock")
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            removed.append(other)
    return removed


def forget_output(data: Path, sink: SinkSpec) -> bool:
    """Remove the state and the partial file of a sink; FILE stays. False if another process has it, or a file stays."""
    folder = sink.folder(data)
    try:
        lock = locked(folder / "lock")
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
        return msgspec.json.decode(final_path(folder, other).read_bytes(), type=Final)
    except (OSError, ValueError):
        return None


def final_path(folder: Path, other: SinkSpec | None) -> Path:
    return folder / (f"{other.id}.json" if other is not None else FINAL)


def locked(path: Path) -> int:
    file = files.opened(path, os.O_RDWR | os.O_CREAT)
    try:
        lock_file(file, f"another sink worker has {path.parent}")
    except RetryLater:
        os.close(file)
        raise
    return file


def lock_file(file: int, held: str) -> None:
    """Lock the file until it is closed; the end of the process closes it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RetryLater(held, LOCK_S) from None
