"""Folds records of one job into the state of one output; garbage becomes dead letters.

dead letters acknowledged ─► rows in the file ─► state in one batch
"""

import asyncio
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas import control
from crawlog.schemas.codec import Record
from crawlog.schemas.control import Command
from crawlog.schemas.dead import DeadLetter
from crawlog.streams.cluster import log_bounds
from crawlog.streams.log import Producer, Topics, read_records, send_letter
from crawlog.streams.sink import Entry, RawItems, SinkState, entry

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()


class OutputStage:
    """See the module.

    Args:
        topics: Full names of crawl.items and crawl.dead.
    """

    def __init__(self, settings: "Settings", topics: tuple[str, str], results: SinkState, producer: Producer) -> None:
        self.results = results
        self._settings = settings
        self._items, self._dead = topics
        self._producer = producer
        self._one_at_a_time = asyncio.Lock()

    async def write(self, batch: list[Record], read: Mapping[int, int]) -> None:
        """Fold records of the job; `read` are offsets up to which there is no other one.

        Raises: RawItems: the state is emptied, for raw items, and must be filled from the beginning.
        """
        async with self._one_at_a_time:
            dead: list[DeadLetter] = []
            try:
                folded = [(one.partition, one.offset, self._entry(one, dead)) for one in batch]
            except RawItems:
                self.results.begin_again(raw=True)
                raise
            known = self.results.meta.offsets
            ends: list[tuple[int, int, Entry | None]] = [
                (at, end - 1, None) for at, end in read.items() if end > known.get(at, 0)
            ]
            await self.bury(dead)
            self.results.fold(folded + ends)

    def _entry(self, record: Record, dead: list[DeadLetter]) -> Entry | None:
        """The rows of a record; garbage becomes a dead letter, unless its key (`JOB URL`) names another job."""
        try:
            return entry(record.value, self.results.sink, raw=self.results.meta.raw)
        except ValueError as error:
            named, space, _ = (record.key or b"").partition(b" ")
            job = named.decode("utf-8", "replace") if space else ""  # any other key names no job: it has no other sink
            if job in ("", self.results.sink.job):
                dead.append(
                    DeadLetter(
                        topic=self._items,
                        partition=record.partition,
                        offset=record.offset,
                        stage="sink",
                        job=job,
                        error=f"{type(error).__name__}: {error}",
                        key=record.key,
                        value=record.value,
                        traceback=traceback.format_exc(),
                    )
                )
            return None

    async def bury(self, dead: list[DeadLetter]) -> None:
        """Send dead letters, and wait for their acknowledgement."""
        for letter in dead:
            log.warning("dead_letter", partition=letter.partition, offset=letter.offset, error=letter.error)
            send_letter(self._producer.send, self._dead, letter)
        await self._acknowledged()

    async def close_job(self, reason: str) -> None:
        """Stop the job, as its spider asks, and wait for the acknowledgement."""
        command = Command("stop", job=self.results.sink.job, at=time.time(), reason=reason)
        topic = Topics(self._settings.kafka.prefix).control
        self._producer.send(topic, control.encode(command), key=control.key(command), partition=0)
        await self._acknowledged()

    async def _acknowledged(self) -> None:
        while self._producer.outstanding:
            self._producer.poll()
            await asyncio.sleep(0.002)

    async def original(self, partition: int, offset: int) -> bytes | None:
        """The value of a record of crawl.items; None if the log no longer has it."""
        return await asyncio.to_thread(self._read, partition, offset)

    def _read(self, partition: int, offset: int) -> bytes | None:
        first, _ = log_bounds(self._settings, self._items, [partition])[partition]
        records = read_records(self._settings, self._items, partition, offset, offset + 1) if offset >= first else ()
        return next((record.value() for record in records), None)
