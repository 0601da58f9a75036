"""Back-pressure: how much of crawl.pages is not parsed yet, and how many requests that allows. Pure."""

from collections import deque
from collections.abc import Iterable
from math import inf

SLOWING_FROM = 0.5
"""Share of a limit from which fetching slows; at the whole limit it stops."""

AHEAD_S = 4.0
"""So far ahead of parse, by the pace that it has, one request at a time is left. What is fetched earlier than it can be
parsed gives no link, and takes the processor from parse, which then is the only one at work when all is fetched."""

AHEAD_PAGES = 1024
"""Fewer never matter: parse may have been away for a moment."""

PACE_S = 5.0
"""How long parse is looked at for its pace. It is told once a second, and looked for once a second."""


class Pressure:
    """Unparsed bytes of the partitions of crawl.pages that a worker writes to.

    Pages that another worker wrote before are counted with the mean size of ours.

    Args:
        most_bytes: Unparsed bytes at which fetching stops.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._written: dict[int, deque[tuple[int, int]]] = {}
        self._parsed: dict[int, int] = {}
        self._unparsed_bytes = 0
        self._unparsed_pages = 0
        self._foreign_records: dict[int, int] = {}
        self._taken = 0
        self._looks: deque[tuple[float, int]] = deque()
        self._pages = 0
        self._bytes = 0

    def wrote(self, partition: int, offset: int, size_bytes: int) -> None:
        """A page is in the log."""
        self._pages += 1
        self._bytes += size_bytes
        if offset >= self._parsed.get(partition, 0):
            self._written.setdefault(partition, deque()).append((offset, size_bytes))
            self._unparsed_bytes += size_bytes
            self._unparsed_pages += 1

    def parsed(self, partition: int, reached: int, end: int) -> None:
        """Everything before `reached` is parsed, or in the hands of who parses; the partition ends at `end`.

        It may be less than before: whoever takes over begins at the commit. Those pages count with the mean size.
        """
        self._taken += max(reached - self._parsed.get(partition, reached), 0)
        self._parsed[partition] = reached
        written = self._written.setdefault(partition, deque())
        while written and written[0][0] < reached:
            self._unparsed_bytes -= written.popleft()[1]
            self._unparsed_pages -= 1
        first = written[0][0] if written else end
        self._foreign_records[partition] = max(first - reached, 0)

    def looked(self, now: float) -> None:
        """All partitions were looked at, by a monotonic clock."""
        self._looks.append((now, self._taken))
        while now - self._looks[0][0] > PACE_S:
            self._looks.popleft()

    def keep(self, partitions: Iterable[int]) -> None:
        """Others are not ours any more, and hold nothing back here."""
        for partition in self._written.keys() - set(partitions):
            written = self._written.pop(partition)
            self._unparsed_bytes -= sum(size_bytes for _, size_bytes in written)
            self._unparsed_pages -= len(written)
            self._parsed.pop(partition, None)
            self._foreign_records.pop(partition, None)

    @property
    def unparsed_bytes(self) -> int:
        """Bytes not parsed yet, about."""
        mean = self._bytes / self._pages if self._pages else 0.0
        return self._unparsed_bytes + int(mean * sum(self._foreign_records.values()))

    @property
    def unparsed_pages(self) -> int:
        """Pages not parsed yet."""
        return self._unparsed_pages + sum(self._foreign_records.values())

    @property
    def ahead_pages(self) -> float:
        """So many may be unparsed while parse works; any number while it takes none, for it may be away for long."""
        if not self._looks:
            return inf
        (first, before), (last, taken) = self._looks[0], self._looks[-1]
        return max(AHEAD_PAGES, AHEAD_S * (taken - before) / (last - first)) if taken > before else inf

    def allowed(self, concurrency: int) -> int:
        """Requests at a time, at most: all of `concurrency`, fewer as a limit comes near, 0 above that of bytes."""
        by_bytes = _left(concurrency, self.unparsed_bytes / self._most_bytes)
        by_pages = _left(concurrency, self.unparsed_pages / self.ahead_pages)
        return min(by_bytes, max(by_pages, 1))


def _left(concurrency: int, share: float) -> int:
    """Of the requests at a time, those that are left at a share of a limit."""
    return min(max(int(concurrency * (1.0 - share) / (1.0 - SLOWING_FROM)), 0), concurrency)
