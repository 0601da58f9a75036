"""The state's rows: their keys, their values, and the overlay of what changed since the last checkpoint.

The fold reads and writes rows here; nothing reaches the disk before a checkpoint, which takes every dirty row at once.
So the state on disk is always exactly the fold of the log up to the offset in the meta row.

Numbers in keys are big-endian, so key order is fetch order. A job has a number local to its partition (order of
appearance in the log). `host` and `domain` in keys are xxh3_64 of the host key and of the registrable domain.

    b"m"                                                   meta: where in which log this state is
    b"j" job:2                                             job: name, epochs, spec
    b"c" job:2                                             counts of the job
    b"n" job:2 epoch:2 domain:8                            domain: how many pages, URLs queued, the first fingerprints
    b"e" job:2 epoch:2 domain:8 page:4                     page of exact fingerprints: 8 bytes each, low first, sorted
    b"e" job:2 epoch:2 domain:8 page:4 b"+"                the latest of the same page, in order of coming
    b"b" job:2 epoch:2 domain:8 level:1 page:4             page of a Bloom filter: count:4, filter
    b"f" job:2 epoch:2 domain:8 fingerprint:8              depth and queue row of a URL, in a depth-limited job
    b"g" job:2 host:8                                      host queue: host key, URLs queued
    b"q" job:2 host:8 priority:1 sequence:8                URL to fetch
    b"w" job:2 host:8 sequence:8                           URL that waits for its next attempt
    b"d" job:2 due_ms:8 host:8 sequence:8                  due-time index of the waiting ones: empty
    b"h" host:8                                            host: what politeness must know after a restart
    b"s" job:2 name                                        name that joined the job's scope: empty
    b"t" job:2 host:8                                      strays of a host: their number, hashes of dates
    b"u" job:2 host:8 path:8                               facets of a path: parameters, hashes of values
    b"v" job:2 domain:8                                    hosts of a domain
    b"p" sequence:8 job name                               URL found for a job that is not known yet

All rows of a job lie under a kind and its number, so that a rewind drops them as a few ranges. The epoch in keys is the
one in which the job began from its seeds.

Changing a layout changes `FORMAT`: another crawlog then sets the state aside and folds the log again.
"""

from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from struct import Struct as Layout
from typing import NamedTuple, Protocol

import msgspec
import xxhash

from crawlog.schemas.progress import JobCounts
from crawlog.schemas.urls import JobSpec

FORMAT = 4
"""Version of the keys and values in a state database."""

META = b"m"
OF_JOB = (b"n", b"e", b"b", b"f", b"g", b"q", b"w", b"d", b"s", b"t", b"u", b"v")
"""Kinds of rows that a job begins without."""

SEQUENCE_INDEX_BITS = 16
"""A sequence is (offset << 16) + index: 65,536 URLs in one found record, 2^47 records in a partition."""

_queue = Layout(">cHQBQ")
_wait = Layout(">cHQQ")
_due = Layout(">cHQQQ")
_host_queue = Layout(">cHQ")
_host = Layout(">cQ")
_job = Layout(">cH")
_domain = Layout(">cHHQ")
_depth = Layout(">cHHQQ")
_exact = Layout(">cHHQI")
_page = Layout(">cHHQBI")

QUEUE_KEY_BYTES = _queue.size
QUEUE_PREFIX_BYTES = _host_queue.size
_LAST_SEQUENCE = (1 << 64) - 1


class Skip(msgspec.Struct, frozen=True, array_like=True):
    """Records at [start, end) that a rewind took back; at `end` stands its own record, which begins `epoch`."""

    start: int
    end: int
    epoch: int


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """Which log this state is the fold of, and up to where.

    Attributes:
        format: `FORMAT` when it was written.
        fold: The fold's version: code, suffix list, URL library.
        offset: The next record to fold.
        cluster, topic: Identities of the Kafka cluster and of crawl.urls.
        last_hash: xxh3_64 of the value of the record at `offset - 1`; 0 at offset 0.
        skipped: What rewinds took back, in order. One that ends behind `offset` was met before the state was rebuilt.
    """

    format: int
    fold: str
    partition: int
    offset: int
    cluster: str
    topic: str
    last_hash: int
    skipped: tuple[Skip, ...] = ()


def fits(skipped: Iterable[Skip], offset: int, effective: Iterable[Skip]) -> bool:
    """Whether a state at an offset, with what was skipped then, is on the way to one where other ranges count."""
    return [skip for skip in skipped if skip.start < offset] == [skip for skip in effective if skip.start < offset]


class JobRow(msgspec.Struct, frozen=True, array_like=True):
    """A job as this partition knows it.

    Attributes:
        since: The epoch in which it began from its seeds; it stands in keys.
        awaited: Whether its job record of this epoch has not come yet, so that nothing of it is fetched.
    """

    name: str
    epoch: int
    spec: JobSpec
    since: int = 0
    awaited: bool = False


class DomainRow(msgspec.Struct, frozen=True, array_like=True):
    """A registrable domain in a job.

    Attributes:
        size: How many pages it has; of a filter the top level.
        queued: URLs ever queued, for the budget.
        few: Its fingerprints, as in a page, while it has no page.
    """

    size: int
    queued: int
    few: bytes = b""


class HostQueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A host queue: its host key, registrable domain and the URLs in it, waiting ones included."""

    host: str
    domain: str
    queued: int


class HostRow(msgspec.Struct, frozen=True, array_like=True):
    """What politeness must know of a host after a restart; times are the log's.

    Attributes:
        last_at: UTC epoch seconds when the last attempt ended.
        wait_s: How long the host must rest from then on, beside the crawl delay.
        failures: Attempts in a row that failed or were turned away.
    """

    last_at: float
    wait_s: float
    failures: int


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A URL not yet done.

    Attributes:
        sitemap: It is that of a sitemap.
        attempt: Attempts made so far.
        due_ms, wait_s: When the next attempt is due (UTC epoch milliseconds) and how long that wait was; 0 if at once.
    """

    url: str
    depth: int = 0
    hops: int = 0
    seed: bool = False
    attempt: int = 0
    priority: int = 0
    due_ms: int = 0
    wait_s: float = 0.0
    sitemap: bool = False


pack = msgspec.msgpack.Encoder().encode
"""Any row as bytes."""

read_meta = msgspec.msgpack.Decoder(Meta).decode
read_job = msgspec.msgpack.Decoder(JobRow).decode
read_counts = msgspec.msgpack.Decoder(JobCounts).decode
read_domain = msgspec.msgpack.Decoder(DomainRow).decode
read_host_queue = msgspec.msgpack.Decoder(HostQueueRow).decode
read_host = msgspec.msgpack.Decoder(HostRow).decode
read_queued = msgspec.msgpack.Decoder(QueueRow).decode


def queue_key(job: int, host: int, priority: int, sequence: int, lifo: bool) -> bytes:
    """Key of a URL to fetch: the higher priority first, then the older (FIFO) or the newer (LIFO) sequence."""
    return _queue.pack(b"q", job, host, 127 - priority, _LAST_SEQUENCE - sequence if lifo else sequence)


def queue_prefix(job: int, host: int) -> bytes:
    """Prefix of all keys of a host queue's URLs to fetch."""
    return _host_queue.pack(b"q", job, host)


def wait_key(job: int, host: int, sequence: int) -> bytes:
    """Key of a URL that waits for its next attempt."""
    return _wait.pack(b"w", job, host, sequence)


def due_key(due_ms: int, job: int, host: int, sequence: int) -> bytes:
    """Key in the due-time index."""
    return _due.pack(b"d", job, due_ms, host, sequence)


def unpack_due(key: bytes) -> tuple[int, int, int, int]:
    """(due_ms, job, host, sequence) of a key in the due-time index."""
    _, job, due_ms, host, sequence = _due.unpack(key)
    return due_ms, job, host, sequence


def unpack_queue(key: bytes, lifo: bool) -> tuple[int, int, int, int]:
    """(job, host, priority, sequence) of a queue key."""
    _, job, host, priority, sequence = _queue.unpack(key)
    return job, host, 127 - priority, _LAST_SEQUENCE - sequence if lifo else sequence


def host_queue_key(job: int, host: int) -> bytes:
    """Key of a host queue's row."""
    return _host_queue.pack(b"g", job, host)


def unpack_host_queue(key: bytes) -> tuple[int, int]:
    """(job, host) of a host queue's key."""
    _, job, host = _host_queue.unpack(key)
    return job, host


def host_key(host: int) -> bytes:
    """Key of a host's row."""
    return _host.pack(b"h", host)


def job_key(job: int) -> bytes:
    """Key of a job's row."""
    return _job.pack(b"j", job)


def counts_key(job: int) -> bytes:
    """Key of a job's counts."""
    return _job.pack(b"c", job)


def domain_key(job: int, epoch: int, domain: int) -> bytes:
    """Key of a domain's row."""
    return _domain.pack(b"n", job, epoch, domain)


def exact_key(job: int, epoch: int, domain: int, page: int) -> bytes:
    """Key of a page of exact fingerprints."""
    return _exact.pack(b"e", job, epoch, domain, page)


def latest_key(job: int, epoch: int, domain: int, page: int) -> bytes:
    """Key of a page's latest fingerprints, which lie behind the others."""
    return _exact.pack(b"e", job, epoch, domain, page) + b"+"


def page_key(job: int, epoch: int, domain: int, level: int, page: int) -> bytes:
    """Key of a page of a Bloom filter."""
    return _page.pack(b"b", job, epoch, domain, level, page)


def depth_key(job: int, epoch: int, domain: int, fingerprint: int) -> bytes:
    """Key of a URL's depth; those of a domain lie together, as a page's links are looked up together."""
    return _depth.pack(b"f", job, epoch, domain, fingerprint)


def of_job(kind: bytes, job: int) -> bytes:
    """Prefix of a job's rows of one kind."""
    return _job.pack(kind, job)


def joined_key(job: int, name: str) -> bytes:
    """Key of a name that joined a job's scope."""
    return _job.pack(b"s", job) + name.encode()


def strays_key(job: int, host: int) -> bytes:
    """Key of a host's strays."""
    return _host_queue.pack(b"t", job, host)


def facets_key(job: int, host: int, path: int) -> bytes:
    """Key of a path's facets."""
    return _wait.pack(b"u", job, host, path)


def hosts_key(job: int, domain: int) -> bytes:
    """Key of the number of a domain's hosts."""
    return _host_queue.pack(b"v", job, domain)


def job_of(key: bytes) -> int:
    """The job in the key of a row that belongs to one."""
    return int.from_bytes(key[1:3], "big")


def parked_key(sequence: int, job: str) -> bytes:
    """Key of a URL found for an unknown job."""
    return b"p" + sequence.to_bytes(8, "big") + job.encode()


class Changes(NamedTuple):
    """What a checkpoint writes: first all rows with one of the prefixes in `dropped` go, then `rows` are set."""

    rows: dict[bytes, bytes | None]
    dropped: tuple[bytes, ...] = ()


def after(prefix: bytes) -> bytes:
    """The first key behind all those with a prefix."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


class Base(Protocol):
    """What lies under the overlay: the database as of the last checkpoint."""

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows, or None, in the order of their keys; fastest where those are in order."""

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` on, in key order."""

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows at [start, end), in key order: for many short reads."""


class Rows:
    """The state as the fold sees it: the rows on disk under the changes since the last checkpoint.

    Invariants: `dirty` and `dropped` hold every change since the last checkpoint and nothing else; what was dropped
    hides rows of the base, never one in `dirty`; a row in `_kept` is as `get` gives it, so a change of it ends its
    stay there.
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
        """Rows by key, as `get` gives them; for many at once, that are not kept at hand."""
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
        """Forget a row."""
        self.dirty[key] = None
        if key in self._kept:
            del self._kept[key]

    def drop(self, prefix: bytes) -> None:
        """Forget all rows with a prefix, however many lie on disk: only those in memory are looked at.

        Args:
            prefix: A job's rows of one kind, so that a host queue goes whole or not at all.
        """
        for held in (self.dirty, self._kept):
            for key in [key for key in held if key.startswith(prefix)]:
                del held[key]
        for queue in [queue for queue in self._fresh if queue.startswith(prefix)]:
            del self._fresh[queue]
        if prefix not in self.dropped:
            self.dropped = (*self.dropped, prefix)

    def keep(self, key: bytes, value: bytes | None) -> None:
        """Keep a row, as it is now, or that there is none, at hand until it changes: it is soon asked for."""
        self._kept[key] = value

    def let_go(self, key: bytes) -> None:
        """Keep a row at hand no longer."""
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

        Slow where much is dirty: for opening, repair and what is read in large parts.
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


class Memory:
    """A base in memory, sorted when scanned: for tests and scratch folds."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.rows = dict(rows)

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""
        return self.rows.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The rows, or None."""
        return [self.rows.get(key) for key in keys]

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` on, in key order."""
        return ((key, self.rows[key]) for key in sorted(self.rows) if key >= start)

    def read(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` rows at [start, end)."""
        return [(key, self.rows[key]) for key in sorted(key for key in self.rows if start <= key < end)[:limit]]

    def write(self, changes: Changes) -> None:
        """Apply the changes of a checkpoint."""
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
