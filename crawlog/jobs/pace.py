"""The speed of a job, and the estimate of its end. Pure: the caller passes the time as `now`."""

from collections import deque

from crawlog.schemas.progress import JobCounts

RATE_WINDOW_S = 5.0
"""Pages per second are a mean over this time."""

PACE_WINDOW_S = 60.0
"""The end is estimated from a mean over this time, so that the estimate does not jump."""

LOOK_S = 0.5
"""Minimum time between two samples."""

PACE_LEAST_S = 10.0
"""A job with a shorter history gets no estimate."""


class Pace:
    """Samples of one job's page count over the last minute."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, pages: int, now: float) -> None:
        """Adds a sample. Call this often, but only once all partitions have reported."""
        if self._looks and now - self._looks[-1][0] < LOOK_S:
            return
        if self._looks and pages < self._looks[-1][1]:  # the job has begun again
            self._looks.clear()
        self._looks.append((now, pages))
        while len(self._looks) > 2 and self._looks[1][0] < now - PACE_WINDOW_S:
            self._looks.popleft()

    def rate(self) -> float:
        """Pages per second over the last `RATE_WINDOW_S`."""
        return self._mean(self._looks[-1][0], RATE_WINDOW_S) if self._looks else 0.0

    def left_s(self, counts: JobCounts, longest: int, now: float, delay_s: float) -> float | None:
        """Estimated seconds until all queued URLs are fetched; None if unknown.

        The estimate uses the pace of the last minute. Its lower bound is the time that the longest host queue needs.

        Args:
            longest: URLs in the longest queue of a host.
            delay_s: Minimum delay between two requests to one host, divided by the requests at a time.
        """
        pace = self._mean(now, PACE_WINDOW_S)
        if not counts.queued or counts.paused or not pace or now - self._looks[0][0] < PACE_LEAST_S:
            return None
        return max(counts.queued / pace, longest * delay_s)

    def _mean(self, now: float, over_s: float) -> float:
        """Pages per second over this time, or since the first sample if that is later."""
        if not self._looks:
            return 0.0
        since, before = next((look for look in reversed(self._looks) if look[0] < now - over_s), self._looks[0])
        return (self._looks[-1][1] - before) / (now - since) if now > since else 0.0
