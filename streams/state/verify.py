"""Verification: fold the log a second time into a scratch folder, and compare it with the workers' state.

The second fold stops at exactly the offset of the owner's checkpoint, so both must have the same rows. A difference is
a bug: a worker wrote rows beside the fold, the fold used a clock, or a record was skipped. Workers may run meanwhile:
verification uses a copy of their database, made by links without their help.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from crawlog.streams.cluster import LogIdentity, log_bounds, log_identity
from crawlog.streams.errors import NotCopied, Unusable
from crawlog.streams.fold import DescribedRow, decoded, digest
from crawlog.streams.fold import rows as r
from crawlog.streams.log import Topics, partition_count
from crawlog.streams.settings import Settings
from crawlog.streams.url import Places

from .copies import copy_database
from .partition import Database, Partition, StateMemory, fold_version
from .restore import Restorer, bounding
from .snapshots import Snapshots, StateOrigin
from .stores import store_of


class Difference(NamedTuple):
    """A row that differs between the two folds; None where one of them lacks it."""

    kept: DescribedRow | None
    folded: DescribedRow | None


class Verdict(NamedTuple):
    """The result for one partition.

    Attributes:
        offset: The checkpoint's offset; both folds end there.
        records: Number of records in the second fold.
        kept: Digest of the workers' state.
        folded: Digest of the second fold; empty when there was none.
        begun: Offset of the snapshot that the second fold started from; 0 for the log's start.
        reason: Why the state could not be compared; else empty.
        rows: The first rows that differ, up to the requested number.
    """

    partition: int
    offset: int
    records: int = 0
    kept: str = ""
    folded: str = ""
    begun: int = 0
    reason: str = ""
    rows: tuple[Difference, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether the state is the fold of its log."""
        return bool(self.folded) and self.kept == self.folded


def verify(settings: Settings, state: Path, rows: int = 0) -> list[Verdict]:
    """Fold every partition that has a state again, and compare. Workers may be running.

    Args:
        state: Folder of the states: one folder a partition, more if a former owner still has one open.
        rows: Largest number of differing rows to list for a partition.

    Raises: EngineError: the log cannot be read.
    """
    names = Topics(settings.kafka.prefix)
    places = Places(partition_count(settings))
    log = log_identity(settings, names.urls)
    with _scratch(state.parent) as scratch, ExitStack() as opened:
        memory = StateMemory(settings.state.memory_mb)
        kept: dict[int, KeptState] = {}
        for copy in _kept(state, scratch / "kept", memory):
            opened.enter_context(closing(copy))
            if copy.number not in kept or copy.offset > kept[copy.number].offset:
                kept[copy.number] = copy  # of several copies the highest offset, as a new owner chooses
        limits = log_bounds(settings, names.urls, sorted(kept))
        verdicts = {number: one.misfit(log, limits[number][1]) for number, one in kept.items()}
        snapshots = Snapshots(store_of(settings.snapshots.to), log) if settings.snapshots.to else None
        again = []
        for number in [number for number, misfit in verdicts.items() if misfit is None]:
            low = limits[number][0]
            origin = StateOrigin(snapshots if low else None)
            one = Partition(scratch / str(number), number, places, log, memory, settings.state.cached_pages, origin)
            opened.enter_context(closing(one))
            if low and not one.leap(low, kept[number].offset, furthest=False):
                reason = f"not to be folded again: the log starts at {low}, and no snapshot goes on from there"
                verdicts[number] = Verdict(number, kept[number].offset, reason=reason)
            else:
                again.append(one)
        begun = {one.number: one.offset for one in again}
        folded = _fold(Restorer(settings, names.urls), again, kept, settings.state.checkpoint_changes)
        for partition in again:
            number = partition.number
            verdicts[number] = _compared(kept[number], partition, folded[number], rows)._replace(begun=begun[number])
        return [verdict for _, verdict in sorted(verdicts.items()) if verdict is not None]


class KeptState:
    """A copy of the workers' state of one partition.

    Attributes:
        meta: None without a checkpoint, or when the database cannot be read.
        damage: Why it cannot be read; else empty.
    """

    def __init__(self, number: int, folder: Path, memory: StateMemory, damage: str = "") -> None:
        self.number = number
        self.meta: r.Meta | None = None
        self.damage = damage
        self.database: Database | None = None
        if damage:
            return
        try:
            self.database = Database(folder, memory)
            stored = self.database.get(r.META)
            self.meta = r.read_meta(stored) if stored else None
        except Exception as error:  # noqa: BLE001  # a state of another version; or rocksdict's bare Exception
            self.damage = str(error).removeprefix("damaged: ")

    @property
    def offset(self) -> int:
        """The checkpoint's offset."""
        return self.meta.offset if self.meta else 0

    @property
    def ahead(self) -> list[r.Skip]:
        """Ranges of rewinds whose record is at or behind the offset. The second fold ends before it, so it is told."""
        return [skip for skip in self.meta.skipped if skip.end >= self.offset] if self.meta else []

    def misfit(self, log: LogIdentity, high: int) -> Verdict | None:
        """The verdict on a state that cannot be compared; None for one that can."""
        reason = self.damage and f"damaged: {self.damage}"
        if not reason and self.meta is not None:
            reason = _misfit(self.meta, log, high)
        return Verdict(self.number, self.offset, reason=reason) if reason else None

    def close(self) -> None:
        """Release the copy."""
        if self.database is not None:
            self.database.close()


def _misfit(meta: r.Meta, log: LogIdentity, high: int) -> str:
    if (meta.cluster, meta.topic) != log:
        return f"of another log: topic {meta.topic} of cluster {meta.cluster}"
    if (meta.format, meta.fold) != (r.FORMAT, fold_version()):
        return f"of another version: format {meta.format}, fold {meta.fold}"
    return f"ahead of the log, which ends at {high}" if meta.offset > high else ""


@contextmanager
def _scratch(data: Path) -> Iterator[Path]:
    """A folder on the file system of the states, for links to them. Removes folders of killed verifications."""
    for left in data.glob("verify-*"):
        pid = left.name.removeprefix("verify-")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    folder = data / f"verify-{psutil.Process().pid}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _kept(state: Path, scratch: Path, memory: StateMemory) -> Iterator[KeptState]:
    """Copies of all states; states without a checkpoint are left out."""
    for folder in sorted(state.iterdir()):
        number = folder.name.partition(".")[0]
        if not number.isdigit():
            continue
        damage = ""
        try:
            copy_database(folder, scratch / folder.name)
        except NotCopied as error:
            damage = str(error)
        one = KeptState(int(number), scratch / folder.name, memory, damage)
        if one.meta or one.damage:
            yield one
        else:
            one.close()


def _fold(restorer: Restorer, again: list[Partition], kept: dict[int, KeptState], changes: int) -> dict[int, int]:
    ends = {one.number: kept[one.number].offset for one in again}
    for one in again:
        for skip in kept[one.number].ahead:
            one.rewind(skip)
    folded = restorer.restore(again, lambda *_: None, bounding(changes, again), ends=ends) if again else {}
    for one in again:
        one.checkpoint()
    return folded


def _compared(kept: KeptState, again: Partition, records: int, rows: int) -> Verdict:
    assert kept.database is not None
    try:
        stored = digest(kept.database.scan(b""))
    except Unusable as error:  # damage is detected when a block is read
        return Verdict(kept.number, kept.offset, records, reason=str(error))
    verdict = Verdict(kept.number, kept.offset, records, stored, again.digest())
    if verdict.equal or not rows:
        return verdict
    found = differences(kept.database.scan(b""), again.db.scan(b""))
    return verdict._replace(rows=tuple(one for one, _ in zip(found, range(rows), strict=False)))


def differences(kept: Iterator[tuple[bytes, bytes]], folded: Iterator[tuple[bytes, bytes]]) -> Iterator[Difference]:
    """The rows that differ between two states, each in key order."""
    left = ((key, 0, value) for key, value in kept)
    right = ((key, 1, value) for key, value in folded)
    for key, rows in groupby(merge(left, right), key=lambda row: row[0]):
        sides: list[bytes | None] = [None, None]
        for _, side, value in rows:
            sides[side] = value
        if sides[0] != sides[1]:
            yield Difference(*(None if value is None else decoded(key, value) for value in sides))


def as_json(verdict: Verdict) -> bytes:
    """One verdict as a JSON object."""
    facts = verdict._asdict() | {"equal": verdict.equal, "rows": [_pair(one) for one in verdict.rows]}
    return msgspec.json.encode(facts)


def _pair(one: Difference) -> dict[str, object]:
    return {side: None if row is None else row._asdict() for side, row in one._asdict().items()}
