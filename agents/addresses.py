"""So many requests at a time to one address, whatever they ask for: pages, robots.txt, logins, what a browser wants."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakValueDictionary

A = TypeVar("A")

BUSY_S = 0.05
"""How long a host waits whose address is busy with others."""


class Addresses:
    """Counts the requests under way by address, in this worker.

    Args:
        most: So many at a time to one address; 0 for no limit, which costs no look at the address.
        address_of: The address that a URL will be asked at.
    """

    def __init__(self, most: int, address_of: Callable[[str], Awaitable[str]]) -> None:
        self._most = most
        self._address_of = address_of
        self._places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def at_once(self, url: str, ask: Callable[[], Awaitable[A]]) -> A | None:
        """What `ask` answers; None, and nothing asked, where others are under way or wait."""
        if not self._most:
            return await ask()
        places = await self._at(url)
        if places.locked():
            return None
        async with places:
            return await ask()

    async def in_turn(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers, in the order of coming: who holds the place of a host beyond it must not be passed by."""
        if not self._most:
            return await ask()
        async with await self._at(url):
            return await ask()

    async def _at(self, url: str) -> asyncio.Semaphore:
        address = await self._address_of(url)
        places = self._places.get(address)
        if places is None:
            places = self._places[address] = asyncio.Semaphore(self._most)
        return places
