"""One RocksDB database. Every read, iteration and write of the states and of the sinks goes through here.

A damaged block shows when it is read. RocksDB's iterator then ends without an error, as it does after the last row. So
each iteration asks for the iterator's status at its end. Damage marks the folder. The process that meets damage ends;
the next one that opens the database finds the mark, sets the folder aside, and folds the log again.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from rocksdict import AccessType, Options, Rdict, RdictIter, WriteBatch

from crawlog.streams.errors import StateLocked, Unusable

DAMAGED = "DAMAGED"
"""File in a database's folder: a block of it could not be read. It holds RocksDB's words."""

CHECK_ROWS = 2_000
"""Rows that `Rocks.check` reads between two rests: half a millisecond."""

_LOCKED = ("While lock file:", "lock hold by current process")
"""RocksDB's words for a held lock; `block checksum mismatch` holds a "lock" too."""

_NOT_DAMAGE = ("No space left", "Too many open files", "Permission denied", "Read-only file system", "Cannot allocate")
"""What RocksDB says where the machine, not the database, is at fault: deleting the state would not mend that."""


def is_machines_fault(error: BaseException) -> bool:
    """Whether the machine fails, not the database: a full disk, a missing right. It may pass."""
    return any(words in str(error) for words in _NOT_DAMAGE)


def set_aside(path: Path) -> Path:
    """Rename a database's folder to `aside-NAME` beside it, and return the new path; an older one of that name goes.

    NAME is what stands before the first dot: of all copies of one state one is kept.
    """
    aside = path.with_name(f"aside-{path.name.partition('.')[0]}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


class Rocks:
    """One database, open.

    Args:
        columns: Options of its column families beside the default one.
        read_only: Change no file. Only for a database that nobody else writes.

    Attributes:
        is_open: Until it is closed.
        damage: RocksDB's words for what could not be read; empty while all could be.

    Raises:
        StateLocked: another process, or another object of this one, has it open.
        Unusable: it is damaged. Every method raises this, too.
    """

    def __init__(
        self, path: Path, options: Options, columns: Mapping[str, Options] | None = None, *, read_only: bool = False
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        access = AccessType.read_only(error_if_log_file_exist=False) if read_only else AccessType.read_write()
        try:
            self._db = Rdict(str(path), options, dict(columns) if columns else None, access)
        except Exception as error:  # rocksdict raises nothing narrower
            if any(words in str(error) for words in _LOCKED):
                raise StateLocked(f"{path}: {error}") from error
            if is_machines_fault(error):
                raise
            raise Unusable(f"damaged: {error}") from error
        self._get = self._db.get
        self._columns = [self._db.get_column_family(name) for name in columns or ()]
        self._handles = [self._db.get_column_family_handle(name) for name in columns or ()]
        self._flushing = threading.Lock()
        self._reader: RdictIter | None = None  # sees the database as of when it was made: until something is written
        self.is_open = True
        self.damage = self._condemned()
        if self.damage:
            self.close()
            raise Unusable(f"damaged: {self.damage}")

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

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` on, in key order."""
        return self._scan(self._db, start)

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows at [start, end), in key order, by an iterator that is kept until the next write."""
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

    def check(self, rest_s: float = 0.0) -> None:
        """Read every row, to find damage that nobody has met yet.

        Args:
            rest_s: Pause after each `CHECK_ROWS` rows, for the other threads of a process that has more to do.
        """
        for column in (self._db, *self._columns):
            for number, _ in enumerate(self._scan(column, b"")):
                if rest_s and number % CHECK_ROWS == 0:
                    time.sleep(rest_s)

    def apply(self, batch: WriteBatch) -> None:
        """Write all changes of a batch, or none."""
        self._reader = None
        try:
            self._db.write(batch)
        except Exception as error:
            self._condemn(error)
            raise

    def flush(self) -> None:
        """Write into tables what only the write-ahead log has. May run in a thread, whoever reads and writes meanwhile.

        rocksdict lets others run while it flushes, which it does not while it makes a RocksDB checkpoint or opens.
        """
        with self._flushing:
            if self.is_open:
                try:
                    for column in (self._db, *self._columns):  # a column's rows would keep the whole log
                        column.flush()
                except Exception as error:
                    self._condemn(error)
                    raise

    def close(self) -> None:
        """Release the database and its lock, once a flush under way has ended: rocksdict refuses to amid one.

        A damaged database is marked and released.
        """
        with self._flushing, contextlib.ExitStack() as closing:
            self.is_open = False
            del self._get, self._reader, self._handles
            for column in (self._db, *self._columns):  # the last one first
                closing.callback(self._close, column)

    def _close(self, column: Rdict) -> None:
        with contextlib.suppress(Unusable):
            try:
                column.close()
            except Exception as error:
                self._condemn(error)
                raise

    def _scan(self, column: Rdict, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        key = start
        rows: Iterator[Any] = iter(column.items(from_key=start))
        try:
            for key, value in rows:
                yield key, value
        finally:
            del rows  # it would keep the database open for as long as somebody has an exception that passed here
        try:
            _see_end(column, key)
        except Exception as error:
            self._condemn(error)
            raise

    def condemn(self, words: str) -> NoReturn:
        """Mark the folder: what it holds is not what was written."""
        self.damage = words
        with contextlib.suppress(OSError):  # on a full disk: then the damage is met again
            (self.path / DAMAGED).write_text(words)
        raise Unusable(f"damaged: {words}")

    def _condemn(self, error: Exception) -> None:
        """Mark the folder and raise, where an error of RocksDB is damage; other errors are the caller's to raise."""
        if "Corruption" in str(error):
            self.condemn(str(error))

    def _condemned(self) -> str:
        mark = self.path / DAMAGED
        return (mark.read_text(errors="replace") or "marked") if mark.exists() else ""


def _see_end(column: Rdict, key: bytes) -> None:
    """Raise if a damaged block follows a row, instead of another row or the end."""
    after = column.iter()
    try:
        after.seek(key)
        if after.valid():
            after.next()
        after.status()
    finally:
        del after
