"""Records each URL before fetching it; a URL that crashed a worker is fetched alone."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from crawlog.streams.worker import Suspects

A = TypeVar("A")


class Turns:
    """Shared turns, many at a time, and exclusive ones. While an exclusive turn waits, no shared one begins."""

    def __init__(self) -> None:
        self._many = 0
        self._wanting = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    async def take(self, *, alone: bool) -> Callable[[], None]:
        """Wait for a turn; the returned function ends it, and must be called."""
        if not alone:
            while self._wanting:
                await self._changed_since()
            self._many += 1
            return self._end_one
        self._wanting += 1
        try:
            while self._many or self._is_alone:
                await self._changed_since()
        except BaseException:
            self._wanting -= 1
            self._change()
            raise
        self._is_alone = True
        return self._end_alone

    def _end_one(self) -> None:
        self._many -= 1
        self._change()

    def _end_alone(self) -> None:
        self._is_alone = False
        self._wanting -= 1
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _changed_since(self) -> None:
        await self._changed.wait()


class Caution:
    """Guards a worker against URLs that crash it."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects
        self._turns = Turns()

    def gives_up(self, url: str) -> bool:
        """Whether a URL crashed too many workers and is not requested again."""
        return self._suspects.verdict(url) == "give_up"

    async def asked(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """The result of `ask`. The URL is on record while it runs."""
        suspects = self._suspects
        turn = None if suspects.is_calm else await self._turns.take(alone=suspects.verdict(url) == "alone")
        try:
            suspects.touch(url)
            return await ask()
        finally:
            suspects.release(url)
            if turn is not None:
                turn()
