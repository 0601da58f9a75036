"""What a sink is, and what a record of crawl.items means for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from crawlog.schemas import items
from crawlog.streams.errors import Misconfigured

from . import formats

ENVIRONMENT = "CRAWLOG_SINK"
"""Where a sink worker finds what it writes: JSON of `Sink`."""

STDOUT = "-"


class Void(msgspec.Struct, frozen=True):
    """What a rewind of the crawl took back: items of pages at `page` or behind it, of epochs before `epoch`."""

    partition: int
    epoch: int
    page: int


class Sink(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job's rows in one place.

    Attributes:
        output: FILE, absolute, or `-` for standard output.
        epoch: Rows of earlier epochs of the job are not wanted.
        voids: Nor are these.
        formulas: Whether a CSV keeps texts that a spreadsheet would calculate.
    """

    job: str
    output: str
    epoch: int = 0
    voids: tuple[Void, ...] = ()
    formulas: bool = False

    @property
    def id(self) -> str:
        """Names the state's folder and the consumer group."""
        voids = "".join(f"\0{void.partition} {void.epoch} {void.page}" for void in self.voids)
        return xxhash.xxh3_64_hexdigest(f"{self.job}\0{self.output}\0{self.epoch}{voids}".encode())

    def wants(self, job: str, epoch: int, page: tuple[int, int]) -> bool:
        """Whether items of a page are among its rows."""
        if job != self.job or epoch < self.epoch:
            return False
        partition, offset = page
        return not any(
            void.partition == partition and offset >= void.page and epoch < void.epoch for void in self.voids
        )

    def environ(self) -> dict[str, str]:
        """What a sink worker needs in its environment."""
        return {ENVIRONMENT: msgspec.json.encode(self).decode()}

    def folder(self, data: Path) -> Path:
        """Where its state is."""
        return data / "sinks" / self.id

    def partial(self, data: Path) -> Path:
        """The file that rows are appended to."""
        return self.folder(data) / "rows.partial" if self.output == STDOUT else Path(f"{self.output}.partial")


def sink_from(environ: Mapping[str, str]) -> Sink:
    """The sink that this worker is for. Raises: Misconfigured: it was not told."""
    text = environ.get(ENVIRONMENT, "")
    try:
        return msgspec.json.decode(text, type=Sink)
    except msgspec.MsgspecError as error:
        wanted = '{"job": "NAME", "output": "/path/FILE.jsonl"}'
        raise Misconfigured(f"a sink worker needs {ENVIRONMENT}={wanted}, got {text!r}: {error}") from None


def name_of(text: str) -> str:
    """What `CRAWLOG_SINK` adds to the consumer group's name: the sink's id; a text that names none stays as it is."""
    try:
        return msgspec.json.decode(text, type=Sink).id
    except msgspec.MsgspecError:
        return text


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


def entry(value: bytes | None, sink: Sink) -> Entry | None:
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
