"""The dispatcher: which URL may be fetched now, over all partitions that a worker owns.

Per host: so many requests at a time, so much rest between them, the queue in key order. Between hosts: by next allowed
time, and round robin over jobs, then registrable domains, then hosts where more are allowed than can be fetched. Only
hosts with something to fetch are in memory, each with a short window of its queue; the rest stays in the state's rows.

Time is `now`, in seconds on a monotonic clock. Nothing decided here is kept: what matters enters the log as a done.
A URL's row stands until its done is folded, so a URL handed out is remembered in `pending` until then.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush
from typing import Protocol

from . import rows as r
from .fold import Fold, Job
from .robots import RobotsRules

WINDOW = 30
"""URLs of one host queue in memory, at most."""

WINDOW_BUDGET = 60_000
"""URLs of all host queues in memory, about: with more hosts each window is smaller."""

WINDOW_LEAST = 4

WAITING_IN_MEMORY = 20_000
"""Waiting URLs of one partition in memory; later ones are read when these are done."""

class Task:
    """A URL to fetch, from its dispatch until its done is folded.

    Attributes:
        key: The row's key: a queue row's, or a waiting row's.
    """

    __slots__ = ("domain", "host", "job", "key", "partition", "row")

    def __init__(self, host: "Host", job: Job, key: bytes, row: r.QueueRow, partition: "Owned") -> None:
        self.host = host
        self.job = job
        self.key = key
        self.row = row
        self.partition = partition
        self.domain = host.domain

    @property
    def sequence(self) -> int:
        """The row's sequence, as a done names it."""
        sequence = int.from_bytes(self.key[-8:], "big")
        return (1 << 64) - 1 - sequence if self.key[:1] == b"q" and self.job.lifo else sequence


class RobotsTask:
    """A host whose robots.txt must be fetched before its pages."""

    __slots__ = ("host",)

    def __init__(self, host: "Host") -> None:
        self.host = host


class _Queue:
    """The queue of one (job, host): a sorted window of it, and whether the rows hold more.

    Invariant: while `more`, every row below `upto` that is not dispatched is in the window; else every row is.
    """

    __slots__ = ("job", "more", "overdue", "upto", "window")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.window: list[tuple[bytes, r.QueueRow]] = []
        self.overdue: deque[tuple[bytes, r.QueueRow]] = deque()
        self.more = False
        self.upto = b""

    def __bool__(self) -> bool:
        return bool(self.window or self.overdue or self.more)


class Host:
    """A host with something to fetch.

    Attributes:
        key: `scheme://name:port`.
        ready_at: It is not asked before this time.
        delay_s: Rest between two requests, robots.txt's wish included.
        failures: Requests in a row that were turned away.
        rules: Its robots.txt; None until fetched, and again when `rules_until` has passed.
        unreachable: Why its robots.txt could not be read; its URLs then fail.
    """

    __slots__ = (
        "delay_s", "domain", "failures", "hash", "in_flight", "key", "partition", "queues", "ready_at",
        "robots_attempts", "robots_since", "rules", "rules_until", "turn", "unreachable", "where",
    )  # fmt: skip

    def __init__(self, key: str, domain: str, partition: "Owned", delay_s: float) -> None:
        self.key = key
        self.domain = domain
        self.hash = r.hashed(key)
        self.partition = partition
        self.queues: dict[int, _Queue] = {}
        self.delay_s = delay_s
        self.ready_at = 0.0
        self.in_flight = 0
        self.failures = 0
        self.rules: RobotsRules | None = None
        self.rules_until = 0.0
        self.robots_attempts = 0
        self.robots_since = 0.0
        self.turn = 0
        self.unreachable = ""
        self.where = _IDLE


_IDLE, _LATER, _READY = range(3)


class Cache(Protocol):
    """Values that may be lost, such as robots rules, kept beside the rows."""

    def cache(self, key: bytes, value: bytes) -> None:
        """Remember a value."""

    def cached(self, key: bytes) -> bytes | None:
        """A remembered value, or None."""


class Rests(Protocol):
    """The settings that the dispatcher needs."""

    delay_s: float
    per_host: int


class Owned:
    """A partition this worker owns, as the dispatcher sees it; the fold tells it of each change."""

    def __init__(self, frontier: "Frontier", fold: Fold, cache: Cache) -> None:
        self.frontier = frontier
        self.fold = fold
        self.cache = cache.cache
        self.cached = cache.cached
        self.hosts: dict[str, Host] = {}
        self.pending: dict[bytes, Task] = {}
        self.waits: list[tuple[float, bytes, str, str]] = []
        self.more_waits = False

    # ------------------------------------------------------------------ the fold's listener

    def queued(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:
        """A URL may be fetched."""
        entry = self.host(host, domain)
        queue = self._queue(entry, job)
        if queue.more and key >= queue.upto:
            return
        insort(queue.window, (key, row), key=_key)
        if len(queue.window) > self.frontier.window:
            queue.upto = queue.window.pop()[0]
            queue.more = True
        self.frontier.arrange(entry)

    def removed(self, job: int, host: str, key: bytes) -> None:
        """A URL has been done, or waits."""
        self.pending.pop(key, None)

    def waiting(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:
        """A URL waits `row.wait_s` seconds, from now on, for its next attempt."""
        self._wait_until(self.frontier.now() + row.wait_s, host, domain, key)

    def job_changed(self, job: int) -> None:
        """A job's record was folded: its hosts may have something to fetch now."""
        for host in self.hosts.values():
            if job in host.queues:
                self.frontier.arrange(host)

    # ------------------------------------------------------------------ queues

    def _wait_until(self, due: float, host: str, domain: str, key: bytes) -> None:
        if len(self.waits) >= WAITING_IN_MEMORY:
            self.more_waits = True
            return
        heappush(self.waits, (due, key, host, domain))

    def host(self, key: str, domain: str) -> Host:
        """The host's entry, made when there is none."""
        entry = self.hosts.get(key)
        if entry is None:
            entry = self.hosts[key] = Host(key, domain, self, self.frontier.rests.delay_s)
            stored = self.fold.rows.get(r.host_key(entry.hash))
            if stored is not None:
                row = r.read_host(stored)
                entry.failures = row.failures
                rest = max(entry.delay_s, row.wait_s)
                entry.ready_at = self.frontier.now() + min(max(row.last_at + rest - self.frontier.wall(), 0.0), rest)
        return entry

    def _queue(self, host: Host, job: int) -> _Queue:
        queue = host.queues.get(job)
        if queue is None:
            queue = host.queues[job] = _Queue(self.fold.numbers[job])
        return queue

    def load(self) -> None:
        """Take up what the rows hold, after a restore: no host is asked before one full delay has passed.

        Waits written to the log are shortened by what has passed since, never lengthened.
        """
        now = self.frontier.now()
        for key, value in self.fold.rows.scan(b"g"):
            stored = r.read_host_queue(value)
            if stored.queued <= 0:
                continue
            number, _ = r.unpack_host_queue(key)
            host = self.host(stored.host, stored.domain)
            queue = self._queue(host, number)
            queue.more, queue.upto = True, b""
            host.ready_at = max(host.ready_at, now + host.delay_s)
            self.frontier.arrange(host)
        self._load_waits()

    def _load_waits(self) -> None:
        self.more_waits = False
        now, wall = self.frontier.now(), self.frontier.wall()
        known = {key for _, key, _, _ in self.waits}
        for due in self.fold.rows.scan(b"d"):
            due_ms, job, host_hash, sequence = r.unpack_due(due[0])
            key = r.wait_key(job, host_hash, sequence)
            if key in known or key in self.pending:
                continue
            stored = self.fold.rows.get(key)
            queue = self.fold.rows.get(r.host_queue_key(job, host_hash))
            if stored is None or queue is None:
                continue
            left = min(max(due_ms / 1000 - wall, 0.0), r.read_queued(stored).wait_s)
            host = r.read_host_queue(queue)
            self._wait_until(now + left, host.host, host.domain, key)
            if self.more_waits:
                return

    def wake(self, now: float) -> None:
        """Put what has waited long enough before its host's queue."""
        while self.waits and self.waits[0][0] <= now:
            _, key, host_key, domain = heappop(self.waits)
            stored = self.fold.rows.get(key)
            if stored is None or key in self.pending:
                continue
            host = self.host(host_key, domain)
            self._queue(host, int.from_bytes(key[1:3], "big")).overdue.append((key, r.read_queued(stored)))
            self.frontier.arrange(host)
        if not self.waits and self.more_waits:
            self._load_waits()

    def pop(self, host: Host, queue: _Queue) -> Task | None:
        """The next URL of a host queue that still has its row."""
        while queue:
            if queue.overdue:
                key, _ = queue.overdue.popleft()
            elif queue.window:
                key, _ = queue.window.pop(0)
            else:
                self._refill(host, queue)
                continue
            stored = self.fold.rows.get(key)
            if stored is not None and key not in self.pending:
                task = Task(host, queue.job, key, r.read_queued(stored), self)
                self.pending[key] = task
                return task
        return None

    def _refill(self, host: Host, queue: _Queue) -> None:
        prefix = r.queue_key(queue.job.number, host.hash, 127, 0, lifo=False)[: r.QUEUE_PREFIX_BYTES]
        start = queue.upto or prefix
        limit = self.frontier.window
        found = self.fold.rows.scan_queue(prefix, start, limit + 1)
        queue.more = len(found) > limit
        if queue.more:
            queue.upto = found[limit][0]
        queue.window = [(key, r.read_queued(value)) for key, value in found[:limit] if key not in self.pending]


class _Domain:
    __slots__ = ("hosts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: deque[tuple[int, Host]] = deque()


class _Ring:
    """Hosts of one job that may be asked now, by registrable domain."""

    def __init__(self) -> None:
        self.domains: deque[_Domain] = deque()
        self._by_name: dict[str, _Domain] = {}

    def add(self, host: Host) -> None:
        domain = self._by_name.get(host.domain)
        if domain is None:
            domain = self._by_name[host.domain] = _Domain(host.domain)
            self.domains.append(domain)
        domain.hosts.append((host.turn, host))

    def pop(self) -> tuple[int, Host] | None:
        """The next host: domains in turn, hosts of a domain in turn."""
        while self.domains:
            domain = self.domains.popleft()
            if not domain.hosts:
                del self._by_name[domain.name]
                continue
            entry = domain.hosts.popleft()
            self.domains.append(domain)
            return entry
        return None


class Frontier:
    """Host queues of every partition this worker owns.

    Args:
        rests: Delay and requests at a time.
        now: A monotonic clock.
        wall: UTC epoch seconds, only to see how much of a wait in the log has passed.
        robots: Whether hosts need their robots.txt before their pages.
    """

    def __init__(self, rests: Rests, now: "Clock", wall: "Clock", *, robots: bool = True) -> None:
        self.rests = rests
        self.now = now
        self.wall = wall
        self.robots = robots
        self.owned: dict[int, Owned] = {}
        self._later: list[tuple[float, int, Host]] = []
        self._rings: dict[str, _Ring] = {}
        self._turns: deque[str] = deque()
        self._count = 0
        self.window = WINDOW

    # ------------------------------------------------------------------ ownership

    def own(self, partition: int, fold: Fold, cache: Cache) -> None:
        """Dispatch for a partition from now on; its fold must have reached the log's end."""
        owned = self.owned[partition] = Owned(self, fold, cache)
        owned.load()
        fold.listener = owned
        self.size_windows()

    def disown(self, partition: int) -> None:
        """Dispatch nothing more for a partition."""
        owned = self.owned.pop(partition, None)
        if owned is None:
            return
        owned.fold.listener = None
        for host in owned.hosts.values():
            host.queues.clear()
            host.where = _IDLE
            host.turn += 1

    def size_windows(self) -> None:
        """Forget hosts that have nothing to fetch and need no rest, and share the window budget among the others."""
        now = self.now()
        active = 0
        for owned in self.owned.values():
            idle = [
                key for key, host in owned.hosts.items()
                if host.where == _IDLE and not host.in_flight and host.ready_at <= now and not any(host.queues.values())
            ]  # fmt: skip
            for key in idle:
                del owned.hosts[key]
            active += len(owned.hosts)
        self.window = min(max(WINDOW_BUDGET // max(active, 1), WINDOW_LEAST), WINDOW)

    # ------------------------------------------------------------------ dispatch

    def next(self) -> Task | RobotsTask | None:
        """What may be requested now, or None; the caller says `finished` when its response has ended."""
        now = self.now()
        self._wake(now)
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            task = self._next_of(name, now)
            if task is not None:
                return task
        return None

    def _next_of(self, name: str, now: float) -> Task | RobotsTask | None:
        ring = self._rings[name]
        while (entry := ring.pop()) is not None:
            turn, host = entry
            if turn != host.turn or host.where != _READY:
                continue
            host.where = _IDLE
            host.turn += 1
            if self.robots and (host.rules is None or now >= host.rules_until):
                if host.in_flight:
                    continue
                host.in_flight += 1
                return RobotsTask(host)
            queue = next((q for q in host.queues.values() if q.job.name == name and q), None)
            task = host.partition.pop(host, queue) if queue is not None and queue.job.running else None
            if task is None:
                self.arrange(host)
                continue
            host.in_flight += 1
            host.ready_at = max(host.ready_at, now + host.delay_s)
            self.arrange(host)
            return task
        return None

    def finished(self, host: Host, wait_s: float = 0.0) -> None:
        """A request to the host has ended, however; it rests from now on."""
        host.in_flight -= 1
        host.ready_at = max(host.ready_at, self.now() + max(host.delay_s, wait_s))
        self.arrange(host)

    def unsent(self, host: Host) -> None:
        """A task of the host ended without a request: a rule refused it."""
        host.in_flight -= 1
        if host.in_flight == 0:
            host.ready_at = min(host.ready_at, self.now())
        self.arrange(host)

    def back(self, task: Task) -> None:
        """A task that was never tried goes back to the head of its queue."""
        if task.partition.pending.pop(task.key, None) is None:
            return
        queue = task.host.queues.get(task.job.number)
        if queue is not None:
            queue.overdue.appendleft((task.key, task.row))
            self.arrange(task.host)

    def arrange(self, host: Host) -> None:
        """Put a host where it belongs: nowhere, among the later ones, or among those that may be asked now."""
        if host.where == _LATER or host.where == _READY:
            return
        busy = host.in_flight >= self.rests.per_host
        if busy or not any(queue and queue.job.running for queue in host.queues.values()):
            return
        now = self.now()
        if host.ready_at > now:
            host.where = _LATER
            self._count += 1
            heappush(self._later, (host.ready_at, self._count, host))
        else:
            self._ready(host)

    def _ready(self, host: Host) -> None:
        host.where = _READY
        host.turn += 1
        for queue in host.queues.values():
            if queue and queue.job.running:
                name = queue.job.name
                ring = self._rings.get(name)
                if ring is None:
                    ring = self._rings[name] = _Ring()
                    self._turns.append(name)
                ring.add(host)

    def _wake(self, now: float) -> None:
        for owned in self.owned.values():
            if owned.waits and owned.waits[0][0] <= now:
                owned.wake(now)
        while self._later and self._later[0][0] <= now:
            _, _, host = heappop(self._later)
            if host.where != _LATER:
                continue
            host.where = _IDLE
            self.arrange(host)

    def next_at(self) -> float | None:
        """When something may become ready without anyone's doing, monotonic; None when nothing waits for time."""
        times = [owned.waits[0][0] for owned in self.owned.values() if owned.waits]
        if self._later:
            times.append(self._later[0][0])
        return min(times, default=None)

    # ------------------------------------------------------------------ views

    def slowest(self, most: int) -> list[tuple[str, int, float]]:
        """Hosts that wait longest: (host, URLs queued, seconds until it may be asked)."""
        now = self.now()
        waits = sorted(((at, n, host) for at, n, host in self._later if host.where == _LATER), reverse=True)[:most]
        return [(host.key, self._queued(host), max(at - now, 0.0)) for at, _, host in waits]

    @staticmethod
    def _queued(host: Host) -> int:
        rows = host.partition.fold.rows
        total = 0
        for number in host.queues:
            stored = rows.get(r.host_queue_key(number, host.hash))
            total += r.read_host_queue(stored).queued if stored else 0
        return total


class Clock(Protocol):
    """A clock's reading, in seconds."""

    def __call__(self) -> float:
        """Seconds."""


def _key(entry: tuple[bytes, r.QueueRow]) -> bytes:
    return entry[0]
