"""The archives of jobs: each is filled by a task of its own beside the outputs of rows, as it reads crawl.pages.

OutputsWorker plans ─► begin, go on, end ─► a thread: PageArchiver.fill ─┬─ the job goes on: again after LOOK_S
                                                                         └─ it had ended before: closed ─► OutputNote

All pages of a job are in the log before the note about its end. So a fill that began behind that note has them all.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import KafkaException

from crawlog.streams import exit_codes
from crawlog.streams.errors import CrawlError, DamagedLog
from crawlog.streams.warc import PageArchiver

if TYPE_CHECKING:
    from crawlog.schemas.dead import DeadLetter
    from crawlog.streams.settings import Settings
    from crawlog.streams.sink_groups import SinkSpec

    from .items_log import ItemsLog
    from .notes import OutputNotes
    from .wanted import WantedOutput

log = structlog.get_logger()

LOOK_S = 1.0  # Between two looks at crawl.pages

AGAIN_S = 5.0  # Pause after an archive failed, as on a full disk

Key = tuple[str, str]


class PagesOutputs:
    """The archives of a worker.

    Args:
        notes: Takes what became of them.
        letters: Takes dead letters.
    """

    def __init__(self, settings: "Settings", notes: "OutputNotes", letters: "ItemsLog") -> None:
        self._make: Callable[[WantedOutput], PagesOutput] = lambda one: PagesOutput(settings, notes, letters, one)
        self._settings = settings
        self._outputs: dict[Key, PagesOutput] = {}

    @property
    def trouble(self) -> str:
        """Why nothing is written; empty if all is well."""
        return next((one.trouble for one in self._outputs.values() if one.trouble), "")

    @property
    def note(self) -> str:
        """A message for the user; empty without one."""
        return next((one.note for one in self._outputs.values() if one.note), "")

    def of(self, partition: int, count: int) -> "list[PagesOutput]":
        """Those that belong to one of `count` partitions."""
        return [one for one in self._outputs.values() if one.wanted.home % count == partition]

    async def plan(self, job: str, every: "Iterable[WantedOutput]") -> "list[WantedOutput]":
        """Begin, change and end the archives among the outputs of a job that belong here; returns the others."""
        here = list(every)
        archives = {one.key: one for one in here if one.is_archive(self._settings)}
        wanted = {key: one for key, one in archives.items() if not one.is_settled}
        await self.end(key for key in self._outputs if key[0] == job and key not in wanted)
        for key, one in wanted.items():
            if key in self._outputs:
                self._outputs[key].want(one)
            else:
                self._outputs[key] = self._make(one)
        return [one for one in here if one.key not in archives]

    async def end(self, keys: Iterable[Key] | None = None) -> None:
        """End these, or all, and wait until nothing is written any more."""
        ended = [self._outputs.pop(key) for key in list(self._outputs if keys is None else keys)]
        await asyncio.gather(*(one.end() for one in ended))


class PagesOutput:
    """One archive."""

    def __init__(self, settings: "Settings", notes: "OutputNotes", letters: "ItemsLog", wanted: "WantedOutput") -> None:
        self.trouble = self.note = ""
        self._settings = settings
        self._notes = notes
        self._letters = letters
        self.wanted = wanted
        self._archiver: PageArchiver | None = None
        self._sink: SinkSpec | None = None
        self._is_over = False
        self._look = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run())

    @property
    def waiting(self) -> dict[str, int]:
        """By its name, how many records of crawl.pages it has not read yet, of any job."""
        archiver = self._archiver
        return {self.wanted.output.name: archiver.waiting} if archiver is not None and archiver.waiting else {}

    def want(self, wanted: "WantedOutput") -> None:
        """Go on as it is wanted now."""
        self.wanted = wanted
        self._look.set()

    async def end(self) -> None:
        self._is_over = True
        self._look.set()
        await self._task

    async def _run(self) -> None:
        try:
            while not self._is_over:
                self._look.clear()
                pause_s = await self._turn()
                try:
                    async with asyncio.timeout(pause_s):
                        await self._look.wait()
                except TimeoutError:
                    pass
        finally:
            self._close()

    async def _turn(self) -> float:
        """Bring the archive up to date; returns how long to rest."""
        wanted = self.wanted
        try:
            await asyncio.to_thread(self._fill, wanted)
            self.trouble = ""
            await self._tell(wanted)
        except DamagedLog as error:
            exit_codes.end(error)
        except (CrawlError, KafkaException, OSError) as error:
            self.trouble = f"{wanted.shown}: {getattr(error, 'strerror', None) or error}".splitlines()[0]
            log.warning("archive_not_written", job=wanted.job, error=str(error))
            self._close()
            await self._notes.failed(wanted, error, self.trouble if isinstance(error, OSError) else "")
            return AGAIN_S
        except Exception as error:
            self.trouble = repr(error)
            log.exception("archive_broken", job=wanted.job, error=repr(error))
            self._close()
            await self._notes.note(wanted, error=self.trouble)
            return AGAIN_S
        return LOOK_S

    def _fill(self, wanted: "WantedOutput") -> None:
        sink = wanted.sink(self._settings)
        if sink != self._sink:
            self._close()
        if self._archiver is None:
            self._sink = sink
            self._archiver = PageArchiver(self._settings, sink, wanted.spec, self._bury)
        self._archiver.fill(lambda: not self._is_over)
        self.note = self._archiver.note
        if wanted.end is not None and not self._is_over:
            self._archiver.finish()

    async def _tell(self, wanted: "WantedOutput") -> None:
        """Note that the archive is complete, or that it is written again."""
        if self._is_over or self._archiver is None:
            return
        if wanted.end is not None:
            place = self._sink.output if self._sink is not None else ""
            await self._notes.note(wanted, rows=self._archiver.pages, place=place, is_partial=not wanted.is_final)
        elif wanted.has_failed:
            await self._notes.note(wanted, rev=0)

    def _bury(self, dead: "list[DeadLetter]") -> None:
        asyncio.run_coroutine_threadsafe(self._letters.bury(dead), self._loop).result()

    def _close(self) -> None:
        archiver, self._archiver = self._archiver, None
        if archiver is not None:
            archiver.close()
