"""How fast a job goes, and when it may end: pure, time is `now`."""

from collections import deque

from crawlog.schemas.progress import JobCounts

RATE_WINDOW_S = 5.0
"""Pages per second are a mean over this long."""

PACE_WINDOW_S = 60.0
"""The end is estimated by a mean over this long: what is shown should not jump."""

LOOK_S = 0.5
"""Least rest between two looks at how many pages there are."""

PACE_LEAST_S = 10.0
"""Before that a crawl's pace says nothing of its end."""


class Pace:
    """How many pages one job had, at moments of the last minute."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def look(self, pages: int, now: float) -> None:
        """Notes how many pages the job has; to be called often, once all partitions have reported."""
        if self._looks and now - self._looks[-1][0] < LOOK_S:
            return
        if self._looks and pages < self._looks[-1][1]:  # the job has begun again
            self._looks.clear()
        self._looks.append((now, pages))
        while len(self._looks) > 2 and self._looks[1][0] < now - PACE_WINDOW_S:
            self._looks.popleft()

    def rate(self) -> float:
        """Pages per second, over the last looks."""
        return self._mean(self._looks[-1][0], RATE_WINDOW_S) if self._looks else 0.0

    def left_s(self, counts: JobCounts, longest: int, now: float, delay_s: float) -> float | None:
        """Seconds until what is queued now will be fetched; None where that cannot be told.

        At the pace of the last minute, but no sooner than the longest queue of a host takes with its rests.

        Args:
            longest: URLs in the longest queue of a host.
            delay_s: Least rest between two requests to one host, over those at a time.
        """
        pace = self._mean(now, PACE_WINDOW_S)
        if not counts.queued or counts.paused or not pace or now - self._looks[0][0] < PACE_LEAST_S:
            return None
        return max(counts.queued / pace, longest * delay_s)

    def _mean(self, now: float, over_s: float) -> float:
        """Pages per second over this long, or as long as there are looks."""
        if not self._looks:
            return 0.0
        since, before = next((look for look in reversed(self._looks) if look[0] < now - over_s), self._looks[0])
        return (self._looks[-1][1] - before) / (now - since) if now > since else 0.0
