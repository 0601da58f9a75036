"""One RocksDB database. Every read, iteration and write of the states and of the sinks goes through here.

Damage is detected when a block is read. RocksDB's iterator then ends without an error, as it does after the last row.
So each iteration checks the iterator's status at its end. A process that detects damage marks the folder and ends. The
next process that opens the database finds the mark, sets the folder aside, and folds the log again.
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

DAMAGED = "DAMAGED"  # Mark file in the folder of a damaged database. It holds RocksDB's error text.

CHECK_ROWS = 2_000  # Rows that `Rocks.check` reads between two pauses: half a millisecond

# RocksDB's error texts for a held lock. "lock" alone would match `block checksum mismatch`.
_LOCKED = ("While lock file:", "lock hold by current process")

# RocksDB's error texts for a fault of the machine. The database is intact, so deleting it would not help.
_NOT_DAMAGE = ("No space left", "Too many open files", "Permission denied", "Read-only file system", "Cannot allocate")


def is_environment_error(error: BaseException) -> bool:
    """Whether the machine is at fault, not the database: a full disk, a missing permission. It may pass."""
    return any(words in str(error) for words in _NOT_DAMAGE)


def environment_error(error: BaseException) -> str:
    """The fault in the kernel's words, such as `No space left on device`; empty if it is not the machine's."""
    return str(error).rpartition(": ")[2] if is_environment_error(error) else ""


def set_aside(path: Path) -> Path:
    """Rename a database's folder to `aside-NAME` in the same place, and return the new path.

    NAME ends before the first dot, and an older folder of that name is removed. So one copy of each state is kept.
    """
    aside = path.with_name(f"aside-{path.name.partition('.')[0]}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


class Rocks:
    """One database, open.

    Args:
        columns: Options of its column families, besides the default one.
        read_only: Change no file. Only for a database without another writer.

    Attributes:
        is_open: False once it is closed.
        damage: RocksDB's error text; empty while no damage was detected.

    Raises:
        StateLocked: another process, or another object of this one, has it open.
        Unusable: it is damaged. Every method raises this too.
    """

    def __init__(
        self, path: Path, options: Options, columns: Mapping[str, Options] | None = None, *, read_only: bool = False
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        access = AccessType.read_only(error_if_log_file_exist=False) if read_only else AccessType.read_write()
        try:
            self._db = Rdict(str(path), options, dict(columns) if columns else None, access)
        except Exception as error:  # rocksdict raises bare Exception
            if any(words in str(error) for words in _LOCKED):
                raise StateLocked(f"{path}: {error}") from error
            if is_environment_error(error):
                raise
            raise Unusable(f"damaged: {error}") from error
        self._get = self._db.get
        self._columns = [self._db.get_column_family(name) for name in columns or ()]
        self._handles = [self._db.get_column_family_handle(name) for name in columns or ()]
        self._flushing = threading.Lock()
        self._reader: RdictIter | None = None  # it sees the database as of its creation, so the next write discards it
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
        """The rows, or None. With sorted keys, half the cost of single look-ups."""
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
        """Up to `limit` rows at [start, end), in key order. The iterator is reused until the next write."""
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
        """Read every row, to detect damage.

        Args:
            rest_s: Pause after each `CHECK_ROWS` rows, for the other threads of the process.
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
        """Write to tables the rows that only the write-ahead log has. Other threads may read and write meanwhile.

        rocksdict lets other threads run during a flush, but not during an open or a RocksDB checkpoint.
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
        """Release the database and its lock. Waits for a running flush: rocksdict refuses to close during one.

        A damaged database is marked, then released. A closed one stays as it is.
        """
        with self._flushing, contextlib.ExitStack() as closing:
            if not self.is_open:
                return
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
            del rows  # else an exception that passes here keeps the database open as long as it lives
        try:
            _see_end(column, key)
        except Exception as error:
            self._condemn(error)
            raise

    def condemn(self, words: str) -> NoReturn:
        """Mark the folder as damaged, and raise Unusable."""
        self.damage = words
        with contextlib.suppress(OSError):  # on a full disk; the damage will be detected again
            (self.path / DAMAGED).write_text(words)
        raise Unusable(f"damaged: {words}")

    def _condemn(self, error: Exception) -> None:
        """Mark the folder and raise Unusable, if an error of RocksDB is damage. The caller raises other errors."""
        if "Corruption" in str(error):
            self.condemn(str(error))

    def _condemned(self) -> str:
        mark = self.path / DAMAGED
        return (mark.read_text(errors="replace") or "marked") if mark.exists() else ""


def _see_end(column: Rdict, key: bytes) -> None:
    """Raise if a damaged block follows a row; the next row, or the end, is fine."""
    after = column.iter()
    try:
        after.seek(key)
        if after.valid():
            after.next()
        after.status()
    finally:
        del after
