"""When each host in memory may be asked: its pace, whether it rests, stands in line, or gives its place to another.

    a queue gets a URL, a request ends, a command changes
      → arrange → LATER: rests, by the time it may be asked
                → READY: in the line of each job that has URLs there
                → IDLE: has nothing to fetch, or as many requests in flight as it may
                → asleep, out of memory, where memory is short

Only hosts with something to fetch are in memory, each with a short window of its queue; the rest stays in the state's
rows. If there are more than `HOSTS_AWAKE`, those that are due first are awake. A host falls asleep where its next URL
must be read from the rows anyway, where it rests for long, or where none of its jobs may go on; so every host gets its
turn.
"""

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, Protocol

from crawlog.schemas.control import MAX_DELAY_S
from crawlog.streams.exits import Exits
from crawlog.streams.fold import JobState
from crawlog.streams.jobs import Commands
from crawlog.streams.requests import RequestPolicy, WorkerLimits

from .host import IDLE, LATER, NEVER, READY, WINDOW, Host, HostPartition, HostQueue
from .order import HostLines, JobTurns, Resting
from .politeness import crawl_delay_s

if TYPE_CHECKING:
    from crawlog.schemas.control import Command
    from crawlog.schemas.urls import RequestRules

    from .order import Sleepers

WINDOW_BUDGET = 250_000  # URLs of all host queues in memory, about: with more hosts each window is smaller

WINDOW_LEAST = 4

# Hosts in memory, about, 1 kB each and their windows: asked every few seconds, so many are more than one can fetch.
HOSTS_AWAKE = 20_000

# Hosts that each of several jobs may have in memory where there is no room left. Sleeping hosts wake in the order of
# their times, so a small job's would wait for all those of a large one.
OWN_HOSTS = 64

MANY = 1 << 30

LONG_REST_S = 60.0  # A host that rests longer gives its place, and its window, to one that sleeps


class Clock(Protocol):
    """A clock's reading, in seconds."""

    def __call__(self) -> float:
        """Seconds."""


class Schedule:
    """The hosts in memory, over all partitions that this worker owns.

    Args:
        usual: How the URLs of jobs are requested whose records do not say it.
        now: A monotonic clock.
        wall: UTC epoch seconds, only to see how much of a wait in the log has passed.
        only: Name of the one job whose URLs are fetched; empty for all.
        limits: The worker's own limits, which hold whatever the jobs' records say.

    Attributes:
        sleepers: The sleeping hosts, by partition.
        resting: Hosts that rest; an entry counts only while its host is LATER.
        lines: By the job's name, its hosts that may be asked now.
        turns: The order of these jobs.
        awake: Number of hosts in memory.
        awake_of: By the job's name, how many of these have a queue of it.
        window: URLs of one host queue in memory, at most.
        commands: The commands in force.
        holding: The commands that keep hosts waiting.
        exits: Those of the worker.
    """

    def __init__(self, usual: RequestPolicy, now: Clock, wall: Clock, only: str, limits: WorkerLimits) -> None:
        self.usual = usual
        self.limits = limits
        self.now = now
        self.wall = wall
        self.only = only
        self.sleepers: dict[int, Sleepers] = {}
        self.resting = Resting()
        self.lines: dict[str, HostLines] = {}
        self.turns = JobTurns(self.lines)
        self.awake = 0
        self.awake_of: Counter[str] = Counter()
        self.window = WINDOW
        self.commands = Commands()
        self.holding: frozenset[Command] = frozenset()
        self.exits = Exits()
        self._slow_s = 0.0

    # ------------------------------------------------------------------ what may go on

    def runs(self, job: JobState) -> bool:
        return job.running and (not self.only or self.only == job.name) and not self.commands.of_job(job.name).paused

    @staticmethod
    def is_wanted(host: Host) -> bool:
        """Whether a job has URLs on the host and may go on, and no command keeps the host waiting."""
        for queue in host.queues.values():  # a few times for each request, so no generator
            if (queue.window or queue.more or queue.overdue) and host.partition.goes_on(queue.job, host.hash):
                return not host.orders.paused
        return False

    # ------------------------------------------------------------------ commands

    def obey(self, commands: Commands) -> None:
        """Go by these commands from now on; the caller arranges every host anew."""
        self.commands = commands
        self._slow_s = commands.of_stage("fetch").slow_s
        self.holding = commands.holding_hosts
        self.resting.clear()
        self._order_exits()

    def use(self, exits: Exits) -> None:
        """These are the worker's exits."""
        self.exits = exits
        self._order_exits()

    def _order_exits(self) -> None:
        ahead_s = self.now() - self.wall()
        rests = {one.exit: one.at + one.delay_s + ahead_s for one in self.commands.of_exits if one.action == "rest"}
        pauses = {one.exit: self.now() + MAX_DELAY_S for one in self.commands.of_exits if one.action == "pause"}
        self.exits.obey(rests | pauses)

    def order(self, host: Host) -> None:
        """Tell a host the commands for itself, for its jobs, and for the stage."""
        before, host.orders = host.orders, self.commands.of_host(host.key)
        jobs = (self.commands.of_job(queue.job.name).slow_s for queue in host.queues.values())
        slow_s = max([self._slow_s, *jobs])
        if slow_s > host.orders.slow_s:
            host.orders = host.orders._replace(slow_s=slow_s)
        if host.orders.slow_s != before.slow_s:
            host.slowed_until = self.now() + host.orders.slow_s if host.orders.slow_s else 0.0
        self.pace(host, self.now())

    # ------------------------------------------------------------------ pace

    def pace(self, host: Host, now: float) -> None:
        """Set a host's pace by its jobs: the longest delay, the fewest requests at a time.

        A job counts if it may go on and has URLs on the host. A job with an empty queue counts too until its requests
        have ended and its own delay has passed: 1 it asks → 2 the next request, of another job, comes after its delay.
        """
        delay_s, per_host, ways = NEVER, 0, 0
        for number, queue in host.queues.items():
            policy = host.partition.policy(number)
            own_s = queue.delay_s(policy, host.rules)
            goes_on = queue and host.partition.goes_on(queue.job, host.hash)
            if not goes_on and not _asked_lately(host, queue, own_s, now):
                continue
            delay_s = max(delay_s, own_s)
            ways = min(ways or MANY, self._ways(policy.rules) if policy.rules.per_exit else 1)
            per_host = min(per_host or policy.rules.per_host, policy.rules.per_host)
        if not per_host:
            usual = self.usual.rules
            delay_s, per_host = crawl_delay_s(usual.delay_s, host.wish_s, usual.max_delay_s), usual.per_host
        host.delay_s, host.per_host, host.per_exit = delay_s, per_host, 0
        host.paced_until = host.asked_at + delay_s
        if ways > 1:  # all of its jobs count by exit
            host.per_host, host.per_exit = per_host * ways, per_host
            host.paced_until = host.opened_at + delay_s

    def _ways(self, rules: "RequestRules") -> int:
        return len(self.exits.of_group(rules.exit_group))

    def pace_anew(self, host: Host) -> None:
        """Set a host's pace and place anew: one of its jobs has changed."""
        before = host.next_at
        self.pace(host, self.now())
        if host.where == LATER and host.next_at != before:
            host.where = IDLE
        self.arrange(host)

    # ------------------------------------------------------------------ places

    @property
    def has_room(self) -> bool:
        return self.awake < HOSTS_AWAKE

    def has_few(self, job: str) -> bool:
        """Whether a job, given by its name, has so few hosts in memory beside other jobs that it may have one more."""
        others = len(self.awake_of) - (job in self.awake_of)
        return others > 0 and self.awake_of[job] < OWN_HOSTS

    def entered(self, job: str) -> None:
        self.awake_of[job] += 1

    def left(self, job: str) -> None:
        self.awake_of[job] -= 1
        if self.awake_of[job] <= 0:
            del self.awake_of[job]

    def is_crowded(self, now: float) -> bool:
        """Whether there is no room, or a sleeping host is due and takes what there is."""
        return not self.has_room or any(sleepers.next_at() <= now for sleepers in self.sleepers.values())

    def size_windows(self) -> None:
        self.window = min(max(WINDOW_BUDGET // max(self.awake, 1), WINDOW_LEAST), WINDOW)

    def arrange(self, host: Host, now: float | None = None) -> None:
        """Put a host where it belongs: LATER, READY or IDLE, or out of memory.

        Args:
            now: The caller's reading, if it goes on by it: a host found ready by a later one would come back to the
                caller for ever.
        """
        if host.where == LATER or (host.where == IDLE and host.in_flight >= host.per_host):
            return
        is_wanted = self.is_wanted(host)
        if host.where == READY:
            if is_wanted:
                self._join(host)  # 1 ready for one job, which may not go on → 2 another job finds something on it
                return
            host.where = IDLE
            host.turn += 1
        now = self.now() if now is None else now
        self.pace(host, now)
        if host.in_flight >= host.per_host:
            return
        next_at = host.next_at
        if not is_wanted:
            if self.is_crowded(now):
                self.give_place(host, now)
            return
        if not self.has_room and self._is_dear(host, next_at, now) and self.give_place(host, now):
            return
        self._line_up(host, next_at, now)

    def keep(self, host: Host) -> None:
        """Put a host that slept where it belongs, but never out of memory: the caller goes on with its entry."""
        if host.where == IDLE and host.in_flight < host.per_host and self.is_wanted(host):
            self._line_up(host, host.next_at, self.now())

    def _is_dear(self, host: Host, next_at: float, now: float) -> bool:
        """Whether keeping a host awake saves little: it rests for long, or its next URL must be read anyway."""
        is_spent = True
        for queue in host.queues.values():
            if host.partition.goes_on(queue.job, host.hash):
                if self.has_few(queue.job.name):
                    return False
                is_spent = is_spent and queue.is_spent
        return is_spent or next_at > now + LONG_REST_S

    def _line_up(self, host: Host, next_at: float, now: float) -> None:
        if next_at > now:
            host.where = LATER
            self.resting.add(next_at, host, is_usual=host.wish_s is None and next_at <= now + host.delay_s)
        else:
            host.where = READY
            host.turn += 1
            self._join(host)

    def _join(self, host: Host) -> None:
        """Put a ready host into the line of each job that has URLs there, or at its right place in it."""
        for queue in host.queues.values():
            if queue and host.partition.goes_on(queue.job, host.hash):
                name = queue.job.name
                lines = self.lines.get(name)
                if lines is None:
                    lines = self.lines[name] = HostLines()
                if lines.is_empty:
                    self.turns.add(name)
                lines.add(host, queue)

    def give_place(self, host: Host, now: float) -> bool:
        """Put a host to sleep until it has rested, unless memory alone knows something of it.

        Returns: Whether it is out of memory.
        """
        owned = host.partition
        is_known = bool(host.tries) or host.is_shut(now)
        if host.in_flight or is_known or owned.hosts.get(host.key) is not host:
            return False
        is_wanted = self.is_wanted(host)
        if is_wanted and any(queue.overdue and owned.goes_on(queue.job, host.hash) for queue in host.queues.values()):
            return False
        if host.next_at <= now and not any(host.queues.values()):
            owned.forget(host)
        else:
            owned.forget(host, max(host.next_at, now) if is_wanted or host.next_at > now else inf)
        return True

    def drop(self, partition: HostPartition) -> None:
        """Forget the places of a partition's hosts, those too that have left memory."""
        self.resting.drop(partition)
        for lines in self.lines.values():
            lines.drop(partition)

    # ------------------------------------------------------------------ time

    def arrange_rested(self, now: float) -> None:
        while (host := self.resting.pop(now)) is not None:
            if host.where != LATER:
                continue
            host.where = IDLE
            self.arrange(host, now)

    def wakes_at(self) -> float:
        """When the next sleeping host is due, if there is room; else `inf`."""
        if not self.has_room:
            return inf
        return min([sleepers.next_at() for sleepers in self.sleepers.values() if sleepers.times], default=inf)


def _asked_lately(host: Host, queue: HostQueue, delay_s: float, now: float) -> bool:
    """Whether a job that has no URLs on a host any more still counts there, by its own delay."""
    if queue.asked_at == NEVER:
        return False
    if not host.in_flight and queue.asked_at + delay_s <= now:
        queue.asked_at = NEVER
    return queue.asked_at != NEVER
