"""Back-pressure: how many requests are allowed while pages wait for parse and dones for the fold. Pure."""

from collections import deque
from collections.abc import Iterable
from math import inf

from crawlog.schemas.progress import Progress

SLOWING_FROM = 0.5  # Share of a limit at which fetching begins to slow; at the whole limit it stops

# Lead over parse, in seconds of parse's own pace, at which one request at a time is left. A page that waits for parse
# gives no links yet, and fetching it took processor time from parse, which then works alone at the end.
AHEAD_S = 4.0

AHEAD_PAGES = 1024  # A smaller lead never slows fetching: parse may have been away for a moment

PACE_S = 5.0  # Time over which the pace of parse is measured. Parse reports once a second, and is read once a second.

UNFOLDED = 1024  # Unfolded dones in the log up to which nothing slows down: a second's worth of a busy worker

MOST_UNFOLDED = 32_768  # Unfolded dones in the log, at most: their URLs are in memory, some 1.5 kB each

# Folding time that pays for one more URL beyond `UNFOLDED`, seconds. A page's records take less to fold.
FOLD_S = 0.002

SAVED_URLS = 256  # Unused folding time is kept for so many URLs, at most

# Seeds in the log that live workers have not folded yet, at most: some seconds of folding. Dones wait behind them, and
# so does the first request after all processes were killed.
MOST_SOWN = 100_000

LIVES_S = 10.0  # A partition without a report for this long has no worker: its seeds do not count


class Pressure:
    """Unparsed bytes of the partitions of crawl.pages that a worker writes to.

    A page that another worker wrote counts with the mean size of this worker's pages.

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
        """Parse has taken everything before `reached`; the partition ends at `end`.

        `reached` may fall: a worker that takes the partition over begins at the commit. These pages count with the mean
        size.
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
        """`parsed` was called for all partitions; `now` is of a monotonic clock."""
        self._looks.append((now, self._taken))
        while now - self._looks[0][0] > PACE_S:
            self._looks.popleft()

    def keep(self, partitions: Iterable[int]) -> None:
        """Forget all partitions but these: the worker no longer writes to them."""
        for partition in self._written.keys() - set(partitions):
            written = self._written.pop(partition)
            self._unparsed_bytes -= sum(size_bytes for _, size_bytes in written)
            self._unparsed_pages -= len(written)
            self._parsed.pop(partition, None)
            self._foreign_records.pop(partition, None)

    @property
    def unparsed_bytes(self) -> int:
        mean = self._bytes / self._pages if self._pages else 0.0
        return self._unparsed_bytes + int(mean * sum(self._foreign_records.values()))

    @property
    def unparsed_pages(self) -> int:
        return self._unparsed_pages + sum(self._foreign_records.values())

    @property
    def ahead_pages(self) -> float:
        """Unparsed pages at which one request is left; no limit while parse takes none, for it may be away for long."""
        if not self._looks:
            return inf
        (first, before), (last, taken) = self._looks[0], self._looks[-1]
        return max(AHEAD_PAGES, AHEAD_S * (taken - before) / (last - first)) if taken > before else inf

    def allowed(self, concurrency: int) -> int:
        """Requests at a time: `concurrency`, fewer as a limit comes near, 0 above the limit of bytes."""
        by_bytes = _left(concurrency, self.unparsed_bytes / self._most_bytes)
        by_pages = _left(concurrency, self.unparsed_pages / self.ahead_pages)
        return min(by_bytes, max(by_pages, 1))


def _left(concurrency: int, share: float) -> int:
    """The requests at a time that are left at a share of a limit."""
    return min(max(int(concurrency * (1.0 - share) / (1.0 - SLOWING_FROM)), 0), concurrency)


class Unfolded:
    """How many more URLs may be handed out while dones wait to be folded.

    Fetching and folding share a processor. Beyond `UNFOLDED` dones the fold comes first: each `FOLD_S` of folding pays
    for one URL. So a fold that has only dones to read catches up, and fetching goes on beside a fold that must read
    millions of seeds first.
    """

    def __init__(self) -> None:
        self._spent_s = 0.0

    def room(self, unfolded: int, worked_s: float) -> int:
        """URLs that may be handed out now.

        Args:
            unfolded: Dones in the log that are not folded.
            worked_s: Time that the fold has worked so far; never less than before.
        """
        if unfolded < UNFOLDED:
            self._spent_s = worked_s
            return UNFOLDED - unfolded
        self._spent_s = max(self._spent_s, worked_s - SAVED_URLS * FOLD_S)
        return min(int((worked_s - self._spent_s) / FOLD_S), MOST_UNFOLDED - unfolded)

    def handed_out(self, urls: int, unfolded: int) -> None:
        if unfolded >= UNFOLDED:
            self._spent_s += urls * FOLD_S


class Sown:
    """Seeds that live workers have not folded yet.

    A partition counts while its worker reports. Without workers, seeds are written as fast as the log takes them.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}
        self._there: dict[int, deque[tuple[int, int]]] = {}
        self._heard: dict[int, tuple[Progress, float]] = {}

    def sent(self, partition: int, urls: int) -> None:
        self._sent[partition] = self._sent.get(partition, 0) + urls

    def acknowledged(self, urls: int, partition: int, offset: int) -> None:
        self._there.setdefault(partition, deque()).append((offset, urls))
        if partition in self._heard:  # which may have folded it already
            self._fold(partition, self._heard[partition][0].offset)

    def heard(self, reports: Iterable[Progress], now: float) -> None:
        """Take the newest report of each partition of crawl.urls; a report that was heard before is ignored."""
        for report in reports:
            last = self._heard.get(report.partition)
            if last is None or last[0] is not report:
                self._heard[report.partition] = report, now
                self._fold(report.partition, report.offset)

    def _fold(self, partition: int, offset: int) -> None:
        there = self._there.get(partition, deque())
        while there and there[0][0] < offset:
            self._sent[partition] -= there.popleft()[1]

    @property
    def unfolded(self) -> int:
        """Seeds that were sent and are not folded, as far as reports tell."""
        return sum(self._sent.values())

    def is_far_ahead(self, now: float) -> bool:
        """Whether to wait before the next seed is sent."""
        living = (number for number, (_, at) in self._heard.items() if now - at < LIVES_S)
        return sum(self._sent.get(number, 0) for number in living) >= MOST_SOWN
