"""Sinks as consumer groups: each sink's output, its group's name, and the sinks of a data folder."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash

from crawlog.schemas.job_orders import NO_LAYOUT, FeedLayout
from crawlog.streams import files

# Environment variable with the outputs of a run's sink worker: JSON of `PrivateOutputs`.
SINK_ENVIRONMENT = "CRAWLOG_SINK"

STDOUT = "-"

ARCHIVE = "warc:"  # Begins an output of pages, not of rows: `warc:DIR`

SINK_FILE = "sink.json"  # File with the `SinkSpec`, in the folder of the sink's state


AGAIN = "again.json"  # File with `ReadAgain`, there too

_scheme = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")


class RewoundRange(msgspec.Struct, frozen=True):
    """The pages that a rewind of the crawl cancels: at offset `page` or later, of epochs before `epoch`."""

    partition: int
    epoch: int
    page: int


class ReadAgain(msgspec.Struct, frozen=True):
    """Offsets from which a sink reads crawl.items again: of a replay, or where the log was cut."""

    offsets: dict[int, int]
    anew: bool = False


class SinkSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One output of one job.

    Attributes:
        output: An absolute path; `-` for standard output; or the address of a store, `SCHEME:…`.
        epoch: Rows of earlier epochs of the job are left out.
        voids: Rows of these pages are left out too.
        formulas: Whether a CSV file keeps texts that a spreadsheet would run as formulas.
        pipelines: Whether the job's items pass pipelines before they are rows.
        is_fleet: Whether it is an output of a job on a fleet.
        is_store: Whether the output is a store that takes rows as they come.
        fill: As in the job's `OutputSpec`.
        on_gone: Of a store: what becomes of rows that are gone, `delete`, `keep` or `mark`.
        layout: How a format writes rows.
    """

    job: str
    output: str
    epoch: int = 0
    voids: tuple[RewoundRange, ...] = ()
    formulas: bool = False
    pipelines: bool = False
    is_fleet: bool = False
    is_store: bool = False
    on_gone: str = "delete"
    fill: int = 0
    layout: FeedLayout = NO_LAYOUT

    @property
    def id(self) -> str:
        """Identifies the state's folder and the consumer group."""
        voids = "".join(f"\0{void.partition} {void.epoch} {void.page}" for void in self.voids)
        fill = f"\0{self.fill}" if self.fill else ""
        return xxhash.xxh3_64_hexdigest(f"{self.job}\0{self.output}\0{self.epoch}{voids}{fill}".encode())

    def wants(self, job: str, epoch: int, page: tuple[int, int]) -> bool:
        """Whether the sink writes the items of a page."""
        if job != self.job or epoch < self.epoch:
            return False
        partition, offset = page
        return not any(
            void.partition == partition and offset >= void.page and epoch < void.epoch for void in self.voids
        )

    def folder(self, data: Path) -> Path:
        return data / "sinks" / self.id

    @property
    def is_file(self) -> bool:
        """Whether the output is a file, not standard output or a store."""
        return self.output != STDOUT and not _scheme.match(self.output)

    @property
    def is_archive(self) -> bool:
        """Whether the output is an archive of pages, `warc:DIR`."""
        return self.output.startswith(ARCHIVE)

    def partial(self, data: Path) -> Path:
        return Path(f"{self.output}.partial") if self.is_file else self.folder(data) / "rows.partial"


def read_again(data: Path, sink: SinkSpec, offsets: Mapping[int, int], *, anew: bool = False) -> None:
    """Have the next worker of a sink read some partitions from these offsets on.

    Args:
        anew: Whether it removes all rows first.
    """
    files.write(sink.folder(data) / AGAIN, msgspec.json.encode(ReadAgain(dict(offsets), anew)))


def ordered_again(folder: Path) -> ReadAgain | None:
    """What `read_again` has left in the folder of a state; None after the worker has done it."""
    with suppress(OSError, ValueError):
        return msgspec.json.decode((folder / AGAIN).read_bytes(), type=ReadAgain)
    return None


def known_sinks(data: Path) -> list[SinkSpec]:
    """The sinks that have a state in a data folder."""
    found = []
    for path in sorted(data.glob(f"sinks/*/{SINK_FILE}")):
        with suppress(OSError, ValueError):
            found.append(msgspec.json.decode(path.read_bytes(), type=SinkSpec))
    return found
