"""How many lines pass: of a child process, of a job, of a terminal. Pure."""


class LineRate:
    """A token bucket. Once it is empty it stays shut for a second, so that what it leaves out is counted once a second.

    Args:
        lines_s: Lines a second.
        burst: Lines at once.
        now: Of a steady clock, seconds.
    """

    def __init__(self, lines_s: float, burst: int, now: float) -> None:
        self._lines_s, self._burst = lines_s, burst
        self._left, self._at, self._opens_at = float(burst), now, now

    def has_room(self, now: float) -> bool:
        """Whether a line may pass."""
        self._left = min(self._burst, self._left + (now - self._at) * self._lines_s)
        self._at = now
        if self._left < 1.0 and now >= self._opens_at:
            self._opens_at = now + 1.0
        return now >= self._opens_at

    def use(self) -> None:
        """Counts a line that passes."""
        self._left -= 1.0
