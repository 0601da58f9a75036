"""`crawlog worker start`: runs the `start` of spiders for a fleet of standalone workers, until SIGTERM.

`up` and `run` do this in their own process. Workers of their own (compose, Faust) have neither. What this process
knows comes from the log, so a killed one is simply started again. Two of them side by side do no harm: both give the
same requests, and what a job knows falls away. It reports itself as a worker that owns no partition, and obeys an order
to end as workers do.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from crawlog import __version__
from crawlog.schemas import progress
from crawlog.schemas.progress import IDLE, Progress
from crawlog.streams import files
from crawlog.streams.errors import EngineError
from crawlog.streams.jobs import RECENT_S, FleetReports
from crawlog.streams.readiness import OwnReadiness

from .starts import Starts

if TYPE_CHECKING:
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.log import Producer
    from crawlog.streams.settings import Settings

LOOK_S = 0.2  # Pause between two looks, seconds

AWAY_S = 1.0  # Pause after the log could not be read, seconds


LAST_S = 0.3  # Longest wait for the last report of this process, seconds

REPORT_S = 2.0  # Time between two reports of this process, seconds


class FollowedLog(NamedTuple):
    """The log, as `Starts` follows it."""

    settings: "Settings"
    picture: FleetReports
    watch: "ProgressReader"
    producer: "Producer"


class OwnReports:
    """Reports this process."""

    def __init__(self, settings: "Settings", worker: str) -> None:
        from crawlog.streams.log import Producer, Topics
        from crawlog.streams.worker import OwnProcess

        self._worker = worker
        self._readiness = OwnReadiness(settings.run.ready_file)
        self._own = OwnProcess(__version__)
        self._topic = Topics(settings.kafka.prefix).progress
        self._producer = Producer(settings, f"{worker}-progress")
        self._due = 0.0

    def close(self) -> None:
        """Reports the end of this process."""
        from crawlog.streams.worker import why_ended

        self._send(why_ended())
        self._producer.flush(LAST_S)

    def look(self) -> None:
        """Reports if it is time, and the last report is in the log: a late one is worthless."""
        self._producer.poll()
        self._readiness.look()
        if self._producer.outstanding or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + REPORT_S
        self._send()

    def _send(self, ended: str = "") -> None:
        report = Progress(self._worker, IDLE, -1, time.time(), pid=os.getpid(), idle_stage="start", ended=ended)
        self._own.sign([report])
        self._producer.send(self._topic, progress.encode(report), key=progress.key(report), partition=0)


def run_starts(settings: "Settings", say: Callable[[str], None]) -> None:
    """Runs the `start` of each job in the log whose spider may run here; returns after SIGTERM or SIGINT.

    Args:
        settings: With the address of a log that has its topics.
        say: Takes a line for the operator.

    Raises: EngineError: the log does not answer at the beginning. Later the process waits for it.
    """
    from crawlog.streams import logs
    from crawlog.streams.app import own_name
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.log import Producer

    os.umask(files.OTHERS)
    logs.configure(settings.log.level, settings.log.format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    picture, worker = FleetReports(), own_name()
    with closing(ProgressReader(settings, picture, since=time.time() - RECENT_S)) as watch:
        producer = Producer(settings, "crawlog-start")
        starts = Starts(FollowedLog(settings, picture, watch, producer), say, worker)
        reports = OwnReports(settings, worker)
        say("follows the log, and runs the `start` of spiders; SIGTERM ends it")
        with closing(reports), closing(starts):
            while not stop.is_set():
                try:
                    watch.poll(LOOK_S)
                except EngineError:  # the broker may be restarting
                    stop.wait(AWAY_S)
                starts.look()
                reports.look()
