"""What a record of crawl.items means for a sink."""

from typing import NamedTuple

import xxhash

from crawlog.schemas import items
from crawlog.streams.log import SinkSpec

from . import formats


class Entry(NamedTuple):
    """An item record as a sink keeps it.

    Attributes:
        key: The URL.
        page: (partition, offset) of the page that the items were parsed from.
        block: Its rows, a JSON line each.
        digest: xxh3_64 of the block.
        rows: How many.
    """

    key: bytes
    page: tuple[int, int]
    block: bytes
    digest: int
    rows: int


def entry(value: bytes | None, sink: SinkSpec) -> Entry | None:
    """What a record means for a sink; None when it is not among its rows.

    Raises: ValueError: not an item record, or an item is not a JSON object.
    """
    record = items.decode(value)
    if not all(0 <= number < 1 << bits for number, bits in zip(record.page, (32, 64), strict=True)):
        raise ValueError(f"no such page: {record.page}")
    if not sink.wants(record.job, record.epoch, record.page):
        return None
    block = formats.lines(record.items)
    return Entry(record.url.encode(), record.page, block, xxhash.xxh3_64_intdigest(block), len(record.items))
