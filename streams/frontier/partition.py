"""A partition that this worker owns: its hosts, awake or asleep, and the URLs that were dispatched.

The fold tells it of each change (`queued` to `forgotten`). It keeps host queues in memory in step with the state's rows
and arranges each host that is concerned. Nothing decided here is kept: results enter the log as dones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf

from crawlog.streams.fold import Fold, JobState
from crawlog.streams.fold import rows as r
from crawlog.streams.url import hashed

from .host import IDLE, LATER, Cache, Host, HostQueue, Task
from .order import KEPT, Sleepers
from .policies import HeldHosts, RequestPolicies
from .politeness import failures_of
from .schedule import Schedule
from .unmet_hosts import standing_of
from .waits import RetryWaits, waited

# Host queues that are loaded between two turns of the event loop: 30 ms, while the hosts are kept awake.
LOADED_AT_ONCE = 1_000


class OwnedPartition:  # long: each change that the fold shows is a method of some lines
    """The hosts and the dispatched URLs of one partition.

    Args:
        asked_before: Another worker, or a crashed one, may have asked any host up to this time.

    Attributes:
        hosts: Those in memory, by key.
        pending: URLs from their dispatch until their done is folded, by their row's key: the row stands until then.
        under_way: Number of these by the job's number.
    """

    def __init__(self, schedule: Schedule, fold: Fold, cache: Cache, asked_before: float) -> None:
        self.fold = fold
        self._asked_before = asked_before
        self.cache = cache.cache
        self.cached = cache.cached
        self.remember = cache.remember
        self.hosts: dict[str, Host] = {}
        self.pending: dict[bytes, Task] = {}
        self.under_way: Counter[int] = Counter()
        self.waits = RetryWaits(fold, schedule, self.hosts, self.pending)
        self.sleepers = Sleepers()
        self.held = HeldHosts(fold, schedule)
        self.policies = RequestPolicies(fold, schedule)
        self.policy = self.policies.of_job
        self.lack = self.policies.lack
        self.goes_on = self.policies.goes_on
        self.needs = self.policies.needs
        self._schedule = schedule

    # ------------------------------------------------------------------ the fold's listener

    def queued(self, job: int, host: str, domain: str, key: bytes, value: bytes) -> None:
        """A URL may be fetched."""
        if self._schedule.holding:
            self.held.note(host)
        entry = self._awake(host, domain, job)
        # A host that slept has its rows yet to read: the new one is behind its window, and the host is in no line.
        if entry is not None and (self.queue(entry, job).add(key, value, self._schedule.window) or entry.where == IDLE):
            self._schedule.arrange(entry)

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
        self.waits.add(key, row, host, domain)

    def outdated(self, key: bytes, epoch: int) -> None:
        """A URL's done changed nothing, for its job has left the epoch it was dispatched in: it is fetched again."""
        task = self.pending.get(key)
        if task is not None and task.epoch == epoch:
            self.back(task)

    def job_changed(self, job: int) -> None:
        """A job's record was folded: its hosts may have something to fetch now, or rest otherwise."""
        self.policies.job_changed(job)
        for host in list(self.hosts.values()):
            if job in host.queues:
                self._schedule.pace_anew(host)
        self.look_again()

    def forgotten(self, job: int) -> None:
        """All rows of a job were dropped; waits without a row end when they are due, requests in flight as always."""
        self.policies.try_again(job)
        for host in self.hosts.values():
            queue = host.queues.pop(job, None)
            if queue is not None:
                self._schedule.left(queue.job.name)
                self.waits.woken -= waited(queue.overdue)
        for key in [key for key, task in self.pending.items() if task.job.number == job]:
            self.ended(key)

    # ------------------------------------------------------------------ what may go on

    def may_go_on(self, host: str, mark: int, job: JobState) -> bool:
        """Whether this worker fetches a job's URLs of a host now.

        Args:
            host: Its key.
            mark: Its hash.
        """
        return self.goes_on(job, mark) and not self._schedule.commands.of_host(host).paused

    def look_again(self) -> None:
        """Look at those hosts and waits again that might not go on: a job, a command or a setting has changed."""
        self.waits.look_again(lambda host, queue: self.may_go_on(host.key, host.hash, queue.job))
        self.sleepers.set_timers(self._schedule.now())

    # ------------------------------------------------------------------ hosts, awake and asleep

    def host(self, key: str, domain: str, queues: Mapping[int, r.HostQueueRow] | None = None) -> Host:
        """The host's entry, made when there is none.

        Args:
            queues: Jobs that have something on it, if it sleeps and they were read already.
        """
        entry = self.hosts.get(key)
        if entry is None:
            schedule = self._schedule
            entry = self.hosts[key] = Host(key, domain, self, schedule.usual.rules.delay_s)
            schedule.awake += 1
            until = self.sleepers.remove(entry.hash)
            self._recall(entry)
            if until is not None:
                entry.rest(until)
                for number in self._queues(entry.hash) if queues is None else queues:
                    self.queue(entry, number).more = True
            schedule.order(entry)
            if until is not None:  # else a command that makes it rest for long would begin anew each time it wakes
                entry.slowed_until = min(entry.slowed_until, entry.asked_at + entry.orders.slow_s)
        return entry

    def _recall(self, host: Host) -> None:
        """Take what the host's row knows of its last request, and that another worker may have asked the host since."""
        stored = self.fold.rows.get(r.host_key(host.hash))
        if stored is not None:
            row, now = r.read_host(stored), self._schedule.now()
            host.standing = standing_of(row)
            host.asked_at = host.ended_at = now - max(self._schedule.wall() - row.last_at, 0.0)
            host.failures = row.failures
            if row.failures > 1:  # the row counts each of those that failed together, but they were one rest
                most = failures_of(row.wait_s, self.policies.least_retry_delay_s())
                host.failures = min(row.failures, most)
            host.rest(host.asked_at + row.wait_s)
        host.asked_elsewhere(self._asked_before)

    def _awake(self, key: str, domain: str, job: int) -> Host | None:
        """The host's entry for a job that found something on it; None if it sleeps, or must for want of room."""
        entry = self.hosts.get(key)
        if entry is None and (self.sleepers.times or not self._schedule.has_room):
            mark = hashed(key)
            until = self.sleepers.times.get(mark)
            may_go_on = self.may_go_on(key, mark, self.fold.numbers[job])
            is_free = until == KEPT and may_go_on
            if may_go_on and self._schedule.has_few(self.fold.numbers[job].name):
                return self.host(key, domain)
            if until is not None and not is_free:
                return None
            if is_free or not self._schedule.has_room:
                self.sleepers.add(mark, self._schedule.now())
                return None
        return entry or self.host(key, domain)

    def forget(self, host: Host, until: float | None = None) -> None:
        """Take a host without a request in flight out of memory; it sleeps, if a time is given."""
        del self.hosts[host.key]
        self._schedule.awake -= 1
        for queue in host.queues.values():
            self._schedule.left(queue.job.name)
            self.waits.forget(queue)
        host.queues.clear()
        host.where = IDLE
        host.turn += 1
        if until is not None:
            self.sleepers.add(host.hash, until)

    def _queues(self, host: int) -> dict[int, r.HostQueueRow]:
        """The queues of a host that hold something, by job."""
        found = {}
        for job in self.fold.with_queue():
            row = self.fold.host_queue(job.number, host)
            if row is not None and row.queued > 0:
                found[job.number] = row
        return found

    def wake_first(self) -> None:
        """Wake the sleeping host that is due first, if it has something to fetch and may go on."""
        mark = self.sleepers.first()
        if mark is None:
            return
        queues = self._queues(mark)
        if not queues:
            self.sleepers.remove(mark)
        elif any(self.may_go_on(row.host, mark, self.fold.numbers[job]) for job, row in queues.items()):
            row = next(iter(queues.values()))
            self._schedule.arrange(self.host(row.host, row.domain, queues))
        else:
            self.sleepers.add(mark, inf)

    def clear(self, is_named: Callable[[str], bool]) -> list[Host]:
        """End the back-off of the hosts whose key has this name: they are asked again after their delay."""
        schedule = self._schedule
        self.fold.flush()
        rows = (r.read_host_queue(value) for _, value in self.fold.rows.scan(b"g"))
        named = {row.host: row.domain for row in rows if row.queued > 0 and is_named(row.host)}
        hosts = [self.host(key, domain) for key, domain in named.items()]
        self.waits.hurry(named)
        for host in hosts:
            host.ready_at = host.exits_until = 0.0
            host.failures, host.closed = 0, ()
            host.tries.clear()
            schedule.exits.forgive(host.key)
            host.where = IDLE if host.where == LATER else host.where
            schedule.arrange(host)
        return hosts

    def rests(self) -> dict[int, float]:
        """Until when each host that may not be asked now rests, by its hash."""
        now = self._schedule.now()
        rests = self.sleepers.rests(now)
        for host in self.hosts.values():
            until = max(host.next_at, now + host.delay_s if host.in_flight else 0.0)
            if until > now:
                rests[host.hash] = until
        return rests

    # ------------------------------------------------------------------ queues

    def queue(self, host: Host, job: int) -> HostQueue:
        """The host's queue of a job, made when there is none."""
        queue = host.queues.get(job)
        if queue is None:
            queue = host.queues[job] = HostQueue(self.fold.numbers[job], host.hash)
            self._schedule.entered(queue.job.name)
            self._schedule.order(host)
        return queue

    def load(self, rests: Mapping[int, float] | None = None) -> Iterator[None]:
        """Read all queues and waits from the rows, after a restore: no host is asked before one full delay has passed.

        Yields after every `LOADED_AT_ONCE` host queues; the rows must not change before the end.

        Args:
            rests: Until when hosts rest, by hash, if that is known; others rest one delay from `asked_before` on.
        """
        schedule, asleep = self._schedule, self.sleepers.times
        now = schedule.now()
        is_new, rests = rests is None, rests or {}
        self.fold.flush()
        usual = now + (self.policies.greatest_delay_s() if is_new else 0.0)
        for count, (key, value) in enumerate(self.fold.rows.scan(b"g"), 1):
            if count % LOADED_AT_ONCE == 0:
                yield
            stored = r.read_host_queue(value)
            if stored.queued <= 0:
                continue
            if schedule.holding:
                self.held.note(stored.host)
            number, mark = r.unpack_host_queue(key)
            host = self.hosts.get(stored.host)
            may_enter = schedule.has_room or schedule.has_few(self.fold.numbers[number].name)
            if host is None and (mark in asleep or not may_enter):
                if asleep.get(mark, KEPT) == KEPT:  # one without a timer was loaded for a job that may not go on
                    self.sleepers.add(mark, rests.get(mark, usual))
                continue
            host = host or self.host(stored.host, stored.domain)
            queue = self.queue(host, number)
            queue.more, queue.upto = True, b""
            host.rest(rests.get(mark, now))
            schedule.arrange(host)
        self.waits.load()

    # ------------------------------------------------------------------ time

    def wakes_at(self) -> float:
        """When a wait is over, waiting rows are to be read, or URLs that were left queued are tried again."""
        at = self.waits.next_at()
        return min(self.policies.try_at, at)

    def wake(self, now: float) -> None:
        """Put URLs that have waited long enough at the front of their host's queue."""
        if self.policies.try_at <= now:
            lacked = self.policies.try_all()
            for host in [host for host in self.hosts.values() if host.hash in lacked]:
                self._schedule.arrange(host)
            self.look_again()
        for key, row, host_key, domain in self.waits.take_due(now):
            job = r.job_of(key)
            if not self.may_go_on(host_key, hashed(host_key), self.fold.numbers[job]):
                self.waits.left.add(job)
                continue
            self.waits.woken += 1
            host = self.host(host_key, domain)
            self.queue(host, job).overdue.append((key, r.without_request(row)))
            self._schedule.arrange(host)
        self.waits.load_due(now)

    # ------------------------------------------------------------------ dispatched URLs

    def pop(self, host: Host, queue: HostQueue) -> Task | None:
        """Dispatch the next URL of a host queue that still has its row."""
        while queue:
            attempt = 0
            if queue.overdue:
                key, expected = queue.overdue.pop(0)
                attempt = expected.attempt
                self.waits.woken -= key[:1] == b"w"
                stored = self.fold.rows.get(key)
            elif queue.window:
                key, value = queue.take()
                stored = value or self.fold.rows.get(key)
                self.fold.rows.keep(key, stored)
            else:
                most = self._schedule.window
                found = self.fold.rows.scan_queue(queue.prefix, queue.upto or queue.prefix, most + 1)
                queue.fill(found, most, self.pending)
                continue
            row = r.read_queued(stored) if stored is not None else None
            if row is not None and row.attempt == attempt and key not in self.pending:
                task = self.pending[key] = Task(host, queue.job, key, row, self)
                self.under_way[queue.job.number] += 1
                return task
        return None

    def ended(self, key: bytes) -> bool:
        """A dispatched URL is under way no more. Returns: Whether it was."""
        task = self.pending.pop(key, None)
        if task is None:
            return False
        self.under_way[task.job.number] -= 1
        if not self.under_way[task.job.number]:
            del self.under_way[task.job.number]
        return True

    def back(self, task: Task) -> None:
        """Put a dispatched URL back at the front of its queue: it was never tried."""
        if self.pending.get(task.key) is not task:
            return
        self.ended(task.key)
        host = self.host(task.host.key, task.domain)
        self.queue(host, task.job.number).overdue.insert(0, (task.key, r.without_request(task.row)))
        self.waits.woken += task.key[:1] == b"w"
        self._schedule.arrange(host)
