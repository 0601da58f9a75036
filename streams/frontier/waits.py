"""URLs of one partition that wait for their next attempt: those due first in memory, the others in the state's rows."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, merge
from math import inf

from crawlog.streams.fold import Fold, JobState
from crawlog.streams.fold import rows as r

from .host import Host, HostQueue
from .schedule import Schedule

WAITING_IN_MEMORY = 20_000  # Waiting URLs of one partition in memory, about; later ones are read when these are done

MOST_DUE = 1_000  # URLs that are due again are counted up to this

# Part of `recrawl.age`, or of `recrawl.min_age` where it is adaptive, at most so many seconds, that a job waits for the
# next URL that is due.
SOON, SOON_S = 0.05, 60.0


class RetryWaits:
    """Waiting URLs by due time; one that is due goes to the front of its host's queue, as overdue.

    Invariant: while `_from` is a place in the due-time index, rows before it are in memory and others need not be; none
    of the others is due before `_upto`.

    Args:
        hosts: The partition's hosts in memory, by key.
        pending: Keys of the URLs that were dispatched and whose done is not folded.

    Attributes:
        woken: Number of URLs in the queues of hosts that are overdue since their wait is over.
        left: Jobs whose waiting URLs were left in the rows, since the jobs may not go on.
    """

    def __init__(self, fold: Fold, schedule: Schedule, hosts: Mapping[str, Host], pending: Collection[bytes]) -> None:
        self._fold = fold
        self._schedule = schedule
        self._hosts = hosts
        self._pending = pending
        self._heap: list[tuple[float, bytes, int, str, str]] = []  # (due, key, due_ms, host, domain)
        self._from: bytes | None = None
        self._upto = inf
        self._none_before: dict[
            int, int
        ] = {}  # by job: no URL is due again before; a scan for each look costs too much
        self.woken = 0
        self.left: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: bytes, row: r.QueueRow, host: str, domain: str) -> None:
        """Take a URL that waits `row.wait_s` seconds from now on, or one without an attempt until it is due."""
        if row.due_ms < self._none_before.get(number := r.job_of(key), 0):
            self._none_before[number] = row.due_ms
        due = self._schedule.now() + (row.wait_s if row.attempt else self._left_s(row.due_ms, row.wait_s))
        if self._from is not None and _place(key, row.due_ms) >= self._from:
            self._upto = min(self._upto, due)
            return
        heappush(self._heap, (due, key, row.due_ms, host, domain))
        if len(self._heap) >= 2 * WAITING_IN_MEMORY:
            self._drop_late()

    def _left_s(self, due_ms: int, wait_s: float) -> float:
        """What is left of a wait from the log: shortened by the time that has passed since, never lengthened."""
        return min(max(due_ms / 1000 - self._schedule.wall(), 0.0), wait_s)

    def _drop_late(self) -> None:
        """Keep in memory the waits that are due first."""
        self._heap.sort(key=lambda wait: _place(wait[1], wait[2]))
        rest = self._heap[WAITING_IN_MEMORY:]
        del self._heap[WAITING_IN_MEMORY:]
        heapify(self._heap)
        self._from = _place(rest[0][1], rest[0][2])
        self._upto = min(self._upto, *(wait[0] for wait in rest))

    def next_at(self) -> float:
        """When a waiting URL is due, or waiting rows are to be read."""
        at = self._heap[0][0] if self._heap else inf
        return self._upto if self._upto < at and self.woken < WAITING_IN_MEMORY else at

    def take_due(self, now: float) -> Iterator[tuple[bytes, r.QueueRow, str, str]]:
        """(key, row, host, domain) of each URL whose wait is over; its row stands, and it is not dispatched."""
        while self._heap and self._heap[0][0] <= now:
            _, key, due_ms, host, domain = heappop(self._heap)
            stored = self._fold.rows.get(key)
            row = r.read_queued(stored) if stored is not None else None
            if row is not None and row.due_ms == due_ms and key not in self._pending:
                yield key, row, host, domain

    def due_again(self, job: JobState) -> int:
        """Waiting URLs of a job that were done before and are due soon, up to `MOST_DUE`.

        A job with some is not at its end: it would begin again in a moment. Those in flight count, too.
        """
        if not job.counts.again:
            return 0
        rules = job.spec.recrawl
        least_s = min(rules.age or 0.0, rules.min_age if rules.adaptive else inf)
        soon_s = min(least_s * SOON, SOON_S)
        until_ms = int(max(self._schedule.wall() + soon_s, 0.0) * 1000)
        if self._none_before.get(job.number, 0) >= until_ms:
            return 0
        rows = self._fold.rows
        due, first_ms = 0, r.LAST_MS
        for key, _ in rows.scan(r.of_job(b"d", job.number)):
            due_ms, _, host, sequence = r.unpack_due(key)
            if due_ms >= until_ms or due >= MOST_DUE:
                first_ms = due_ms
                break
            stored = rows.get(r.wait_key(job.number, host, sequence))
            due += stored is not None and r.read_queued(stored).is_again
        self._none_before[job.number] = 0 if due else first_ms
        return due

    def hurry(self, hosts: Collection[str]) -> None:
        """End the waits for another attempt at URLs of these hosts, as far as they are in memory."""
        now = self._schedule.now()
        for at, (due, key, due_ms, host, domain) in enumerate(self._heap):
            stored = self._fold.rows.get(key) if host in hosts else None
            if stored is not None and r.read_queued(stored).attempt:
                self._heap[at] = min(due, now), key, due_ms, host, domain
        heapify(self._heap)

    def load_due(self, now: float) -> None:
        """Read further waiting rows if they are due and there is room."""
        if self._upto <= now and self.woken < WAITING_IN_MEMORY:
            self.load()

    def load(self) -> None:
        """Read the next waiting rows from the due-time index, but for those in memory."""
        start, self._from, self._upto = self._from or b"", None, inf
        self._fold.flush()
        rows = self._fold.rows
        now = self._schedule.now()
        there = {wait[1] for wait in self._heap}.union(key for _, queue in self._overdue() for key, _ in queue.overdue)
        for count, due_key in enumerate(self._on_disk(start)):
            due_ms, job, host_hash, sequence = r.unpack_due(due_key)
            key = r.wait_key(job, host_hash, sequence)
            stored, queue = rows.get(key), rows.get(r.host_queue_key(job, host_hash))
            if stored is None or queue is None or key in self._pending or key in there:
                continue
            due = now + self._left_s(due_ms, r.read_queued(stored).wait_s)
            if count >= WAITING_IN_MEMORY:
                self._from, self._upto = _place(key, due_ms), due
                return
            host = r.read_host_queue(queue)
            heappush(self._heap, (due, key, due_ms, host.host, host.domain))

    def _on_disk(self, start: bytes) -> Iterator[bytes]:
        """Keys of the due-time index from a place on, over all jobs that may go on."""
        runs = self._schedule.runs
        jobs = self._fold.with_queue()
        self.left.update(job.number for job in jobs if not runs(job))
        prefixes = [r.of_job(b"d", job.number) for job in jobs if runs(job)]
        scans = [self._fold.rows.scan(prefix, prefix + start[:8]) for prefix in prefixes]
        for due_key, _ in merge(*scans, key=lambda entry: _place_of(entry[0])):
            if _place_of(due_key) >= start:
                yield due_key

    def look_again(self, may_go_on: Callable[[Host, HostQueue], bool]) -> None:
        """Drop the overdue URLs that may not go on, and read those again whose job may: a job or a command changed."""
        for host, queue in self._overdue():
            if not may_go_on(host, queue):  # they count as woken, and may be many
                self.woken -= waited(queue.overdue)
                queue.overdue = [entry for entry in queue.overdue if entry[0][:1] == b"q"]
                self.left.add(queue.job.number)
        if any(self._schedule.runs(self._fold.numbers[job]) for job in self.left):
            self.left, self._from, self._upto = set(), b"", 0.0

    def forget(self, queue: HostQueue) -> None:
        """A queue leaves memory: its overdue URLs are read from the rows again."""
        self.woken -= waited(queue.overdue)
        if queue.overdue:
            self.left.add(queue.job.number)

    def _overdue(self) -> Iterator[tuple[Host, HostQueue]]:
        """The queues that have something overdue."""
        return ((host, queue) for host in self._hosts.values() for queue in host.queues.values() if queue.overdue)


def waited(overdue: Iterable[tuple[bytes, r.QueueRow]]) -> int:
    """How many of these URLs have waited; the others were dispatched and put back."""
    return sum(key[:1] == b"w" for key, _ in overdue)


def _place(wait_key: bytes, due_ms: int) -> bytes:
    """The place in the due-time index, over all jobs, of the row under a waiting row's key."""
    return due_ms.to_bytes(8, "big") + wait_key[1:]


def _place_of(due_key: bytes) -> bytes:
    """The place in the due-time index, over all jobs, of a key in it."""
    return due_key[5:13] + due_key[1:5] + due_key[13:]
