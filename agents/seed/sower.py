"""Sends the seeds of one job, in batches by partition, no faster than running workers fold them.

A line without a URL is reported with its number and counted; the other lines are sent.

The key of a batch is the domain of its URLs, for display in Kafka's tools. A batch with several domains has no key. The
partition is always set, so no partitioner uses the key.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.schemas.control import JobCopy
from crawlog.schemas.progress import Progress
from crawlog.schemas.requests import packed
from crawlog.schemas.urls import MAX_BATCH_BYTES, MAX_BATCH_URLS, FoundUrl, UrlsRecord, encode
from crawlog.streams import crash_points
from crawlog.streams.fetch import Sown
from crawlog.streams.log import Topics
from crawlog.streams.requests import without_login
from crawlog.streams.url import Canonicaliser, Place, Places, scope_name, serialise

if TYPE_CHECKING:
    from crawlog.streams.log import Producer
from .line import COMMENT, found_on, why_not

# Most scope names in a job record, 260 kB at most; further names join the job. The limit keeps the record small: each
# partition has each revision of it, and every fold and parse worker holds its names.
MAX_NAMES = 1_000

TOLD = 20  # Bad lines reported one by one; further ones are only counted

POLL_EVERY = 8  # Batches between two polls: 4,000 URLs, a few hundredths of a second

FLUSH_S = 10.0  # Time between two looks at the broker while the last acknowledgements are missing, seconds

AHEAD_LOOK_S = 0.1  # Longest wait for a progress report while seeds wait for the workers, seconds

TELL_AHEAD_S = 30.0  # Time between two messages about seeds that wait for the workers, seconds

FRAME_BYTES = 96  # Largest size of the JSON around a seed's URL: braces, field names and numbers, bytes

LOGIN = "-s fetch.logins=https://USER:PASSWORD@HOST is for that, where the workers run"

Report = Callable[[str], None]  # Shows one line to the user

# Waits at most this many seconds for progress reports; returns the newest one of each partition of crawl.urls.
Look = Callable[[float], Iterable[Progress]]


class SeedBatch(NamedTuple):
    """URLs of one partition, and the key of their record."""

    partition: int
    key: bytes | None
    urls: list[FoundUrl]


class _Open:
    """The open batch of one partition."""

    __slots__ = ("domain", "shared", "size_bytes", "urls")

    def __init__(self, domain: str) -> None:
        self.urls: list[FoundUrl] = []
        self.size_bytes = 0
        self.domain = domain
        self.shared = True


class SeedBatches:
    """Gathers URLs into batches, limited by number and by size."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def add(self, found: FoundUrl, place: Place) -> SeedBatch | None:
        """Add one URL; returns the partition's batch if it is full now, or if the URL did not fit into it."""
        size_bytes = len(found.url) + FRAME_BYTES + len(packed(found.request)) + FRAME_BYTES * bool(found.id)
        filling = self._open.get(place.partition)
        full = None
        if filling is None or filling.size_bytes + size_bytes > MAX_BATCH_BYTES:
            full = self._close(place.partition) if filling is not None else None
            filling = self._open[place.partition] = _Open(place.domain)
        filling.urls.append(found)
        filling.size_bytes += size_bytes
        if filling.domain != place.domain:
            filling.shared = False
        if len(filling.urls) == MAX_BATCH_URLS:
            return self._close(place.partition)  # never both: a batch that was just opened has one URL
        return full

    def rest(self) -> Iterator[SeedBatch]:
        """Close and return all open batches, one a partition."""
        for partition in list(self._open):
            yield self._close(partition)

    def _close(self, partition: int) -> SeedBatch:
        filled = self._open.pop(partition)
        return SeedBatch(partition, filled.domain.encode() if filled.shared else None, filled.urls)


class Seeded(msgspec.Struct, frozen=True):
    """The result of seeding.

    Attributes:
        count: URLs sent and acknowledged.
        bad: Lines without a URL.
        names: Scope names of the URLs, at most `MAX_NAMES`.
    """

    count: int
    bad: int
    names: frozenset[str]


class Sower:
    """Sends seeds of one job. The job's record must be in the log already.

    Args:
        count: Partitions of crawl.urls.
        copy: The job's record in crawl.control.
        report: Shows a message to the user.
        look: Reads the workers' progress; None without workers.

    Attributes:
        count: URLs taken so far.
    """

    def __init__(
        self,
        producer: "Producer",
        topics: Topics,
        count: int,
        copy: JobCopy,
        report: Report,
        look: Look | None = None,
    ) -> None:
        self._producer = producer
        self._topic = topics.urls
        self._copy = copy
        self._report = report
        self._look = look
        self._sown = Sown()
        self._told_at = time.monotonic()
        self._canonical = Canonicaliser(copy.spec.canonical).canonical
        self._named = [name.lower() for name in copy.spec.fingerprint_headers]
        self._place = Places(count).of
        self._batches = SeedBatches()
        self._names: dict[str, str] = {}
        self._sent = self.count = self._bad = self._logins = 0

    def sow(self, part: str, lines: Iterable[bytes]) -> None:
        """Send the URLs of some lines; a full batch is sent at once."""
        canonical = self._canonical
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text[0] == COMMENT:
                continue
            try:
                found = found_on(text, canonical, self._named)
            except ValueError as error:
                self._refuse(part, number, text, error)
                continue
            if b"@" in text:
                self._tell_of_login(part, number, text)
            self.add(found)

    def add(self, found: FoundUrl) -> None:
        """Send a URL; a full batch is sent at once."""
        at = self._place(found.url)
        if at.host not in self._names:
            self._name(at.host, scope_name(self._copy.spec.scope.kind, at))
        batch = self._batches.add(found, at)
        self.count += 1
        if batch is not None:
            self._send(batch)

    def finish(self) -> Seeded:
        """Send the remaining batches, and wait without a time limit until all are acknowledged."""
        for batch in self._batches.rest():
            self._send(batch)
        while not self._producer.flush(FLUSH_S):  # a command's producer says that it waits
            if self._look is not None:
                self._look(0.0)  # under `run` it restarts a broker that died
        crash_points.point("seeds.acknowledged")
        if self._bad > TOLD:
            self._report(f"{self._bad - TOLD} more lines are no URLs")
        if self._logins > 1:
            self._report(f"{self._logins - 1} more URLs had logins, left out as well")
        return Seeded(self.count, self._bad, frozenset(self._names.values()))

    def _send(self, batch: SeedBatch) -> None:
        crash_points.point("seeds.sending")
        record = UrlsRecord(self._copy.job, self._copy.epoch, urls=batch.urls)
        on_delivery = None
        if self._look is not None:
            self._sown.sent(batch.partition, len(batch.urls))
            on_delivery = partial(self._sown.acknowledged, len(batch.urls))
        self._producer.send(
            self._topic, encode(record), key=batch.key, partition=batch.partition, on_delivery=on_delivery
        )
        self._sent += 1
        if self._sent % POLL_EVERY == 0:
            self._producer.poll()
            if self._look is not None:
                self._keep_pace(self._look)

    def _keep_pace(self, look: Look) -> None:
        """Wait while workers have many seeds to fold: dones wait behind them, and a restore folds them first."""
        self._sown.heard(look(0.0), time.monotonic())
        while self._sown.is_far_ahead(time.monotonic()):
            if time.monotonic() - self._told_at >= TELL_AHEAD_S:
                self._told_at = time.monotonic()
                self._report(f"{self.count:,} URLs are read; they go at the pace at which the workers take them")
            self._producer.poll()
            self._sown.heard(look(AHEAD_LOOK_S), time.monotonic())

    def _name(self, host: str, name: str) -> None:
        if len(self._names) < MAX_NAMES:
            self._names[host] = name

    def _tell_of_login(self, part: str, number: int, text: bytes) -> None:
        """Report that the login in a seed, if any, is left out: a canonical URL has none."""
        href = serialise(found_on(text, str).url)
        if without_login(href)[0] != href:
            self._logins += 1
            if self._logins == 1:
                self._report(f"{part}:{number}: the login in this URL is left out, as the log would keep it; {LOGIN}")

    def _refuse(self, part: str, number: int, text: bytes, error: ValueError) -> None:
        self._bad += 1
        if self._bad <= TOLD:
            self._report(f"{part}:{number}: {why_not(text, error)}")
