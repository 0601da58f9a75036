"""Which hosts rest, and in which order those are asked that may be, where more are ready than can be fetched."""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, cycle
from math import inf

from .host import LENGTHS, READY, Host, HostQueue
from .unmet_hosts import EVERYBODY, MET, NEW, SILENT


class Ring:
    """Hosts in turns, by registrable domain: of each that has some, one stands in the ring.

    Nearly every domain has one host: so those, and there may be 10,000, cost a place each and no queue of their own.
    """

    def __init__(self) -> None:
        self._ring: deque[tuple[int, Host]] = deque()
        self._others: dict[str, deque[tuple[int, Host]] | None] = {}  # by domain, for each that stands in the ring

    def add(self, host: Host, *, first: bool = False) -> None:
        """Take a host for the turn that it is in, as the last one or as the first."""
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
        """The next host that is still in the turn it was added for: domains in turn, hosts of a domain in turn."""
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


class Line:
    """Hosts of one job that may be asked now. Every second place is for those that have more to fetch than others.

    A crawl lasts as long as its longest queue, whose host is asked once a delay at most. In plain turns it would wait
    for a place, whenever they run out, beside hosts that have time; so its wait would be the crawl's. Lengths are told
    apart by powers of two, and each has half of the places that longer ones leave, or all where those have no host.
    A robots.txt takes no turn: the first page after it comes before hosts that nothing is known of, for only pages tell
    how long a queue is. Each host so has its first page no later than in plain turns, and most have it sooner.
    """

    def __init__(self) -> None:
        self._all = Ring()
        self._longer = [Ring() for _ in range(LENGTHS)]
        first, second, third = self._longer
        self._turns = cycle((self._all, first, self._all, second, self._all, first, self._all, third))

    def add(self, host: Host, queue: HostQueue) -> None:
        """Take a host, or see how its queue has grown; each ring but the one it is taken from keeps an old entry."""
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


class Lines:
    """The lines of one job, by standing. Every second turn is for hosts that have answered, while there are such."""

    def __init__(self) -> None:
        self._lines = (Line(), Line(), Line())
        self._turns = cycle((MET, NEW, MET, SILENT))

    def add(self, host: Host, queue: HostQueue) -> None:
        """Take a host, or see how its queue has grown."""
        self._lines[host.standing].add(host, queue)

    def pop(self, admitted: Sequence[bool] = EVERYBODY) -> Host | None:
        """The next host of those that are admitted, by standing."""
        for standing in (next(self._turns), MET, NEW, SILENT):
            if admitted[standing] and (host := self._lines[standing].pop()) is not None:
                return host
        return None

    def let_go(self, job: str) -> None:
        """End the lines of a job, by its name: a host that was in one may join another of the job."""
        while (host := self.pop()) is not None:
            for queue in host.queues.values():
                if queue.job.name == job:
                    queue.turn = -1


class Resting:
    """Hosts that rest, by the time when they may be asked, and those of one time in the order they came.

    Most rest for the usual delay from now on, so each of them comes behind those before it: a queue, where a heap of
    10,000 costs twice as much a host as one of 1,000.
    """

    def __init__(self) -> None:
        self._usual: deque[tuple[float, int, Host]] = deque()  # in order
        self._others: list[tuple[float, int, Host]] = []  # a heap
        self._count = 0

    def add(self, at: float, host: Host, *, is_usual: bool) -> None:
        """Take a host that may be asked at a time.

        Args:
            is_usual: Whether that is no later than the usual delay from now on: one that rests for very long would send
                all that come after it to the heap.
        """
        self._count += 1
        usual = self._usual
        if is_usual and (not usual or usual[-1][0] <= at):
            usual.append((at, self._count, host))
        else:
            heappush(self._others, (at, self._count, host))

    def pop(self, now: float) -> Host | None:
        """The first of those that have rested, if there is one."""
        usual, others = self._usual, self._others
        if usual and (not others or usual[0] < others[0]):
            return usual.popleft()[2] if usual[0][0] <= now else None
        return heappop(others)[2] if others and others[0][0] <= now else None

    @property
    def next_at(self) -> float:
        """When the first of them may be asked."""
        return min([first[0][0] for first in (self._usual, self._others) if first], default=inf)

    def __iter__(self) -> Iterator[tuple[float, int, Host]]:
        """(time, number in the order they came, host) of each, in no order."""
        return chain(self._usual, self._others)

    def clear(self) -> None:
        """Forget all."""
        self._usual.clear()
        self._others.clear()
