"""What a group commits and where it starts: exactly what the agents said, nothing that Faust counted.

Faust's own list of acknowledged offsets commits past gaps when events end out of order, and records a failed commit as
done. So it is not used: a commit carries the offset that `done` named last, and counts only once the broker took it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from . import crash

Start = Callable[[set[int]], Awaitable[dict[int, int]]]
"""Where to start reading, by partition; a partition left out starts where the group committed."""

Commit = Callable[[dict[int, int]], Awaitable[bool]]
"""Writes offsets for the group; False when the broker did not take them."""


OURS = "crawlog"
"""Metadata of each commit of a worker. Who moves a group's offsets by hand, with Kafka's own tool or with
`crawlog replay`, commits without it: that is how a stage that keeps its own offset knows an order."""


class Range(NamedTuple):
    """What the log holds of one partition.

    Attributes:
        committed: The group's offset; None for a new group.
        first: Earliest offset still there.
        end: Offset of the next record to be written.
    """

    committed: int | None
    first: int
    end: int


class Positions:
    """The next offset of each owned partition.

    Attributes:
        start: Hook of the stage that keeps its own offset (fetch); None for committed, else the log's start.
    """

    def __init__(self, commit: Commit) -> None:
        self.start: Start | None = None
        self.moves = 0
        """How often `done` moved a partition; the watchdog compares it."""
        self._commit = commit
        self._began: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._committed: dict[int, int | None] = {}
        self._one_at_a_time = asyncio.Lock()

    @property
    def owned(self) -> frozenset[int]:
        """Partitions that are ours, from before `on_owned` until after `on_revoking`."""
        return frozenset(self._began)

    def done(self, partition: int, offset: int) -> None:
        """Everything before `offset` is done: the next commit says so.

        For a partition that is no longer ours it does nothing: the new owner reads on from the last commit.
        """
        if partition in self._began and self._said.get(partition) != offset:
            self._said[partition] = offset
            self.moves += 1

    def next(self, partition: int) -> int | None:
        """The offset `done` named last, else where reading began; None for a partition that is not ours."""
        return self._said.get(partition, self._began.get(partition))

    def committed(self, partition: int) -> int | None:
        """The offset that the broker holds; None when there is none, or the partition is not ours."""
        return self._committed.get(partition)

    def pending(self) -> dict[int, int]:
        """Offsets said and not committed yet."""
        return {p: offset for p, offset in self._said.items() if offset != self._committed[p]}

    async def flush(self) -> bool:
        """Commit now; True when the broker holds all that `done` said before the call."""
        async with self._one_at_a_time:
            offsets = self.pending()
            if offsets:
                crash.point("commit.sending")
            taken = not offsets or await self._commit(offsets)
            if offsets:
                crash.point("commit.acknowledged")
            if taken:
                self._committed.update((p, offset) for p, offset in offsets.items() if p in self._began)
            return taken

    def begin(self, starts: dict[int, int], committed: dict[int, int | None]) -> None:
        """An assignment: these partitions are ours, read from here."""
        self._began = dict(starts)
        self._said = {}
        self._committed = {partition: committed.get(partition) for partition in starts}

    def end(self) -> None:
        """The assignment is over: nothing is committed until the next `begin`."""
        self._began, self._said, self._committed = {}, {}, {}


def first_offset(asked: int | None, held: Range) -> tuple[int, str | None]:
    """Where to start reading, and what to tell the user about it.

    Args:
        asked: What the stage's own state wants; None for the group's commit.
        held: What the log holds.

    Returns: The offset, within the log; a reason where it is not the one wanted. An offset past the end means that the
        log was recreated or cut: reading starts over, since doing a record twice is harmless and skipping it is not.
    """
    wanted = held.committed if asked is None else asked
    if wanted is None:
        return held.first, None
    if wanted < held.first:
        return held.first, f"offset {wanted} was trimmed from the log"
    if wanted > held.end:
        return held.first, f"offset {wanted} is past the log's end: it was recreated or cut"
    return wanted, None
