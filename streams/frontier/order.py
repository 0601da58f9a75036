"""The hosts that rest, and the order of those that may be asked, for when more are ready than can be fetched."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, count, cycle
from math import ceil, inf

from .host import LENGTHS, READY, Host, HostPartition, HostQueue
from .unmet_hosts import EVERYBODY, MET, NEW, SILENT


class Ring:
    """Hosts in turns, by registrable domain: one host of each domain stands in the ring, the others queue behind it.

    Nearly every domain has one host, and there may be 10,000: each of these costs one place and no queue.
    """

    def __init__(self) -> None:
        self._ring: deque[tuple[int, Host]] = deque()
        self._others: dict[str, deque[tuple[int, Host]] | None] = {}  # by domain, for each that stands in the ring

    def add(self, host: Host, *, first: bool = False) -> None:
        """Take a host for its present turn, as the last one or as the first."""
        domain, entry = host.domain, (host.turn, host)
        if domain not in self._others:
            self._others[domain] = None
            (self._ring.appendleft if first else self._ring.append)(entry)
            return
        others = self._others[domain]
        if others is None:
            others = self._others[domain] = deque()
        others.append(entry)

    def __bool__(self) -> bool:
        return bool(self._ring)

    def pop(self) -> Host | None:
        """Take the next host, by turns of domains and of hosts in a domain; entries of an earlier turn are dropped."""
        while self._ring:
            turn, host = self._ring.popleft()
            others = self._others[host.domain]
            if others:
                self._ring.append(others.popleft())
            else:
                del self._others[host.domain]
            if turn == host.turn and host.where == READY:
                return host
        return None

    def drop(self, partition: HostPartition) -> None:
        """Take out the hosts of a partition, to which all hosts of their domains belong."""
        kept = deque[tuple[int, Host]]()
        for entry in self._ring:
            if entry[1].partition is partition:
                del self._others[entry[1].domain]
            else:
                kept.append(entry)
        self._ring = kept


class HostLine:
    """Hosts of one job that may be asked now. Every second place is for hosts with long queues.

    A crawl lasts as long as its longest queue, and its host is asked at most once a delay. If it waited in plain turns
    beside hosts that have time, the whole crawl would wait. Queues are classed by powers of two. Each class has half of
    the places that longer ones leave, or all of them if those have no host.
    A robots.txt takes no turn: the first page after it comes before unknown hosts, since only pages tell how long a
    queue is. So each host has its first page no later than in plain turns, and most have it sooner.
    """

    def __init__(self) -> None:
        self._all = Ring()
        self._longer = [Ring() for _ in range(LENGTHS)]
        first, second, third = self._longer
        self._turns = cycle((self._all, first, self._all, second, self._all, first, self._all, third))

    def add(self, host: Host, queue: HostQueue) -> None:
        """Take a host, or move it to the ring of its grown queue; its old entries stay in the other rings, outdated."""
        if queue.turn != host.turn:
            queue.turn, queue.ring = host.turn, LENGTHS
            self._all.add(host, first=host.is_named or (host.is_opening and host.rules is not None))
        length = queue.length
        if length < queue.ring:
            queue.ring = length
            self._longer[length].add(host)

    def pop(self) -> Host | None:
        """The next host."""
        host = next(self._turns).pop()
        if host is not None:
            return host
        for ring in self._longer:
            if ring and (host := ring.pop()) is not None:
                return host
        return self._all.pop()

    def drop(self, partition: HostPartition) -> None:
        """Take out the hosts of a partition."""
        for ring in (self._all, *self._longer):
            ring.drop(partition)


class HostLines:
    """The lines of one job, by standing. Every second turn is for hosts that have answered, if there are any.

    Attributes:
        is_empty: Whether no host stands in them, as far as that is known: with many jobs, most lines are empty.
        due: When the job's next turn is due, on the clock of `JobTurns`.
    """

    def __init__(self) -> None:
        self.is_empty = True
        self.due = 0.0
        self._lines = (HostLine(), HostLine(), HostLine())
        self._turns = cycle((MET, NEW, MET, SILENT))

    def add(self, host: Host, queue: HostQueue) -> None:
        """Take a host, or note how its queue has grown."""
        self.is_empty = False
        self._lines[host.standing].add(host, queue)

    def pop(self, admitted: Sequence[bool] = EVERYBODY) -> Host | None:
        """Take the next host whose standing is admitted."""
        for standing in (next(self._turns), MET, NEW, SILENT):
            if admitted[standing] and (host := self._lines[standing].pop()) is not None:
                return host
        self.is_empty = all(admitted)
        return None

    def drop(self, partition: HostPartition) -> None:
        """Take out the hosts of a partition: an entry keeps the partition's fold in memory."""
        if not self.is_empty:
            for line in self._lines:
                line.drop(partition)

    def let_go(self, job: str) -> None:
        """Empty the lines of a job, given by its name, so that its hosts may join new ones."""
        while (host := self.pop()) is not None:
            for queue in host.queues.values():
                if queue.job.name == job:
                    queue.turn = -1


def after_turn(began: float, priority: int) -> float:
    """When the next turn of a job is due, whose last one was due at `began`: each step of priority halves the time."""
    return began + 0.5**priority


class JobTurns:
    """Whose turn it is among the jobs with hosts in line: start-time fair queueing, as of packets in a router.

    The clock stands at the time for which the last turn was due. So each job has its share, however small; a job that
    was away has nothing to catch up on.
    """

    def __init__(self, lines: dict[str, HostLines]) -> None:
        self._lines = lines
        self._heap: list[tuple[float, int, str]] = []
        self._count = count()
        self._clock = 0.0

    def add(self, name: str) -> None:
        """Take a job, given by its name, that has hosts in line."""
        heappush(self._heap, (max(self._lines[name].due, self._clock), next(self._count), name))

    def pop(self) -> str | None:
        """The job whose turn it is; None if there is none."""
        while self._heap:
            due, _, name = heappop(self._heap)
            if self._lines[name].due <= due:
                self._clock = due
                return name
            self.add(name)  # it had a turn on a host that came from another job's line
        return None

    def charge(self, name: str, priority: int) -> None:
        """Count a request for a job."""
        lines = self._lines.get(name)
        if lines is not None:
            lines.due = after_turn(max(lines.due, self._clock), priority)


class Resting:
    """Hosts that rest, by the time when they may be asked; hosts of the same time in the order they came.

    Most rest for the usual delay from now on, so each comes after the ones before it and a queue will do. A heap of
    10,000 costs twice as much a host as a heap of 1,000.
    """

    def __init__(self) -> None:
        self._usual: deque[tuple[float, int, Host]] = deque()  # in order
        self._others: list[tuple[float, int, Host]] = []  # a heap
        self._count = 0

    def add(self, at: float, host: Host, *, is_usual: bool) -> None:
        """Take a host that may be asked at a time.

        Args:
            is_usual: Whether the time is no later than the usual delay from now on. A later one in the queue would send
                all hosts after it to the heap.
        """
        self._count += 1
        usual = self._usual
        if is_usual and (not usual or usual[-1][0] <= at):
            usual.append((at, self._count, host))
        else:
            heappush(self._others, (at, self._count, host))

    def pop(self, now: float) -> Host | None:
        """Take the first host that has rested; None if there is none."""
        usual, others = self._usual, self._others
        if usual and (not others or usual[0] < others[0]):
            return usual.popleft()[2] if usual[0][0] <= now else None
        return heappop(others)[2] if others and others[0][0] <= now else None

    @property
    def next_at(self) -> float:
        """When the first host may be asked; `inf` if none rests."""
        return min([first[0][0] for first in (self._usual, self._others) if first], default=inf)

    def __iter__(self) -> Iterator[tuple[float, int, Host]]:
        """(time, number in the order they came, host) of each, in no order."""
        return chain(self._usual, self._others)

    def drop(self, partition: HostPartition) -> None:
        """Take out the hosts of a partition: an entry keeps the partition's fold in memory."""
        self._usual = deque(entry for entry in self._usual if entry[2].partition is not partition)
        self._others = [entry for entry in self._others if entry[2].partition is not partition]
        heapify(self._others)

    def clear(self) -> None:
        self._usual.clear()
        self._others.clear()


# The sleeping hosts of one partition: not in memory but for a hash and a wake time each.

_HASH = (1 << 64) - 1

KEPT = 1 << 127  # Wake time of a host without a timer: a change of a job or a command wakes it


class Sleepers:
    """Sleeping hosts by wake time.

    Attributes:
        times: By the host's hash, `(wake time in ms << 64) + hash`, or `KEPT`. The heap holds the same numbers, so a
            host takes 176 bytes. An entry of the heap that differs from `times` is outdated.
    """

    def __init__(self) -> None:
        self.times: dict[int, int] = {}
        self._heap: list[int] = []
        self._kept: list[int] = []

    def add(self, host: int, until: float) -> None:
        """Let a host sleep until a time; `inf` means until a job or a command changes."""
        if until == inf:
            self.times[host] = KEPT
            self._kept.append(host)
            return
        self.times[host] = due = (ceil(until * 1000) << 64) + host
        heappush(self._heap, due)

    def remove(self, host: int) -> float | None:
        """Wake a host. Returns: Its wake time, 0 for one without a timer; None if it does not sleep."""
        until = self.times.pop(host, None)
        if until is None:
            return None
        return 0.0 if until == KEPT else (until >> 64) / 1000

    def wakes_at(self, host: int) -> float:
        """When a host wakes by its timer; 0 for one without."""
        due = self.times.get(host, KEPT)
        return 0.0 if due == KEPT else (due >> 64) / 1000

    def next_at(self) -> float:
        """The earliest wake time; `inf` if there is none."""
        return (self._heap[0] >> 64) / 1000 if self._heap else inf

    def next_due(self) -> int:
        """The earliest timer, `(wake time in ms << 64) + hash`; `KEPT` if there is none."""
        return self._heap[0] if self._heap else KEPT

    def first(self) -> int | None:
        """Take the earliest timer off the heap. Returns: Its host, still asleep; None if the timer is outdated."""
        due = heappop(self._heap)
        host = due & _HASH
        return host if self.times.get(host) == due else None  # 1 it slept → 2 a wait of its own was over: awake

    def set_timers(self, now: float) -> None:
        """Give each host without a timer one that ends now."""
        kept, self._kept = self._kept, []
        for host in kept:
            if self.times.get(host) == KEPT:
                self.add(host, now)

    def rests(self, now: float) -> dict[int, float]:
        """Wake times later than now, by hash."""
        after = int(now * 1000) + 1 << 64
        return {host: (due >> 64) / 1000 for host, due in self.times.items() if after <= due < KEPT}
