"""The offsets that a group commits and starts from: exactly those that agents pass to `done`.

Faust's own list of acknowledged offsets commits past gaps when events end out of order, and records a failed commit as
done. So it is not used. A commit carries the last offset passed to `done`, and counts once the broker has accepted it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from crawlog.streams import crash_points
from crawlog.streams.groups import HeldRange, Position, ReplayPlan, WrittenEnds, merged_ends

# Start offsets by partition; a partition left out starts at the group's commit.
Start = Callable[[set[int]], Awaitable[dict[int, int]]]

# Writes positions for the group; False if the broker did not accept them.
Commit = Callable[[dict[int, Position]], Awaitable[bool]]


class Positions:
    """The next offset of each owned partition.

    Attributes:
        start: Hook of a stage that looks where to start. None: the commit, else the log's start.
        taken: The next offset to take, by partition, in a stage that takes records before earlier ones are done (parse
            sets it). A partition left out has no record in hand.
        written: Ends of the stage's output in the log (parse sets it).
        cuts: Wanted start offsets past the log's end, by partition.
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
        self._only: dict[int, ReplayPlan] = {}
        self._written_before = WrittenEnds()
        self._one_at_a_time = asyncio.Lock()

    @property
    def owned(self) -> frozenset[int]:
        """Partitions that are ours, from before `on_owned` until after `on_revoking`."""
        return frozenset(self._began)

    def done(self, partition: int, offset: int) -> None:
        """All records before `offset` are done; the next commit carries this offset.

        Ignored for a partition that is no longer ours: the new owner reads on from the last commit.
        """
        if partition in self._began and self._said.get(partition) != offset:
            self._said[partition] = offset
            self.moves += 1

    def next(self, partition: int) -> int | None:
        """The offset last passed to `done`, else where reading began; None for a partition that is not ours."""
        return self._said.get(partition, self._began.get(partition))

    def passes_over(self, partition: int, offset: int, job: str) -> bool:
        """Whether to skip a record: it was done before a replay, and the replay is of another job."""
        replayed = self._only.get(partition)
        return replayed is not None and offset < replayed.upto and job != replayed.job

    def committed(self, partition: int) -> int | None:
        """The committed offset; None if there is none, or the partition is not ours."""
        held = self._committed.get(partition)
        return None if held is None else held.offset

    def pending(self) -> dict[int, Position]:
        """Positions done or taken that are not committed yet. A start position alone is not committed."""
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
        """Commit now; True if the broker holds all offsets passed to `done` before the call."""
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
        """Begin an assignment: these partitions are ours, read from these offsets.

        Args:
            before: Ends of the previous owners' output in the log.
        """
        self._written_before = before or WrittenEnds()
        self._began = dict(starts)
        self._said = {}
        self._committed = {partition: committed.get(partition) for partition in starts}
        self._only = {
            partition: held.only
            for partition, held in self._committed.items()
            if held is not None and held.only is not None and starts[partition] >= held.offset  # else a new log
        }

    def end(self) -> None:
        """End the assignment: nothing is committed until the next `begin`."""
        self._began, self._said, self._committed, self._only = {}, {}, {}, {}


def first_offset(asked: int | None, held: HeldRange) -> tuple[int, str | None]:
    """The offset where reading starts.

    Args:
        asked: The offset of the stage's own state; None for the group's commit.
        held: Bounds of the log, and the commit.

    Returns: The offset, within the log; and the reason if it is not the wanted one. A wanted offset past the end means
        that the log was recreated or cut. Reading then starts over: to repeat a record is harmless, to skip one is not.
    """
    wanted = held.committed if asked is None else asked
    if wanted is None:
        return held.first, None
    if wanted < held.first:
        return held.first, f"offset {wanted} was trimmed from the log"
    if wanted > held.end:
        return held.first, f"offset {wanted} is past the log's end: it was recreated or cut"
    return wanted, None
