"""Completes an output behind the end of its job: the outputs that share its rows, then FILE, then a note.

the job has ended, all is in ─► no row lacks ─► pipelines closed ─► copies ─► FILE by rename ─► OutputNote

A *copy* is another output of a job with pipelines. These make the rows once, for the output that leads: it has their
state and their process. Each copy is written with these rows before FILE takes them. The output that leads is noted
last: what crawl.control says of it holds for all copies that could be written.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from crawlog.agents.control import beating
from crawlog.streams import crash_points
from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.jobs import SHUTDOWN, ended, finish_reason
from crawlog.streams.printable import without_secrets
from crawlog.streams.recovery import fetch_again, sorted_out
from crawlog.streams.sink import (
    Final,
    PipelineRows,
    final_of,
    finalise,
    forget_output,
    is_complete,
    lacking,
    nowhere,
    state_of,
    write_other,
)

from .notes import MACHINE

if TYPE_CHECKING:
    from crawlog.schemas.control import Finished
    from crawlog.streams.settings import Settings
    from crawlog.streams.sink_groups import SinkSpec

    from .notes import OutputNotes
    from .output import Output
    from .wanted import WantedOutput

log = structlog.get_logger()

LACKING_S = 5.0  # Pause between two looks for rows that are made again, seconds


class Completion:
    """See the module.

    Args:
        notes: Takes what became of the output and its copies.
        beat: Called while FILE is made: a large one takes minutes, and the worker is not stuck.

    Attributes:
        copies: Those that are not written yet behind the job's present end, by name, with their sinks; None for one
            that cannot be had here now: the rows are kept for it.
        unmade: See `Progress.unmade`.
    """

    def __init__(self, settings: "Settings", output: "Output", notes: "OutputNotes", beat: Callable[[], None]) -> None:
        self.copies: dict[str, tuple[WantedOutput, SinkSpec | None]] = {}
        self.unmade: dict[int, int] = {}
        self._settings = settings
        self._data = settings.run.data
        self._output = output
        self._notes = notes
        self._beat = beat
        self._stats: dict[str, float] = {}

    @property
    def every(self) -> "list[WantedOutput]":
        """The output, and its copies."""
        return [self._output.wanted, *(copy for copy, _ in self.copies.values())]

    @property
    def only_waits(self) -> bool:
        """Whether there are copies, and none can be written now."""
        return bool(self.copies) and all(spec is None for _, spec in self.copies.values())

    async def keep_copies(self, names: Collection[str]) -> None:
        """Forget all copies but these."""
        for name in self.copies.keys() - names:
            await self._output.unfeed(name)
        self.copies = {name: one for name, one in self.copies.items() if name in names}

    async def want_copy(self, wanted: "WantedOutput", spec: "SinkSpec | None") -> None:
        """Have a copy written here, or wait for one that cannot be had now.

        What it has of its own is removed: it may have led, or had no pipelines.
        """
        self.copies[wanted.output.name] = wanted, spec
        if spec is None:
            return
        await asyncio.to_thread(forget_output, self._data, spec)
        if spec.is_store:
            await self._output.feed(wanted.output.name, spec)
        if wanted.has_failed and not wanted.lacks_file:
            await self._notes.note(wanted, rev=0)

    async def was_made(self, *, notes: bool) -> bool:
        """Whether a worker has made FILE already. It may have died before it noted that; then it is noted."""
        wanted = self._output.wanted
        if wanted.end is None or not wanted.is_final:
            return False
        final = await asyncio.to_thread(self._made, _offsets(wanted.end))
        if final is not None and notes:
            await self._note(final.rows, final.stats)
        return final is not None

    async def complete(self, end: "Finished", read: Mapping[int, int]) -> bool:
        """Complete the output and its copies, with all that was read.

        Args:
            read: Offsets of the reader.

        Returns: Whether nothing is left to do.

        Raises: as `Output.write` and `finalise`. Misconfigured: the pipelines make no row now.
        """
        output, wanted = self._output, self._output.wanted
        final = None
        if wanted.is_final and not output.is_open:
            final = await asyncio.to_thread(self._made, _offsets(end))
        if final is not None:
            self._stats, rows = final.stats, final.rows
            for copy, spec in list(self.copies.values()):
                await self._notes.note(copy, rows=rows, place=spec.output if spec is not None else "")
            self.copies.clear()
        else:
            await output.write(read)
            made = None if output.goes_back else await (self._make(end) if wanted.is_final else self._leave(end))
            if made is None:
                return False
            rows = made
        if not wanted.is_final:
            await self._note_partial(rows)
        elif not wanted.is_settled:
            crash_points.point("output.made")
            await self._note(rows, self._stats)
        crash_points.point("output.noted")
        log.info("output_complete", job=wanted.job, output=wanted.shown, rows=rows, is_final=wanted.is_final)
        return not self.copies

    async def failed(self, error: Exception) -> None:
        """Note that the output and its copies cannot be made. Skips those that are complete, or noted so already."""
        wanted = self._output.wanted
        if not wanted.is_settled:
            await self._notes.failed(wanted, error, place="" if self._output.spec.is_store else self._place)
        for copy, spec in list(self.copies.values()):
            if spec is not None and not spec.is_store and not self._notes.says_failed(copy, spec.output):
                await self._notes.failed(copy, error, place=spec.output)

    @property
    def _place(self) -> str:
        """Where the output lies; an address without its password, as notes are in the log."""
        output = self._output.spec.output
        return output if self._output.spec.is_file else without_secrets(output)

    def _made(self, ends: Mapping[int, int]) -> Final | None:
        """The note about FILE, if it and the copies were made with all up to `ends`, and nothing came since."""
        source, specs = self._output.spec, [spec for _, spec in self.copies.values()]
        final = final_of(source.folder(self._data))
        is_made = is_complete(self._data, source, ends) and not self._output.partial.exists()
        is_made = is_made and all(spec and is_complete(self._data, spec, ends, source) for spec in specs)
        return final if is_made else None

    async def _make(self, end: "Finished") -> int | None:
        """Write the copies and make FILE.

        Returns: The rows; None while pipelines make rows, rows are made again, or only copies cannot be written.
        """
        output = self._output
        if not await self._has_all_rows():
            return None
        if output.has_pipelines:
            made = (await output.open()).made
            if made is not None and made.meta.is_closed and made.meta.reason == SHUTDOWN != end.reason:
                made.unclose()  # the job was stopped, went on, and got no further item
            if not self._are_closed(made, end, end.reason):
                return None
        if not await self._fill_stores():
            return None
        await output.close()
        await self._write_copies(_offsets(end))
        if output.wanted.is_settled and self.copies:
            return None
        return await beating(self._beat, asyncio.to_thread(self._finalised, _offsets(end)))

    async def _leave(self, end: "Finished") -> int | None:
        """Leave the rows of a job that did not come to its end in FILE.partial, and have its pipelines closed.

        Rows that the pipelines cannot make now are left out: nobody waits for them.

        Returns: The rows; None while pipelines make rows or are closed.
        """
        output, spec = self._output, self._output.wanted.spec
        results = await output.open()
        is_begun = end.counts is None or ended(end.counts) > 0
        if results.made is not None and (is_begun or results.made.has_items):
            try:
                if not self._are_closed(results.made, end, finish_reason(spec.state, spec.reason)):
                    return None
            except Misconfigured as error:
                log.warning("rows_left_out", job=output.spec.job, error=str(error))
            self._stats = results.made.meta.stats
        rows = (results.made or results).rows
        await output.close()
        return rows

    def _are_closed(self, made: PipelineRows | None, end: "Finished", reason: str) -> bool:
        """Have the pipelines closed; whether they are, and have made all rows.

        Raises: Misconfigured: they make no row now.
        """
        self._output.close_pipelines(_offsets(end), reason)
        if made is not None and not made.is_done:
            if trouble := self._output.pipelines_trouble():
                raise Misconfigured(trouble)
            return False
        self._stats = made.meta.stats if made is not None else {}
        return True

    async def _has_all_rows(self) -> bool:
        """Whether no row lacks whose record was gone; else its page is fetched again, or `unmade` names it."""
        results = await self._output.open()
        lacks = await beating(self._beat, asyncio.to_thread(lacking, self._settings, results))
        self.unmade = {}
        if lacks:
            log.warning("rows_lack", job=results.sink.job, pages=len(lacks), then="they are made again")
            gone, self.unmade = await asyncio.to_thread(sorted_out, self._settings, lacks)
            await asyncio.to_thread(fetch_again, self._settings, gone)
            self._output.tries_at = time.monotonic() + LACKING_S
        elif results.meta.gaps:
            results.move({}, [])
        self._notes.lack(self._output.wanted, tuple(one.result.url for one, _ in lacks), self.unmade)
        return not lacks

    async def note_stores(self) -> None:
        """Note which stores take no rows, and which copies do again."""
        for name, feeder in list(self._output.feeders.items()):
            copy, _ = self.copies.get(name, (None, None))
            if feeder.error is not None:
                await self._notes.failed(copy or self._output.wanted, feeder.error)
            elif copy is not None and copy.has_failed and feeder.position >= 0:
                await self._notes.note(copy, rev=0)

    async def _fill_stores(self) -> bool:
        """Finish the stores that have all rows; whether FILE, and copies that are files, may be made now.

        A copy that is away stays wanted, and holds nothing up.
        """
        output = self._output
        results = await output.open()
        for name, feeder in list(output.feeders.items()):
            is_copy = name in self.copies
            if feeder.error is not None:
                if is_copy:
                    await self._notes.failed(self.copies[name][0], feeder.error)
                    continue
                raise feeder.error
            if not feeder.is_done:
                return False
            await feeder.finish()
            if is_copy:
                rows = (results.made or results).rows
                await self._notes.note(self.copies[name][0], rows=rows, place=feeder.place)
                log.info("output_complete", job=output.spec.job, output=feeder.place, rows=rows, is_final=True)
                await output.unfeed(name)
                del self.copies[name]
        return True

    async def _write_copies(self, ends: Mapping[int, int]) -> None:
        """Write all copies that can be, from the closed state; the others stay wanted."""
        for name, (wanted, spec) in list(self.copies.items()):
            if spec is None or spec.is_store:
                continue
            writing = asyncio.to_thread(write_other, self._data, self._output.spec, spec, ends)
            try:
                rows = await beating(self._beat, writing)
            except (CrawlError, OSError) as error:
                log.warning("output_not_complete", job=wanted.job, output=name, error=str(error))
                await self._notes.failed(wanted, error, place=spec.output)
                continue
            crash_points.point("copy.written")
            await self._notes.note(wanted, rows=rows, place=spec.output)
            log.info("output_complete", job=wanted.job, output=name, rows=rows, is_final=True)
            del self.copies[name]

    def _finalised(self, ends: Mapping[int, int]) -> int:
        with nowhere() as out:
            return finalise(self._data, self._output.spec, ends, out, keeps=bool(self.copies))

    async def _note(self, rows: int, stats: dict[str, float]) -> None:
        await self._notes.note(self._output.wanted, rows=rows, place=self._place, stats=stats)

    async def _note_partial(self, rows: int) -> None:
        place = str(self._output.partial)
        for copy, _ in list(self.copies.values()):
            await self._notes.note(copy, rows=rows, place=place, is_partial=True)
        self.copies.clear()
        await self._notes.note(self._output.wanted, rows=rows, place=place, is_partial=True, stats=self._stats)


def _offsets(end: "Finished") -> dict[int, int]:
    """The ends of crawl.items behind which a job has ended."""
    return dict(enumerate(end.items))


def led_before(settings: "Settings", outputs: "Sequence[WantedOutput]") -> set[str]:
    """Names of the outputs of a job with pipelines whose rows lie here already: one of them led, in another process."""
    names = set()
    for one in outputs:
        with contextlib.suppress(CrawlError, OSError):
            if state_of(one.sink(settings).folder(settings.run.data)).exists():
                names.add(one.output.name)
    return names


async def leave_to_others(settings: "Settings", outputs: "Sequence[WantedOutput]", worker: str) -> None:
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
