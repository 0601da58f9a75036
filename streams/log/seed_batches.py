"""Batches of seeds for crawl.urls, one open batch per partition.

The key of a batch is the domain of its URLs, for display in Kafka's tools. A batch with several domains has no key. The
partition is always set, so no partitioner uses the key.
"""

from collections.abc import Iterator
from typing import NamedTuple

from crawlog.schemas.requests import packed
from crawlog.schemas.urls import MAX_BATCH_BYTES, MAX_BATCH_URLS, FoundUrl
from crawlog.streams.url import Place

FRAME_BYTES = 96  # Largest size of the JSON around a seed's URL: braces, field names and numbers, bytes


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
