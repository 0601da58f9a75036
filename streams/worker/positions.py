"""What a group commits and where it starts: exactly what the agents said, nothing that Faust counted.

Faust's own list of acknowledged offsets commits past gaps when events end out of order, and records a failed commit as
done. So it is not used: a commit carries the offset that `done` named last, and counts only once the broker took it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from crawlog.streams import crash_points
from crawlog.streams.log import HeldRange, Position, ReplayOrder, WrittenEnds, merged_ends

Start = Callable[[set[int]], Awaitable[dict[int, int]]]
"""Where to start reading, by partition; a partition left out starts where the group committed."""

Commit = Callable[[dict[int, Position]], Awaitable[bool]]
"""Writes positions for the group; False when the broker did not take them."""


class Positions:
    """The next offset of each owned partition.

    Attributes:
        start: Hook of the stage that keeps its own offset (fetch); None for committed, else the log's start.
        taken: The next offset to be taken, by partition, of a stage that takes more than what is done (parse), which
            keeps it true; a partition left out has nothing in hand.
        written: What the stage has in the log (parse), which keeps it true.
        cuts: Offsets that were wanted, and that the log no longer reached, by partition.
    """

    def __init__(self, commit: Commit) -> None:
        self.start: Start | None = None
        self.taken: Mapping[int, int] = {}
        self.written = WrittenEnds()
        self.cuts: dict[int, int] = {}
        self.moves = 0
        """How often `done` moved a partition; the watchdog compares it."""
        self._commit = commit
        self._began: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._committed: dict[int, Position | None] = {}
        self._only: dict[int, ReplayOrder] = {}
        self._written_before = WrittenEnds()
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

    def passes_over(self, partition: int, offset: int, job: str) -> bool:
        """Whether a record was done before a replay, which is of another job alone."""
        replayed = self._only.get(partition)
        return replayed is not None and offset < replayed.upto and job != replayed.job

    def committed(self, partition: int) -> int | None:
        """The offset that the broker holds; None when there is none, or the partition is not ours."""
        held = self._committed.get(partition)
        return None if held is None else held.offset

    def pending(self) -> dict[int, Position]:
        """What was said, or taken, and is not committed yet. A start alone is no claim."""
        found = {}
        for partition, held in self._committed.items():
            offset = self._said.get(partition, self._began[partition])
            replayed = self._only.get(partition)
            replayed = replayed if replayed is not None and offset < replayed.upto else None
            now = Position(offset, max(self.taken.get(partition, 0), offset), replayed)
            is_claim = partition in self._said or now.reached > offset or self.committed(partition) == offset
            if is_claim and now != held:
                found[partition] = now
        return found

    async def flush(self) -> bool:
        """Commit now; True when the broker holds all that `done` said before the call."""
        async with self._one_at_a_time:
            positions = self.pending()
            if positions:
                crash_points.point("commit.sending")
            ends = merged_ends(self.written, self._written_before)
            is_held = not positions or await self._commit({p: at._replace(written=ends) for p, at in positions.items()})
            if positions:
                crash_points.point("commit.acknowledged")
            if is_held:
                self._committed.update((p, position) for p, position in positions.items() if p in self._began)
            return is_held

    def begin(
        self, starts: dict[int, int], committed: Mapping[int, Position | None], before: WrittenEnds | None = None
    ) -> None:
        """An assignment: these partitions are ours, read from here.

        Args:
            before: What those that had them before had in the log.
        """
        self._written_before = before or WrittenEnds()
        self._began = dict(starts)
        self._said = {}
        self._committed = {partition: committed.get(partition) for partition in starts}
        self._only = {
            partition: held.only
            for partition, held in self._committed.items()
            if held is not None and held.only is not None and starts[partition] >= held.offset  # else a log made anew
        }

    def end(self) -> None:
        """The assignment is over: nothing is committed until the next `begin`."""
        self._began, self._said, self._committed, self._only = {}, {}, {}, {}


def first_offset(asked: int | None, held: HeldRange) -> tuple[int, str | None]:
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
