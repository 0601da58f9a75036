"""What changed in a sink's state, as a store takes it."""

from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

MOST_CHANGES = 5_000
CHANGES_BYTES = 4 << 20  # Rows that a store takes in one transaction

BOOT = Path("/proc/sys/kernel/random/boot_id")

_decode = msgspec.json.Decoder(dict[str, object]).decode_lines


class KeyRows(NamedTuple):
    """The newest rows of one key.

    Attributes:
        key: The URL, with the request's identity behind it where that is not a plain GET's.
        page: (partition, offset) of the page that they were parsed from.
        block: The rows, one JSON line each; empty if the key has none any more.
        before: The rows that it had at most since the start of these changes; 0 if pipelines make the rows.
    """

    key: bytes
    page: tuple[int, int]
    block: bytes
    before: int = 0

    @property
    def url(self) -> str:
        """The URL of the page."""
        return self.key.partition(b" ")[0].decode("utf-8", "replace")

    @property
    def page_number(self) -> int:
        """The page as one number."""
        partition, offset = self.page
        return partition << 40 | offset

    def hash(self, job: str) -> str:
        """Identifies the key among those of all jobs."""
        return xxhash.xxh3_128_hexdigest(job.encode() + b" " + self.key)

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return self.block.count(b"\n")

    def rows(self) -> list[dict[str, object]]:
        """The rows, decoded."""
        return _decode(self.block)


class RowChanges(NamedTuple):
    """Changes behind number `start`, up to number `end`; each key once."""

    start: int
    end: int
    keys: list[KeyRows]


class Feed(NamedTuple):
    """Which rows a store gets.

    Attributes:
        job: Their job.
        crawl: Identifies the log, and which epochs and pages of it count. Rows of another one are gone at the end,
            unless they come again.
        serial: Of the state, and of this start of the machine: a power cut may take changes back that a store has.
    """

    job: str
    crawl: str
    serial: str


def feed_of(job: str, log: object, counting: object, serial: str) -> Feed:
    """The feed of a state of this log and serial, with what of the log counts."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return Feed(job, xxhash.xxh3_64_hexdigest(repr((log, counting)).encode()), f"{serial} {boot}")
