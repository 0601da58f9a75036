"""Records each URL before fetching it; a URL that crashed a worker is fetched alone."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from crawlog.streams.worker import Suspects

from .turns import Turns

A = TypeVar("A")


class Caution:
    """How one worker asks for what may end it."""

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects
        self._turns = Turns()

    def gives_up(self, url: str) -> bool:
        """Whether a URL is not to be asked for any more."""
        return self._suspects.verdict(url) == "give_up"

    async def asked(self, url: str, ask: Callable[[], Awaitable[A]]) -> A:
        """What `ask` answers, with the URL on record meanwhile."""
        suspects = self._suspects
        turn = None if suspects.is_calm else await self._turns.take(alone=suspects.verdict(url) == "alone")
        try:
            suspects.touch(url)
            return await ask()
        finally:
            suspects.release(url)
            if turn is not None:
                turn()
