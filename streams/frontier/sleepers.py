"""The sleeping hosts of one partition: not in memory but for a hash and a wake time each. Pure: time is `now`."""

from heapq import heappop, heappush
from math import ceil, inf

_HASH = (1 << 64) - 1

KEPT = 1 << 127
"""Wake time of a host without a timer: a change of a job or a command wakes it."""


class Sleepers:
    """Sleeping hosts by wake time.

    Attributes:
        times: By the host's hash, `(wake time in ms << 64) + hash`, or `KEPT`. The heap holds the same numbers, so a
            host takes 176 bytes. An entry of the heap that differs from `times` is outdated.
    """

    def __init__(self) -> None:
        self.times: dict[int, int] = {}
        self._heap: list[int] = []
        self._kept: list[int] = []

    def add(self, host: int, until: float) -> None:
        """Let a host sleep until a time; `inf` means until a job or a command changes."""
        if until == inf:
            self.times[host] = KEPT
            self._kept.append(host)
            return
        self.times[host] = due = (ceil(until * 1000) << 64) + host
        heappush(self._heap, due)

    def remove(self, host: int) -> float | None:
        """Wake a host. Returns: Its wake time, 0 for one without a timer; None if it does not sleep."""
        until = self.times.pop(host, None)
        if until is None:
            return None
        return 0.0 if until == KEPT else (until >> 64) / 1000

    def next_at(self) -> float:
        """The earliest wake time; `inf` if there is none."""
        return (self._heap[0] >> 64) / 1000 if self._heap else inf

    def next_due(self) -> int:
        """The earliest timer, `(wake time in ms << 64) + hash`; `KEPT` if there is none."""
        return self._heap[0] if self._heap else KEPT

    def first(self) -> int | None:
        """Take the earliest timer off the heap. Returns: Its host, still asleep; None if the timer is outdated."""
        due = heappop(self._heap)
        host = due & _HASH
        return host if self.times.get(host) == due else None  # 1 it slept → 2 a wait of its own was over: awake

    def set_timers(self, now: float) -> None:
        """Give each host without a timer one that ends now."""
        kept, self._kept = self._kept, []
        for host in kept:
            if self.times.get(host) == KEPT:
                self.add(host, now)

    def rests(self, now: float) -> dict[int, float]:
        """Wake times later than now, by hash."""
        after = int(now * 1000) + 1 << 64
        return {host: (due >> 64) / 1000 for host, due in self.times.items() if after <= due < KEPT}
