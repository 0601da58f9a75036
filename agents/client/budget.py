"""A memory budget for bodies: a request for a large body waits until enough is free, first come, first served."""

import asyncio
import contextlib
from collections import deque

from crawlog.streams.http import HeldBytes


class BodyBudget:
    """A number of bytes, granted in one piece: no holder ever waits for more, so there is no deadlock.

    Args:
        size_bytes: Upper bound of one grant; a larger request waits for the whole budget.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.free_bytes = size_bytes

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    async def take(self, size_bytes: int) -> HeldBytes:
        """Wait for this many bytes. A later request waits behind earlier ones, even if it would fit."""
        wanted = min(size_bytes, self._size_bytes)
        if not self._waiting and wanted <= self.free_bytes:
            self.free_bytes -= wanted
            return HeldBytes(self.give, wanted)
        turn = asyncio.get_running_loop().create_future()
        entry = turn, wanted
        self._waiting.append(entry)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.give(wanted)  # the grant came while this task was cancelled
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
                self.give(0)  # a request behind it may need less, and fit now
            raise
        return HeldBytes(self.give, wanted)

    def count(self, size_bytes: int) -> HeldBytes:
        """Charge a body that is in memory already, without waiting; the budget may go below zero."""
        self.free_bytes -= size_bytes
        return HeldBytes(self.give, size_bytes)

    def give(self, size_bytes: int) -> None:
        """Return bytes to the budget, and grant the requests that now fit."""
        self.free_bytes += size_bytes
        while self._waiting and self._waiting[0][1] <= self.free_bytes:
            turn, wanted = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.free_bytes -= wanted
            turn.set_result(None)
