"""Seeds on their way to crawl.urls, gathered per partition.

A batch holds URLs of one partition. Its key is their domain where all share it, so that Kafka's tools show whose it is;
a batch over several domains has no key, and the partition is always set.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crawlog.schemas.urls import MAX_BATCH_BYTES, MAX_BATCH_URLS, FoundUrl
from crawlog.streams.url import Place

FRAME_BYTES = 96
"""JSON around a seed's URL: braces, field names and the numbers, at most."""


class SeedBatch(NamedTuple):
    """URLs of one partition, and the key of their record."""

    partition: int
    key: bytes | None
    urls: list[FoundUrl]


class _Open:
    """The batch of one partition that is still being filled."""

    __slots__ = ("domain", "shared", "size_bytes", "urls")

    def __init__(self, domain: str) -> None:
        self.urls: list[FoundUrl] = []
        self.size_bytes = 0
        self.domain = domain
        self.shared = True


class SeedBatches:
    """Gathers URLs until a batch is full, by number or by size."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def add(self, found: FoundUrl, place: Place) -> SeedBatch | None:
        """Take one URL; returns the batch that had no room for it, or that it filled."""
        size_bytes = len(found.url) + FRAME_BYTES
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
            return self._close(place.partition)  # it had room for all, so nothing else was closed
        return full

    def rest(self) -> Iterator[SeedBatch]:
        """What is left, one batch a partition; afterwards nothing is."""
        for partition in list(self._open):
            yield self._close(partition)

    def _close(self, partition: int) -> SeedBatch:
        filled = self._open.pop(partition)
        return SeedBatch(partition, filled.domain.encode() if filled.shared else None, filled.urls)
