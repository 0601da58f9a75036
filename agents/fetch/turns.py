"""Turns of a worker: many at a time, or one by itself while all others wait."""

import asyncio
from collections.abc import Callable


class Turns:
    """Who asks alone waits for all others to end, and nobody begins while somebody waits to be alone."""

    def __init__(self) -> None:
        self._many = 0
        self._wanting = 0
        self._is_alone = False
        self._changed = asyncio.Event()

    async def take(self, *, alone: bool) -> Callable[[], None]:
        """Wait for a turn; what is returned ends it, and must be called."""
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
