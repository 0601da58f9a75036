"""Turns at hosts for requests that come from no queue: loads of pages in the browser, redirects of a robots.txt."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from crawlog.streams.fold import Fold, JobState
from crawlog.streams.frontier import Frontier, Host, HostQueue, Task
from crawlog.streams.http import Answer
from crawlog.streams.requests import RequestPolicy
from crawlog.streams.url import Place

BUSY_S = 0.05  # Between two looks at a host that is busy with its pages

FOREIGN_HOSTS = 1_000  # Hosts of other workers' partitions in memory; those asked longest ago are forgotten first


SHORT_BYTES = 4096  # Longest value that is kept of such a host, as most robots.txt are


class HostHeld(Exception):
    """Nothing was sent: a command keeps the host waiting.

    Attributes:
        is_blocked: Whether nobody waits for the end of that command.
    """

    def __init__(self, *, is_blocked: bool) -> None:
        super().__init__()
        self.is_blocked = is_blocked


class _Elsewhere:
    """Stands for the partition of a host that is another worker's: it has no queue here, and short values are kept.

    Attributes:
        hosts: Empty, so the dispatcher sends none to sleep.
    """

    hosts: Mapping[str, Host] = {}

    def __init__(self) -> None:
        self._kept: dict[bytes, bytes] = {}

    def cache(self, key: bytes, value: bytes) -> None:
        """Keep a short value; of a longer one a host remembers the rules itself, until they are due again."""
        self._kept.pop(key, None)
        if len(value) <= SHORT_BYTES:
            self._kept[key] = value

    remember = cache

    def cached(self, key: bytes) -> bytes | None:
        """A value that was kept."""
        return self._kept.get(key)

    @property
    def fold(self) -> Fold:
        """The fold is another worker's."""
        raise self._no_queue()

    def policy(self, _job: int) -> RequestPolicy:
        """The caller has the policy of its own job."""
        raise self._no_queue()

    def pop(self, _host: Host, _queue: HostQueue) -> None:
        """There is no queue here."""
        raise self._no_queue()

    def back(self, _task: Task) -> None:
        """There is no queue here."""
        raise self._no_queue()

    def lack(self, _host: Host, _job: int, _setting: str) -> None:
        """No job waits here."""

    def goes_on(self, _job: JobState, _host: int) -> bool:
        """No job has a queue here."""
        return False

    def forget(self, _host: Host, _until: float | None = None) -> None:
        """Nothing to do: the host is in no table."""

    @staticmethod
    def _no_queue() -> AssertionError:
        return AssertionError("a host of another worker's partition has no queue here")


class Hosts:
    """Hosts by URL: the dispatcher's entry where this worker owns the partition, else one kept here.

    Args:
        place: Where a URL belongs.
        rest_of: How long a host must rest after an answer, beside its delay.

    Attributes:
        place: As given.
    """

    def __init__(
        self,
        frontier: Frontier,
        place: Callable[[str], Place],
        rest_of: Callable[[Host, Answer, float, RequestPolicy, int], float],
    ) -> None:
        self._frontier = frontier
        self.place = place
        self._rest_of = rest_of
        self._foreign: OrderedDict[str, Host] = OrderedDict()
        self._visited: Counter[str] = Counter()

    @contextmanager
    def visiting(self, url: str) -> Iterator[None]:
        """A page in the browser waits for its loads: it holds its host's place, but is no request in flight."""
        host = self.of(url)
        host.rest(time.monotonic() + host.delay_s)
        self._visited[host.key] += 1
        try:
            yield
        finally:
            self._visited[host.key] -= 1
            if not self._visited[host.key]:
                del self._visited[host.key]

    async def turn(self, url: str) -> Host:
        """Wait until the host may be asked: it has rested, and fewer requests than allowed are in flight.

        Its entry is looked up each time: the dispatcher may have dropped it meanwhile.

        Raises: HostHeld: it may not be asked.
        """
        while True:
            host = self.of(url)
            wait_s = self._wait_s(host)
            if wait_s <= 0:
                return host
            await asyncio.sleep(wait_s)

    async def ask(self, url: str, get: Callable[[], Awaitable[Answer]], policy: RequestPolicy) -> Answer | None:
        """Ask the host, and let it rest afterwards. Returns: None, without a request, if another one came first.

        Args:
            policy: The policy of the job that asks; it may have nothing queued on this host.

        Raises: HostHeld: it may not be asked.
        """
        host = self.of(url)
        if self._wait_s(host) > 0:
            return None
        host.in_flight += 1
        in_round = host.round
        host.ask(time.monotonic())
        rest_s = 0.0
        try:
            answer = await get()
            rest_s = self._rest_of(host, answer, time.time(), policy, in_round)
        finally:
            self._frontier.finished(host, max(rest_s, policy.rules.delay_s))
        return answer

    def _wait_s(self, host: Host) -> float:
        """Seconds until the next look at a host; 0 if it may be asked now. Raises: HostHeld."""
        if host.orders.paused:
            raise HostHeld(is_blocked=host.orders.stopped)
        is_busy = host.in_flight - self._visited[host.key] >= host.per_host
        return max(host.next_at - time.monotonic(), BUSY_S if is_busy else 0.0)

    def of(self, url: str) -> Host:
        """The dispatcher's entry if this worker owns the host's partition; else one kept here."""
        place = self.place(url)
        host = self._frontier.lend(place)
        if host is not None:
            return host
        host = self._foreign.get(place.host)
        if host is None:
            host = Host(place.host, place.domain, _Elsewhere(), self._frontier.usual.rules.delay_s)
            self._forget()
            self._foreign[place.host] = host
        self._foreign.move_to_end(place.host)
        self._frontier.order(host)
        return host

    def _forget(self) -> None:
        """Drop hosts asked longest ago that need no rest."""
        if len(self._foreign) < FOREIGN_HOSTS:
            return
        now = time.monotonic()
        for key in [key for key, host in self._foreign.items() if not host.in_flight and host.next_at <= now][:100]:
            if len(self._foreign) >= FOREIGN_HOSTS:
                del self._foreign[key]
