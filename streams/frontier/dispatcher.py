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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge, nlargest
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

from crawlog.streams.fold import Fold, Job
from crawlog.streams.fold import rows as r
from crawlog.streams.http import NEEDS_PROXIES, UNLIMITED, Limits, Manner, manner_of
from crawlog.streams.url import hashed

from .commands import Commands, Orders
from .host import IDLE, LATER, NEVER, READY, WINDOW, Cache, Host, HostQueue, NameTask, RobotsTask, Task
from .order import Lines, Resting
from .politeness import crawl_delay_s
from .unmet_hosts import EVERYBODY, standing_of

if TYPE_CHECKING:
    from crawlog.schemas.control import Command
    from crawlog.streams.url import Place

WINDOW_BUDGET = 250_000
"""URLs of all host queues in memory, about: with more hosts each window is smaller."""

WINDOW_LEAST = 4

HOSTS_AWAKE = 20_000
"""Hosts in memory, about, 1 kB each and their windows: asked every few seconds, so many are more than one can fetch."""

_LAST = (1 << 64) - 1
_KEPT = 1 << 127
"""Of a host that sleeps until a job or a command changes, or a job that may go on has something for it."""

LACKS_S = 60.0
"""So often that is tried again which a worker may not ask for: a name may have another address by now."""

LONG_REST_S = 60.0
"""A host that rests longer gives its place to one that sleeps, with its window."""

WAITING_IN_MEMORY = 20_000
"""Waiting URLs of one partition in memory, about; later ones are read when these are done."""


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
        self._manners: dict[int, Manner] = {}  # by the job's number, of its last revision
        self._held: dict[int, bool] = {}  # hosts that a command keeps waiting, by hash: whether they are blocked
        self.lacks: dict[tuple[int, int], str] = {}  # by job and host: the setting without which they are not asked
        self._lacks_until = inf

    # ------------------------------------------------------------------ the fold's listener

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:
        """A URL may be fetched."""
        if self.frontier.holds_hosts:
            self._note_held(host)
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
        due = self.frontier.now() + row.wait_s
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
        """A job's record was folded: its hosts may have something to fetch now, or rest otherwise."""
        self._manners.pop(job, None)
        self._supply(job)
        for host in list(self.hosts.values()):
            if job in host.queues:
                self.frontier.pace_anew(host)
        self.stir()

    def forgotten(self, job: int) -> None:
        """All rows of a job were dropped; waits without a row end when they are woken, requests under way as ever."""
        self._supply(job)
        for host in self.hosts.values():
            queue = host.queues.pop(job, None)
            if queue is not None:
                self.woken -= len(queue.overdue)
        for key in [key for key, task in self.pending.items() if task.job.number == job]:
            self.ended(key)

    def manner(self, job: int) -> Manner:
        """How the URLs of a job are asked for."""
        manner = self._manners.get(job)
        if manner is None:
            spec = self.fold.numbers[job].spec
            manner = self._manners[job] = manner_of(spec, self.frontier.usual, self.frontier.limits)
        return manner

    # ------------------------------------------------------------------ what this worker may not ask for

    def lack(self, host: Host, job: int, setting: str) -> None:
        """All that a job has on a host stays queued, as this worker lacks a setting for it; until a look later."""
        if not self.lacks:
            self._lacks_until = self.frontier.now() + LACKS_S
        self.lacks[job, host.hash] = setting

    def may_go_on(self, host: str, mark: int, job: Job) -> bool:
        """Whether a job's URLs of a host, by its key, are fetched now by this worker."""
        return self.frontier.may_go_on(host, job) and not self.is_lacking(job.number, mark)

    def is_lacking(self, job: int, host: int) -> bool:
        """Whether this worker lacks a setting for what a job has on a host, by its hash, as far as it knows."""
        if NEEDS_PROXIES in self.manner(job).lacks:  # nothing may leave this machine, not even a question to DNS
            return True
        return bool(self.lacks) and (job, host) in self.lacks

    def needs(self, job: int) -> dict[str, int]:
        """URLs of a job that stay queued, by the setting that a worker needs to ask for them."""
        if NEEDS_PROXIES in self.manner(job).lacks:
            return {NEEDS_PROXIES: queued} if (queued := self.fold.numbers[job].counts.queued) else {}
        counts: Counter[str] = Counter()
        for (number, host), setting in self.lacks.items():
            if number == job:
                counts[setting] += self.fold.queued_of(job, host)
        return dict(+counts)

    def _supply(self, job: int) -> None:
        """A job's record has changed: its URLs are tried by that."""
        for one in [one for one in self.lacks if one[0] == job]:
            del self.lacks[one]

    def _try_again(self) -> None:
        """Try all that this worker might not ask for."""
        lacked, self.lacks, self._lacks_until = {host for _, host in self.lacks}, {}, inf
        for host in [host for host in self.hosts.values() if host.hash in lacked]:
            self.frontier.arrange(host)
        self.stir()

    # ------------------------------------------------------------------ waits

    def ended(self, key: bytes) -> bool:
        """A URL is not under way any more; whether it was."""
        task = self.pending.pop(key, None)
        if task is None:
            return False
        self.under_way[task.job.number] -= 1
        return True

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
            entry = self.hosts[key] = Host(key, domain, self, self.frontier.usual.rules.delay_s)
            self.frontier.awake += 1
            stored = self.fold.rows.get(r.host_key(entry.hash))
            if stored is not None:
                row, now = r.read_host(stored), self.frontier.now()
                entry.standing = standing_of(row)
                entry.asked_at = entry.ended_at = now - max(self.frontier.wall() - row.last_at, 0.0)
                entry.failures = row.failures
                entry.rest(entry.asked_at + row.wait_s)
            until = self.asleep.pop(entry.hash, None)
            if until is not None:
                entry.rest(0.0 if until == _KEPT else (until >> 64) / 1000)
                for number in self._queues(entry.hash) if queues is None else queues:
                    self.queue(entry, number).more = True
            self.frontier.order(entry)
            if until is not None:  # else a command that makes it rest for long would begin anew each time it wakes
                entry.slowed_until = min(entry.slowed_until, entry.asked_at + entry.orders.slow_s)
        return entry

    # ------------------------------------------------------------------ sleep

    def _awake(self, key: str, domain: str, job: int) -> Host | None:
        """The host's entry, unless it sleeps, or must for want of room; a job finds something on it."""
        entry = self.hosts.get(key)
        if entry is None and (self.asleep or not self.frontier.has_room):
            mark = hashed(key)
            until = self.asleep.get(mark)
            is_free = until == _KEPT and self.may_go_on(key, mark, self.fold.numbers[job])
            if until is not None and not is_free:
                return None
            if is_free or not self.frontier.has_room:
                self._sleep(mark, self.frontier.now())
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
        mark = due & _LAST
        if self.asleep.get(mark) != due:
            return  # 1 it slept → 2 a wait of its own was over, which woke it
        queues = self._queues(mark)
        if not queues:
            del self.asleep[mark]
        elif any(self.may_go_on(row.host, mark, self.fold.numbers[job]) for job, row in queues.items()):
            row = next(iter(queues.values()))
            self.frontier.arrange(self.host(row.host, row.domain, queues))
        else:
            self._sleep(mark, inf)

    def _overdue(self) -> Iterator[tuple[Host, HostQueue]]:
        """The queues that have something overdue."""
        return ((host, queue) for host in self.hosts.values() for queue in host.queues.values() if queue.overdue)

    def stir(self) -> None:
        """Look at those again that might not go on, hosts and waits: a job or a command has changed."""
        kept, self._kept = self._kept, []
        for host, queue in self._overdue():
            if not self.may_go_on(host.key, host.hash, queue.job):  # they count as woken, and may be many
                left = [entry for entry in queue.overdue if entry[0][:1] == b"q"]
                self.woken -= len(queue.overdue) - len(left)
                queue.overdue = left
                self._left.add(queue.job.number)
        if any(self.frontier.runs(self.fold.numbers[job]) for job in self._left):
            self._left, self.waits_from, self.waits_upto = set(), b"", 0.0
        now = self.frontier.now()
        for mark in kept:
            if self.asleep.get(mark) == _KEPT:
                self._sleep(mark, now)

    # ------------------------------------------------------------------ commands for hosts

    def _note_held(self, host: str) -> None:
        orders = self.frontier.of_host(host)
        if orders.paused:
            self._held[hashed(host)] = orders.stopped

    def look_for_held(self) -> None:
        """Look through all host queues for those of hosts that commands keep waiting: these have changed."""
        self._held.clear()
        if self.frontier.holds_hosts:
            self.fold.flush()
            for _, value in self.fold.rows.scan(b"g"):
                self._note_held(r.read_host_queue(value).host)

    def held(self, job: int) -> tuple[int, int]:
        """URLs of a job that commands for their hosts keep waiting: those of paused hosts, of blocked ones."""
        counts = [0, 0]
        for host, is_blocked in self._held.items():
            counts[is_blocked] += self.fold.queued_of(job, host)
        return counts[0], counts[1]

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
            until = max(host.next_at, now + host.delay_s if host.in_flight else 0.0)
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
        is_new, rests = rests is None, rests or {}
        self.fold.flush()
        for key, value in self.fold.rows.scan(b"g"):
            stored = r.read_host_queue(value)
            if stored.queued <= 0:
                continue
            if self.frontier.holds_hosts:
                self._note_held(stored.host)
            number, mark = r.unpack_host_queue(key)
            host = self.hosts.get(stored.host)
            if host is None and (mark in self.asleep or not self.frontier.has_room):
                if mark not in self.asleep:
                    self._sleep(mark, rests.get(mark, now + (self._greatest_delay_s() if is_new else 0.0)))
                continue
            host = host or self.host(stored.host, stored.domain)
            queue = self.queue(host, number)
            queue.more, queue.upto = True, b""
            if is_new:
                host.asked_at = host.ended_at = now
            host.rest(rests.get(mark, now))
            self.frontier.arrange(host)
        self._load_waits()

    def _greatest_delay_s(self) -> float:
        queued = [job.number for job in self.fold.numbers.values() if job.counts.queued]
        return max([0.0, *(self.manner(number).rules.delay_s for number in queued)])

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

    def wakes_at(self) -> float:
        """When a waiting URL is due, or waiting rows are to be read."""
        more = self.waits_upto if self.woken < WAITING_IN_MEMORY else inf
        return min(self.waits[0][0] if self.waits else inf, more, self._lacks_until)

    def wake(self, now: float) -> None:
        """Put what has waited long enough before its host's queue."""
        if self._lacks_until <= now:
            self._try_again()
        while self.waits and self.waits[0][0] <= now:
            _, key, due_ms, host_key, domain = heappop(self.waits)
            stored = self.fold.rows.get(key)
            row = r.read_queued(stored) if stored is not None else None
            if row is None or row.due_ms != due_ms or key in self.pending:
                continue
            job = r.job_of(key)
            if not self.may_go_on(host_key, hashed(host_key), self.fold.numbers[job]):
                self._left.add(job)
                continue
            self.woken += 1
            host = self.host(host_key, domain)
            self.queue(host, job).overdue.append((key, row))
            self.frontier.arrange(host)
        if self.waits_upto <= now and self.woken < WAITING_IN_MEMORY:
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
        usual: How the URLs of jobs are asked for whose records do not say it.
        now: A monotonic clock.
        wall: UTC epoch seconds, only to see how much of a wait in the log has passed.
        only: Name of the one job whose URLs are fetched; empty for all.
        limits: What is kept to whatever the jobs' records say.

    Attributes:
        is_named: Whether the addresses of a host are known, by its key; where not, its name is resolved first.
    """

    def __init__(
        self, usual: Manner, now: "Clock", wall: "Clock", *, only: str = "", limits: Limits = UNLIMITED
    ) -> None:
        self.usual = usual
        self.limits = limits
        self.now = now
        self.wall = wall
        self.only = only
        self.owned: dict[int, Owned] = {}
        self._resting = Resting()
        self._lines: dict[str, Lines] = {}
        self.is_named: Callable[[str], bool] = lambda _host: True
        self._turns: deque[str] = deque()
        self.awake = 0
        self.window = WINDOW
        self._commands = Commands()
        self._jobs: dict[str, Orders] = {}
        self._slow_s = 0.0
        self._held: frozenset[Command] = frozenset()
        self.holds_hosts = False

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
        held = frozenset(one for one in commands.in_force if one.host and one.action in ("pause", "block"))
        is_new, self._held, self.holds_hosts = held != self._held, held, bool(held)
        self._resting.clear()
        for owned in self.owned.values():
            if is_new:
                owned.look_for_held()
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
        self._pace(host, self.now())

    def _pace(self, host: Host, now: float) -> None:
        """Let a host rest as its jobs want it: for the greatest delay, with the fewest requests at a time.

        A job counts that may go on and has something on the host. So does one whose queue is empty by now, until its
        requests have ended and its own delay has passed: 1 it asks → 2 the next one, of another job, comes after its
        delay too.
        """
        delay_s, per_host = NEVER, 0
        for number, queue in host.queues.items():
            manner = host.partition.manner(number)
            own_s = queue.delay_s(manner, host.rules)
            if not (queue and self._goes_on(host, queue)) and not _asked_lately(host, queue, own_s, now):
                continue
            delay_s = max(delay_s, own_s)
            per_host = min(per_host or manner.rules.per_host, manner.rules.per_host)
        if not per_host:
            usual = self.usual.rules
            delay_s, per_host = crawl_delay_s(usual.delay_s, host.wish_s, usual.max_delay_s), usual.per_host
        host.delay_s, host.per_host = delay_s, per_host
        host.paced_until = host.asked_at + delay_s

    def pace_anew(self, host: Host) -> None:
        """A job of the host has changed."""
        before = host.next_at
        self._pace(host, self.now())
        if host.where == LATER and host.next_at != before:
            host.where = IDLE
        self.arrange(host)

    def of_host(self, key: str) -> Orders:
        """What commands want of a host."""
        return self._commands.of_host(key)

    def of_job(self, name: str) -> Orders:
        """What commands want of a job."""
        orders = self._jobs.get(name)
        if orders is None:
            orders = self._jobs[name] = self._commands.of_job(name)
        return orders

    def held_back(self, owned: Owned, job: Job) -> tuple[int, int]:
        """URLs of a job that commands keep waiting: those paused, and those that no run waits for, of blocked hosts."""
        if not job.counts.queued:
            return 0, 0
        paused, blocked = owned.held(job.number)
        if self.of_job(job.name).paused:
            paused = job.counts.queued - blocked
        return paused, blocked

    def may_go_on(self, host: str, job: Job) -> bool:
        """Whether a job's URLs of a host, by its key, are fetched now, so far as commands have a say."""
        return self.runs(job) and not self._commands.of_host(host).paused

    def runs(self, job: Job) -> bool:
        """Whether a job may go on, so far as its record and commands for it have a say."""
        return job.running and (not self.only or self.only == job.name) and not self.of_job(job.name).paused

    def _goes_on(self, host: Host, queue: HostQueue) -> bool:
        """Whether a job may go on, on a host that commands leave free, so far as this worker may ask for it."""
        return self.runs(queue.job) and not host.partition.is_lacking(queue.job.number, host.hash)

    # ------------------------------------------------------------------ dispatch

    @property
    def unfolded(self) -> int:
        """URLs that were dispatched and whose done is not folded: in flight, or on the way through the log."""
        return sum(len(owned.pending) for owned in self.owned.values())

    def next(self, admitted: Sequence[bool] = EVERYBODY) -> Task | RobotsTask | NameTask | None:
        """What may be requested now, or None; the caller says `finished` when its response has ended.

        Args:
            admitted: By standing, whose turn it may be.
        """
        now = self.now()
        self._wake(now)
        for _ in range(len(self._turns)):
            name = self._turns[0]
            task = self._next_of(name, now, admitted) if self._may_have_more(name) else None
            if task is None and not self._keeps_turns(name):
                self._lines.pop(self._turns.popleft()).let_go(name)
                continue
            self._turns.rotate(-1)
            if task is not None:
                return task
        return None

    def _keeps_turns(self, name: str) -> bool:
        """Whether a job that has nothing to fetch now is to be looked at again: it has URLs, and may go on.

        While its hosts rest it keeps its place among the turns: else the first job of a host would have all of them.
        """
        for owned in self.owned.values():
            job = owned.fold.jobs.get(name)
            if job is not None and job.counts.queued and self.runs(job):
                return True
        return False

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

    def _next_of(self, name: str, now: float, admitted: Sequence[bool]) -> Task | RobotsTask | NameTask | None:
        lines = self._lines[name]
        while (host := lines.pop(admitted)) is not None:
            host.where = IDLE
            host.turn += 1
            orders = host.orders
            self._pace(host, now)
            if host.next_at > now or orders.paused or host.in_flight >= host.per_host:
                # 1 ready → 2 a request is answered, a command, another job has something on it: not now
                self.arrange(host, now)
                continue
            queue = self._first_of(host, name)
            if queue is None:
                self.arrange(host, now)
                continue
            manner = host.partition.manner(queue.job.number)
            if (opening := self._opening(host, manner, now)) is not None:
                if host.in_flight:
                    continue
                host.in_flight += 1
                return opening
            task = host.partition.pop(host, queue)
            if task is None:
                self.arrange(host, now)
                continue
            host.in_flight += 1
            host.is_opening = host.is_named = False
            host.ask(now)
            queue.asked_at = now
            host.queues[queue.job.number] = host.queues.pop(queue.job.number)  # the last one from now on
            host.slowed_until = now + orders.slow_s if orders.slow_s else 0.0
            self.arrange(host, now)
            return task
        return None

    def _first_of(self, host: Host, name: str) -> HostQueue | None:
        """The queue whose turn it is on a host that a job's line has given; None where nothing may go on.

        Jobs take turns on each host too: 1 a job is asked for elsewhere → 2 the host has rested, and it is another
        job's turn in the worker. By those turns alone a job with many hosts would get nothing from one that it shares.
        """
        for queue in host.queues.values():
            job = queue.job.name
            if queue and self._goes_on(host, queue) and (job == name or self._may_have_more(job)):
                return queue
        return None

    def _opening(self, host: Host, manner: Manner, now: float) -> RobotsTask | NameTask | None:
        """What must be asked before the next page of a host: its name, then its robots.txt."""
        if not host.is_named and not self.is_named(host.key):
            return NameTask(host)
        if not manner.rules.robots or host.knows_rules(now, manner.token) or host.closed_to(manner, now) is not None:
            return None
        if not host.in_flight:
            host.ask(now)
            host.is_opening, host.is_named = True, False
        return RobotsTask(host, manner)

    def named(self, host: Host) -> None:
        """Its name was resolved, or could not be: it is asked next, whatever came of it."""
        host.is_named = True
        self.unsent(host)

    def lend(self, place: "Place") -> Host | None:
        """A host's entry, for a request that is not the queue's: `in_flight` counts it, `finished` ends it.

        None where another worker owns its partition.
        """
        owned = self.owned.get(place.partition)
        return owned.host(place.host, place.domain) if owned is not None else None

    def finished(self, host: Host, wait_s: float = 0.0, job: int = 0) -> None:
        """A request to the host has ended, however; it rests from now on.

        Args:
            job: Whose URL it was, by number; 0 for none.
        """
        host.in_flight -= 1
        now = self.now()
        host.ended_at = now
        host.ask(now)
        queue = host.queues.get(job)
        if queue is not None:
            queue.asked_at = now
        host.rest(now + wait_s)
        if host.orders.slow_s:
            host.slowed_until = now + host.orders.slow_s
        self.arrange(host)

    def unsent(self, host: Host, wait_s: float = 0.0) -> None:
        """A task of the host ended without a request: a rule refused it, or its address is busy for so long."""
        host.in_flight -= 1
        now = self.now()
        if host.in_flight == 0:
            host.asked_at = host.ended_at
            for queue in host.queues.values():
                queue.asked_at = min(queue.asked_at, host.ended_at)
        host.rest(now + wait_s)
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
        if host.where == LATER or (host.where == IDLE and host.in_flight >= host.per_host):
            return
        is_wanted = self._is_wanted(host)
        if host.where == READY:
            if is_wanted:
                self._join(host)  # 1 ready for one job, which may not go on → 2 another job finds something on it
                return
            host.where = IDLE
            host.turn += 1
        now = self.now() if now is None else now
        self._pace(host, now)
        if host.in_flight >= host.per_host:
            return
        next_at = host.next_at
        if not is_wanted:
            if self._is_crowded(now):
                self._gives_place(host, now)
            return
        if not self.has_room and self._is_dear(host, next_at, now) and self._gives_place(host, now):
            return
        self._line_up(host, next_at, now)

    def _is_dear(self, host: Host, next_at: float, now: float) -> bool:
        """Whether to keep a host awake saves little: it rests for long, or its next URL is to be read anyway."""
        is_spent = all(queue.is_spent for queue in host.queues.values() if self._goes_on(host, queue))
        return is_spent or next_at > now + LONG_REST_S

    def _line_up(self, host: Host, next_at: float, now: float) -> None:
        if next_at > now:
            host.where = LATER
            self._resting.add(next_at, host, is_usual=host.wish_s is None and next_at <= now + host.delay_s)
        else:
            host.where = READY
            host.turn += 1
            self._join(host)

    def _is_wanted(self, host: Host) -> bool:
        """Whether a job has something on it and may go on, so far as commands have a say."""
        for queue in host.queues.values():  # a few times for each request, so no generator
            if (queue.window or queue.more or queue.overdue) and self._goes_on(host, queue):
                return not host.orders.paused
        return False

    def _gives_place(self, host: Host, now: float) -> bool:
        """Put a host to sleep until it has rested, unless memory alone knows something of it; whether it is gone."""
        owned = host.partition
        if host.in_flight or host.robots_attempts or host.unreachable or owned.hosts.get(host.key) is not host:
            return False
        is_wanted = self._is_wanted(host)
        if is_wanted and any(queue.overdue and self._goes_on(host, queue) for queue in host.queues.values()):
            return False
        if host.next_at <= now and not any(host.queues.values()):
            owned.forget(host)
        else:
            owned.forget(host, max(host.next_at, now) if is_wanted or host.next_at > now else inf)
        return True

    def _join(self, host: Host) -> None:
        """Have a ready host in the line of every job that has something for it, and where it belongs there."""
        for queue in host.queues.values():
            if queue and self._goes_on(host, queue):
                name = queue.job.name
                lines = self._lines.get(name)
                if lines is None:
                    lines = self._lines[name] = Lines()
                    self._turns.append(name)
                lines.add(host, queue)

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


def _asked_lately(host: Host, queue: HostQueue, delay_s: float, now: float) -> bool:
    """Whether a job that has nothing on a host any more still counts there, by its own delay."""
    if queue.asked_at == NEVER:
        return False
    if not host.in_flight and queue.asked_at + delay_s <= now:
        queue.asked_at = NEVER
    return queue.asked_at != NEVER


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
