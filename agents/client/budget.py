"""Room in memory for bodies: who wants to keep much waits for it, in the order of coming."""

import asyncio
import contextlib
from collections import deque

from crawlog.streams.http import HeldBytes


class BodyBudget:
    """So many bytes, handed out whole: nobody who holds some ever waits for more, so somebody always goes on.

    Args:
        size_bytes: More than this nobody gets: who asks for more has it alone.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self.free_bytes = size_bytes

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    async def take(self, size_bytes: int) -> HeldBytes:
        """Wait for so much; who comes later waits behind, however little it wants."""
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
                self.give(wanted)  # it was our turn, and nobody is there any more to take it
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(entry)
                self.give(0)  # those behind may want less
            raise
        return HeldBytes(self.give, wanted)

    def count(self, size_bytes: int) -> HeldBytes:
        """Count what is here already, beyond what there is if need be: others wait the longer, but nobody here does."""
        self.free_bytes -= size_bytes
        return HeldBytes(self.give, size_bytes)

    def give(self, size_bytes: int) -> None:
        """Take so much back, and let in whom it suffices for."""
        self.free_bytes += size_bytes
        while self._waiting and self._waiting[0][1] <= self.free_bytes:
            turn, wanted = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.free_bytes -= wanted
            turn.set_result(None)
