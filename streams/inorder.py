"""Acknowledging in offset order: what was taken and is not done yet holds back all that comes after it."""

from collections import deque


class InOrder:
    """The offsets of one partition that were taken and not acknowledged yet."""

    __slots__ = ("_done", "_taken")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, offset: int) -> None:
        """An offset was taken; they come in rising order, with gaps where the log has none."""
        assert not self._taken or offset > self._taken[-1], "offsets rise"
        self._taken.append(offset)

    def finish(self, offset: int) -> int | None:
        """An offset is done; returns the next offset to read when that moved, else None."""
        self._done.add(offset)
        moved: int | None = None
        while self._taken and self._taken[0] in self._done:
            moved = self._taken.popleft()
            self._done.discard(moved)
        return None if moved is None else moved + 1
