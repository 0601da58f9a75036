"""Follows crawl.progress in a thread, and passes orders and ends that are due to the event loop."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from crawlog.schemas.control import Finished
from crawlog.schemas.progress import FLEET
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import ProgressReader
from crawlog.streams.jobs import RECENT_S, DueOrder, Dues, FleetReports, FollowedJobs

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

log = structlog.get_logger()

BUSY_S = 0.1  # Time that reports are gathered before each look while a job is open, seconds

IDLE_S = 0.5  # The same while none is: only finished jobs may get URLs

AGAIN_S = 1.0  # Pause after an error of the cluster, seconds


class Following(threading.Thread):
    """Looks at each report until stopped.

    Args:
        act: Called in this thread with what is due.
    """

    def __init__(self, settings: "Settings", jobs: FollowedJobs, act: Callable[[DueOrder | Finished], None]) -> None:
        super().__init__(name="coordinator", daemon=True)
        self._settings = settings
        self._jobs = jobs
        self._act = act
        self._dues = Dues(jobs)
        self._undone: deque[DueOrder | Finished] = deque()
        self._stop_it = threading.Event()

    def stop(self) -> None:
        """Asks the thread to end; does not wait for it."""
        self._stop_it.set()

    def undone(self, due: DueOrder | Finished) -> None:
        """Takes back what was due, from any thread: it is decided again at the next look."""
        self._undone.append(due)

    def run(self) -> None:
        """Follows the reports; after an error of the cluster it begins again, with the same decisions given."""
        while not self._stop_it.is_set():
            try:
                self._follow()
            except EngineError as error:
                log.warning("reports_unread", error=str(error))
            except Exception as error:
                log.exception("coordinator_failed", error=repr(error))
            self._stop_it.wait(AGAIN_S)

    def _follow(self) -> None:
        reports = FleetReports()
        reports.sink = FLEET
        watch = ProgressReader(self._settings, reports, since=time.time() - RECENT_S)
        try:
            while not self._stop_it.is_set():
                watch.poll(BUSY_S if self._jobs.open else IDLE_S)
                self._look(reports, watch)
        finally:
            watch.close()

    def _look(self, reports: FleetReports, watch: ProgressReader) -> None:
        while self._undone:
            self._dues.forget(self._undone.popleft())
        jobs = list(self._jobs.open.values())
        found: dict[str, tuple[int, ...]] = {}

        def ends(stage: str) -> tuple[int, ...]:
            """Asked for once in a look: after the newest report, and after the newest change of a job."""
            if stage not in found:
                found[stage] = watch.ends(stage)
            return found[stage]

        for due in (*self._dues.of_open(jobs, reports, ends), *self._dues.of_finished(self._jobs.finished, reports)):
            if self._stop_it.is_set():
                return
            self._act(due)
