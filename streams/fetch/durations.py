"""How long requests took: counts by duration for the reports. Pure."""

from bisect import bisect_left

from crawlog.schemas.progress import TOOK_S


class Durations:
    """Counts of requests by duration, since the start.

    Attributes:
        counts: Number k counts durations of at most `TOOK_S[k]` seconds, the last one longer ones.
        sum_s: Sum of all durations.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(TOOK_S) + 1)
        self.sum_s = 0.0

    def note(self, took_s: float) -> None:
        """Count a request."""
        self.counts[bisect_left(TOOK_S, took_s)] += 1
        self.sum_s += took_s
