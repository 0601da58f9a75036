"""What a group commits and where it starts: exactly what the agents said, nothing that Faust counted.

Faust's own list of acknowledged offsets commits past gaps when events end out of order, and records a failed commit as
done. So it is not used: a commit carries the offset that `done` named last, and counts only once the broker took it.

A stage may take records beyond those that are done, and put some aside. How far it is, a commit says in its metadata,
`crawlog REACHED;`: everything before that offset is done, or in the hands of the worker that wrote the commit. It is
nothing to who begins at the commit; whoever wants to know how much is left to read goes by it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from crawlog.streams import crash_points

Start = Callable[[set[int]], Awaitable[dict[int, int]]]
"""Where to start reading, by partition; a partition left out starts where the group committed."""

OURS = "crawlog"
"""Metadata of each commit of a worker, or what it begins with. Who moves a group's offsets by hand, with Kafka's own
tool or with `crawlog replay`, commits without it: that is how a stage that keeps its own offset knows an order."""


class Only(NamedTuple):
    """A replay of one job: records of others are passed over, up to where they were done before it.

    Attributes:
        job: Its name.
        upto: The offset that the group had before the replay.
    """

    job: str
    upto: int

    @property
    def metadata(self) -> str:
        """Of the commit that is the order; and the end of that of each commit until it is carried out."""
        return f"replay {self.job} {self.upto};"


class Written(NamedTuple):
    """Offsets behind the last records that parse has in the log: one that ends before them was cut.

    Attributes:
        founds: By partition of crawl.urls.
        items: By partition of crawl.items.
    """

    founds: Mapping[int, int] = {}
    items: Mapping[int, int] = {}

    @property
    def metadata(self) -> str:
        """Of a commit; as many partitions as the broker takes."""
        told = ""
        for name, ends in self._asdict().items():
            listed = ",".join(f"{number}:{end}" for number, end in list(ends.items())[:MOST_ENDS])
            if len(listed) > MOST_BYTES:
                listed = listed[:MOST_BYTES].rpartition(",")[0]
            told += f" {name} {listed};" if listed else ""
        return told


def merged(one: Written, other: Written) -> Written:
    """What either knows."""
    founds, items = (
        {at: max(mine.get(at, 0), theirs.get(at, 0)) for at in sorted({*mine, *theirs})}
        for mine, theirs in zip(one, other, strict=True)
    )
    return Written(founds, items)


class Position(NamedTuple):
    """What a worker commits for one partition.

    Attributes:
        offset: Everything before it is done.
        reached: Everything before it is done or taken; not less than `offset`.
        only: The job that is replayed there, if it is one alone.
        written: What the worker has in the log, and those before it had.
    """

    offset: int
    reached: int
    only: Only | None = None
    written: Written = Written()

    @property
    def metadata(self) -> str:
        """Of the commit."""
        if self.only is not None:
            return f"{OURS} {self.reached}; {self.only.metadata}{self.written.metadata}"
        return (OURS if self.reached == self.offset else f"{OURS} {self.reached};") + self.written.metadata


MOST_ENDS = 128
"""Partitions of a topic whose ends a commit tells of."""

MOST_BYTES = 1_900
"""Of them: a broker takes 4,096 bytes of metadata. Of offsets of nine digits it is 128 partitions."""

_WRITTEN = {name: re.compile(rf" {name} ((?:[0-9]{{1,5}}:[0-9]{{1,19}},?){{1,128}});") for name in Written._fields}
_REACHED = re.compile(rf"{OURS} ([0-9]{{1,19}});")
_ONLY = re.compile(rf"(?:{OURS} [0-9]{{1,19}}; )?replay ([A-Za-z0-9._-]{{1,100}}) ([0-9]{{1,19}});")
"""With an end, as readers may be given bytes that come after it (`kafka.metadata_of`); an offset has 64 bits."""


def written(metadata: str) -> Written:
    """What the writer of a commit, and those before it, had in the log."""
    found = {name: pattern.search(metadata) for name, pattern in _WRITTEN.items()}
    pairs = {name: [pair.split(":") for pair in one[1].split(",")] for name, one in found.items() if one}
    return Written(**{name: {int(number): int(end) for number, end in ends} for name, ends in pairs.items()})


def without_written(metadata: str) -> str:
    """The same metadata that says nothing of that."""
    for pattern in _WRITTEN.values():
        metadata = pattern.sub("", metadata)
    return metadata


def is_ours(metadata: str) -> bool:
    """Whether a worker wrote a commit."""
    return metadata.startswith(OURS)


def reached(offset: int, metadata: str) -> int:
    """How far the worker is that wrote a commit; the commit's own offset, where its metadata says nothing else."""
    found = _REACHED.match(metadata)
    return offset if found is None else max(offset, int(found[1]))


def only(metadata: str) -> Only | None:
    """The job that alone is replayed, by a commit's metadata; None where all are."""
    found = _ONLY.match(metadata)
    return None if found is None else Only(found[1], int(found[2]))


Commit = Callable[[dict[int, Position]], Awaitable[bool]]
"""Writes positions for the group; False when the broker did not take them."""


class Range(NamedTuple):
    """What the log holds of one partition.

    Attributes:
        committed: The group's offset; None for a new group.
        first: Earliest offset still there.
        end: Offset of the next record to be written.
        reached: How far the worker was that committed, if more is known of the commit than its offset.
        only: The job that alone is replayed, by the commit.
        written: What its worker had in the log.
    """

    committed: int | None
    first: int
    end: int
    reached: int | None = None
    only: Only | None = None
    written: Written = Written()

    @property
    def position(self) -> Position | None:
        """What is committed."""
        return None if self.committed is None else Position(self.committed, self.reached or self.committed, self.only)


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
        self.written = Written()
        self.cuts: dict[int, int] = {}
        self.moves = 0
        """How often `done` moved a partition; the watchdog compares it."""
        self._commit = commit
        self._began: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._committed: dict[int, Position | None] = {}
        self._only: dict[int, Only] = {}
        self._written_before = Written()
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
            ends = merged(self.written, self._written_before)
            is_held = not positions or await self._commit({p: at._replace(written=ends) for p, at in positions.items()})
            if positions:
                crash_points.point("commit.acknowledged")
            if is_held:
                self._committed.update((p, position) for p, position in positions.items() if p in self._began)
            return is_held

    def begin(
        self, starts: dict[int, int], committed: Mapping[int, Position | None], before: Written | None = None
    ) -> None:
        """An assignment: these partitions are ours, read from here.

        Args:
            before: What those that had them before had in the log.
        """
        self._written_before = before or Written()
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
