"""Turns at IP addresses: limits the requests to one server, however many host names it has.

Every request counts: pages, robots.txt, logins, loads of pages in the browser. A request to a name with several
addresses counts at each of them, because the address of the connection is not known beforehand.
"""

import asyncio
import time
from bisect import insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from crawlog.schemas.urls import RequestRules
    from crawlog.streams.settings import Politeness

A = TypeVar("A")

BUSY_S = 0.05  # Between two checks of an address whose requests in flight must end first

LONGEST_S = 30.0  # Longest wait of a refused request: those promised a turn before it may never return

SWEPT = 2  # Addresses checked with each request; those whose rest is over are forgotten


class Busy(Exception):
    """Nothing was sent: all turns of the address are taken.

    Attributes:
        wait_s: Seconds until another try may succeed.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


class _Place:
    """One address.

    Attributes:
        counts_until: Times until which ended requests still count, the soonest first.
        tickets: Of waiting requests, in the order of arrival.
        promised: The latest time at which a refused request was told to return.
    """

    __slots__ = ("counts_until", "in_flight", "promised", "tickets")

    def __init__(self) -> None:
        self.in_flight = 0
        self.counts_until: list[float] = []
        self.tickets: list[int] = []
        self.promised = 0.0

    def forget_until(self, time_s: float) -> None:
        while self.counts_until and self.counts_until[0] <= time_s:
            del self.counts_until[0]

    @property
    def is_idle(self) -> bool:
        return not (self.in_flight or self.counts_until or self.tickets)


class Addresses:
    """Counts this worker's requests by address.

    A request holds one of `politeness.ip_rate` turns while it is in flight and for its job's delay afterwards. So the
    server receives at most that many requests within one delay, however long connecting took. A host that is alone at
    its address always has a turn: its job's `per_host` and delay already limit it as much.

    Args:
        addresses_of: Returns the addresses at which a URL may be requested.
    """

    def __init__(
        self,
        politeness: "Politeness",
        addresses_of: Callable[[str], Awaitable[Sequence[str]]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_a_time = politeness.per_ip
        self._rate = politeness.ip_rate
        self._addresses_of = addresses_of
        self._now = now
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._tickets = count()
        self._changed = asyncio.Event()
        self._waiting = 0

    async def at_once(self, url: str, ask: Callable[[], Awaitable[A]], rules: "RequestRules", way: str = "") -> A:
        """The result of `ask`, called only if a turn is free at each address.

        Args:
            rules: Of the job that makes the request.
            way: Name of the exit by which turns are counted; empty to count them for all exits together.

        Raises: Busy: `ask` was not called, because other requests have the turns or wait for them.
        """
        rate = self._rate_of(rules)
        if not (rate or self._at_a_time):
            return await ask()
        places = await self._at(url, way)
        now = self._now()
        waits = [(place, wait_s) for place in places.values() if (wait_s := self._wait_s(place, now, rate)) > 0]
        if waits:
            turn_s = rules.delay_s / rate if rate else 0.0
            raise Busy(max(_promise(place, now, wait_s, turn_s) for place, wait_s in waits))
        return await self._asked(places, ask, rules.delay_s)

    async def in_turn(self, url: str, ask: Callable[[], Awaitable[A]], rules: "RequestRules") -> A:
        """The result of `ask`, called once a turn is free; waiting requests go first come, first served.

        This is for callers that hold a host's place while they wait. `at_once` never overtakes them: its callers can
        request from another host instead.
        """
        rate = self._rate_of(rules)
        if not (rate or self._at_a_time):
            return await ask()
        places = await self._at(url)
        ticket = next(self._tickets)
        self._waiting += 1
        for place in places.values():
            place.tickets.append(ticket)
        try:
            while (wait_s := max(self._wait_s(place, self._now(), rate, ticket) for place in places.values())) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
        finally:
            for place in places.values():
                place.tickets.remove(ticket)
            self._waiting -= 1
            self._change()
        return await self._asked(places, ask, rules.delay_s)

    def _rate_of(self, rules: "RequestRules") -> int:
        """Turns of an address for a job's requests; 0 for any number."""
        return max(self._rate, rules.per_host) if self._rate and rules.delay_s else 0

    async def _at(self, url: str, way: str = "") -> dict[str, _Place]:
        addresses = [f"{address} {way}" if way else address for address in await self._addresses_of(url)]
        self._sweep()
        return {address: self._places.setdefault(address, _Place()) for address in addresses}

    def _wait_s(self, place: _Place, now: float, rate: int, ticket: int | None = None) -> float:
        """Seconds until the address is checked again; 0 if a turn is free."""
        place.forget_until(now)
        if place.tickets and place.tickets[0] != ticket:
            return BUSY_S
        if self._at_a_time and place.in_flight >= self._at_a_time:
            return BUSY_S
        if not rate or place.in_flight + len(place.counts_until) < rate:
            return 0.0
        return place.counts_until[0] - now if place.counts_until else BUSY_S

    async def _asked(self, places: dict[str, _Place], ask: Callable[[], Awaitable[A]], delay_s: float) -> A:
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
                if is_asked and self._rate and delay_s:
                    insort(place.counts_until, now + delay_s)
            self._change()
            self._let_go(places)

    def _change(self) -> None:
        if self._waiting:
            self._changed.set()
            self._changed = asyncio.Event()

    def _let_go(self, places: dict[str, _Place]) -> None:
        """Forget idle addresses; a resting one moves behind those that have rested longer."""
        for address, place in places.items():
            if place.is_idle:
                self._places.pop(address, None)
            elif address in self._places:
                self._places.move_to_end(address)

    def _sweep(self) -> None:
        for _ in range(min(SWEPT, len(self._places))):
            address, place = next(iter(self._places.items()))
            place.forget_until(self._now())
            if place.is_idle:
                del self._places[address]
            elif place.in_flight or place.tickets:
                self._places.move_to_end(address)
            else:
                return


def _promise(place: _Place, now: float, wait_s: float, turn_s: float) -> float:
    """Seconds until a refused request may return: one turn after the request refused before it."""
    place.promised = min(max(place.promised + turn_s, now + wait_s), now + LONGEST_S)
    return place.promised - now
