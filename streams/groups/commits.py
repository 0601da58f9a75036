"""The metadata of a worker's commits: how far it has read, and the ends of its writes.

A stage may read records beyond the committed offset, and put some aside. The commit's metadata says how far:
`crawlog REACHED;`. Each record before REACHED is done, or in flight in the worker that wrote the commit.
Consumers ignore this value; lag displays use it.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

# Prefix of the metadata of each commit of a worker. A commit without it is an order: a user moved the group's offsets
# by `crawlog replay` or Kafka's own tool. A stage that keeps its own offset obeys such a commit.
OURS = "crawlog"

# Prefix of the metadata of each commit of `crawlog replay`. A commit without either prefix is of another program.
REPLAY = "replay"

REPLAY_ALL = f"{REPLAY};"  # Metadata of a replay of all jobs


class ReplayPlan(NamedTuple):
    """A replay of one job: before `upto`, the records of other jobs are skipped.

    Attributes:
        upto: The group's offset before the replay.
    """

    job: str
    upto: int

    @property
    def metadata(self) -> str:
        """Metadata of the commit that orders the replay. Each later commit repeats it until the replay is done."""
        return f"{REPLAY} {self.job} {self.upto};"


class WrittenEnds(NamedTuple):
    """End offsets of the records that parse has written. A partition that ends earlier was cut.

    Attributes:
        founds: By partition of crawl.urls.
        items: By partition of crawl.items.
    """

    founds: Mapping[int, int] = {}
    items: Mapping[int, int] = {}

    @property
    def metadata(self) -> str:
        """The part of a commit's metadata that lists the ends, at most MOST_ENDS and MOST_BYTES of each topic."""
        told = ""
        for name, ends in self._asdict().items():
            listed = ",".join(f"{number}:{end}" for number, end in list(ends.items())[:MOST_ENDS])
            if len(listed) > MOST_BYTES:
                listed = listed[:MOST_BYTES].rpartition(",")[0]
            told += f" {name} {listed};" if listed else ""
        return told


def merged_ends(one: WrittenEnds, other: WrittenEnds) -> WrittenEnds:
    """The higher end of each partition."""
    founds, items = (
        {at: max(mine.get(at, 0), theirs.get(at, 0)) for at in sorted({*mine, *theirs})}
        for mine, theirs in zip(one, other, strict=True)
    )
    return WrittenEnds(founds, items)


class Position(NamedTuple):
    """A worker's commit for one partition.

    Attributes:
        offset: Each record before it is done.
        reached: Each record before it is done or in flight; not less than `offset`.
        only: The replay of one job that is not finished yet, if any.
        written: Ends of the records that this worker and earlier ones have written.
    """

    offset: int
    reached: int
    only: ReplayPlan | None = None
    written: WrittenEnds = WrittenEnds()

    @property
    def metadata(self) -> str:
        """Metadata of the commit."""
        if self.only is not None:
            return f"{OURS} {self.reached}; {self.only.metadata}{self.written.metadata}"
        return (OURS if self.reached == self.offset else f"{OURS} {self.reached};") + self.written.metadata


MOST_ENDS = 128  # Largest number of a topic's partitions whose ends a commit lists

# Largest list of a topic's ends: a broker takes 4,096 bytes of metadata. Enough for 128 offsets of nine digits.
MOST_BYTES = 1_900

_WRITTEN = {
    name: re.compile(rf" {name} ([0-9]{{1,5}}:[0-9]{{1,19}}(?:,[0-9]{{1,5}}:[0-9]{{1,19}}){{0,127}});")
    for name in WrittenEnds._fields
}
_REACHED = re.compile(rf"{OURS} ([0-9]{{1,19}});")
# Ends with `;`, since readers may get stray bytes after it (`client.commit_metadata`). An offset has 64 bits.
_ONLY = re.compile(rf"(?:{OURS} [0-9]{{1,19}}; )?replay ([A-Za-z0-9._-]{{1,100}}) ([0-9]{{1,19}});")


def written_ends(metadata: str) -> WrittenEnds:
    """The ends that a commit's metadata lists."""
    found = {name: pattern.search(metadata) for name, pattern in _WRITTEN.items()}
    pairs = {name: [pair.split(":") for pair in one[1].split(",")] for name, one in found.items() if one}
    return WrittenEnds(**{name: {int(number): int(end) for number, end in ends} for name, ends in pairs.items()})


def without_written(metadata: str) -> str:
    """The metadata without the ends that it lists."""
    for pattern in _WRITTEN.values():
        metadata = pattern.sub("", metadata)
    return metadata


def is_ours(metadata: str) -> bool:
    return metadata.startswith(OURS)


def is_planned(metadata: str) -> bool:
    """Whether a worker or `crawlog replay` wrote a commit: what it skips was to be skipped."""
    return metadata.startswith((OURS, REPLAY))


def reached_offset(offset: int, metadata: str) -> int:
    """How far the writer of a commit has read; the commit's offset, if the metadata does not say."""
    found = _REACHED.match(metadata)
    return offset if found is None else max(offset, int(found[1]))


def replay_order(metadata: str) -> ReplayPlan | None:
    """The replay of one job that a commit's metadata names; None where there is none."""
    found = _ONLY.match(metadata)
    return None if found is None else ReplayPlan(found[1], int(found[2]))


class HeldRange(NamedTuple):
    """The bounds of one partition and a group's commit there.

    Attributes:
        committed: The group's offset; None for a new group.
        first: First offset that the log still has.
        end: Offset of the next record to be written.
        reached: How far the commit's writer had read, if the commit says so.
        only: The replay of one job that the commit names.
        written: The ends that the commit lists.
    """

    committed: int | None
    first: int
    end: int
    reached: int | None = None
    only: ReplayPlan | None = None
    written: WrittenEnds = WrittenEnds()

    @property
    def position(self) -> Position | None:
        """The commit; None for a new group."""
        return None if self.committed is None else Position(self.committed, self.reached or self.committed, self.only)
