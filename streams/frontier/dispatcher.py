"""The dispatcher: which URL may be fetched now, over all partitions that this worker owns.

Per host: so many requests at a time, so much rest between them, the queue in key order. Between hosts: by the time they
may be asked; where more are allowed than can be fetched, jobs have shares by their priority, on each host too, and
within a job registrable domains, then hosts, have turns.

Time is `now`, in seconds on a monotonic clock. Nothing decided here is kept: results enter the log as dones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import inf
from typing import TYPE_CHECKING

from crawlog.schemas.control import Command
from crawlog.streams.exits import Exit
from crawlog.streams.fold import Fold, JobState
from crawlog.streams.jobs import Commands, traits
from crawlog.streams.requests import UNLIMITED, RequestPolicy, WorkerLimits

from .by_exit import counts_by_exit, landed, taken, waits_for_exit
from .host import IDLE, LATER, NEVER, Cache, Host, HostQueue, NameTask, RobotsTask, Task
from .host_figures import HostLedger
from .order import after_turn
from .partition import OwnedPartition
from .schedule import Clock, Schedule
from .unmet_hosts import EVERYBODY

if TYPE_CHECKING:
    from crawlog.streams.url import Place


class Frontier:  # long: hosts, jobs and exits are decided together for each request
    """The host queues of every partition that this worker owns, and what is requested next.

    The arguments are those of `Schedule`.

    Attributes:
        is_named: Whether the addresses of a host, given by its key, are known; if not, its name is resolved first.
        ledger: What requests came to, for people.
    """

    def __init__(
        self, usual: RequestPolicy, now: Clock, wall: Clock, *, only: str = "", limits: WorkerLimits = UNLIMITED
    ) -> None:
        self.usual = usual
        self.owned: dict[int, OwnedPartition] = {}
        self._asked_before: dict[int, float] = {}
        self.schedule = Schedule(usual, now, wall, only, limits)
        self.ledger = HostLedger(self.schedule)
        self.is_named: Callable[[str], bool] = lambda _host: True

    # ------------------------------------------------------------------ ownership

    def take_over(
        self, partition: int, fold: Fold, cache: Cache, rests: Mapping[int, float] | None = None
    ) -> Iterator[None]:
        """Load a partition, to dispatch for it from the end on; its fold must have reached the log's end.

        Yields after some ten milliseconds each. Until the end nothing may be folded or dispatched; `disown` gives up.

        Args:
            rests: What `rests_of` said when it was given up, if nobody else can have asked its hosts since.
        """
        self.disown(partition)
        if rests is None:
            self._asked_before[partition] = self.schedule.now() if fold.with_queue() else NEVER
        asked_before = self._asked_before.get(partition, NEVER)
        owned = self.owned[partition] = OwnedPartition(self.schedule, fold, cache, asked_before)
        self.schedule.sleepers[partition] = owned.sleepers
        yield from owned.load(rests)
        fold.listener = owned
        self.size_windows()

    def disown(self, partition: int) -> None:
        """Dispatch nothing more for a partition."""
        owned = self.owned.pop(partition, None)
        if owned is None:
            return
        del self.schedule.sleepers[partition]
        owned.fold.listener = None
        for host in list(owned.hosts.values()):
            owned.forget(host)
        self.schedule.drop(owned)
        self.ledger.drop(partition)

    def rests_of(self, partition: int) -> dict[int, float]:
        """Until when the hosts of a partition rest, by hash; a host that is not named may be asked."""
        return self.owned[partition].rests()

    def size_windows(self) -> None:
        """Forget hosts that have nothing to fetch and need no rest, and share the window budget among the others.

        A host that is shut stays while there is room, so that its next URL does not ask for robots.txt again.
        """
        schedule = self.schedule
        now = schedule.now()
        is_crowded = schedule.is_crowded(now)
        for owned in self.owned.values():
            for host in [host for host in owned.hosts.values() if host.where == IDLE and not host.in_flight]:
                if not any(host.queues.values()) and host.next_at <= now and (is_crowded or not host.is_shut(now)):
                    owned.forget(host)
                elif is_crowded:
                    schedule.give_place(host, now)
        schedule.size_windows()
        self._prune_turns()

    # ------------------------------------------------------------------ commands

    def obey(self, commands: Commands) -> None:
        """The commands in force are these, until the next call."""
        schedule = self.schedule
        before = schedule.holding
        schedule.obey(commands)
        for owned in self.owned.values():
            owned.policies.obey()
            if schedule.holding != before:
                owned.held.look()
            for host in list(owned.hosts.values()):
                schedule.order(host)
                if host.where == LATER:
                    host.where = IDLE
                schedule.arrange(host)
            owned.look_again()

    def order(self, host: Host) -> None:
        """Tell a host of another worker's partition the commands in force."""
        self.schedule.order(host)

    def clear(self, name: str) -> list[Host]:
        """End the back-off of a host, named as in commands, and of its URLs. Returns: The entries concerned."""
        named = Commands([Command("pause", host=name)])
        return [host for owned in self.owned.values() for host in owned.clear(lambda key: named.of_host(key).paused)]

    def is_held(self, job: JobState) -> bool:
        """Whether nobody waits for a job's queue: it was stopped or has ended for good, by its record or a command."""
        return not traits(job.spec.state).queued or self.schedule.commands.of_job(job.name).stopped

    # ------------------------------------------------------------------ dispatch

    @property
    def unfolded(self) -> int:
        """URLs that were dispatched and whose done is not folded: in flight, or on the way through the log."""
        return sum(len(owned.pending) for owned in self.owned.values())

    def next(self, admitted: Sequence[bool] = EVERYBODY) -> Task | RobotsTask | NameTask | None:
        """The next task, or None; the caller says `finished` when its response has ended.

        Args:
            admitted: By standing, whether a host may be asked.
        """
        schedule = self.schedule
        now = schedule.now()
        self._wake(now)
        task, had_turns = None, list[str]()
        while task is None and (name := schedule.turns.pop()) is not None:
            task = self._next_of(name, now, admitted) if self._may_have_more(name) else None
            if task is None and not self._keeps_turns(name):
                schedule.lines.pop(name).let_go(name)
            elif not schedule.lines[name].is_empty:  # else it comes back with its next host
                had_turns.append(name)
        for name in had_turns:
            schedule.turns.add(name)
        return task

    def _prune_turns(self) -> None:
        """Forget jobs that have no host in line and nothing queued: they had their last turn."""
        schedule = self.schedule
        for name, lines in list(schedule.lines.items()):
            if lines.is_empty and not self._keeps_turns(name):
                del schedule.lines[name]

    def _keeps_turns(self, name: str) -> bool:
        """Whether a job without a task now keeps its place among the turns: it has URLs and may go on.

        If it lost its place while its hosts rest, the first job of a shared host would have all of that host's turns.
        """
        for owned in self.owned.values():
            job = owned.fold.jobs.get(name)
            if job is not None and job.counts.queued and self.schedule.runs(job):
                return True
        return False

    def _may_have_more(self, name: str) -> bool:
        """Whether this worker fetches a job, and its pages and requests in flight are below its `max_pages`."""
        only = self.schedule.only
        if (only and name != only) or self.schedule.commands.of_job(name).paused:
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
        schedule = self.schedule
        lines = schedule.lines[name]
        while (host := lines.pop(admitted)) is not None:
            host.where = IDLE
            host.turn += 1
            orders = host.orders
            schedule.pace(host, now)
            if host.next_at > now or orders.paused or host.in_flight >= host.per_host:
                # 1 ready → 2 a request is answered, a command, another job has something on it: not now
                schedule.arrange(host, now)
                continue
            queue = self._first_of(host, name)
            if queue is None or waits_for_exit(schedule.exits, host, queue, now):
                schedule.arrange(host, now)
                continue
            policy = host.partition.policy(queue.job.number)
            if (opening := self._opening(host, policy, now)) is not None:
                if host.in_flight:
                    continue
                host.in_flight += 1
                schedule.turns.charge(queue.job.name, queue.job.spec.priority)
                return opening
            task = taken(schedule.exits, host, queue, now)
            if task is None:
                schedule.arrange(host, now)
                continue
            host.in_flight += 1
            host.is_opening = host.is_named = False
            host.ask(now, by_exit=counts_by_exit(host, task.exit))
            queue.asked_at = now
            schedule.turns.charge(queue.job.name, queue.job.spec.priority)
            host.clock = max(queue.due, host.clock)
            queue.due = after_turn(host.clock, queue.job.spec.priority)
            host.queues[queue.job.number] = host.queues.pop(queue.job.number)  # the last one from now on
            host.slowed_until = now + orders.slow_s if orders.slow_s else 0.0
            schedule.arrange(host, now)
            return task
        return None

    def _first_of(self, host: Host, name: str) -> HostQueue | None:
        """The queue whose turn it is on a host that came from a job's line; None where no queue may go on.

        Jobs have shares of each host too. By the worker's turns alone a job with many hosts would get nothing from a
        shared one: 1 the job has its turn at another host → 2 the shared host has rested when another job has its turn.
        """
        first: HostQueue | None = None
        least = inf, False
        for queue in host.queues.values():
            job = queue.job.name
            turn = max(queue.due, host.clock), job != name  # it has slept, and knows no turns: that of the line counts
            if turn >= least or not queue or not host.partition.goes_on(queue.job, host.hash):
                continue
            if job == name or self._may_have_more(job):
                first, least = queue, turn
        return first

    def _opening(self, host: Host, policy: RequestPolicy, now: float) -> RobotsTask | NameTask | None:
        """The task that comes before the next page of a host: its name, then its robots.txt; None if both are known."""
        if not host.is_named and not self.is_named(host.key):
            return NameTask(host)
        if not policy.rules.robots or host.knows_rules(now, policy) or host.closed_to(policy, now) is not None:
            return None
        if not host.in_flight:
            host.ask(now)
            host.is_opening, host.is_named = True, False
        return RobotsTask(host, policy)

    def named(self, host: Host) -> None:
        """A NameTask has ended: the host's next task is another one, whether the name was found or not."""
        host.is_named = True
        self.unsent(host)

    def lend(self, place: "Place") -> Host | None:
        """A host's entry, for a request that comes from no queue: the caller counts `in_flight` up, `finished` down.

        Returns: None where another worker owns its partition.
        """
        owned = self.owned.get(place.partition)
        if owned is None:
            return None
        host = owned.host(place.host, place.domain)
        self.schedule.keep(host)
        return host

    def finished(self, host: Host, wait_s: float = 0.0, job: int = 0, way: Exit | None = None) -> None:
        """A request to the host has ended, with or without an answer; it rests from now on.

        Args:
            job: Whose URL it was, by number; 0 for none.
            way: The exit of a task.
        """
        host.in_flight -= 1
        now = self.schedule.now()
        host.ended_at = now
        by_exit = counts_by_exit(host, way)
        landed(self.schedule.exits, host, way, now, is_sent=True)
        host.ask(now, by_exit=by_exit)
        queue = host.queues.get(job)
        if queue is not None:
            queue.asked_at = now
        host.rest(now + wait_s)
        if host.orders.slow_s:
            host.slowed_until = now + host.orders.slow_s
        self.schedule.arrange(host)

    def unsent(self, host: Host, wait_s: float = 0.0, way: Exit | None = None) -> None:
        """A task of the host ended without a request: a rule refused it, or its address is busy for `wait_s`."""
        host.in_flight -= 1
        now = self.schedule.now()
        landed(self.schedule.exits, host, way, now, is_sent=False)
        if host.in_flight == 0:
            host.asked_at = host.opened_at = host.ended_at
            for queue in host.queues.values():
                queue.asked_at = min(queue.asked_at, host.ended_at)
        host.rest(now + wait_s)
        self.schedule.arrange(host)

    def back(self, task: Task) -> None:
        """A task that was never tried goes back to the head of its queue, if its partition is still ours."""
        owned = self.owned.get(task.partition.fold.partition)
        if owned is task.partition and owned is not None:
            owned.back(task)

    # ------------------------------------------------------------------ time

    def _wake(self, now: float) -> None:
        for owned in self.owned.values():
            if owned.waits.next_at() <= now or owned.policies.try_at <= now:  # for each request: no call more
                owned.wake(now)
        self.schedule.arrange_rested(now)
        while self.schedule.wakes_at() <= now:
            # Many sleep until the same time: by their hashes all partitions have turns, and each reads in order.
            min(self.owned.values(), key=lambda owned: owned.sleepers.next_due()).wake_first()

    def next_at(self) -> float | None:
        """When a host may become ready by time alone, monotonic; None when nothing waits for time."""
        schedule = self.schedule
        waits = (owned.wakes_at() for owned in self.owned.values())
        at = min([schedule.wakes_at(), schedule.resting.next_at, *waits])
        return None if at == inf else at

    # ------------------------------------------------------------------ views

    def slowest(self, most: int) -> dict[int, list[tuple[str, int, float]]]:
        """Hosts that wait longest, by partition: (host, URLs queued, seconds until it may be asked)."""
        now = self.schedule.now()
        waits = nlargest(most, ((at, n, host) for at, n, host in self.schedule.resting if host.where == LATER))
        found: dict[int, list[tuple[str, int, float]]] = {}
        for at, host in {host.key: (at, host) for at, _, host in reversed(waits)}.values():
            told = host.key, self.queued(host), max(at - now, 0.0)
            found.setdefault(host.partition.fold.partition, []).append(told)
        return found

    def queued(self, host: Host) -> int:
        """URLs of a host for which a run waits."""
        fold = host.partition.fold
        jobs = (queue.job for queue in host.queues.values() if not self.is_held(queue.job))
        return sum(fold.queued_of(job.number, host.hash) for job in jobs)
