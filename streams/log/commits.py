"""What a worker writes into its group's commits beside the offset: how far it is, and what it has in the log.

A stage may take records beyond those that are done, and put some aside. Its commit says so in its metadata,
`crawlog REACHED;`: everything before that offset is done, or in the hands of the worker that wrote the commit.
Consumers ignore this value; lag displays use it.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

OURS = "crawlog"
"""Metadata of each commit of a worker begins with it. A commit without it is an order: a user moved the group's offsets
by `crawlog replay` or Kafka's own tool. A stage that keeps its own offset obeys such a commit."""


class ReplayOrder(NamedTuple):
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


class WrittenEnds(NamedTuple):
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


def merged_ends(one: WrittenEnds, other: WrittenEnds) -> WrittenEnds:
    """What either knows."""
    founds, items = (
        {at: max(mine.get(at, 0), theirs.get(at, 0)) for at in sorted({*mine, *theirs})}
        for mine, theirs in zip(one, other, strict=True)
    )
    return WrittenEnds(founds, items)


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
    only: ReplayOrder | None = None
    written: WrittenEnds = WrittenEnds()

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

_WRITTEN = {name: re.compile(rf" {name} ((?:[0-9]{{1,5}}:[0-9]{{1,19}},?){{1,128}});") for name in WrittenEnds._fields}
_REACHED = re.compile(rf"{OURS} ([0-9]{{1,19}});")
_ONLY = re.compile(rf"(?:{OURS} [0-9]{{1,19}}; )?replay ([A-Za-z0-9._-]{{1,100}}) ([0-9]{{1,19}});")
"""With an end, as readers may be given bytes that come after it (`kafka.metadata_of`); an offset has 64 bits."""


def written_ends(metadata: str) -> WrittenEnds:
    """What the writer of a commit, and those before it, had in the log."""
    found = {name: pattern.search(metadata) for name, pattern in _WRITTEN.items()}
    pairs = {name: [pair.split(":") for pair in one[1].split(",")] for name, one in found.items() if one}
    return WrittenEnds(**{name: {int(number): int(end) for number, end in ends} for name, ends in pairs.items()})


def without_written(metadata: str) -> str:
    """The same metadata that says nothing of that."""
    for pattern in _WRITTEN.values():
        metadata = pattern.sub("", metadata)
    return metadata


def is_ours(metadata: str) -> bool:
    """Whether a worker wrote a commit."""
    return metadata.startswith(OURS)


def reached_offset(offset: int, metadata: str) -> int:
    """How far the worker is that wrote a commit; the commit's own offset, where its metadata says nothing else."""
    found = _REACHED.match(metadata)
    return offset if found is None else max(offset, int(found[1]))


def replay_order(metadata: str) -> ReplayOrder | None:
    """The job that alone is replayed, by a commit's metadata; None where all are."""
    found = _ONLY.match(metadata)
    return None if found is None else ReplayOrder(found[1], int(found[2]))


class HeldRange(NamedTuple):
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
    only: ReplayOrder | None = None
    written: WrittenEnds = WrittenEnds()

    @property
    def position(self) -> Position | None:
        """What is committed."""
        return None if self.committed is None else Position(self.committed, self.reached or self.committed, self.only)
