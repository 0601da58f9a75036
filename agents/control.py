"""The side topics: follows crawl.control from its beginning, and finds what is no record on it and on crawl.progress.

A plain consumer in a thread, since every worker must know every job and command, whatever partitions it owns. Stages
read their own input and send its garbage to crawl.dead; these two topics are nobody's input, so parse does it here, for
what arrives while the worker runs.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from crawlog.schemas import control, progress
from crawlog.streams.frontier import Commands
from crawlog.streams.log import (
    DAMAGE_CODES,
    DENIED_CODES,
    Topics,
    consumer_config,
    is_log_end,
    partition_edges,
    read_error,
)
from crawlog.streams.settings import Settings

if TYPE_CHECKING:
    from crawlog.streams.worker import CrawlApp

log = structlog.get_logger()

POLL_S = 0.5
"""Longest wait of one poll: a stop is heard after at most this."""

BEAT_S = 1.0
"""A paused stage tells the watchdog this often that it waits on purpose."""


class Garbage(NamedTuple):
    """A record that is none, and why."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    error: str


Told = Callable[[control.Control], None]
Found = Callable[[Garbage], None]


class ControlTail:
    """Calls `told` in the event loop with each control record, those of the past first, and `found` with garbage.

    Args:
        found: None where another stage looks for garbage.
        caught_up: Called once, in the loop, when all that the topic held has been told.
        failed: Called, in the thread, with what ended it: nothing is told from then on.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        told: Told,
        found: Found | None = None,
        caught_up: Callable[[], None] = lambda: None,
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._failed = failed
        self._settings = settings
        self._topics = topics
        self._told = told
        self._found = found
        self._caught_up = caught_up
        self._is_caught_up = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to read; call it once, from the loop."""
        self._thread = threading.Thread(target=self._run, args=(loop,), name="control-tail", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End soon; does not wait."""
        self._stop.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._follow(loop)
        except Exception as error:  # noqa: BLE001  # whatever it is: the worker would be deaf to commands
            if not loop.is_closed():  # else the worker has ended
                self._failed(error)

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        consumer = Consumer(consumer_config(self._settings) | {"enable.partition.eof": True})
        try:
            past = self._assign(consumer)
            if not past:
                self._tell_caught_up(loop)
            while not self._stop.is_set():
                self._poll(consumer, loop, past)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> int:
        """Begin to read; returns where crawl.control ended then, 0 when it held nothing."""
        while not self._stop.is_set():
            try:
                first, past = partition_edges(consumer, self._topics.control, [0])[0]
                places = [TopicPartition(self._topics.control, 0, OFFSET_BEGINNING)]
                if self._found is not None:
                    _, end = partition_edges(consumer, self._topics.progress, [0])[0]
                    places.append(TopicPartition(self._topics.progress, 0, end))
            except KafkaException as error:
                log.warning("control_unread", error=str(error))
                self._stop.wait(POLL_S)
                continue
            consumer.assign(places)
            return past if past > first else 0
        return 0

    def _poll(self, consumer: Consumer, loop: asyncio.AbstractEventLoop, past: int) -> None:
        record = consumer.poll(POLL_S)
        if record is None:
            return
        error = record.error()
        is_control = record.topic() == self._topics.control
        if error is not None and not is_log_end(error):
            self._meet(consumer, record, error)
            return
        if error is None and not is_control:
            if record.value() and progress.decode(record.value()) is None:
                self._tell_garbage(loop, record, "no report of progress")
        elif error is None:
            self._read(loop, record, past)
        if is_control and (error is not None or (record.offset() or 0) + 1 >= past):
            self._tell_caught_up(loop)  # compaction may have taken the last record: then the end says so

    def _meet(self, consumer: Consumer, record: Message, error: KafkaError) -> None:
        """An error in place of a record.

        Raises: DamagedLog: a command or a job cannot be read. AccessDenied: nor may they be.
        """
        if error.code() in DENIED_CODES and record.topic():
            raise read_error(record, self._settings)
        if error.code() not in DAMAGE_CODES:
            log.warning("control_unread", error=error.str())
            self._stop.wait(POLL_S)
        elif record.topic() == self._topics.control:
            raise read_error(record)
        else:
            consumer.seek(TopicPartition(self._topics.progress, 0, OFFSET_END))  # the next report replaces it

    def _read(self, loop: asyncio.AbstractEventLoop, record: Message, past: int) -> None:
        try:
            heard = control.decode(record.key(), record.value())
        except Exception as failure:  # noqa: BLE001  # whatever a record breaks, it would break in each worker
            why = str(failure) if isinstance(failure, ValueError) else f"{type(failure).__name__}: {failure}"
            log.warning("control_record_bad", offset=record.offset(), error=why)
            if (record.offset() or 0) >= past:  # what is older was found by whoever ran then
                self._tell_garbage(loop, record, why)
            return
        if heard is not None:
            loop.call_soon_threadsafe(self._told, heard)

    def _tell_caught_up(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_caught_up:
            self._is_caught_up = True
            loop.call_soon_threadsafe(self._caught_up)

    def _tell_garbage(self, loop: asyncio.AbstractEventLoop, record: Message, error: str) -> None:
        if self._found is None:
            return
        garbage = Garbage(record.topic() or "", record.offset() or 0, record.key(), record.value(), error)
        loop.call_soon_threadsafe(self._found, garbage)


class Obedience:
    """What the operator's commands mean for one worker; nothing is worked on before those of the past are known.

    Args:
        obey: Called with the commands in force: when those of the past are known, and with each new one.

    Attributes:
        is_rebalancing: Nobody is to wait; what was not taken is read again.
    """

    def __init__(self, stage: str, obey: Callable[[Commands], None] = lambda _: None) -> None:
        self._stage = stage
        self._obey = obey
        self._commands = Commands()
        self._known = False
        self.is_rebalancing = False
        self._changed = asyncio.Event()

    @property
    def paused(self) -> bool:
        """Whether a command keeps the stage from working."""
        return self._commands.of_stage(self._stage).paused

    @property
    def works(self) -> bool:
        """Whether the stage may work."""
        return self._known and not self.paused

    def heard(self, record: control.Control) -> None:
        """A record of crawl.control; only commands matter here."""
        if not isinstance(record, control.Command):
            return
        self._commands.take(record)
        if self._known:
            log.info("command", action=record.action, kind=record.kind, target=record.target)
            self._tell()

    def caught_up(self) -> None:
        """All commands of the past are known."""
        self._known = True
        for command in self._commands.in_force:
            log.info("command_in_force", action=command.action, kind=command.kind, target=command.target)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._obey(self._commands)

    def rebalance_started(self) -> None:
        """Let nobody wait for the end of a pause."""
        self.is_rebalancing = True
        self._changed.set()

    def owned(self) -> None:
        """A rebalance has ended."""
        self.is_rebalancing = False

    async def admitted(self, beat: Callable[[], None]) -> bool:
        """Whether the record in hand may be worked on: waits while the stage is paused, and says that it does.

        False when a rebalance begins meanwhile: the record was not taken, so it is read again.
        """
        while not self.works:
            if self.is_rebalancing:
                return False
            beat()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._changed.wait()
        return True


def follow(app: "CrawlApp", obedience: Obedience, told: Told | None = None, found: Found | None = None) -> None:
    """Let a worker hear crawl.control from its beginning; call it once, from the loop.

    A worker that can hear no more is ended: it would obey no command, and know of no new job.
    """

    def hear(record: control.Control) -> None:
        obedience.heard(record)
        if told is not None:
            told(record)

    def failed(error: Exception) -> None:
        log.error("control_unread", exc_info=error)
        app.watchdog.end("control_unread", error, error=repr(error))

    names = Topics(app.crawl.kafka.prefix)
    following = ControlTail(app.crawl, names, hear, found, obedience.caught_up, failed=failed)
    following.start(asyncio.get_running_loop())
