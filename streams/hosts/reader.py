"""Reads crawl.hosts into a `HostTable`: once for a command, or all the time for the service."""

import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Self

import structlog
from confluent_kafka import OFFSET_END, Message

from crawlog.streams.cluster import log_bounds
from crawlog.streams.errors import AccessDenied, EngineError
from crawlog.streams.fleet import ReadFault, Tail
from crawlog.streams.log import Topics

from .table import HostTable

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

READ_S = 30.0  # How long `read` may take, seconds

POLL_S = 1.0  # Longest wait of the thread's one poll, seconds

AGAIN_S = 30.0  # Pause after an error, seconds

FETCH_WAIT_MS = 5_000  # How long the broker may hold a request for the next record; the first one ends it


class HostReader:
    """The hosts of the fleet.

    Attributes:
        table: What was read so far.
    """

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._topic = Topics(settings.kafka.prefix).hosts
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.table = HostTable()

    def read(self) -> HostTable:
        """Read what is in the log now. Raises: EngineError: the cluster does not answer in time."""
        self._follow(time.monotonic() + READ_S)
        return self.table

    def start(self) -> Self:
        """Follow the log in a thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End the thread; the table stays as it is."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(POLL_S + 1)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001  # figures are for people only: the service goes on without them
                log.warning("hosts_unread", error=repr(error))
                if isinstance(error, sqlite3.Error):  # the disk was full, and the table's file is damaged
                    self.table = HostTable()
                self._stop.wait(AGAIN_S)

    def _follow(self, deadline: float | None = None) -> None:
        """Read from the beginning: until `close`, or up to the log's present end if there is a deadline."""
        begin, end = log_bounds(self._settings, self._topic, [0])[0]
        tail = Tail(self._settings, {self._topic: begin}, fetch_wait_ms=FETCH_WAIT_MS)
        try:
            while not self._stop.is_set():
                for item in tail.poll(0.1 if deadline else POLL_S):
                    if isinstance(item, Message):
                        self.table.take(item.key(), item.value(), item.timestamp()[1] / 1000)
                    elif isinstance(item, ReadFault):
                        if isinstance(item.error, AccessDenied):
                            raise item.error
                        tail.go_to(self._topic, OFFSET_END)  # each record replaces an older one
                self.table.is_complete = self.table.is_complete or tail.has_read({self._topic: end})
                if deadline is not None and self.table.is_complete:
                    return
                if deadline is not None and time.monotonic() > deadline:
                    raise EngineError(f"{self._topic} was not read within {READ_S:.0f} s; see `crawlog doctor`")
        finally:
            tail.close()
