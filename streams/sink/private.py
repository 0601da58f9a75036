"""Outputs of a `run`: declared to its own sink worker, so no record of the log names a path.

    run ─► CRAWLOG_SINK ─► its sink worker: FILE.partial
    the job has ended, and the log has lost nothing ─► released.json ─► worker: FILE ─► noted.json ─► run

Both notes lie in the data folder, which one run holds. Only notes of this run count: FILE may have been changed or
removed since an earlier one.
"""

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import xxhash

from crawlog.schemas.control import Finished, OutputNote
from crawlog.schemas.job_orders import NO_LAYOUT, FeedLayout
from crawlog.streams import files
from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import SINK_ENVIRONMENT, STDOUT, RewoundRange, SinkSpec

from .registry import sink_of

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


RELEASED, NOTED = "released.json", "noted.json"  # Names of the notes, in the folder of the sinks' states


class Lacking(msgspec.Struct, frozen=True):
    """Rows whose records crawl.items lost, and that are not made again yet.

    Attributes:
        looks: How often the worker has looked for such rows.
        urls: Of the pages.
        unmade: By partition of crawl.pages, the first page that parse must parse again. The others are fetched again.
    """

    looks: int = 0
    urls: tuple[str, ...] = ()
    unmade: dict[int, int] = {}


class _Noted(msgspec.Struct):
    notes: dict[str, OutputNote] = {}
    lacking: dict[str, Lacking] = {}


class PrivateOutputs(msgspec.Struct, frozen=True):
    """The outputs of one job that one sink worker writes, and no other.

    Attributes:
        outputs: Absolute paths, addresses of stores, `-`, or `none:` for pipelines alone.
        layouts: How they write rows, by output.
    """

    job: str
    outputs: tuple[str, ...]
    layouts: dict[str, FeedLayout] = {}

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> "PrivateOutputs | None":
        """The outputs of this worker; None if it is a fleet's.

        Raises: Misconfigured: the environment variable is not a `PrivateOutputs`.
        """
        text = environ.get(SINK_ENVIRONMENT, "")
        try:
            return msgspec.json.decode(text, type=cls) if text else None
        except msgspec.MsgspecError as error:
            wanted = '{"job": "NAME", "outputs": ["/path/FILE.jsonl"]}'
            raise Misconfigured(f"{SINK_ENVIRONMENT} must be {wanted}, got {text!r}: {error}") from None

    def environ(self) -> dict[str, str]:
        """The environment variable for the worker."""
        return {SINK_ENVIRONMENT: msgspec.json.encode(self).decode()}

    @property
    def id(self) -> str:
        """Identifies the worker's consumer group and its reports."""
        return xxhash.xxh3_64_hexdigest("\0".join((platform.node(), self.job, *self.outputs)).encode())

    def notes(self, data: Path) -> dict[str, OutputNote]:
        """The newest note about each output, by output; empty before the first one."""
        return _noted(data).notes

    def lacking(self, data: Path) -> dict[str, Lacking]:
        """By output, which rows lack; FILE is not made before they are there."""
        return _noted(data).lacking

    def release(self, data: Path, end: Finished) -> None:
        """Have the worker complete the outputs behind this end of the job."""
        _write(data / "sinks" / RELEASED, msgspec.json.encode((end.epoch, end.rev)))

    def released(self, data: Path) -> tuple[int, int] | None:
        """Epoch and revision of the end that was released last; None before the first."""
        with suppress(OSError, ValueError):
            return msgspec.json.decode((data / "sinks" / RELEASED).read_bytes(), type=tuple[int, int])
        return None

    def forget(self, data: Path) -> None:
        """Remove the notes of an earlier run, before the worker starts."""
        for name in (NOTED, RELEASED):
            (data / "sinks" / name).unlink(missing_ok=True)

    def pour(self, data: Path, out: BinaryIO) -> None:
        """Write the rows of the output `-`, which was noted as complete."""
        with _stdout_rows(data, self.job).open("rb") as rows:
            out.writelines(rows)
        out.flush()


class PrivateNotes:
    """Keeps the notes of a worker in its data folder."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._noted = _Noted()

    def note(self, note: OutputNote) -> None:
        """Keep the newest note about an output."""
        self._noted.notes[note.output] = note
        self._keep()

    def lack(self, output: str, urls: tuple[str, ...], unmade: dict[int, int]) -> None:
        """Keep which rows lack in an output, as `Lacking` has them."""
        known = self._noted.lacking.get(output, Lacking())
        if urls or known.urls:
            self._noted.lacking[output] = Lacking(known.looks + 1, urls, unmade)
            self._keep()

    def _keep(self) -> None:
        _write(self._data / "sinks" / NOTED, msgspec.json.encode(self._noted))


def private_sink_of(
    settings: "Settings",
    job: str,
    output: str,
    epoch: int,
    voids: tuple[RewoundRange, ...],
    *,
    pipelines: bool = False,
    layout: FeedLayout = NO_LAYOUT,
) -> SinkSpec:
    """The sink of a private output. A worker has no standard output: the rows of `-` wait in the data folder.

    Raises: Misconfigured: as `sink_of`.
    """
    place = output
    if output == STDOUT:
        path = _stdout_rows(settings.run.data, job)
        files.own(path.parent)
        place = str(path)
    made = sink_of(job, place, epoch, voids, settings=settings, layout=layout)
    return msgspec.structs.replace(made, pipelines=pipelines)


def _noted(data: Path) -> _Noted:
    with suppress(OSError, ValueError):
        return msgspec.json.decode((data / "sinks" / NOTED).read_bytes(), type=_Noted)
    return _Noted()


def _write(path: Path, content: bytes) -> None:
    files.own(path.parent)
    files.write(path, content)


def _stdout_rows(data: Path, job: str) -> Path:
    return data.absolute() / "sinks" / f"stdout-{xxhash.xxh3_64_hexdigest(job.encode())}.jsonl"
