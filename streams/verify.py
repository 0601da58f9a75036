"""Verification: fold the log a second time into a scratch folder, and compare with the state that workers keep.

The second fold stops at exactly the offset of the owner's checkpoint, so both are the same rows or something is wrong:
a worker that wrote beside the fold, a fold that looked at a clock, a record that was skipped.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

from rocksdict import AccessType, Options, Rdict

from . import rows as r
from .domain import Places
from .kafka import identity
from .restore import Restorer
from .settings import Settings
from .store import CACHE_COLUMN, Memory, Partition
from .topics import Topics, partitions


class Verdict(NamedTuple):
    """One partition's comparison.

    Attributes:
        offset: The checkpoint's offset, up to which both folds go.
        kept: Digest of the state that the workers keep.
        folded: Digest of the second fold.
    """

    partition: int
    offset: int
    kept: str
    folded: str

    @property
    def equal(self) -> bool:
        """Whether the state is the fold of its log."""
        return self.kept == self.folded


def verify(settings: Settings, state: Path) -> list[Verdict]:
    """Fold every partition that has a state again, and compare. Workers may be running.

    Args:
        state: Folder of the states, one folder a partition.

    Raises: EngineError: the log cannot be read.
    """
    names = Topics(settings.kafka.prefix)
    ours = identity(settings, names.urls)
    places = Places(partitions(settings))
    with tempfile.TemporaryDirectory(prefix="crawlog-verify-") as scratch:
        kept = dict(_kept(state))
        memory = Memory(settings.state.memory_mb)
        again = [
            Partition(Path(scratch) / str(number), number, places, ours, memory, settings.state.cached_pages)
            for number in kept
        ]
        ends = {number: offset for number, (offset, _) in kept.items()}
        Restorer(settings, names.urls).restore(again, lambda *_: None, lambda _: None, ends=ends)
        verdicts = []
        for partition in again:
            partition.checkpoint()
            offset, digest = kept[partition.number]
            verdicts.append(Verdict(partition.number, offset, digest, partition.digest()))
            partition.close()
    return verdicts


def _kept(state: Path) -> Iterator[tuple[int, tuple[int, str]]]:
    for folder in sorted(state.iterdir(), key=lambda path: path.name):
        if not folder.name.isdigit():
            continue
        options = Options(raw_mode=True)
        db = Rdict(
            str(folder),
            options,
            column_families={CACHE_COLUMN: Options(raw_mode=True)},
            access_type=AccessType.read_only(),
        )
        meta = db.get(r.META)
        if meta is not None:
            yield (
                int(folder.name),
                (r.read_meta(meta).offset, r.digest(cast("Iterator[tuple[bytes, bytes]]", db.items()))),
            )
        db.close()
