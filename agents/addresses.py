"""Turns at addresses: a server is spared however many host names lead to it.

Every request counts, whatever it asks for: pages, robots.txt, logins, requests of pages in the browser. A request to a
name with several addresses counts at each of them, since nothing tells beforehand which one will be connected to.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from crawlog.streams.sections import Politeness

A = TypeVar("A")

BUSY_S = 0.05
"""Between two looks at an address whose requests under way must end first."""

LONGEST_S = 30.0
"""A refused request is told to come again after so long at most: those before it may not come at all."""

SWEPT = 2
"""Addresses that are looked at with each request, and forgotten if their rest is over."""


class Busy(Exception):
    """Nothing was asked: others have all turns of the address.

    Attributes:
        wait_s: Seconds after which it is worth another try.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


class _Place:
    """One address.

    Attributes:
        ended: When requests ended that still count, oldest first.
        tickets: Those of requests that wait, in the order of coming.
        promised: The latest time for which a refused request was told to come again.
    """

    __slots__ = ("ended", "in_flight", "promised", "tickets")

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended: list[float] = []
        self.tickets: list[int] = []
        self.promised = 0.0

    def forget_until(self, time_s: float) -> None:
        """What ended by then counts no more."""
        while self.ended and self.ended[0] <= time_s:
            del self.ended[0]

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it counts."""
        return not (self.in_flight or self.ended or self.tickets)


class Addresses:
    """Counts this worker's requests by address.

    A request takes one of `politeness.ip_rate` turns, while it is under way and for `politeness.delay_s` after it. So
    the server sees no more requests in any such time, however long connecting took. A host that is alone at its address
    always has a turn: it has no more requests under way than `politeness.per_host`, and rests as long.

    Args:
        addresses_of: Those that a URL may be asked at.
    """

    def __init__(
        self,
        politeness: "Politeness",
        addresses_of: Callable[[str], Awaitable[Sequence[str]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_a_time = politeness.per_ip
        self._delay_s = politeness.delay_s
        self._rate = max(politeness.ip_rate, politeness.per_host) if politeness.ip_rate and politeness.delay_s else 0
        self._addresses_of = addresses_of
        self._now = now
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._tickets = count()
        self._changed = asyncio.Event()
        self._waiting = 0

    async def at_once(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers. Raises: Busy: nothing was asked, for others have the turns or wait for them."""
        if not (self._rate or self._at_a_time):
            return await ask()
        places = await self._at(url)
        now = self._now()
        waits = [(place, wait_s) for place in places.values() if (wait_s := self._wait_s(place, now)) > 0]
        if waits:
            raise Busy(max(self._promise(place, now, wait_s) for place, wait_s in waits))
        return await self._asked(places, ask)

    async def in_turn(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers, in the order of coming.

        A caller that holds the place of a host must not be passed by: `at_once` always has another one to ask.
        """
        if not (self._rate or self._at_a_time):
            return await ask()
        places = await self._at(url)
        ticket = next(self._tickets)
        self._waiting += 1
        for place in places.values():
            place.tickets.append(ticket)
        try:
            while (wait_s := max(self._wait_s(place, self._now(), ticket) for place in places.values())) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            for place in places.values():
                place.tickets.remove(ticket)
            self._waiting -= 1
            self._change()
        return await self._asked(places, ask)

    async def _at(self, url: str) -> dict[str, _Place]:
        addresses = await self._addresses_of(url)
        self._sweep()
        return {address: self._places.setdefault(address, _Place()) for address in addresses}

    def _wait_s(self, place: _Place, now: float, ticket: int | None = None) -> float:
        """Seconds until the next look at a place is worth it; 0 where a turn is free."""
        place.forget_until(now - self._delay_s)
        if place.tickets and place.tickets[0] != ticket:
            return BUSY_S
        if self._at_a_time and place.in_flight >= self._at_a_time:
            return BUSY_S
        if not self._rate or place.in_flight + len(place.ended) < self._rate:
            return 0.0
        return place.ended[0] + self._delay_s - now if place.ended else BUSY_S

    def _promise(self, place: _Place, now: float, wait_s: float) -> float:
        """Seconds until a refused request may come again: each a turn later than the one refused before it."""
        turn_s = self._delay_s / self._rate if self._rate else 0.0
        place.promised = min(max(place.promised + turn_s, now + wait_s), now + LONGEST_S)
        return place.promised - now

    async def _asked(self, places: dict[str, _Place], ask: Callable[[], Awaitable[A]]) -> A:
        for place in places.values():
            place.in_flight += 1
        is_asked = True
        try:
            answer = await ask()
            is_asked = answer is not None
            return answer
        finally:
            now = self._now()
            for place in places.values():
                place.in_flight -= 1
                if is_asked and self._rate:
                    place.ended.append(now)
            self._change()
            self._let_go(places)

    def _change(self) -> None:
        """Have those that wait look again."""
        if self._waiting:
            self._changed.set()
            self._changed = asyncio.Event()

    def _let_go(self, places: dict[str, _Place]) -> None:
        """Forget what counts no more; what rests stands behind what has rested longer."""
        for address, place in places.items():
            if place.is_idle:
                self._places.pop(address, None)
            elif address in self._places:
                self._places.move_to_end(address)

    def _sweep(self) -> None:
        for _ in range(min(SWEPT, len(self._places))):
            address, place = next(iter(self._places.items()))
            place.forget_until(self._now() - self._delay_s)
            if place.is_idle:
                del self._places[address]
            elif place.in_flight or place.tickets:
                self._places.move_to_end(address)
            else:
                return
