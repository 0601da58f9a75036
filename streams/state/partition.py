"""The state on disk: one RocksDB per partition of crawl.urls, in `<data>/state/<partition>`.

A checkpoint is one WriteBatch of every dirty row and the meta row with the offset; nothing else is written. So the rows
on disk are always exactly the fold of the log up to that offset, whenever the process ends. Robots rules and validators
are not part of the fold: losing them costs a request or a body. They have a column family of their own, `cache`.
"""

import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
import structlog
import xxhash
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    WriteBatch,
    WriteBufferManager,
)

from crawlog.streams import crash_points
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import HalfFolded, Misconfigured, SnapshotsAway, Unusable
from crawlog.streams.fold import FOLD_VERSION, Changes, Effects, Fold, Rows, digest, effective
from crawlog.streams.fold import rows as r
from crawlog.streams.url import Places

from .database import Rocks, is_environment_error, set_aside
from .snapshots import FROM_THE_START, StateOrigin, fitting

log = structlog.get_logger()

CACHE_COLUMN = "cache"
WRITE_BUFFER_SHARE = 0.4  # Share of the memory budget for unflushed writes; the rest is block cache

CHECK_MB = 8  # Memory of `check_database`, MiB


@cache
def fold_version() -> str:
    """Version of all that the fold's results depend on: our code, the suffix list and the URL library."""
    return f"{FOLD_VERSION} psl-{version('publicsuffixlist')} ada-{version('can-ada')}"


class StateMemory:
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
        table.set_bloom_filter(10, False)  # a key is in one of several young tables
        table.set_index_type(BlockBasedIndexType.two_level_index_search())  # an index in one piece outgrows the cache
        table.set_partition_filters(True)
        table.set_metadata_block_size(4 << 10)
        table.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.writes)
        options.set_write_buffer_size(16 << 20)  # few large flushes, since each compaction reads the oldest level again
        options.set_arena_block_size(64 << 10)  # by default 1 MiB for each column family, counted in the budget
        options.set_memtable_prefix_bloom_ratio(0.01)  # 160 KiB from the start, counted in the budget
        options.set_memtable_whole_key_filtering(True)  # saves searches of the skip list for absent keys
        options.set_level_zero_file_num_compaction_trigger(8)  # twice the default, half as many compactions
        options.set_max_write_buffer_number(2)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_bottommost_compression_type(DBCompressionType.zstd())
        options.set_optimize_filters_for_hits(True)  # a key that no younger table has is mostly in the oldest
        options.set_max_open_files(256)
        options.set_max_total_wal_size(24 << 20)
        options.set_keep_log_file_num(2)
        options.increase_parallelism(2)
        return options


class Database(Rocks):
    """The rows of one partition as of its last checkpoint, and the cache column."""

    def __init__(self, path: Path, memory: StateMemory, *, read_only: bool = False) -> None:
        self._remembered: dict[bytes, bytes] = {}
        super().__init__(path, memory.options(), {CACHE_COLUMN: memory.options()}, read_only=read_only)
        (self._cache,) = self._columns

    def write(self, changes: Changes) -> None:
        """Apply all changes, or none."""
        batch = WriteBatch(raw_mode=True)
        for prefix in changes.dropped:
            batch.delete_range(prefix, r.after(prefix))
        for key, value in changes.rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        for key, value in self._remembered.items():
            batch.put(key, value, self._handles[0])
        self.apply(batch)
        self._remembered.clear()

    def forget(self) -> None:
        """Drop all rows; the cache column stays."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(b"", b"\xff" * 64)  # longer than any key
        self.apply(batch)

    def cached(self, key: bytes) -> bytes | None:
        """A value of the cache column, or None."""
        try:
            value: bytes | None = self._remembered.get(key) or self._cache.get(key)
        except Exception as error:
            self._condemn(error)
            raise
        return value

    def remember(self, key: bytes, value: bytes) -> None:
        """Cache a value; it is written with the next changes."""
        self._remembered[key] = value

    def cache(self, key: bytes, value: bytes) -> None:
        """Cache a value, and write it at once."""
        try:
            self._cache[key] = value
        except Exception as error:
            self._condemn(error)
            raise


def check_database(path: Path, rest_s: float = 0.0) -> None:
    """Read every row of a database that no process has open; no file of it changes.

    Args:
        rest_s: Pause after every 2,000 rows.

    Raises: Unusable: it is damaged.
    """
    # An own block cache: a shared one may hold blocks of the folder's former database.
    database = Database(path, StateMemory(CHECK_MB), read_only=True)
    try:
        database.check(rest_s)
    finally:
        database.close()


class Partition:
    """The state of one owned partition: the fold, its database, and the offset of the next record.

    Args:
        path: The database's folder; also an attribute.
        identity: The log to be folded; a state of another log is discarded and rebuilt.
        origin: Where a rebuild may start.

    Attributes:
        note: For the user: why the state is rebuilt, or which records it lacks; else empty.

    Raises:
        Misconfigured: The state cannot be used or rebuilt: the log has lost its first records, and no snapshot fits.
        StateLocked: Another process has it open.
    """

    def __init__(
        self,
        path: Path,
        number: int,
        places: Places,
        identity: LogIdentity,
        memory: StateMemory,
        cached_pages: int,
        origin: StateOrigin = FROM_THE_START,
    ) -> None:
        self.number = number
        self.note = ""
        self.cut = 0
        self._origin = origin
        self.identity = identity
        self.path = path
        self._places = places
        self._memory = memory
        self._cached_pages = cached_pages
        self._open()

    def _open(self) -> None:
        try:
            self.db = Database(self.path, self._memory)
        except Unusable as error:
            self._begin_again(str(error))
            return
        try:
            self._read()
        except Unusable as error:
            self.db.close()
            self._begin_again(str(error))
        except Exception:
            self.db.close()
            raise

    def _read(self) -> None:
        stored = self.db.get(r.META)
        if stored is None and next(self.db.scan(b""), None) is not None:
            raise Unusable("of another version: it does not say which")
        meta = self._checked(stored) if stored else None
        if stored and meta is None:
            self.rebuild("it belongs to another log")
            return
        self._start(meta)

    def _begin_again(self, why: str) -> None:
        """Set the state aside, and start at a snapshot or at offset 0.

        Raises: Misconfigured: there is no snapshot, and the log does not begin at 0.
        """
        low, high = self._origin.bounds()
        found = self._fetched(low, high, None, f"it is {why}" if low else "")
        if low and found is None:
            raise self._not_folded_again(f"it is {why}", low, "run the crawlog that wrote the state")
        aside = set_aside(self.path)
        kept = aside.with_name("aside-*")  # one text for all partitions: the user sees equal notes once
        self.note = f"the frontier's state is folded again from the log: it was {why} (the old one is kept: {kept})"
        log.warning("state_set_aside", partition=self.number, why=why, aside=str(aside), then="folded again")
        if found is None:
            self.db = Database(self.path, self._memory)
            self._start(None)
        else:
            self._take_up(*found)

    def _start(self, meta: r.Meta | None, skipped: tuple[r.Skip, ...] = ()) -> None:
        self.rows = Rows(self.db)
        known = skipped or (meta.skipped if meta else ())
        self.fold = Fold(self.number, self._places, self.rows, self._cached_pages, known)
        self.offset = self.checkpointed = meta.offset if meta else 0
        self._last_hash = meta.last_hash if meta else 0
        self._last_value: bytes | None = None
        self._is_half_folded = False

    def _checked(self, stored: bytes) -> r.Meta | None:
        """The meta row; None if it is of another log. Raises: Unusable: it is of another version."""
        try:
            meta = r.read_meta(stored)
        except msgspec.DecodeError as error:
            raise Unusable(f"of another version: {error}") from None
        if (meta.format, meta.fold) != (r.FORMAT, fold_version()):
            raise Unusable(f"of another version: format {meta.format}, fold {meta.fold!r}")
        same = (meta.cluster, meta.topic, meta.partition) == (self.identity.cluster, self.identity.topic, self.number)
        return meta if same else None

    def _not_folded_again(self, why: str, low: int, remedy: str) -> Misconfigured:
        once = " and start once with -s snapshots.to=" if self._origin.snapshots else ""
        return Misconfigured(
            f"the state {self.path} cannot be used: {why}. It cannot be folded again: partition {self.number} of "
            f"crawl.urls begins at offset {low}, and no snapshot goes on from there. Name snapshots with "
            f"-s snapshots.to=DIR, {remedy}, or remove the folder{once} to go on with what the log still has."
        )

    def rebuild(self, why: str, skipped: tuple[r.Skip, ...] = (), low: int = 0, high: int | None = None) -> None:
        """Discard the state, and start at a snapshot or at offset 0.

        Args:
            skipped: Ranges that known rewinds cancel. With any, the log is the same, so the cache column stays.
            low: The log's first offset, the lowest of a snapshot.
            high: Highest offset of a snapshot; None for any.

        Raises: Misconfigured: The log has lost its first records, and no snapshot fits; the state stays.
        """
        if self.leap(low, high, skipped or None, needed=why if low else ""):
            log.warning("state_rebuilt", partition=self.number, why=why)
            return
        if low:
            raise self._not_folded_again(why, low, "put the log back that it has folded")
        log.warning("state_rebuilt", partition=self.number, why=why)
        if skipped:
            self.db.forget()
            self._start(None, skipped)
        else:
            self.db.close()
            shutil.rmtree(self.path, ignore_errors=True)
            self.db = Database(self.path, self._memory)
            self._start(None, skipped)

    def leap(
        self,
        low: int = 0,
        high: int | None = None,
        skipped: tuple[r.Skip, ...] | None = None,
        *,
        furthest: bool = True,
        needed: str = "",
    ) -> bool:
        """Replace this state by the fitting snapshot with the highest offset. Returns whether there is one.

        Args:
            low: Lowest offset of a snapshot.
            high: Highest offset; None for any.
            skipped: Ranges that rewinds cancel; None where unknown.
            furthest: False for the snapshot with the lowest offset.
            needed: Why only a snapshot can replace the state; empty where it, or the log, can do so too.

        Raises:
            SnapshotsAway: It is needed, and the store does not answer. Exception: The disk is full.
            Misconfigured: It is needed, and there are only such as do not fit.
        """
        found = self._fetched(low, high, skipped, needed, furthest=furthest)
        if found is None:
            return False
        self.db.close()
        shutil.rmtree(self.path, ignore_errors=True)
        self._take_up(*found, skipped or ())
        return True

    def _take_up(self, fresh: Path, meta: r.Meta, skipped: tuple[r.Skip, ...] = ()) -> None:
        fresh.rename(self.path)
        self.db = Database(self.path, self._memory)
        log.info("snapshot_taken", partition=self.number, offset=meta.offset)
        self._start(meta, skipped)

    def _fetched(
        self, low: int, high: int | None, skipped: tuple[r.Skip, ...] | None, needed: str, *, furthest: bool = True
    ) -> tuple[Path, r.Meta] | None:
        """A checked copy of the snapshot for `leap`, and its meta row; None where there is none."""
        others: list[str] = []
        has_changed = False
        if self._origin.snapshots is not None:
            fresh = self.path.with_name(f"{self.path.name}.snapshot")
            try:
                others = self._origin.snapshots.names_from(self.number, low) if needed else []
                found = self._origin.snapshots.of(self.number)
                fit = fitting(found, fold_version(), low=low, high=high, skipped=skipped)
                one = self._origin.snapshots.first_whole(fit if furthest else fit[::-1], fresh, check_database)
                if one is not None:
                    return fresh, one.meta
                has_changed = bool(needed) and self._origin.snapshots.names_from(self.number, low) != others
            except Exception as error:  # a store may raise anything, and no crawl with a whole log depends on it
                log.warning("snapshots_unreachable", partition=self.number, error=str(error))
                if needed and not is_environment_error(error):
                    raise SnapshotsAway(self.number, str(error)) from error
                if needed:
                    raise
        if has_changed:  # by the former owner, which may have removed the one that was read
            raise SnapshotsAway(self.number, "they changed meanwhile")
        if needed and (others or not self._origin.may_lack):
            there = f", or run what made {others[-1]} (the fold here is {fold_version()!r})" if others else ""
            raise self._not_folded_again(needed, low, f"put one there that fits{there}")
        return None

    def rewind(self, skip: r.Skip) -> None:
        """Go back to an offset before the range that a rewind cancels. The caller folds the log again from there.

        Goes back to the checkpoint if that lies before the range and has the same earlier rewinds; else rebuilds.

        Raises: Misconfigured: The log has lost its first records, and no snapshot fits; the state stays.
        """
        skipped = effective(self.fold.skipped, skip)
        stored = self.db.get(r.META)
        meta = r.read_meta(stored) if stored else None
        if self.checkpointed <= skip.start and r.fits(meta.skipped if meta else (), self.checkpointed, skipped):
            self._start(meta, skipped)
        else:
            low, _ = self._origin.bounds()
            self.rebuild(f"the record at offset {skip.end} rewinds it to offset {skip.start}", skipped, low)

    def take(self, value: bytes | None, offset: int, timestamp_s: float) -> Effects:
        """Fold the record at exactly the state's offset.

        If its effects hold a rewind, neither state nor offset has changed: call `rewind`, and read again from there.
        After an exception a part of the record may be folded, so the state takes no record and makes no checkpoint.

        Raises: HalfFolded: an earlier record was not folded to its end.
        """
        assert offset == self.offset
        self._see_whole()
        try:
            effects = self.fold.take(value, offset, timestamp_s)
        except BaseException:
            self._is_half_folded = True
            raise
        if effects.rewind is not None:
            return effects
        self.offset = offset + 1
        self._last_value = value or b""
        return effects

    def _see_whole(self) -> None:
        if self._is_half_folded:
            raise HalfFolded(f"partition {self.number}: a part of the record at offset {self.offset} is folded")

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset; the log has no records between."""
        assert offset >= self.offset
        if offset > self.offset:
            self._last_hash, self._last_value = 0, None
        self.offset = offset

    @property
    def last_hash(self) -> int:
        """xxh3_64 of the record at the offset before; 0 if the log has none there."""
        if self._last_value is not None:
            self._last_hash = xxhash.xxh3_64_intdigest(self._last_value)
            self._last_value = None
        return self._last_hash

    @property
    def changes(self) -> int:
        """Number of rows changed and URLs marked as seen since the last checkpoint."""
        return len(self.rows.dirty) + self.fold.seen.changes

    def checkpoint(self) -> int:
        """Write all changes and the offset as one batch; returns the offset of the state on disk.

        Raises: HalfFolded: a record was not folded to its end; nothing is written.
        """
        self._see_whole()
        if self.offset == self.checkpointed:
            return self.offset
        self.fold.flush()
        log_ids = self.identity.cluster, self.identity.topic
        skipped = self.fold.skipped
        meta = r.Meta(r.FORMAT, fold_version(), self.number, self.offset, *log_ids, self.last_hash, skipped)
        crash_points.point("checkpoint.writing")
        self.db.write(Changes({**self.rows.dirty, r.META: r.pack(meta)}, self.rows.dropped))
        crash_points.point("checkpoint.written")
        self.rows.taken()
        self.checkpointed = self.offset
        return self.offset

    def digest(self) -> str:
        """Digest of all rows on disk, with the meta row."""
        return digest(self.db.scan(b""))

    def close(self) -> None:
        """Release the database. Makes no checkpoint."""
        self.db.close()
