"""The side topics: follows crawl.control from its beginning, and finds what is no record on it and on crawl.progress.

A plain consumer in a thread, since every parse worker must know every job, whatever partitions it owns. Stages read
their own input and send its garbage to crawl.dead; these two topics are nobody's input, so it is done here, for what
arrives while the worker runs.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import NamedTuple

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from ..schemas import control, progress
from ..streams.kafka import consumer_config, watermarks
from ..streams.settings import Settings
from ..streams.topics import Topics

log = structlog.get_logger()

POLL_S = 0.5
"""Longest wait of one poll: a stop is heard after at most this."""


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
    """Calls `told` in the event loop with each control record, those of the past first, and `found` with garbage."""

    def __init__(self, settings: Settings, topics: Topics, told: Told, found: Found) -> None:
        self._settings = settings
        self._topics = topics
        self._told = told
        self._found = found
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
        consumer = Consumer(consumer_config(self._settings))
        try:
            past = self._assign(consumer)
            while not self._stop.is_set():
                self._poll(consumer, loop, past)
        except RuntimeError:  # the loop is closed: the worker has ended
            pass
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> int:
        """Begin to read; returns where crawl.control ended then."""
        while not self._stop.is_set():
            try:
                _, past = watermarks(consumer, self._topics.control, 0)
                _, end = watermarks(consumer, self._topics.progress, 0)
            except KafkaException as error:
                log.warning("control_unread", error=str(error))
                self._stop.wait(POLL_S)
                continue
            places = ((self._topics.control, OFFSET_BEGINNING), (self._topics.progress, end))
            consumer.assign([TopicPartition(topic, 0, offset) for topic, offset in places])
            return past
        return 0

    def _poll(self, consumer: Consumer, loop: asyncio.AbstractEventLoop, past: int) -> None:
        record = consumer.poll(POLL_S)
        if record is None:
            return
        error = record.error()
        if error is not None:
            log.warning("control_unread", error=error.str())
            self._stop.wait(POLL_S)
            return
        if record.topic() == self._topics.progress:
            if record.value() and progress.decode(record.value()) is None:
                self._tell_garbage(loop, record, "no report of progress")
            return
        try:
            heard = control.decode(record.key(), record.value())
        except ValueError as failure:
            log.warning("control_record_bad", offset=record.offset(), error=str(failure))
            if (record.offset() or 0) >= past:  # what is older was found by whoever ran then
                self._tell_garbage(loop, record, str(failure))
            return
        if heard is not None:
            loop.call_soon_threadsafe(self._told, heard)

    def _tell_garbage(self, loop: asyncio.AbstractEventLoop, record: Message, error: str) -> None:
        garbage = Garbage(record.topic() or "", record.offset() or 0, record.key(), record.value(), error)
        loop.call_soon_threadsafe(self._found, garbage)
