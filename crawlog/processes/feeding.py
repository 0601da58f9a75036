"""When a spider that is fed is asked for more. Pure, but for the ends of the log that its caller reads.

`start` has given all ─► waits ─┬─ it gave some, few requests wait ──► FEED at once
                                ├─ it gave none ──► FEED again after a pause
                                └─ the job has nothing left (`EndSteps`) ──► IDLE: `spider_idle`
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crawlog.streams.jobs import EndSteps, FleetReports
    from crawlog.streams.spiders import CallResult

MOST_FED = 1000  # Requests of a job that wait, from which on none are taken from outside: they are better left there

AGAIN_S = 0.5  # Pause after a part without requests, seconds


class Feeding:
    """The wishes of one job.

    Attributes:
        waits: Whether the spider's `start` has given all, so that a part is only given for a wish.
    """

    def __init__(self, job: str) -> None:
        self.waits = False
        self._job = job
        self._flows = False
        self._again_at = 0.0
        self._idle: EndSteps | None = None

    def took(self, result: "CallResult") -> None:
        """A part was taken."""
        self.waits, self._flows = result.waits, bool(result.requests)
        if self._flows:
            self._again_at, self._idle = 0.0, None

    def wish(self, waiting: int, reports: "FleetReports", ends: Callable[[str], tuple[int, ...]], now: float) -> bytes:
        """What the spider is asked for now; empty for nothing. All that it gave is in the log.

        Args:
            waiting: Requests of the job that are queued or not yet folded.
            ends: Reads the end of each partition of a stage's input.

        Raises: EngineError: the log does not answer.
        """
        from crawlog.streams.jobs import EndSteps
        from crawlog.streams.spiders import FEED, IDLE

        if now < self._again_at:
            return b""
        if not (self._flows and waiting < MOST_FED):
            self._again_at = now + AGAIN_S
            if not waiting:
                self._idle = self._idle or EndSteps(self._job, ends("fetch"))
                if self._idle.step(reports, ends):
                    self._idle = None
                    return IDLE
        return FEED if waiting < MOST_FED else b""
