"""The host queues: the rows of all URLs that are not done, and how many each host has.

Every change of such a row is made here, and the listener (the dispatcher) is told of it in the same step.
"""

from typing import Protocol

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.requests import packed
from crawlog.streams.url import Place

from . import again
from . import rows as r
from .jobs import JobState
from .overlay import Rows

MAX_DUE_S = 1e12  # Due times and waits are cut to this, seconds: 30,000 years


class Listener(Protocol):
    """The dispatcher: it is told of each change while the record is folded."""

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:
        """A URL may be fetched; `value` is its row, a packed `QueueRow`."""

    def lowered(self, job: int, host: str, key: bytes, value: bytes) -> None:
        """The row of a URL that is queued, waits or is in flight has changed: its depth, or its request has begun."""

    def removed(self, job: int, host: str, key: bytes) -> None:
        """A URL is done or waits; `key` is the key of the row that was dispatched."""

    def waiting(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:
        """A URL waits `row.wait_s` seconds for its next attempt."""

    def outdated(self, key: bytes, epoch: int) -> None:
        """A done changed nothing: its job has left the epoch in which the URL was dispatched."""

    def job_changed(self, job: int) -> None:
        """A job's record was folded."""

    def forgotten(self, job: int) -> None:
        """All rows of a job were dropped."""


class _Held:
    """A host queue's row in memory."""

    __slots__ = ("dirty", "domain", "host", "queued")

    def __init__(self, host: str, domain: str, queued: int) -> None:
        self.host = host
        self.domain = domain
        self.queued = queued
        self.dirty = False


class HostQueues:
    """All host queues of one partition.

    Args:
        rows: The state; the numbers of URLs are written to it by `flush`.
        cached: Host queues held in memory after a flush, at most.

    Attributes:
        held: Host queues in memory, by the key of their row.
    """

    def __init__(self, rows: Rows, cached: int) -> None:
        self.held: dict[bytes, _Held] = {}
        self.listener: Listener | None = None
        self._rows = rows
        self._cached = cached

    def add(
        self, job: JobState, found: u.FoundUrl, url: str, place: Place, sequence: int, was: r.Recurrence | None = None
    ) -> None:
        """Queue a URL; one with an `eta` waits until then.

        Args:
            was: What is known of it, if it was due again.
        """
        host = place.host_hash
        priority = bounded_priority(found.priority)
        key = r.queue_key(job.number, host, priority, sequence, job.lifo)
        seed = found.source == "seed" or found.joins
        row = r.QueueRow(url, found.depth, found.hops, seed, 0, priority, 0, 0.0, found.source == "sitemap")
        if found.id or found.request is not None or found.via:
            row = msgspec.structs.replace(row, id=found.id, request=packed(found.request), via=found.via)
        if found.expires or job.spec.recrawl.age is not None:
            row = msgspec.structs.replace(
                row, expires=_whole(found.expires), again=again.of_found(job.spec.recrawl, found, was)
            )
        if found.eta > 0:
            self._let_wait(job, place, row, sequence, found.eta, MAX_DUE_S)
            self.count(job, host, place, 1)
            return
        value = r.pack(row)
        self._rows.put_ordered(key, value)
        self.count(job, host, place, 1)
        if self.listener is not None:
            self.listener.queued(job.number, place.host, place.domain, key, value)

    def add_again(self, job: JobState, place: Place, row: r.QueueRow, sequence: int) -> None:
        """Keep the row of a URL that was found at a lesser depth while it was being fetched."""
        key = r.queue_key(job.number, place.host_hash, row.priority, sequence, job.lifo)
        fresh = r.pack(msgspec.structs.replace(row, attempt=0, due_ms=0, wait_s=0.0, began=False))
        self._rows.put_ordered(key, fresh)
        if self.listener is not None:
            self.listener.queued(job.number, place.host, place.domain, key, fresh)

    def lower(self, job: JobState, place: Place, priority: int, sequence: int, depth: int) -> bool:
        """Set the depth of a URL that is queued or waits; False if it is neither."""
        host = place.host_hash
        for key in (
            r.queue_key(job.number, host, priority, sequence, job.lifo),
            r.wait_key(job.number, host, sequence),
        ):
            stored = self._rows.get(key)
            if stored is not None:
                lowered = r.pack(msgspec.structs.replace(r.read_queued(stored), depth=depth))
                self._rows.put_ordered(key, lowered)
                if self.listener is not None:
                    self.listener.lowered(job.number, place.host, key, lowered)
                return True
        return False

    def begin(self, job: JobState, place: Place, key: bytes, row: r.QueueRow) -> None:
        """Note in a URL's row that its request may have been sent."""
        self.put(job, place, key, msgspec.structs.replace(row, began=True))

    def put(self, job: JobState, place: Place, key: bytes, row: r.QueueRow) -> None:
        """Change a row that stays where it is."""
        value = r.pack(row)
        if key[:1] == b"w":  # nobody holds the value of a waiting row
            self._rows.put(key, value)
            return
        self._rows.put_ordered(key, value)
        if self.listener is not None:
            self.listener.lowered(job.number, place.host, key, value)

    def remove(self, job: JobState, place: Place, key: bytes, row: r.QueueRow, sequence: int) -> None:
        """Delete the row of a URL after an attempt. Its host still counts it: it may wait or be queued again."""
        self._rows.delete(key)
        if row.due_ms:
            self._rows.delete(r.due_key(row.due_ms, job.number, place.host_hash, sequence))
        if self.listener is not None:
            self.listener.removed(job.number, place.host, key)

    def wait(self, job: JobState, place: Place, row: r.QueueRow, result: u.Result) -> None:
        """Let a removed URL wait for its next attempt."""
        later = msgspec.structs.replace(row, attempt=result.attempt, began=False)
        self._let_wait(job, place, later, result.row, result.next_at, result.delay_s)
        job.counts.retried += 1

    def _let_wait(self, job: JobState, place: Place, row: r.QueueRow, sequence: int, due: float, wait_s: float) -> None:
        """Put a URL among those that wait until `due`, UTC epoch seconds, and at most `wait_s` from now on."""
        host = place.host_hash
        due_ms = max(int(min(due, MAX_DUE_S) * 1000), 1)
        later = msgspec.structs.replace(row, due_ms=due_ms, wait_s=min(max(wait_s, 0.0), MAX_DUE_S))
        key = r.wait_key(job.number, host, sequence)
        self._rows.put(key, r.pack(later))
        self._rows.put(r.due_key(due_ms, job.number, host, sequence), b"")
        job.dirty = True
        if self.listener is not None:
            self.listener.waiting(job.number, place.host, place.domain, key, later)

    # ------------------------------------------------------------------ URLs that are due again

    def keep_again(
        self, job: JobState, place: Place, row: r.QueueRow, sequence: int, known: r.Recurrence, after_s: float
    ) -> None:
        """Let a URL that is done wait until it is due again; the caller has removed its row, and counts it.

        Args:
            after_s: How long after it was done.
        """
        later = msgspec.structs.replace(row, attempt=0, began=False, again=known, expires=0)
        self._let_wait(job, place, later, sequence, known.done_at + after_s, after_s)

    def waiting_again(self, job: JobState, place: Place, sequence: int) -> r.QueueRow | None:
        """The row of a URL that is due again later; None if it is not done, or not known so."""
        stored = self._rows.get(r.wait_key(job.number, place.host_hash, sequence))
        row = r.read_queued(stored) if stored is not None else None
        return row if row is not None and row.is_again else None

    def due_after(self, job: JobState, place: Place, row: r.QueueRow, sequence: int, after_s: float) -> None:
        """Change how long after it was done a URL is due again; `row` may have other changes, too."""
        assert row.again is not None
        self.remove(job, place, r.wait_key(job.number, place.host_hash, sequence), row, sequence)
        self.keep_again(job, place, row, sequence, row.again, after_s)

    def take_again(self, job: JobState, place: Place, row: r.QueueRow, sequence: int) -> None:
        """Remove the row of a URL that is due again later, to queue it otherwise."""
        self.remove(job, place, r.wait_key(job.number, place.host_hash, sequence), row, sequence)
        job.counts.again -= 1

    def count(self, job: JobState, host: int, place: Place, change: int) -> None:
        """Add to the number of a host's URLs, waiting ones included; `host` is its hash."""
        key = r.host_queue_key(job.number, host)
        queue = self.held.get(key)
        if queue is None:
            stored = self._rows.get(key)
            row = r.read_host_queue(stored) if stored else r.HostQueueRow(place.host, place.domain, 0)
            queue = self.held[key] = _Held(row.host, row.domain, row.queued)
        queue.queued += change
        queue.dirty = True
        job.counts.queued += change
        job.dirty = True

    def row(self, job: int, host: int) -> r.HostQueueRow | None:
        """A host queue as it is now; `host` is its hash."""
        key = r.host_queue_key(job, host)
        queue = self.held.get(key)
        if queue is not None:
            return r.HostQueueRow(queue.host, queue.domain, queue.queued)
        stored = self._rows.get(key)
        return r.read_host_queue(stored) if stored else None

    def flush(self) -> None:
        """Write the numbers that changed into the rows: before each checkpoint and each digest."""
        for key, queue in self.held.items():
            if queue.dirty:
                self._rows.put(key, r.pack(r.HostQueueRow(queue.host, queue.domain, queue.queued)))
                queue.dirty = False
        if len(self.held) > self._cached:
            self.held.clear()

    def forget(self, job: int) -> None:
        """Remove the host queues of a job from memory: its rows were dropped."""
        self.held = {key: queue for key, queue in self.held.items() if r.unpack_host_queue(key)[0] != job}


def _whole(expires: float) -> int:
    return max(int(min(expires, MAX_DUE_S)), 1) if expires > 0 else 0


def bounded_priority(priority: int) -> int:
    """A priority as keys can hold it: -2^31..2^31-1."""
    most = u.MAX_PRIORITY
    return priority if -most <= priority <= most else min(max(priority, -most - 1), most)
