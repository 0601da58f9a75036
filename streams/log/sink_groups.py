"""Sinks as consumer groups: what each one writes, its group's name, and those that a data folder knows."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import xxhash

from crawlog.streams.errors import Misconfigured

ENVIRONMENT = "CRAWLOG_SINK"
"""Where a sink worker finds what it writes: JSON of `Sink`."""

STDOUT = "-"

SINK = "sink.json"
"""What the sink is, for whoever looks at the folder."""


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


def known_sinks(data: Path) -> list[Sink]:
    """The sinks that have a state here."""
    found = []
    for path in sorted(data.glob(f"sinks/*/{SINK}")):
        with suppress(OSError, ValueError):
            found.append(msgspec.json.decode(path.read_bytes(), type=Sink))
    return found
