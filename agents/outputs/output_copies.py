"""Outputs of a job that have the rows of another one of its outputs: its pipelines make them once, for all.

The other one has the state and the process of the pipelines. Each copy is written with its rows behind the job's end,
before FILE takes them.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.control import beating
from crawlog.streams import crash_points
from crawlog.streams.errors import CrawlError
from crawlog.streams.sink import forget_output, is_complete, state_of, write_other
from crawlog.streams.sink_groups import SinkSpec

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.streams.settings import Settings

    from .notes import OutputNotes
    from .wanted import WantedOutput

log = structlog.get_logger()


class OutputCopies:
    """See the module.

    Args:
        data: The data folder.
        records: Notes what became of them.
        beat: As in `OutputTools`.

    Attributes:
        wanted: Those that are not written yet behind the job's present end, by name, with their sinks; None for one
            that cannot be had here now: the rows are kept for it.
    """

    def __init__(self, data: "Path", records: "OutputNotes", beat: Callable[[], None]) -> None:
        self.wanted: dict[str, tuple[WantedOutput, SinkSpec | None]] = {}
        self._data = data
        self._records = records
        self._beat = beat

    def __iter__(self) -> Iterator["WantedOutput"]:
        return (wanted for wanted, _ in self.wanted.values())

    def keep(self, names: Collection[str]) -> None:
        """Forget all but these."""
        self.wanted = {name: one for name, one in self.wanted.items() if name in names}

    async def want(self, wanted: "WantedOutput", spec: SinkSpec | None) -> None:
        """Have an output written here, or wait for one that cannot be had now.

        What it has of its own is removed: it may have led, or had no pipelines.
        """
        self.wanted[wanted.output.name] = wanted, spec
        if spec is None:
            return
        await asyncio.to_thread(forget_output, self._data, spec)
        if wanted.has_failed and not wanted.lacks_file:
            await self._records.note(wanted, rev=0)

    @property
    def only_wait(self) -> bool:
        """Whether there are some, and none can be written now."""
        return bool(self.wanted) and all(spec is None for _, spec in self.wanted.values())

    def are_made(self, source: SinkSpec, ends: Mapping[int, int]) -> bool:
        """Whether the files of all of them were made with all rows of `source` up to `ends`, and nothing came since."""
        specs = [spec for _, spec in self.wanted.values()]
        return all(spec is not None and is_complete(self._data, spec, ends, source) for spec in specs)

    async def fail(self, error: Exception) -> None:
        """Note that none of them can be written, for the rows cannot be made; what was noted of one already stays."""
        for wanted, spec in list(self.wanted.values()):
            if spec is not None and not self._records.says_failed(wanted, spec.output):
                await self._records.failed(wanted, error, place=spec.output)

    async def note_made(self, rows: int) -> None:
        """Note all of them as complete: their files were made before."""
        for wanted, spec in list(self.wanted.values()):
            await self._records.note(wanted, rows=rows, place=spec.output if spec is not None else "")
        self.wanted.clear()

    async def make(self, source: SinkSpec, ends: Mapping[int, int]) -> None:
        """Write all that can be, with the rows up to `ends` of the closed state of `source`; the others stay wanted."""
        for name, (wanted, spec) in list(self.wanted.items()):
            if spec is None:
                continue
            writing = asyncio.to_thread(write_other, self._data, source, spec, ends)
            try:
                rows = await beating(self._beat, writing)
            except (CrawlError, OSError) as error:
                log.warning("output_not_complete", job=wanted.job, output=name, error=str(error))
                await self._records.failed(wanted, error, place=spec.output)
                continue
            crash_points.point("copy.written")
            await self._records.note(wanted, rows=rows, place=spec.output)
            log.info("output_complete", job=wanted.job, output=name, rows=rows, is_final=True)
            del self.wanted[name]

    async def leave(self, rows: int, place: str) -> None:
        """Note that the rows of a job that did not come to its end stay in a file, for people."""
        for wanted in self:
            await self._records.note(wanted, rows=rows, place=place, is_partial=True)
        self.wanted.clear()


def led_before(settings: "Settings", outputs: Sequence["WantedOutput"]) -> set[str]:
    """Names of the outputs of a job with pipelines whose rows lie here already: one of them led, in another process."""
    names = set()
    for one in outputs:
        with suppress(CrawlError, OSError):
            if state_of(one.sink(settings).folder(settings.run.data)).exists():
                names.add(one.output.name)
    return names
