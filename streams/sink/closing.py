"""How a run has the pipelines of its job closed: two notes in the folder of the sink's state.

    run: the job is finished ─► close.json ─► sink's worker: all rows made, pipelines closed ─► closed.json ─► run: FILE

Both processes have the data folder. A worker that dies between finds the first note again; the pipelines are then
opened, fed and closed once more.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from crawlog.streams import files
from crawlog.streams.log import SinkSpec

CLOSE = "close.json"
CLOSED = "closed.json"  # Names of the notes

ITEMS = "items.partial"  # File of raw items


class CloseNote(msgspec.Struct, frozen=True):
    """A note: to close, or that it was done.

    Attributes:
        offsets: Of crawl.items, by partition, behind which the pipelines are closed.
        reason: Why the job ended, as `closed(reason)` of a spider gets it.
        stats: Of the pipelines that were closed, by name.
    """

    offsets: dict[int, int]
    reason: str = ""
    stats: dict[str, float] = {}

    def reaches(self, offsets: Mapping[int, int]) -> bool:
        """Whether it is behind these offsets."""
        return all(self.offsets.get(at, 0) >= offset for at, offset in offsets.items())


def has_pipelines(data: Path, spec: SinkSpec) -> bool:
    """Whether the sink's rows are made by pipelines."""
    return spec.pipelines or (spec.folder(data) / ITEMS).exists()


def order_close(data: Path, spec: SinkSpec, offsets: Mapping[int, int], reason: str) -> None:
    """Have the sink's worker close the pipelines behind these offsets."""
    write_note(spec.folder(data) / CLOSE, CloseNote(dict(offsets), reason))


def forget_close(data: Path, spec: SinkSpec) -> None:
    """Remove both notes, before a worker starts."""
    for name in (CLOSE, CLOSED):
        (spec.folder(data) / name).unlink(missing_ok=True)


def is_closed(data: Path, spec: SinkSpec, offsets: Mapping[int, int]) -> bool:
    """Whether the worker has closed the pipelines behind these offsets."""
    note = read_note(spec.folder(data) / CLOSED)
    return note is not None and note.reaches(offsets)


def closed_stats(data: Path, spec: SinkSpec) -> dict[str, float]:
    """Stats that the pipelines counted, by name."""
    note = read_note(spec.folder(data) / CLOSED)
    return note.stats if note is not None else {}


def read_note(path: Path) -> CloseNote | None:
    """The note; None if there is none."""
    with suppress(OSError, ValueError):
        return msgspec.json.decode(path.read_bytes(), type=CloseNote)
    return None


def write_note(path: Path, note: CloseNote) -> None:
    """Write a note, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, msgspec.json.encode(note))
