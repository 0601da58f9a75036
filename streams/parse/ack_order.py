"""Acknowledges pages in offset order: a page that is not done holds back all later ones of its partition.

    outputs, acknowledged in any order ─► Page: done with the last one ─► AckOrder: the partition's offset moves

`Taken` keeps both for all partitions that a worker owns.
"""

from collections import deque
from collections.abc import Callable
from functools import partial


class AckOrder:
    """The offsets of one partition that were taken and not acknowledged yet."""

    __slots__ = ("_done", "_taken")

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, offset: int) -> None:
        """Take an offset; offsets rise, and may have gaps.

        Raises: ValueError: it is not above those that wait.
        """
        if self._taken and offset <= self._taken[-1]:
            raise ValueError(f"its offset is not above {self._taken[-1]}, that of the one before")
        self._taken.append(offset)

    def finish(self, offset: int) -> int | None:
        """Mark an offset as done; returns the next offset to read if it moved, else None."""
        self._done.add(offset)
        moved: int | None = None
        while self._taken and self._taken[0] in self._done:
            moved = self._taken.popleft()
            self._done.discard(moved)
        return None if moved is None else moved + 1


class Page:
    """A page that was taken; calls `finish` once, when all its outputs are in the log."""

    __slots__ = ("_finish", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self._waits = 1

    def wait(self) -> None:
        self._waits += 1

    def one_done(self, *_delivered: int) -> None:
        """Count one output as acknowledged. One extra call, after the last output was sent, ends the page itself."""
        self._waits -= 1
        if self._waits == 0:
            self._finish()


class Taken:
    """The pages taken from each partition, and how far they are done.

    Args:
        done: Called with a partition and an offset: all pages before it are done.
        finishing: Called when all outputs of a page are in the log, just before the page is done.

    Attributes:
        ends: By partition, the offset behind the last page taken.
        undone: Pages that are not done.
        beyond: Pages from the first undone one of each partition on, done or not: a kill repeats them.
    """

    def __init__(self, done: Callable[[int, int], None], finishing: Callable[[], None] = lambda: None) -> None:
        self._done = done
        self._finishing = finishing
        self._orders: dict[int, AckOrder] = {}
        self.ends: dict[int, int] = {}
        self.undone = 0
        self.beyond = 0

    def take(self, partition: int, offset: int) -> Page:
        """Take the page at this offset.

        Raises: ValueError: it is not above those that are not done.
        """
        order = self._orders.get(partition)
        if order is None:
            order = self._orders[partition] = AckOrder()
        order.take(offset)
        self.ends[partition] = offset + 1
        self.undone += 1
        self.beyond += 1
        return Page(partial(self._finish, order, partition, offset))

    def give_up(self) -> None:
        """Forget all pages: the partitions are revoked, and later acknowledgements are ignored."""
        self._orders.clear()
        self.ends.clear()
        self.undone = self.beyond = 0

    def _finish(self, order: AckOrder, partition: int, offset: int) -> None:
        if self._orders.get(partition) is not order:
            return  # the partition was given up since: its next owner reads the page again
        self._finishing()
        self.undone -= 1
        before = len(order)
        following = order.finish(offset)
        self.beyond -= before - len(order)
        if following is not None:
            self._done(partition, following)
