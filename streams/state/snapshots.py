"""Snapshots: consistent copies of a partition's state in a folder or an object store. A restore may start from one.

    <to>/<cluster>/<topic id>/<partition>/<offset>.<fold>.json     manifest: the meta row, and the list of files
    <to>/<cluster>/<topic id>/<partition>/files/<sum>-<size>       contents, each once, shared by all snapshots

A snapshot exists once its manifest does; the manifest is written last, atomically. A table never changes, so only new
tables are sent. Files are named by their content: RocksDB may reuse a name after a rebuild, for other bytes. If a file
of a snapshot is missing or damaged, the next snapshot is tried.
"""

import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
import xxhash

from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import DamagedSnapshot, Unusable
from crawlog.streams.fold import rows as r

from .stores import CHUNK_BYTES, SnapshotStore

log = structlog.get_logger()

# Age from which a file without a manifest is removed, seconds. A younger one may belong to an unfinished snapshot.
ORPHAN_S = 3600.0


class File(msgspec.Struct, frozen=True):
    """One file of a database; `sum` is xxh3_128 of its bytes."""

    name: str
    size: int
    sum: str

    @property
    def content(self) -> str:
        """Path of its bytes in the partition's folder of the store."""
        return f"files/{self.sum}-{self.size}"


class Manifest(msgspec.Struct, frozen=True, tag_field="v", tag=1):
    """The description of a snapshot: the meta row of its state, and its files.

    Attributes:
        at: When it was made, UTC epoch seconds.
    """

    meta: r.Meta
    at: float
    files: tuple[File, ...]

    @property
    def offset(self) -> int:
        """Offset of the next record to fold."""
        return self.meta.offset

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """The manifest's file name; names sort by offset."""
        return f"{self.offset:020d}.{self.meta.fold.replace(' ', '_')}.json"


_manifest = msgspec.json.Decoder(Manifest).decode

# Matches names of RocksDB's files, and sums. No such name leads to another folder.
_plain = re.compile(r"\w[\w.-]{0,200}", re.ASCII).fullmatch


class Snapshots:
    """The snapshots of one log's partitions in a store.

    Args:
        keep: Number of newest snapshots of a partition to keep.
        came: Called for each fetched file: a whole snapshot may take longer than the watchdog's timeout.
    """

    def __init__(
        self,
        store: SnapshotStore,
        log: LogIdentity,
        keep: int = 2,
        came: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._log = log
        self._keep = keep
        self._came = came
        self._sums: dict[tuple[int, int, int], str] = {}

    def make(self, folder: Path, meta: r.Meta, at: float) -> tuple[Manifest, int]:
        """Store a database that has no writer; returns its manifest and the number of bytes sent."""
        base, sent = self._base(meta.partition), 0
        stored = set(self._store.names(f"{base}/files"))
        files = []
        for path in sorted(folder.iterdir()):
            if path.name in ("LOCK", "LOG") or path.name.startswith("LOG.old"):
                continue
            file = File(path.name, path.stat().st_size, self._sum(path))
            if file.content.removeprefix("files/") not in stored:
                self._store.put(path, f"{base}/{file.content}")
                sent += file.size
            files.append(file)
        manifest = Manifest(meta, at, tuple(files))
        self._store.put(msgspec.json.encode(manifest), f"{base}/{manifest.name}")
        return manifest, sent

    def of(self, partition: int) -> list[Manifest]:
        """Manifests of a partition's snapshots, the highest offset first; other files are skipped.

        Raises: Whatever the store raises: a manifest that cannot be read now would look like one that is not there.
        """
        base, found = self._base(partition), []
        for name in reversed(self._store.names(base)):
            if not name.endswith(".json"):
                continue
            try:
                manifest = _manifest(self._store.read(f"{base}/{name}"))
            except (FileNotFoundError, msgspec.DecodeError) as error:
                log.warning("snapshot_unreadable", partition=partition, manifest=name, error=str(error))
                continue
            if (manifest.meta.cluster, manifest.meta.topic, manifest.meta.partition) != (*self._log, partition):
                continue
            if manifest.name == name:
                found.append(manifest)
            else:
                log.warning("snapshot_unreadable", partition=partition, manifest=name, error="of another name")
        return sorted(found, key=lambda one: -one.offset)

    def fetch(self, manifest: Manifest, target: Path) -> None:
        """Copy a snapshot to `target`, which must not exist.

        Raises: DamagedSnapshot: a name leads out of the folder, or a file is missing or has other bytes.
        """
        names = [file.name for file in manifest.files]
        if len({*names}) < len(names) or not all(
            _plain(word) for file in manifest.files for word in (file.name, file.sum)
        ):
            raise DamagedSnapshot(f"the manifest of offset {manifest.offset} holds a bad name")
        base = self._base(manifest.meta.partition)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        part.mkdir(parents=True)
        try:
            for file in manifest.files:
                path = part / file.name
                self._store.get(f"{base}/{file.content}", path)
                if path.stat().st_size != file.size or _sum(path) != file.sum:
                    raise DamagedSnapshot(f"{file.name} is not what it was")
                self._came()
            part.rename(target)
        except FileNotFoundError as error:
            raise DamagedSnapshot(f"a file is missing: {error}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def first_whole(
        self, manifests: Iterable[Manifest], target: Path, check: Callable[[Path], None]
    ) -> Manifest | None:
        """Copy the first snapshot that is whole to `target`; None if there is none, or each is damaged.

        Args:
            check: Reads the copy; raises Unusable if it is damaged.

        Raises: Whatever the store or the disk raised, if none was copied for another reason than damage.
        """
        hindrance: Exception | None = None
        shutil.rmtree(target, ignore_errors=True)
        for one in manifests:
            try:
                self.fetch(one, target)
                check(target)
            except Exception as error:  # noqa: BLE001  # a store may raise anything
                log.warning("snapshot_not_taken", partition=one.meta.partition, offset=one.offset, error=str(error))
                shutil.rmtree(target, ignore_errors=True)
                if not isinstance(error, DamagedSnapshot | Unusable):
                    hindrance = error
            else:
                return one
        if hindrance is not None:
            raise hindrance
        return None

    def names_from(self, partition: int, low: int) -> list[str]:
        """Names of the manifests at `low` and beyond: damaged ones and those of other folds, too."""
        return [
            name
            for name in self._store.names(self._base(partition))
            if name.endswith(".json") and name >= f"{low:020d}"
        ]

    def prune(self, partition: int, end: int) -> list[Manifest]:
        """Remove old snapshots, manifests first; returns the manifests kept, the highest offset first.

        Args:
            end: The log's end. A snapshot beyond it has folded records that the log has lost, and goes too.
        """
        base, found = self._base(partition), self.of(partition)
        kept = [manifest for manifest in found if manifest.offset <= end][: self._keep]
        for manifest in found:
            if manifest not in kept:
                self._store.remove(f"{base}/{manifest.name}")
        named = {file.content.removeprefix("files/") for manifest in kept for file in manifest.files}
        for name in self._store.names(f"{base}/files"):
            if name not in named and self._store.age_s(f"{base}/files/{name}") > ORPHAN_S:
                self._store.remove(f"{base}/files/{name}")
        return kept

    def _base(self, partition: int) -> str:
        return f"{self._log.cluster}/{self._log.topic}/{partition}"

    def _sum(self, path: Path) -> str:
        """The sum of a file; cached for tables, which never change."""
        stat = path.stat()
        key = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if path.suffix != ".sst":
            return _sum(path)
        if key not in self._sums:
            self._sums[key] = _sum(path)
        return self._sums[key]


def _sum(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()


class StateOrigin(NamedTuple):
    """Where a fold may start: at a snapshot, or at the log's first offset.

    Attributes:
        snapshots: Snapshots of this log; None without a store.
        bounds: Asks the cluster for the log's first offset and its end.
        may_lack: Whether the fold may go on at the log's first offset without the records before it, if there is no
            snapshot. Not where the log is trimmed: there was one.
    """

    snapshots: Snapshots | None = None
    bounds: Callable[[], tuple[int, int | None]] = lambda: (0, None)
    may_lack: bool = True


FROM_THE_START = StateOrigin()  # Start at offset 0: no snapshots, and a log with all its records


def fitting(
    found: Iterable[Manifest], fold: str, *, low: int = 0, high: int | None = None, skipped: tuple[r.Skip, ...] | None
) -> list[Manifest]:
    """The snapshots from which a restore can start, in the given order.

    Args:
        fold: The present version of the fold.
        low: Lowest offset, such as the log's start.
        high: Highest offset: the log's end, or an offset below a wrong state; None for any.
        skipped: Ranges that rewinds cancel; a snapshot that has folded part of one does not fit. None where unknown.
    """
    return [
        one
        for one in found
        if (one.meta.format, one.meta.fold) == (r.FORMAT, fold)
        and low <= one.offset
        and (high is None or one.offset <= high)
        and (skipped is None or r.fits(one.meta.skipped, one.offset, skipped))
    ]
