"""Limits of a rate: a bucket of tokens for each address."""

import time
from collections.abc import Callable

ADDRESSES = 10_000
"""Addresses that are remembered; beyond it full buckets are forgotten."""


class Rates:
    """How often each address may do something.

    Args:
        per_s: Times a second.
        at_once: Times at once after a pause.
    """

    def __init__(self, per_s: float, at_once: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._at_once = at_once
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, address: str) -> bool:
        """Counts it; False if it may not now."""
        level = self._level(address)
        if level < 1:
            return False
        if len(self._buckets) >= ADDRESSES:
            self._buckets = {one: kept for one, kept in self._buckets.items() if self._level(one) < self._at_once}
            if len(self._buckets) >= ADDRESSES:
                self._buckets.clear()
        self._buckets[address] = self._clock(), level - 1
        return True

    def give_back(self, address: str) -> None:
        """Takes back what `take` counted."""
        self._buckets[address] = self._clock(), min(self._at_once, self._level(address) + 1)

    def _level(self, address: str) -> float:
        at, level = self._buckets.get(address, (0.0, self._at_once))
        return min(self._at_once, level + (self._clock() - at) * self._per_s)
