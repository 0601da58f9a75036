"""What a fleet's sink worker reads of crawl.control beside the tail, and writes there: notes about outputs."""

import asyncio
import platform
import time
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.schemas import control
from crawlog.schemas.control import JobCopy, OutputNote
from crawlog.streams.cluster import log_bounds
from crawlog.streams.control import read_control
from crawlog.streams.errors import Misconfigured
from crawlog.streams.log import Producer, Topics
from crawlog.streams.sink import PrivateNotes

from .wanted import WantedOutput, WantedOutputs

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings


MACHINE = platform.node()  # FILE lies on the machine of the worker that made it


class OutputNotes:
    """See the module.

    Args:
        wanted: Hears what is read and written here at once.
        private: Keeps the notes about outputs of a run, in place of crawl.control.
    """

    def __init__(
        self,
        settings: "Settings",
        wanted: WantedOutputs,
        producer: Producer,
        worker: str,
        private: PrivateNotes | None = None,
    ) -> None:
        self._settings = settings
        self._names = Topics(settings.kafka.prefix)
        self._wanted = wanted
        self._producer = producer
        self._worker = worker
        self._private = private
        self._end = -1

    async def learn(self) -> bool:
        """Read crawl.control to its end, if it has grown; whether a job was new.

        Its tail may be behind. A job's record is in crawl.control before the job's first row is in crawl.items, so a
        row of an unknown job means this.
        """
        _, end = (await asyncio.to_thread(log_bounds, self._settings, self._names.control, [0]))[0]
        if end == self._end:
            return False
        control = await asyncio.to_thread(read_control, self._settings, self._names)
        self._end = end
        new = [one for one in control.of(JobCopy) if not self._wanted.knows(one.job)]
        for record in new:
            self._wanted.heard(record)
        return bool(new)

    async def failed(self, wanted: WantedOutput, error: Exception, text: str = "", *, place: str = "") -> bool:
        """Note that an output cannot be written, unless the next try may do, as where another process has it yet.

        Args:
            text: The error as people read it, if it has a better text than its own.

        Returns: Whether it is news.
        """
        if not isinstance(error, Misconfigured | OSError):
            return True
        return await self.note(wanted, error=text or str(error), place=place)

    def says_failed(self, wanted: WantedOutput, place: str) -> bool:
        """Whether the newest note says that a file could not be made behind the job's present end."""
        note = self._wanted.note(wanted.job, wanted.note_name)
        return note is not None and (note.epoch, note.rev, note.place) == (wanted.epoch, wanted.rev, place)

    async def note(self, wanted: WantedOutput, *, rev: int | None = None, **became: Any) -> bool:
        """Write what became of an output to crawl.control, unless it says so already.

        An error that stays is noted once, whichever worker meets it. FILE lies on the machine of the worker that made
        it, so the same FILE of another worker is news.

        Args:
            rev: 0 while the output is being written; else that of the job.
            became: Fields of `OutputNote`.

        Returns: Whether it is news.
        """
        about = wanted.job, wanted.note_name, time.time()
        became["error"] = " ".join(became.get("error", "").split())[:1000]
        rev = wanted.rev if rev is None else rev
        note = OutputNote(*about, epoch=wanted.epoch, rev=rev, worker=self._worker, machine=MACHINE, **became)
        known = wanted.note
        by: dict[str, Any] = {"worker": note.worker, "machine": note.machine} if note.error else {}
        ignored = by | {"at": note.at}
        if known is not None and msgspec.structs.replace(known, **ignored) == note:
            return False
        if self._private is not None:
            self._private.note(note)
        else:
            self._producer.send(self._names.control, control.encode(note), key=control.key(note), partition=0)
            while self._producer.outstanding:
                self._producer.poll()
                await asyncio.sleep(0.002)
        self._wanted.noted(note)  # the tail gives it again, later
        return True

    def lack(self, wanted: WantedOutput, urls: tuple[str, ...], unmade: dict[int, int]) -> None:
        """Note for a run which rows lack in its output, as `Lacking` has them."""
        if self._private is not None:
            self._private.lack(wanted.note_name, urls, unmade)
