"""The state on disk: one RocksDB per partition of crawl.urls, in `<data>/state/<partition>`.

A checkpoint is one WriteBatch of every dirty row plus the meta row with the offset; nothing else is written. So what
lies on disk is always exactly the fold of the log up to that offset, whenever the process ends. Robots rules and
validators are kept in a column family of their own, `cache`: losing them costs a request or a body, so they are no part
of the fold.
"""

import shutil
import threading
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import xxhash
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteBufferManager,
)

from . import crash
from . import rows as r
from .domain import Places
from .errors import CrawlError, Misconfigured
from .fold import FOLD_VERSION, Effects, Fold, effective
from .kafka import LogIdentity
from .snapshot import Snapshots, fitting

log = structlog.get_logger()

CACHE_COLUMN = "cache"
DAMAGED = "DAMAGED"
"""File in a database's folder: a block of it could not be read."""

WRITE_BUFFER_SHARE = 0.4
"""Part of the memory budget that unflushed writes may take; the rest is block cache."""


@cache
def fold_version() -> str:
    """What the fold's results depend on: our code, the suffix list and the URL library."""
    return f"{FOLD_VERSION} psl-{version('publicsuffixlist')} ada-{version('can-ada')}"


_LOCKED = ("While lock file:", "lock hold by current process")
"""RocksDB's words for a held lock; `block checksum mismatch` holds a "lock" too."""

_NOT_DAMAGE = ("No space left", "Too many open files", "Permission denied", "Read-only file system", "Cannot allocate")
"""What RocksDB says where the machine, not the database, is at fault: deleting the state would not mend that."""


def is_machines_fault(error: Exception) -> bool:
    """Whether the machine fails, not the database: a full disk, a missing right. It may pass."""
    return any(words in str(error) for words in _NOT_DAMAGE)


class StateLocked(CrawlError):
    """Another process holds the database."""


class Memory:
    """One memory budget for all databases of a worker.

    Args:
        budget_mb: Block cache and write buffers together, MiB.
    """

    def __init__(self, budget_mb: int) -> None:
        total = budget_mb << 20
        self.writes = WriteBufferManager(int(total * WRITE_BUFFER_SHARE), False)
        self.cache = Cache(int(total * (1 - WRITE_BUFFER_SHARE)))

    def options(self) -> Options:
        """Options of one column family."""
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_block_size(8 << 10)
        table.set_format_version(5)
        table.set_bloom_filter(10, False)  # of several young tables one has the key
        table.set_index_type(BlockBasedIndexType.two_level_index_search())  # whole ones outgrow the cache
        table.set_partition_filters(True)
        table.set_metadata_block_size(4 << 10)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.writes)
        options.set_write_buffer_size(16 << 20)  # few large flushes: each compaction reads the oldest level again
        options.set_arena_block_size(64 << 10)  # a megabyte of itself, which the budget counts, for every one of them
        options.set_memtable_prefix_bloom_ratio(0.01)  # counted as well, from the start: 160 KiB
        options.set_memtable_whole_key_filtering(True)  # a look-up walks no skip list in vain
        options.set_max_write_buffer_number(2)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_bottommost_compression_type(DBCompressionType.zstd())
        options.set_optimize_filters_for_hits(True)  # the oldest table has what the younger ones have not
        options.set_max_open_files(256)
        options.set_max_total_wal_size(24 << 20)
        options.set_keep_log_file_num(2)
        options.increase_parallelism(2)
        return options


class Database:
    """The rows of one partition as of its last checkpoint.

    Attributes:
        is_open: Until it is closed.

    Raises: StateLocked: another process, or another object of this one, has it open.
    """

    def __init__(self, path: Path, memory: Memory) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        try:
            self._db = Rdict(str(path), memory.options(), column_families={CACHE_COLUMN: memory.options()})
        except Exception as error:
            if any(words in str(error) for words in _LOCKED):
                raise StateLocked(f"{path}: {error}") from error
            raise
        self._get = self._db.get
        self._cache = self._db.get_column_family(CACHE_COLUMN)
        self._cache_column = self._db.get_column_family_handle(CACHE_COLUMN)
        self._remembered: dict[bytes, bytes] = {}
        self._flushing = threading.Lock()
        self.is_open = True
        self._reader: RdictIter | None = None  # sees the database as of when it was made: until something is written

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""
        try:
            value: bytes | None = self._get(key)
        except Exception as error:
            self._condemn(error)
            raise
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows, or None; half the cost of one look-up each, where the keys are in order."""
        if not keys:
            return []
        try:
            values: Any = self._get(keys)  # type: ignore[arg-type]  # the stub's list takes no list of bytes
        except Exception as error:
            self._condemn(error)
            raise
        return list(values)

    def _condemn(self, error: Exception) -> None:
        """Let the next who opens a damaged database see that it is: a damaged block shows only when it is read."""
        if "Corruption" in str(error):
            (self.path / DAMAGED).write_text(str(error))

    @property
    def condemned(self) -> str:
        """What was found damaged by an earlier reader; empty when nothing was."""
        mark = self.path / DAMAGED
        return mark.read_text() if mark.exists() else ""

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` on, in key order.

        Raises: Exception: a block is damaged. RocksDB's iterator only ends there, as it does behind the last row.
        """
        key = start
        rows: Iterator[Any] = iter(self._db.items(from_key=start))
        for key, value in rows:
            yield key, value
        try:
            after = self._db.iter()
            after.seek(key)
            if after.valid():
                after.next()
            after.status()
        except Exception as error:
            self._condemn(error)
            raise

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows at [start, end), in key order, by an iterator kept for all such reads between two writes.

        Raises: Exception: a block is damaged.
        """
        if self._reader is None:
            self._reader = self._db.iter()
        reader = self._reader
        found: list[tuple[bytes, bytes]] = []
        reader.seek(start)
        while len(found) < limit and (key := reader.key()) is not None and key < end:
            found.append((key, reader.value()))
            reader.next()
        if not reader.valid():
            try:
                reader.status()
            except Exception as error:
                self._reader = None
                self._condemn(error)
                raise
        return found

    def write(self, changes: r.Changes) -> None:
        """Apply all changes, or none."""
        self._reader = None
        batch = WriteBatch(raw_mode=True)
        for prefix in changes.dropped:
            batch.delete_range(prefix, r.after(prefix))
        for key, value in changes.rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        for key, value in self._remembered.items():
            batch.put(key, value, self._cache_column)
        self._db.write(batch)
        self._remembered.clear()

    def forget(self) -> None:
        """Drop all rows; the cache column stays."""
        self._reader = None
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(b"", b"\xff" * 64)  # longer than any key
        self._db.write(batch)

    def cached(self, key: bytes) -> bytes | None:
        """A value of the cache column, or None."""
        value: bytes | None = self._remembered.get(key) or self._cache.get(key)
        return value

    def remember(self, key: bytes, value: bytes) -> None:
        """Remember a value that may be lost; it is written with the next changes."""
        self._remembered[key] = value

    def cache(self, key: bytes, value: bytes) -> None:
        """Remember a value that may be lost, at once."""
        self._cache[key] = value

    def flush(self) -> None:
        """Write into tables what only the write-ahead log has. May run in a thread, whoever reads and writes meanwhile.

        rocksdict lets others run while it flushes, which it does not while it makes a RocksDB checkpoint or opens.
        """
        with self._flushing:
            if self.is_open:
                self._db.flush()
                self._cache.flush()  # its rows would keep the whole log

    def close(self) -> None:
        """Release the database and its lock, once a flush under way has ended: rocksdict refuses to amid one."""
        with self._flushing:
            self.is_open = False
            del self._get, self._cache_column, self._reader
            self._cache.close()
            self._db.close()


class Partition:
    """The state of one owned partition: the fold, its database, and the offset of the next record.

    Args:
        path: The database's folder.
        identity: The log to be folded; a state of another one is thrown away and rebuilt.
        snapshots: Where a state that is thrown away may begin again, if not from offset 0.

    Raises:
        Misconfigured: The state was written by another version of crawlog.
        StateLocked: Another process holds it.
    """

    def __init__(  # what a state is, where it lies, and what it may use
        self,
        path: Path,
        number: int,
        places: Places,
        identity: LogIdentity,
        memory: Memory,
        cached_pages: int,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.number = number
        self._snapshots = snapshots
        self.identity = identity
        self._path = path
        self._places = places
        self._memory = memory
        self._cached_pages = cached_pages
        self._open()

    def _open(self) -> None:
        try:
            self.db = Database(self._path, self._memory)
        except StateLocked:
            raise
        except Exception as error:  # rocksdict raises bare Exception for a damaged database
            if is_machines_fault(error):
                raise
            log.warning("state_damaged", path=str(self._path), error=str(error), then="rebuilt from the log")
            shutil.rmtree(self._path, ignore_errors=True)
            self.db = Database(self._path, self._memory)
        try:
            self._read()
        except Exception:
            if not self.db.condemned:
                self.db.close()
                raise
        if self.db.condemned:
            self.rebuild(f"it is damaged: {self.db.condemned}")

    def _read(self) -> None:
        if self.db.condemned:
            return
        stored = self.db.get(r.META)
        meta = self._checked(r.read_meta(stored)) if stored else None
        if stored and meta is None:
            self.rebuild("it belongs to another log")
            return
        self._start(meta)

    def _start(self, meta: r.Meta | None, skipped: tuple[r.Skip, ...] = ()) -> None:
        self.rows = r.Rows(self.db)
        known = skipped or (meta.skipped if meta else ())
        self.fold = Fold(self.number, self._places, self.rows, self._cached_pages, known)
        self.offset = self.checkpointed = meta.offset if meta else 0
        self._last_hash = meta.last_hash if meta else 0
        self._last_value: bytes | None = None

    def _checked(self, meta: r.Meta) -> r.Meta | None:
        if meta.format != r.FORMAT or meta.fold != fold_version():
            raise Misconfigured(
                f"{self._path} holds state of format {meta.format}, fold {meta.fold!r}; this crawlog writes format "
                f"{r.FORMAT}, fold {fold_version()!r}. Run the crawlog that wrote it, or delete the folder: it is "
                "rebuilt from the log."
            )
        same = (meta.cluster, meta.topic, meta.partition) == (self.identity.cluster, self.identity.topic, self.number)
        return meta if same else None

    def rebuild(self, why: str, skipped: tuple[r.Skip, ...] = (), high: int | None = None) -> None:
        """Throw the state away, to be folded again from a snapshot, or from offset 0.

        Args:
            skipped: What rewinds take back; they need not be found again. Where there are any it is the same log still,
                so what is cached beside the state stays.
            high: The highest offset that a snapshot may have; None for any.
        """
        log.warning("state_rebuilt", partition=self.number, why=why)
        if self.leap(high=high, skipped=skipped or None):
            return
        if skipped:
            self.db.forget()
            self._start(None, skipped)
        else:
            self.db.close()
            shutil.rmtree(self._path, ignore_errors=True)
            self.db = Database(self._path, self._memory)
            self._start(None, skipped)

    def leap(
        self, low: int = 0, high: int | None = None, skipped: tuple[r.Skip, ...] | None = None, *, furthest: bool = True
    ) -> bool:
        """Put the snapshot with the highest fitting offset in the place of this state, if there is one.

        Args:
            furthest: False for the lowest offset.

            low: The lowest offset of use.
            high: The highest one; None for any.
            skipped: What rewinds take back, where that is known.
        """
        if self._snapshots is None:
            return False
        try:
            found = self._snapshots.of(self.number)
        except Exception as error:  # noqa: BLE001  # whatever a store raises: no crawl depends on it
            log.warning("snapshots_unreachable", partition=self.number, error=str(error))
            return False
        fit = fitting(found, fold_version(), low=low, high=high, skipped=skipped)
        for one in fit if furthest else reversed(fit):
            fresh = self._path.with_name(f"{self._path.name}.snapshot")
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                self._snapshots.fetch(one, fresh)
            except Exception as error:  # noqa: BLE001  # Damaged, or whatever a store raises
                log.warning("snapshot_not_taken", partition=self.number, offset=one.offset, error=str(error))
                continue
            self.db.close()
            shutil.rmtree(self._path, ignore_errors=True)
            fresh.rename(self._path)
            self.db = Database(self._path, self._memory)
            log.info("snapshot_taken", partition=self.number, offset=one.offset)
            self._start(one.meta, skipped or ())
            return True
        return False

    def rewind(self, skip: r.Skip) -> None:
        """Go back to before a range that a record takes back: the log is to be folded again from the state's offset.

        Goes back to the checkpoint, if that lies before the range and knows of no other rewinds.
        """
        skipped = effective(self.fold.skipped, skip)
        stored = self.db.get(r.META)
        meta = r.read_meta(stored) if stored else None
        if self.checkpointed <= skip.start and r.fits(meta.skipped if meta else (), self.checkpointed, skipped):
            self._start(meta, skipped)
        else:
            self.rebuild(f"the record at offset {skip.end} rewinds it to offset {skip.start}", skipped)

    def take(self, value: bytes | None, offset: int, timestamp_s: float) -> Effects:
        """Fold the record at exactly the state's offset.

        One whose effects hold a rewind changes nothing, the offset neither: `rewind` to it, and read again from there.
        """
        assert offset == self.offset
        effects = self.fold.take(value, offset, timestamp_s)
        if effects.rewind is not None:
            return effects
        self.offset = offset + 1
        self._last_value = value or b""
        return effects

    def skip_to(self, offset: int) -> None:
        """Go on at a later offset: the log holds no record between."""
        assert offset >= self.offset
        if offset > self.offset:
            self._last_hash, self._last_value = 0, None
        self.offset = offset

    @property
    def last_hash(self) -> int:
        """xxh3_64 of the record folded last; 0 when there is none right before the offset."""
        if self._last_value is not None:
            self._last_hash = xxhash.xxh3_64_intdigest(self._last_value)
            self._last_value = None
        return self._last_hash

    @property
    def changes(self) -> int:
        """Rows changed and URLs marked seen since the last checkpoint."""
        return len(self.rows.dirty) + self.fold.seen.changes

    def checkpoint(self) -> int:
        """Write every change and the offset as one batch.

        Returns: The offset that the state on disk now reflects.
        """
        if self.offset == self.checkpointed:
            return self.offset
        self.fold.flush()
        log_ids = self.identity.cluster, self.identity.topic
        skipped = self.fold.skipped
        meta = r.Meta(r.FORMAT, fold_version(), self.number, self.offset, *log_ids, self.last_hash, skipped)
        crash.point("checkpoint.writing")
        self.db.write(r.Changes({**self.rows.dirty, r.META: r.pack(meta)}, self.rows.dropped))
        crash.point("checkpoint.written")
        self.rows.taken()
        self.checkpointed = self.offset
        return self.offset

    def digest(self) -> str:
        """Digest of the state on disk, the meta row included."""
        return r.digest(self.db.scan(b""))

    def close(self) -> None:
        """Release the database without a checkpoint."""
        self.db.close()
