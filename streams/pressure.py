"""Back-pressure: how much of crawl.pages is not parsed yet, and how many requests that allows. Pure."""

from collections import deque
from collections.abc import Iterable

SLOWING_FROM = 0.5
"""Share of the limit from which fetching slows; at the whole limit it stops."""


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
        self._foreign_records: dict[int, int] = {}
        self._pages = 0
        self._bytes = 0

    def wrote(self, partition: int, offset: int, size_bytes: int) -> None:
        """A page is in the log."""
        self._pages += 1
        self._bytes += size_bytes
        if offset >= self._parsed.get(partition, 0):
            self._written.setdefault(partition, deque()).append((offset, size_bytes))
            self._unparsed_bytes += size_bytes

    def parsed(self, partition: int, reached: int, end: int) -> None:
        """Everything before `reached` is parsed, or in the hands of who parses; the partition ends at `end`.

        It may be less than before: whoever takes over begins at the commit. Those pages count with the mean size.
        """
        self._parsed[partition] = reached
        written = self._written.setdefault(partition, deque())
        while written and written[0][0] < reached:
            self._unparsed_bytes -= written.popleft()[1]
        first = written[0][0] if written else end
        self._foreign_records[partition] = max(first - reached, 0)

    def keep(self, partitions: Iterable[int]) -> None:
        """Others are not ours any more, and hold nothing back here."""
        for partition in self._written.keys() - set(partitions):
            self._unparsed_bytes -= sum(size_bytes for _, size_bytes in self._written.pop(partition))
            self._parsed.pop(partition, None)
            self._foreign_records.pop(partition, None)

    @property
    def unparsed_bytes(self) -> int:
        """Bytes not parsed yet, about."""
        mean = self._bytes / self._pages if self._pages else 0.0
        return self._unparsed_bytes + int(mean * sum(self._foreign_records.values()))

    def allowed(self, concurrency: int) -> int:
        """Requests at a time, at most: all of `concurrency`, fewer as the limit comes near, 0 above it."""
        share = self.unparsed_bytes / self._most_bytes
        if share <= SLOWING_FROM:
            return concurrency
        return max(int(concurrency * (1.0 - share) / (1.0 - SLOWING_FROM)), 0)
