"""The overlay: the rows on disk under the changes since the last checkpoint.

The fold reads and writes rows here; nothing reaches the disk before a checkpoint, which takes every dirty row at once.
So the state on disk is always exactly the fold of the log up to the offset in the meta row.
"""

from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from typing import NamedTuple, Protocol

import xxhash

from .rows import QUEUE_PREFIX_BYTES, after


class Changes(NamedTuple):
    """What a checkpoint writes: it deletes all rows with a prefix in `dropped`, then it sets `rows`."""

    rows: dict[bytes, bytes | None]
    dropped: tuple[bytes, ...] = ()


class Base(Protocol):
    """The store under the overlay: the database as of the last checkpoint."""

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows, or None, in the order of `keys`; fastest with sorted keys."""

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` on, in key order."""

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows at [start, end), in key order; made for many short reads."""


class Rows:
    """The state as the fold sees it: the rows on disk under the changes since the last checkpoint.

    Invariants: `dirty` and `dropped` hold exactly the changes since the last checkpoint. A dropped prefix hides rows of
    the base, never a row in `dirty`. A row in `_kept` equals the row that `get` would read, so a change removes it.
    """

    def __init__(self, base: Base) -> None:
        self.base = base
        self.dirty: dict[bytes, bytes | None] = {}
        self.dropped: tuple[bytes, ...] = ()
        self._kept: dict[bytes, bytes | None] = {}
        self._fresh: dict[bytes, list[bytes]] = {}

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""
        dirty = self.dirty
        if key in dirty:
            return dirty[key]
        kept = self._kept
        if key in kept:
            return kept[key]
        return None if self.dropped and key.startswith(self.dropped) else self.base.get(key)

    def get_many(self, keys: Collection[bytes]) -> dict[bytes, bytes | None]:
        """Rows by key, as `get` returns them, read together; the cache of `keep` is not used."""
        dirty, dropped = self.dirty, self.dropped
        stored = [key for key in keys if key not in dirty]
        if dropped:
            stored = [key for key in stored if not key.startswith(dropped)]
        stored.sort()
        found = dict(zip(stored, self.base.get_many(stored), strict=True))
        if len(found) < len(keys):
            found.update((key, dirty.get(key)) for key in keys if key not in found)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row that is never scanned between checkpoints."""
        self.dirty[key] = value
        if key in self._kept:
            del self._kept[key]

    def put_ordered(self, key: bytes, value: bytes) -> None:
        """Set a row of a host queue, so that `scan` finds it before the next checkpoint."""
        self.put(key, value)
        self._fresh.setdefault(key[:QUEUE_PREFIX_BYTES], []).append(key)

    def delete(self, key: bytes) -> None:
        self.dirty[key] = None
        if key in self._kept:
            del self._kept[key]

    def drop(self, prefix: bytes) -> None:
        """Forget all rows with a prefix. Only rows in memory are visited, however many are on disk.

        Args:
            prefix: Of a kind and a job, so that a host queue is dropped whole or not at all.
        """
        for held in (self.dirty, self._kept):
            for key in [key for key in held if key.startswith(prefix)]:
                del held[key]
        for queue in [queue for queue in self._fresh if queue.startswith(prefix)]:
            del self._fresh[queue]
        if prefix not in self.dropped:
            self.dropped = (*self.dropped, prefix)

    def keep(self, key: bytes, value: bytes | None) -> None:
        """Cache a row, or its absence, until it changes: it will be read again soon."""
        self._kept[key] = value

    def read_ahead(self, keys: list[bytes]) -> list[bytes]:
        """Read rows together and cache them until `let_go`: half the cost of single look-ups. Returns the keys."""
        for key, stored in self.get_many(keys).items():
            self._kept[key] = stored
        return keys

    def let_go(self, key: bytes) -> None:
        self._kept.pop(key, None)

    def scan_queue(self, prefix: bytes, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows of one host queue from `start` on, in key order, changes included."""
        dirty = self.dirty
        changed = self._fresh.get(prefix)
        fresh = ((key, dirty[key]) for key in set(changed) if key >= start) if changed else ()
        found = [(key, value) for key, value in fresh if value is not None]
        at, end, kept = start, after(prefix), 0
        while kept < limit and not prefix.startswith(self.dropped):
            stored = self.base.read(at, end, limit)
            unchanged = [row for row in stored if row[0] not in dirty]
            found += unchanged
            kept += len(unchanged)
            if len(stored) < limit:
                break
            at = stored[-1][0] + b"\0"
        if changed:
            found.sort()
        return found[:limit]

    def _stored(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        at = start
        while True:
            for key, value in self.base.scan(at):
                if not key.startswith(prefix):
                    return
                if self.dropped and key.startswith(self.dropped):
                    at = after(next(dropped for dropped in self.dropped if key.startswith(dropped)))
                    break
                if key not in self.dirty:
                    yield key, value
            else:
                return

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All rows with a prefix, from `start` on, in key order, changes included.

        Slow when much is dirty: for opening, for repair and for long reads.
        """
        start = max(start, prefix)
        fresh = [(key, value) for key, value in self.dirty.items() if key >= start and key.startswith(prefix)]
        fresh.sort()
        return ((key, value) for key, value in merge(self._stored(prefix, start), fresh) if value is not None)

    @property
    def changes(self) -> Changes:
        """All changes since the last checkpoint."""
        return Changes(self.dirty, self.dropped)

    def taken(self) -> Changes:
        """The changes, handed over to a checkpoint; the overlay is empty afterwards."""
        changes, self.dirty, self.dropped, self._fresh = self.changes, {}, (), {}
        return changes


class InMemory:
    """A base in memory, sorted when scanned: for tests and scratch folds."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.rows = dict(rows)

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.rows[key]) for key in sorted(self.rows) if key >= start)

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return [(key, self.rows[key]) for key in sorted(key for key in self.rows if start <= key < end)[:limit]]

    def write(self, changes: Changes) -> None:
        for key in [key for key in self.rows if changes.dropped and key.startswith(changes.dropped)]:
            del self.rows[key]
        for key, value in changes.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value


def digest(rows: Iterable[tuple[bytes, bytes]]) -> str:
    """xxh3_128 over all rows in key order, lengths included: equal states have equal digests."""
    state = xxhash.xxh3_128()
    for key, value in rows:
        state.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    return state.hexdigest()
