"""Turns at hosts for requests that are not the queue's: of pages in the browser, and where a robots.txt redirects."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from crawlog.streams.fold import Fold
from crawlog.streams.frontier import Frontier, Host, HostQueue
from crawlog.streams.http import Answer, Manner
from crawlog.streams.url import Place

BUSY_S = 0.05
"""Between two looks at a host that is busy with its pages."""

FOREIGN_HOSTS = 1_000
"""Hosts of other workers' partitions that are remembered, those asked last."""


class _Elsewhere:
    """Stands for the partitions of others: their hosts are asked beside the queue only, and nothing of them is kept.

    Attributes:
        hosts: None is the dispatcher's, so it sends none to sleep.
    """

    hosts: Mapping[str, Host] = {}

    def cache(self, key: bytes, value: bytes) -> None:
        """A host remembers its rules itself."""

    def remember(self, key: bytes, value: bytes) -> None:
        """So here."""

    def cached(self, _key: bytes) -> None:
        """Nothing is kept."""

    @property
    def fold(self) -> Fold:
        """It is another worker's."""
        raise self._no_queue()

    def manner(self, _job: int) -> Manner:
        """Whoever asks has its own."""
        raise self._no_queue()

    def pop(self, _host: Host, _queue: HostQueue) -> None:
        """There is nothing in a queue here."""
        raise self._no_queue()

    def lack(self, _host: Host, _job: int, _setting: str) -> None:
        """No job waits here."""

    def is_lacking(self, _job: int, _host: int) -> bool:
        """No job waits here."""
        return False

    def forget(self, _host: Host, _until: float | None = None) -> None:
        """It is in no table."""

    @staticmethod
    def _no_queue() -> AssertionError:
        return AssertionError("a host of another worker's partition has no queue here")


class Hosts:
    """Hosts by URL: the dispatcher's own where this worker owns them, else such as it keeps itself.

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
        rest_of: Callable[[Host, Answer, float, Manner], float],
    ) -> None:
        self._frontier = frontier
        self.place = place
        self._rest_of = rest_of
        self._foreign: OrderedDict[str, Host] = OrderedDict()
        self._visited: Counter[str] = Counter()

    @contextmanager
    def visiting(self, url: str) -> Iterator[None]:
        """What waits for other requests, as a page in the browser, holds its host's place and is none under way."""
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
        """The host, once it may be asked: it has rested, and as many requests as allowed are not under way.

        Its entry is looked up each time: the dispatcher may let it go meanwhile.
        """
        while True:
            host = self.of(url)
            wait_s = self._wait_s(host)
            if wait_s <= 0:
                return host
            await asyncio.sleep(wait_s)

    async def ask(self, url: str, get: Callable[[], Awaitable[Answer]], manner: Manner) -> Answer | None:
        """What the host answers, and rests after; None, and nothing asked, where it was asked by others meanwhile.

        Args:
            manner: Of the job that asks, which need have nothing queued on this host.
        """
        host = self.of(url)
        if self._wait_s(host) > 0:
            return None
        host.in_flight += 1
        host.ask(time.monotonic())
        rest_s = 0.0
        try:
            answer = await get()
            rest_s = self._rest_of(host, answer, time.time(), manner)
        finally:
            self._frontier.finished(host, max(rest_s, manner.rules.delay_s))
        return answer

    def _wait_s(self, host: Host) -> float:
        """Seconds until the next look at a host is worth it; 0 where it may be asked now."""
        is_busy = host.in_flight - self._visited[host.key] >= host.per_host
        return max(host.next_at - time.monotonic(), BUSY_S if is_busy else 0.0)

    def of(self, url: str) -> Host:
        """The dispatcher's own entry where the host's partition is ours; else one that this worker alone keeps."""
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
        """Let go of the hosts asked longest ago that need no rest."""
        if len(self._foreign) < FOREIGN_HOSTS:
            return
        now = time.monotonic()
        for key in [key for key, host in self._foreign.items() if not host.in_flight and host.next_at <= now][:100]:
            if len(self._foreign) >= FOREIGN_HOSTS:
                del self._foreign[key]
