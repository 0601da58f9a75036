"""Completes the outputs of jobs that have ended: their files are made, then crawl.control says so.

The output that leads is noted last: what crawl.control says of it holds for all others that could be written.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import structlog

from crawlog.streams import crash_points
from crawlog.streams.errors import CrawlError
from crawlog.streams.jobs import ended, finish_reason
from crawlog.streams.sink import forget_output

from .notes import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    from crawlog.schemas.control import Finished
    from crawlog.streams.settings import Settings

    from .notes import OutputNotes
    from .output import Output
    from .wanted import WantedOutput

log = structlog.get_logger()


class Completion:
    """See the module.

    Args:
        data: The data folder.
        records: Notes what became of outputs.
    """

    def __init__(self, data: "Path", records: "OutputNotes") -> None:
        self._data = data
        self._records = records

    async def was_made(self, output: "Output", *, notes: bool) -> bool:
        """Whether a worker has made FILE already. It may have died before it noted that; then it is noted."""
        wanted = output.wanted
        if wanted.end is None or not wanted.is_final:
            return False
        final = await asyncio.to_thread(output.made, dict(enumerate(wanted.end.items)))
        if final is not None and notes:
            await self._note(output, final.rows, final.stats)
        return final is not None

    async def complete(self, output: "Output", end: "Finished", read: Mapping[int, int]) -> bool:
        """Complete an output and its copies, with all that was read.

        Args:
            read: Offsets of the reader.

        Returns: Whether nothing is left to do.

        Raises: as `Output.write` and `Output.complete`.
        """
        wanted = output.wanted
        rows = await self._rows(output, end, read)
        if rows is None:
            return False
        if not wanted.is_final:
            await output.copies.leave(rows, str(output.partial))
            place, stats = str(output.partial), output.stats
            await self._records.note(wanted, rows=rows, place=place, is_partial=True, stats=stats)
        elif not wanted.is_settled:
            crash_points.point("output.made")
            await self._note(output, rows, output.stats)
        crash_points.point("output.noted")
        log.info("output_complete", job=wanted.job, output=wanted.output.name, rows=rows, is_final=wanted.is_final)
        return not output.copies.wanted

    async def failed(self, output: "Output", error: Exception) -> None:
        """Note that an output and its copies cannot be made, but what is complete."""
        if not output.wanted.is_settled:
            await self._records.failed(output.wanted, error, place=output.spec.output)
        await output.copies.fail(error)

    async def _rows(self, output: "Output", end: "Finished", read: Mapping[int, int]) -> int | None:
        """Make the files, unless they were made before, or leave the rows; their number, None while some lack."""
        ends, is_final = dict(enumerate(end.items)), output.wanted.is_final
        if is_final and not output.is_open and (final := await asyncio.to_thread(output.made, ends)) is not None:
            await output.copies.note_made(final.rows)
            output.stats = final.stats
            return final.rows
        await output.write(read)
        if output.goes_back:
            return None
        if is_final:
            return await output.complete(ends, end.reason)
        spec, is_begun = output.wanted.spec, end.counts is None or ended(end.counts) > 0
        return await output.leave(ends, finish_reason(spec.state, spec.reason), is_begun=is_begun)

    async def _note(self, output: "Output", rows: int, stats: dict[str, float]) -> None:
        await self._records.note(output.wanted, rows=rows, place=output.spec.output, stats=stats)


async def leave_to_others(settings: "Settings", outputs: "Iterable[WantedOutput]", worker: str) -> None:
    """Remove the rows so far, and the state, of outputs that another worker has completed elsewhere since.

    Args:
        outputs: Of a job, that this worker does not own.
        worker: Its name.
    """
    for one in outputs:
        note = one.note
        if note is None or not (one.is_settled and one.is_final) or note.worker == worker:
            continue
        with contextlib.suppress(CrawlError, OSError):
            sink = await asyncio.to_thread(one.sink, settings)
            is_elsewhere = note.place != sink.output or note.machine not in ("", MACHINE)
            if is_elsewhere and sink.partial(settings.run.data).exists():
                await asyncio.to_thread(forget_output, settings.run.data, sink)
