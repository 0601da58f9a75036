"""The dispatcher: which URL may be fetched now, over all partitions that a worker owns.

Per host: so many requests at a time, so much rest between them, the queue in key order. Between hosts: by next allowed
time, and round robin over jobs, then registrable domains, then hosts where more are allowed than can be fetched. Only
hosts with something to fetch are in memory, each with a short window of its queue; the rest stays in the state's rows.
Of very many hosts those that are due first are awake; the others sleep, as a hash and a time each. A host falls asleep
where it would have to read its queue, rests for long or may not go on, so that all have their turn.

Time is `now`, in seconds on a monotonic clock. Nothing decided here is kept: what matters enters the log as a done.
A URL's row stands until its done is folded, so a URL handed out is remembered in `pending` until then.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, merge, nlargest
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

from . import rows as r
from .commands import Commands, Orders
from .fold import Fold, Job
from .lines import Line, Resting
from .queues import IDLE, LATER, READY, WINDOW, Host, HostQueue, RobotsTask, Task

if TYPE_CHECKING:
    from .domain import Place

WINDOW_BUDGET = 250_000
"""URLs of all host queues in memory, about: with more hosts each window is smaller."""

WINDOW_LEAST = 4

HOSTS_AWAKE = 20_000
"""Hosts in memory, about, 1 kB each and their windows: asked every few seconds, so many are more than one can fetch."""

_LAST = (1 << 64) - 1
_KEPT = 1 << 127
"""Of a host that sleeps until a job or a command changes, or a job that may go on has something for it."""

LONG_REST_S = 60.0
"""A host that rests longer gives its place to one that sleeps, with its window."""

WAITING_IN_MEMORY = 20_000
"""Waiting URLs of one partition in memory, about; later ones are read when these are done."""


class Cache(Protocol):
    """Values that may be lost, such as robots rules, kept beside the rows."""

    def cache(self, key: bytes, value: bytes) -> None:
        """Remember a value."""

    def remember(self, key: bytes, value: bytes) -> None:
        """Remember a value, by and by."""

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
        self.remember = cache.remember
        self.hosts: dict[str, Host] = {}
        self.pending: dict[bytes, Task] = {}
        self.under_way: Counter[int] = Counter()  # of these, by the job's number
        self.waits: list[tuple[float, bytes, int, str, str]] = []
        self.waits_from: bytes | None = None
        self.waits_upto = inf
        self.woken = 0
        self.asleep: dict[int, int] = {}  # by hash, the heap's own numbers, (due in ms << 64) + hash: 176 bytes each
        self._sleepers: list[int] = []
        self._kept: list[int] = []
        self._left: set[int] = set()  # jobs whose waits were left in the rows, since they may not go on

    # ------------------------------------------------------------------ the fold's listener

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:
        """A URL may be fetched."""
        entry = self._awake(host, domain, job)
        if entry is not None and self.queue(entry, job).add(key, value, self.frontier.window):
            self.frontier.arrange(entry)

    def lowered(self, job: int, host: str, key: bytes, value: bytes) -> None:
        """A URL that is queued has been found nearer."""
        self._changed(job, host, key, value)

    def removed(self, job: int, host: str, key: bytes) -> None:
        """A URL has been done, or waits."""
        if not self.ended(key):
            self._changed(job, host, key, None)

    def _changed(self, job: int, host: str, key: bytes, value: bytes | None) -> None:
        entry = self.hosts.get(host)
        queue = entry.queues.get(job) if entry is not None else None
        if queue is not None:
            queue.change(key, value)

    def waiting(self, job: int, host: str, domain: str, key: bytes, row: r.QueueRow) -> None:  # noqa: ARG002 - so here
        """A URL waits `row.wait_s` seconds, from now on, for its next attempt."""
        due = self.frontier.now() + (0.0 if self.frontier.blocks(host) else row.wait_s)
        if self.waits_from is not None and _due(key, row.due_ms) >= self.waits_from:
            self.waits_upto = min(self.waits_upto, due)
            return
        heappush(self.waits, (due, key, row.due_ms, host, domain))
        if len(self.waits) >= 2 * WAITING_IN_MEMORY:
            self._let_go()

    def outdated(self, key: bytes, epoch: int) -> None:
        """A URL's done changed nothing, for its job has left the epoch it was dispatched in: it is fetched again."""
        task = self.pending.get(key)
        if task is not None and task.epoch == epoch:
            self.frontier.back(task)

    def job_changed(self, job: int) -> None:
        """A job's record was folded: its hosts may have something to fetch now."""
        for host in list(self.hosts.values()):
            if job in host.queues:
                self.frontier.arrange(host)
        self.stir()

    def forgotten(self, job: int) -> None:
        """All rows of a job were dropped; waits without a row end when they are woken, requests under way as ever."""
        for host in self.hosts.values():
            queue = host.queues.pop(job, None)
            if queue is not None:
                self.woken -= len(queue.overdue)
        for key in [key for key, task in self.pending.items() if task.job.number == job]:
            self.ended(key)

    def ended(self, key: bytes) -> bool:
        """A URL is not under way any more; whether it was."""
        task = self.pending.pop(key, None)
        if task is None:
            return False
        self.under_way[task.job.number] -= 1
        return True

    # ------------------------------------------------------------------ waits

    def _let_go(self) -> None:
        """Keep the waits that are due first.

        Invariant: while `waits_from` is a place in the due-time index, rows before it are in memory and others need
        not be; none of the others is due before `waits_upto`.
        """
        self.waits.sort(key=lambda wait: _due(wait[1], wait[2]))
        rest = self.waits[WAITING_IN_MEMORY:]
        del self.waits[WAITING_IN_MEMORY:]
        heapify(self.waits)
        self.waits_from = _due(rest[0][1], rest[0][2])
        self.waits_upto = min(self.waits_upto, *(wait[0] for wait in rest))

    def host(self, key: str, domain: str, queues: Iterable[int] | None = None) -> Host:
        """The host's entry, made when there is none.

        Args:
            queues: Jobs that have something on it, if it sleeps and they were read already.
        """
        entry = self.hosts.get(key)
        if entry is None:
            entry = self.hosts[key] = Host(key, domain, self, self.frontier.rests.delay_s)
            self.frontier.awake += 1
            stored = self.fold.rows.get(r.host_key(entry.hash))
            asked_at = -inf
            if stored is not None:
                row, now = r.read_host(stored), self.frontier.now()
                asked_at = now - max(self.frontier.wall() - row.last_at, 0.0)
                entry.failures = row.failures
                rest = max(entry.delay_s, row.wait_s)
                entry.rest(min(max(asked_at + rest, now), now + rest))
            until = self.asleep.pop(entry.hash, None)
            if until is not None:
                entry.rest(0.0 if until == _KEPT else (until >> 64) / 1000)
                for number in self._queues(entry.hash) if queues is None else queues:
                    self.queue(entry, number).more = True
            self.frontier.order(entry)
            if until is not None:  # else a command that makes it rest for long would begin anew each time it wakes
                entry.slowed_until = min(entry.slowed_until, asked_at + entry.orders.slow_s)
        return entry

    # ------------------------------------------------------------------ sleep

    def _awake(self, key: str, domain: str, job: int) -> Host | None:
        """The host's entry, unless it sleeps, or must for want of room; a job finds something on it."""
        entry = self.hosts.get(key)
        if entry is None and (self.asleep or not self.frontier.has_room):
            hashed = r.hashed(key)
            until = self.asleep.get(hashed)
            is_free = until == _KEPT and self.frontier.may_go_on(key, self.fold.numbers[job])
            if until is not None and not is_free:
                return None
            if is_free or not self.frontier.has_room:
                self._sleep(hashed, self.frontier.now())
                return None
        return entry or self.host(key, domain)

    def _sleep(self, host: int, until: float) -> None:
        """Let a host, by its hash, be out of memory until a time; `inf` is when something of it may go on."""
        if until == inf:
            self.asleep[host] = _KEPT
            self._kept.append(host)
            return
        self.asleep[host] = due = (ceil(until * 1000) << 64) + host
        heappush(self._sleepers, due)

    def forget(self, host: Host, until: float | None = None) -> None:
        """Let a host go that has no request in flight; it sleeps, if a time is given."""
        del self.hosts[host.key]
        self.frontier.awake -= 1
        for queue in host.queues.values():
            self.woken -= len(queue.overdue)
            if queue.overdue:
                self._left.add(queue.job.number)
        host.queues.clear()
        host.where = IDLE
        host.turn += 1
        if until is not None:
            self._sleep(host.hash, until)

    def _queues(self, host: int) -> dict[int, r.HostQueueRow]:
        """The queues of a host that hold something, by job."""
        found = {}
        for job in self.fold.numbers.values():
            row = self.fold.host_queue(job.number, host) if job.counts.queued else None
            if row is not None and row.queued > 0:
                found[job.number] = row
        return found

    def rouses_at(self) -> float:
        """When the next of those that sleep is due."""
        return (self._sleepers[0] >> 64) / 1000 if self._sleepers else inf

    def rouse(self) -> None:
        """Wake the one that is due first, if it has something to fetch and may go on."""
        due = heappop(self._sleepers)
        hashed = due & _LAST
        if self.asleep.get(hashed) != due:
            return  # 1 it slept → 2 a wait of its own was over, which woke it
        queues = self._queues(hashed)
        if not queues:
            del self.asleep[hashed]
        elif any(self.frontier.may_go_on(row.host, self.fold.numbers[job]) for job, row in queues.items()):
            row = next(iter(queues.values()))
            self.frontier.arrange(self.host(row.host, row.domain, queues))
        else:
            self._sleep(hashed, inf)

    def _overdue(self) -> Iterator[tuple[Host, HostQueue]]:
        """The queues that have something overdue."""
        return ((host, queue) for host in self.hosts.values() for queue in host.queues.values() if queue.overdue)

    def stir(self) -> None:
        """Look at those again that might not go on, hosts and waits: a job or a command has changed."""
        kept, self._kept = self._kept, []
        for host, queue in self._overdue():
            if not self.frontier.may_go_on(host.key, queue.job):  # they count as woken, and may be many
                left = [entry for entry in queue.overdue if entry[0][:1] == b"q"]
                self.woken -= len(queue.overdue) - len(left)
                queue.overdue = left
                self._left.add(queue.job.number)
        if any(self.frontier.runs(self.fold.numbers[job]) for job in self._left):
            self._left, self.waits_from, self.waits_upto = set(), b"", 0.0
        now = self.frontier.now()
        for hashed in kept:
            if self.asleep.get(hashed) == _KEPT:
                self._sleep(hashed, now)

    # ------------------------------------------------------------------ queues

    def queue(self, host: Host, job: int) -> HostQueue:
        """The host's queue of a job, made when there is none."""
        queue = host.queues.get(job)
        if queue is None:
            queue = host.queues[job] = HostQueue(self.fold.numbers[job], host.hash)
            self.frontier.order(host)
        return queue

    def rests(self) -> dict[int, float]:
        """Until when the hosts rest that may not be asked now, by their hashes."""
        now = self.frontier.now()
        after = int(now * 1000) + 1 << 64
        rests = {host: (due >> 64) / 1000 for host, due in self.asleep.items() if after <= due < _KEPT}
        for host in self.hosts.values():
            until = max(host.ready_at, host.slowed_until, now + host.delay_s if host.in_flight else 0.0)
            if until > now:
                rests[host.hash] = until
        return rests

    def load(self, rests: Mapping[int, float] | None = None) -> None:
        """Take up what the rows hold, after a restore: no host is asked before one full delay has passed.

        Waits written to the log are shortened by what has passed since, never lengthened.

        Args:
            rests: Until when hosts rest, by hash, where that is known: others may be asked now.
        """
        now = self.frontier.now()
        usual = now + self.frontier.rests.delay_s if rests is None else now
        rests = {} if rests is None else rests
        self.fold.flush()
        for key, value in self.fold.rows.scan(b"g"):
            stored = r.read_host_queue(value)
            if stored.queued <= 0:
                continue
            number, hashed = r.unpack_host_queue(key)
            host = self.hosts.get(stored.host)
            if host is None and (hashed in self.asleep or not self.frontier.has_room):
                if hashed not in self.asleep:
                    self._sleep(hashed, rests.get(hashed, usual))
                continue
            host = host or self.host(stored.host, stored.domain)
            queue = self.queue(host, number)
            queue.more, queue.upto = True, b""
            host.rest(rests.get(hashed, usual))
            self.frontier.arrange(host)
        self._load_waits()

    def _load_waits(self) -> None:
        """Read the next waiting rows from the due-time index, but for those in memory."""
        start, self.waits_from, self.waits_upto = self.waits_from or b"", None, inf
        self.fold.flush()
        rows = self.fold.rows
        now, wall = self.frontier.now(), self.frontier.wall()
        there = {wait[1] for wait in self.waits}.union(key for _, queue in self._overdue() for key, _ in queue.overdue)
        for count, due_key in enumerate(self._waits_on_disk(start)):
            due_ms, job, host_hash, sequence = r.unpack_due(due_key)
            key = r.wait_key(job, host_hash, sequence)
            stored, queue = rows.get(key), rows.get(r.host_queue_key(job, host_hash))
            if stored is None or queue is None or key in self.pending or key in there:
                continue
            due = now + min(max(due_ms / 1000 - wall, 0.0), r.read_queued(stored).wait_s)
            if count >= WAITING_IN_MEMORY:
                self.waits_from, self.waits_upto = _due(key, due_ms), due
                return
            host = r.read_host_queue(queue)
            heappush(self.waits, (due, key, due_ms, host.host, host.domain))

    def _waits_on_disk(self, start: bytes) -> Iterator[bytes]:
        """Keys of the due-time index from a place on, over all jobs that may go on."""
        jobs = [job for job in self.fold.numbers.values() if job.counts.queued]
        self._left.update(job.number for job in jobs if not self.frontier.runs(job))
        prefixes = [r.of_job(b"d", job.number) for job in jobs if self.frontier.runs(job)]
        scans = [self.fold.rows.scan(prefix, prefix + start[:8]) for prefix in prefixes]
        for due_key, _ in merge(*scans, key=lambda entry: _place(entry[0])):
            if _place(due_key) >= start:
                yield due_key

    def hurry(self) -> None:
        """Let nothing wait that is to be refused anyway."""
        now, blocks = self.frontier.now(), self.frontier.blocks
        self.waits = [(now if blocks(host) else due, key, ms, host, name) for due, key, ms, host, name in self.waits]
        heapify(self.waits)

    def wakes_at(self) -> float:
        """When a waiting URL is due, or waiting rows are to be read."""
        more = self.waits_upto if self.woken < WAITING_IN_MEMORY else inf
        return min(self.waits[0][0], more) if self.waits else more

    def wake(self, now: float) -> None:
        """Put what has waited long enough before its host's queue."""
        while self.waits and self.waits[0][0] <= now:
            _, key, due_ms, host_key, domain = heappop(self.waits)
            stored = self.fold.rows.get(key)
            row = r.read_queued(stored) if stored is not None else None
            if row is None or row.due_ms != due_ms or key in self.pending:
                continue
            job = r.job_of(key)
            if not self.frontier.may_go_on(host_key, self.fold.numbers[job]):
                self._left.add(job)
                continue
            self.woken += 1
            host = self.host(host_key, domain)
            self.queue(host, job).overdue.append((key, row))
            self.frontier.arrange(host)
        if self.wakes_at() <= now:
            self._load_waits()

    def pop(self, host: Host, queue: HostQueue) -> Task | None:
        """The next URL of a host queue that still has its row."""
        while queue:
            attempt = 0
            if queue.overdue:
                key, expected = queue.overdue.pop(0)
                attempt = expected.attempt
                self.woken -= 1
                stored = self.fold.rows.get(key)
            elif queue.window:
                key, stored = queue.take()
                self.fold.rows.keep(key, stored)
            else:
                self._refill(queue)
                continue
            row = r.read_queued(stored) if stored is not None else None
            if row is not None and row.attempt == attempt and key not in self.pending:
                task = self.pending[key] = Task(host, queue.job, key, row, self)
                self.under_way[queue.job.number] += 1
                return task
        return None

    def _refill(self, queue: HostQueue) -> None:
        most = self.frontier.window
        found = self.fold.rows.scan_queue(queue.prefix, queue.upto or queue.prefix, most + 1)
        queue.fill(found, most, self.pending)


class Frontier:
    """Host queues of every partition this worker owns.

    Args:
        rests: Delay and requests at a time.
        now: A monotonic clock.
        wall: UTC epoch seconds, only to see how much of a wait in the log has passed.
        robots: Whether hosts need their robots.txt before their pages.
        only: Name of the one job whose URLs are fetched; empty for all.
    """

    def __init__(self, rests: Rests, now: "Clock", wall: "Clock", *, robots: bool = True, only: str = "") -> None:
        self.rests = rests
        self.now = now
        self.wall = wall
        self.robots = robots
        self.only = only
        self.owned: dict[int, Owned] = {}
        self._resting = Resting()
        self._lines: dict[str, Line] = {}
        self._turns: deque[str] = deque()
        self.awake = 0
        self.window = WINDOW
        self._commands = Commands()
        self._jobs: dict[str, Orders] = {}
        self._slow_s = 0.0
        self._pauses_hosts = self._blocks = False

    # ------------------------------------------------------------------ ownership

    def own(self, partition: int, fold: Fold, cache: Cache, rests: Mapping[int, float] | None = None) -> None:
        """Dispatch for a partition from now on; its fold must have reached the log's end.

        Args:
            rests: What `rests_of` said when it was given up, if nobody else can have asked its hosts since.
        """
        self.disown(partition)
        owned = self.owned[partition] = Owned(self, fold, cache)
        owned.load(rests)
        fold.listener = owned
        self.size_windows()

    def disown(self, partition: int) -> None:
        """Dispatch nothing more for a partition."""
        owned = self.owned.pop(partition, None)
        if owned is None:
            return
        owned.fold.listener = None
        for host in list(owned.hosts.values()):
            owned.forget(host)

    def rests_of(self, partition: int) -> dict[int, float]:
        """Until when the hosts of a partition rest, by hash; who is not named may be asked."""
        return self.owned[partition].rests()

    @property
    def has_room(self) -> bool:
        """Whether one more host may be in memory."""
        return self.awake < HOSTS_AWAKE

    def _is_crowded(self, now: float) -> bool:
        """Whether there is no room, or a host that sleeps is due and takes what there is."""
        return not self.has_room or any(owned.rouses_at() <= now for owned in self.owned.values())

    def size_windows(self) -> None:
        """Forget hosts that have nothing to fetch and need no rest, and share the window budget among the others."""
        now = self.now()
        is_crowded = self._is_crowded(now)
        for owned in self.owned.values():
            for host in [host for host in owned.hosts.values() if host.where == IDLE and not host.in_flight]:
                if not any(host.queues.values()) and host.next_at <= now:
                    owned.forget(host)
                elif is_crowded:
                    self._gives_place(host, now)
        self.window = min(max(WINDOW_BUDGET // max(self.awake, 1), WINDOW_LEAST), WINDOW)

    # ------------------------------------------------------------------ commands

    def obey(self, commands: Commands) -> None:
        """The commands in force are these, until the next call."""
        self._commands = commands
        self._jobs = {}
        self._slow_s = commands.of_stage("fetch").slow_s
        self._blocks = any(command.action == "block" for command in commands.in_force)
        self._pauses_hosts = any(command.host and command.action == "pause" for command in commands.in_force)
        self._resting.clear()
        for owned in self.owned.values():
            if self._blocks:
                owned.hurry()
            for host in list(owned.hosts.values()):
                self.order(host)
                if host.where == LATER:
                    host.where = IDLE
                self.arrange(host)
            owned.stir()

    def order(self, host: Host) -> None:
        """Let a host know what is wanted of it, by itself or for the jobs that have it in common."""
        before, host.orders = host.orders, self._commands.of_host(host.key)
        jobs = (self.of_job(queue.job.name).slow_s for queue in host.queues.values())
        slow_s = max([self._slow_s, *jobs])
        if slow_s > host.orders.slow_s:
            host.orders = host.orders._replace(slow_s=slow_s)
        if host.orders.slow_s != before.slow_s:
            host.slowed_until = self.now() + host.orders.slow_s if host.orders.slow_s else 0.0

    def blocks(self, host: str) -> bool:
        """Whether a command blocks a host, by its key."""
        return self._blocks and self._commands.of_host(host).blocked

    def of_job(self, name: str) -> Orders:
        """What commands want of a job."""
        orders = self._jobs.get(name)
        if orders is None:
            orders = self._jobs[name] = self._commands.of_job(name)
        return orders

    def held_back(self, owned: Owned, job: Job) -> int:
        """URLs of a job that a command keeps waiting, those of hosts that sleep left out."""
        if self.of_job(job.name).paused:
            return job.counts.queued
        if not self._pauses_hosts:
            return 0
        paused = (host for host in owned.hosts.values() if host.orders.paused and not host.orders.blocked)
        return sum(owned.fold.queued_of(job.number, host.hash) for host in paused if job.number in host.queues)

    def may_go_on(self, host: str, job: Job) -> bool:
        """Whether a job's URLs of a host, by its key, are fetched or refused now, so far as commands have a say."""
        orders = self._commands.of_host(host)
        return self.runs(job) and (orders.blocked or not orders.paused)

    def runs(self, job: Job) -> bool:
        """Whether a job may go on, so far as its record and commands for it have a say."""
        return job.running and (not self.only or self.only == job.name) and not self.of_job(job.name).paused

    # ------------------------------------------------------------------ dispatch

    @property
    def unfolded(self) -> int:
        """URLs that were dispatched and whose done is not folded: in flight, or on the way through the log."""
        return sum(len(owned.pending) for owned in self.owned.values())

    def next(self) -> Task | RobotsTask | None:
        """What may be requested now, or None; the caller says `finished` when its response has ended."""
        now = self.now()
        self._wake(now)
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            task = self._next_of(name, now) if self._may_have_more(name) else None
            if task is not None:
                return task
        return None

    def _may_have_more(self, name: str) -> bool:
        """Whether a job is to be fetched here, and its pages with those in flight stay within its limit."""
        if (self.only and name != self.only) or self.of_job(name).paused:
            return False
        left: int | None = None
        for owned in self.owned.values():
            job = owned.fold.jobs.get(name)
            if job is None or job.spec.max_pages is None:
                continue
            left = job.spec.max_pages if left is None else left
            left -= job.counts.fetched + owned.under_way[job.number]
        return left is None or left > 0

    def _next_of(self, name: str, now: float) -> Task | RobotsTask | None:
        line = self._lines[name]
        while (host := line.pop()) is not None:
            host.where = IDLE
            host.turn += 1
            orders = host.orders
            if host.next_at > now or (orders.paused and not orders.blocked):
                self.arrange(host, now)  # 1 ready for a second request → 2 the first is answered, or a command: not now
                continue
            if self.robots and not orders.blocked and not host.knows_rules(now):
                if host.in_flight:
                    continue
                host.in_flight += 1
                host.is_opening = True
                return RobotsTask(host)
            queue = next((q for q in host.queues.values() if q.job.name == name and q), None)
            task = host.partition.pop(host, queue) if queue is not None and self.runs(queue.job) else None
            if task is None:
                self.arrange(host, now)
                continue
            host.in_flight += 1
            host.is_opening = False
            host.ready_at = max(host.ready_at, now + host.delay_s)
            host.slowed_until = now + orders.slow_s if orders.slow_s else 0.0
            self.arrange(host, now)
            return task
        return None

    def lend(self, place: "Place") -> Host | None:
        """A host's entry, for a request that is not the queue's: `in_flight` counts it, `finished` ends it.

        None where another worker owns its partition.
        """
        owned = self.owned.get(place.partition)
        return owned.host(place.host, place.domain) if owned is not None else None

    def finished(self, host: Host, wait_s: float = 0.0) -> None:
        """A request to the host has ended, however; it rests from now on."""
        host.in_flight -= 1
        now = self.now()
        host.rest(now + max(host.delay_s, wait_s))
        if host.orders.slow_s:
            host.slowed_until = now + host.orders.slow_s
        self.arrange(host)

    def unsent(self, host: Host) -> None:
        """A task of the host ended without a request: a rule refused it."""
        host.in_flight -= 1
        if host.in_flight == 0:
            host.ready_at = min(host.ready_at, max(host.rests_until, self.now()))
        self.arrange(host)

    def back(self, task: Task) -> None:
        """A task that was never tried goes back to the head of its queue."""
        owned = task.partition
        if self.owned.get(owned.fold.partition) is not owned or owned.pending.get(task.key) is not task:
            return
        owned.ended(task.key)
        host = owned.host(task.host.key, task.domain)
        owned.queue(host, task.job.number).overdue.insert(0, (task.key, task.row))
        owned.woken += 1
        self.arrange(host)

    def arrange(self, host: Host, now: float | None = None) -> None:
        """Put a host where it belongs: nowhere, among the later ones, or among those that may be asked now.

        Args:
            now: The caller's, where it goes on by what it read: a host ready by a later clock would come back to it
                for ever.
        """
        if host.where == LATER or (host.where == IDLE and host.in_flight >= self.rests.per_host):
            return
        is_wanted = self._is_wanted(host)
        if host.where == READY:
            if is_wanted:
                self._join(host)  # 1 ready for one job, which may not go on → 2 another job finds something on it
                return
            host.where = IDLE
            host.turn += 1
        if host.in_flight >= self.rests.per_host:
            return
        next_at, now = host.next_at, self.now() if now is None else now
        if not is_wanted:
            if self._is_crowded(now):
                self._gives_place(host, now)
            return
        if not self.has_room and self._is_dear(host, next_at, now) and self._gives_place(host, now):
            return
        self._line_up(host, next_at, now)

    def _is_dear(self, host: Host, next_at: float, now: float) -> bool:
        """Whether to keep a host awake saves little: it rests for long, or its next URL is to be read anyway."""
        is_spent = all(queue.is_spent for queue in host.queues.values() if self.runs(queue.job))
        return is_spent or next_at > now + LONG_REST_S

    def _line_up(self, host: Host, next_at: float, now: float) -> None:
        if next_at > now:
            host.where = LATER
            self._resting.add(next_at, host, is_usual=next_at <= now + self.rests.delay_s)
        else:
            host.where = READY
            host.turn += 1
            self._join(host)

    def _is_wanted(self, host: Host) -> bool:
        """Whether a job has something on it and may go on, so far as commands have a say."""
        for queue in host.queues.values():  # a few times for each request, so no generator
            if (queue.window or queue.more or queue.overdue) and self.runs(queue.job):
                return host.orders.blocked or not host.orders.paused
        return False

    def _gives_place(self, host: Host, now: float) -> bool:
        """Put a host to sleep until it has rested, unless memory alone knows something of it; whether it is gone."""
        owned = host.partition
        if host.in_flight or host.robots_attempts or host.unreachable or owned.hosts.get(host.key) is not host:
            return False
        is_wanted = self._is_wanted(host)
        if is_wanted and any(queue.overdue and self.runs(queue.job) for queue in host.queues.values()):
            return False
        if host.next_at <= now and not any(host.queues.values()):
            owned.forget(host)
        else:
            owned.forget(host, max(host.next_at, now) if is_wanted or host.next_at > now else inf)
        return True

    def _join(self, host: Host) -> None:
        """Have a ready host in the line of every job that has something for it, and where it belongs there."""
        for queue in host.queues.values():
            if queue and self.runs(queue.job):
                name = queue.job.name
                line = self._lines.get(name)
                if line is None:
                    line = self._lines[name] = Line()
                    self._turns.append(name)
                line.add(host, queue)

    def _wake(self, now: float) -> None:
        for owned in self.owned.values():
            if owned.wakes_at() <= now:
                owned.wake(now)
        while (host := self._resting.pop(now)) is not None:
            if host.where != LATER:
                continue
            host.where = IDLE
            self.arrange(host, now)
        while self._rouses_at() <= now:
            min(self.owned.values(), key=Owned.rouses_at).rouse()

    def _rouses_at(self) -> float:
        """When a host that sleeps is due, if there is room."""
        if not self.has_room:
            return inf
        return min([owned.rouses_at() for owned in self.owned.values() if owned.asleep], default=inf)

    def next_at(self) -> float | None:
        """When something may become ready without anyone's doing, monotonic; None when nothing waits for time."""
        at = min([self._rouses_at(), self._resting.next_at, *(owned.wakes_at() for owned in self.owned.values())])
        return None if at == inf else at

    # ------------------------------------------------------------------ views

    def slowest(self, most: int) -> dict[int, list[tuple[str, int, float]]]:
        """Hosts that wait longest, by partition: (host, URLs queued, seconds until it may be asked)."""
        now = self.now()
        waits = nlargest(most, ((at, n, host) for at, n, host in self._resting if host.where == LATER))
        found: dict[int, list[tuple[str, int, float]]] = {}
        for at, host in {host.key: (at, host) for at, _, host in reversed(waits)}.values():
            told = host.key, self._queued(host), max(at - now, 0.0)
            found.setdefault(host.partition.fold.partition, []).append(told)
        return found

    @staticmethod
    def _queued(host: Host) -> int:
        fold = host.partition.fold
        return sum(fold.queued_of(number, host.hash) for number in host.queues)


class Clock(Protocol):
    """A clock's reading, in seconds."""

    def __call__(self) -> float:
        """Seconds."""


def _due(wait_key: bytes, due_ms: int) -> bytes:
    """The place in the due-time index, over all jobs, of the row under a waiting row's key."""
    return due_ms.to_bytes(8, "big") + wait_key[1:]


def _place(due_key: bytes) -> bytes:
    """The place in the due-time index, over all jobs, of a key in it."""
    return due_key[3:11] + due_key[1:3] + due_key[11:]
