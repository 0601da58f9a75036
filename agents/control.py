"""Follows crawl.control: what every worker must know, told to its event loop in the order of the log.

A plain consumer in a thread, from the topic's beginning: the topic is compacted and small, and a worker that starts
must know every job before it can do anything.
"""

import asyncio
import threading
from collections.abc import Callable

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from ..schemas import control
from ..streams.kafka import consumer_config
from ..streams.settings import Settings

log = structlog.get_logger()

POLL_S = 0.5
"""Longest wait of one poll: a stop is heard after at most this."""

Told = Callable[[control.Control], None]


class ControlTail:
    """Calls `told` in the event loop with each record, those of the past first.

    Args:
        topic: Full name of crawl.control.
    """

    def __init__(self, settings: Settings, topic: str, told: Told) -> None:
        self._settings = settings
        self._topic = topic
        self._told = told
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
        consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        try:
            while not self._stop.is_set():
                self._poll(consumer, loop)
        except RuntimeError:  # the loop is closed: the worker has ended
            pass
        finally:
            consumer.close()

    def _poll(self, consumer: Consumer, loop: asyncio.AbstractEventLoop) -> None:
        record = consumer.poll(POLL_S)
        if record is None:
            return
        error = record.error()
        if error is not None:
            log.warning("control_unread", error=error.str())
            self._stop.wait(POLL_S)
            return
        try:
            heard = control.decode(record.key(), record.value())
        except ValueError as failure:
            log.warning("control_record_bad", offset=record.offset(), error=str(failure))
            return
        if heard is not None:
            loop.call_soon_threadsafe(self._told, heard)
