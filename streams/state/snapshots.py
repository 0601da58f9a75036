"""Snapshots: consistent copies of a partition's state in a folder or an object store, to begin a restore from.

    <to>/<cluster>/<topic id>/<partition>/<offset>.<fold>.json     manifest: what the snapshot is, and its files
    <to>/<cluster>/<topic id>/<partition>/files/<sum>-<size>       contents, each once, whatever snapshots name it

A snapshot is there when its manifest is, which is written last, whole. A table never changes, so of two snapshots only
the tables that are new in the second are sent. Files are found by what is in them: a name may come again after a
rebuild, with other bytes. A snapshot of which anything is missing or damaged is passed over, and the next one tried.
"""

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
import xxhash

from crawlog.streams.errors import CrawlError, Misconfigured
from crawlog.streams.fold import rows as r
from crawlog.streams.log import LogIdentity
from crawlog.streams.printable import without_secrets

log = structlog.get_logger()

CHUNK_BYTES = 1 << 20
ORPHAN_S = 3600.0
"""A content that no manifest names is removed when it is older; a younger one may be of a snapshot in the making."""


class Damaged(CrawlError):
    """A snapshot that is not whole."""


class File(msgspec.Struct, frozen=True):
    """One file of a database; `sum` is xxh3_128 of its bytes."""

    name: str
    size: int
    sum: str

    @property
    def content(self) -> str:
        """Where its bytes lie, below the partition's folder."""
        return f"files/{self.sum}-{self.size}"


class Manifest(msgspec.Struct, frozen=True, tag_field="v", tag=1):
    """What a snapshot is: the meta row of its state, and its files.

    Attributes:
        at: UTC epoch seconds when it was made.
    """

    meta: r.Meta
    at: float
    files: tuple[File, ...]

    @property
    def offset(self) -> int:
        """The next record to fold."""
        return self.meta.offset

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """The manifest's file name; names in order are offsets in order."""
        return f"{self.offset:020d}.{self.meta.fold.replace(' ', '_')}.json"


_manifest = msgspec.json.Decoder(Manifest).decode
_plain = re.compile(r"\w[\w.-]{0,200}", re.ASCII).fullmatch
"""The names of RocksDB's files, and sums: none of them leads to another folder."""


class Store(Protocol):
    """A place for named contents."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder; none where there is no such folder."""

    def read(self, name: str) -> bytes:
        """A small file.

        Raises: OSError: it is not there.
        """

    def put(self, source: Path | bytes, name: str) -> None:
        """Store a file, to be seen whole or not at all."""

    def get(self, name: str, target: Path) -> None:
        """Copy a file to the disk.

        Raises: OSError: it is not there.
        """

    def remove(self, name: str) -> None:
        """Forget a file."""

    def age_s(self, name: str) -> float:
        """Seconds since it was stored; 0 where that is not known."""


class Folder:
    """A folder, on this machine or mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """Names in a folder."""
        try:
            return sorted(path.name for path in (self._root / folder).iterdir() if path.is_file())
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """A small file."""
        return (self._root / name).read_bytes()

    def put(self, source: Path | bytes, name: str) -> None:
        """Written beside, made durable, then renamed."""
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with part.open("wb") as out:
                if isinstance(source, bytes):
                    out.write(source)
                else:
                    with source.open("rb") as content:
                        shutil.copyfileobj(content, out, CHUNK_BYTES)
                out.flush()
                os.fsync(out.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def get(self, name: str, target: Path) -> None:
        """Copy a file."""
        shutil.copyfile(self._root / name, target)

    def remove(self, name: str) -> None:
        """Forget a file."""
        (self._root / name).unlink(missing_ok=True)

    def age_s(self, name: str) -> float:
        """Since it was written."""
        return time.time() - (self._root / name).stat().st_mtime


class Bucket:
    """An object store, or whatever else fsspec opens by a URL."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise Misconfigured(
                f"snapshots.to = {without_secrets(url)} needs fsspec: pip install 'crawlog[snapshots]', and with it "
                "the package of your store (s3fs, gcsfs, adlfs …). A folder needs neither."
            ) from None
        try:
            self._fs: Any
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            told = str(error).replace(url, without_secrets(url))
            raise Misconfigured(f"snapshots.to = {without_secrets(url)} cannot be opened by fsspec: {told}") from None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def names(self, folder: str) -> list[str]:
        """Names in a folder; what the store lists is asked for anew."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(one["name"].rpartition("/")[2] for one in found if one["type"] == "file")

    def read(self, name: str) -> bytes:
        """A small file."""
        return bytes(self._fs.cat_file(self._path(name)))

    def put(self, source: Path | bytes, name: str) -> None:
        """An object is seen when it is whole."""
        target = self._path(name)
        self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        if isinstance(source, bytes):
            self._fs.pipe_file(target, source)
        else:
            self._fs.put_file(str(source), target)

    def get(self, name: str, target: Path) -> None:
        """Copy a file."""
        self._fs.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Forget a file."""
        self._fs.rm_file(self._path(name))

    def age_s(self, name: str) -> float:
        """Since it was stored; 0 where the store does not say."""
        try:
            return max(time.time() - float(self._fs.modified(self._path(name)).timestamp()), 0.0)
        except (NotImplementedError, AttributeError):
            return 0.0


def store_of(to: str) -> Store:
    """The store that `snapshots.to` names.

    Raises: Misconfigured: fsspec, or its package for this store, is not installed.
    """
    return Bucket(to) if "://" in to else Folder(Path(to))


class Snapshots:
    """The snapshots of one log's partitions in a store.

    Args:
        keep: Newest snapshots of a partition that are kept.
        rewind_h: So far back the newest one of each hour is kept too, hours.
        came: Called for each file of a snapshot that was fetched: all of them may take longer than a watchdog waits.
    """

    def __init__(
        self,
        store: Store,
        log: LogIdentity,
        keep: int = 2,
        rewind_h: float = 0.0,
        came: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._log = log
        self._keep = keep
        self._rewind_h = rewind_h
        self._came = came
        self._sums: dict[tuple[int, int, int], str] = {}

    def make(self, folder: Path, meta: r.Meta, at: float) -> tuple[Manifest, int]:
        """Store a database that nobody writes to; returns its manifest and the bytes that had to be sent."""
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
        """Snapshots of a partition, the highest offset first; what is no manifest is passed over."""
        base, found = self._base(partition), []
        for name in reversed(self._store.names(base)):
            if not name.endswith(".json"):
                continue
            try:
                manifest = _manifest(self._store.read(f"{base}/{name}"))
            except (OSError, msgspec.DecodeError) as error:
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
        """Copy a snapshot to a folder that is not there yet.

        Raises: Damaged: a name leads out of the folder; a file is missing, too short, or not what it was.
        """
        names = [file.name for file in manifest.files]
        if len({*names}) < len(names) or not all(
            _plain(word) for file in manifest.files for word in (file.name, file.sum)
        ):
            raise Damaged(f"the manifest of offset {manifest.offset} holds a bad name")
        base = self._base(manifest.meta.partition)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        part.mkdir(parents=True)
        try:
            for file in manifest.files:
                path = part / file.name
                self._store.get(f"{base}/{file.content}", path)
                if path.stat().st_size != file.size or _sum(path) != file.sum:
                    raise Damaged(f"{file.name} is not what it was")
                self._came()
            part.rename(target)
        except FileNotFoundError as error:
            raise Damaged(f"a file is missing: {error}") from None
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def prune(self, partition: int, now: float) -> list[Manifest]:
        """Remove what need not be kept, manifests first; returns what is left, the highest offset first."""
        base, found = self._base(partition), self.of(partition)
        kept = self._kept(found, now)
        for manifest in found:
            if manifest not in kept:
                self._store.remove(f"{base}/{manifest.name}")
        named = {file.content.removeprefix("files/") for manifest in kept for file in manifest.files}
        for name in self._store.names(f"{base}/files"):
            if name not in named and self._store.age_s(f"{base}/files/{name}") > ORPHAN_S:
                self._store.remove(f"{base}/files/{name}")
        return kept

    def _kept(self, found: list[Manifest], now: float) -> list[Manifest]:
        kept, hours = found[: self._keep], set()
        for manifest in found[self._keep :]:
            hour = int(manifest.at // 3600)
            if now - manifest.at <= self._rewind_h * 3600 and hour not in hours:
                hours.add(hour)
                kept.append(manifest)
        return kept

    def _base(self, partition: int) -> str:
        return f"{self._log.cluster}/{self._log.topic}/{partition}"

    def _sum(self, path: Path) -> str:
        """A table's sum is taken once: it never changes while it is the same file."""
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


def fitting(
    found: Iterable[Manifest], fold: str, *, low: int = 0, high: int | None = None, skipped: tuple[r.Skip, ...] | None
) -> list[Manifest]:
    """Those that a restore can begin from, in the given order.

    Args:
        fold: This crawlog's version of the fold.
        low: Where the log starts.
        high: The highest offset of use: the log's end, or below a state that was found wrong; None for any.
        skipped: What rewinds take back, where that is known: a snapshot that has folded some of it is of no use.
    """
    return [
        one
        for one in found
        if (one.meta.format, one.meta.fold) == (r.FORMAT, fold)
        and low <= one.offset
        and (high is None or one.offset <= high)
        and (skipped is None or r.fits(one.meta.skipped, one.offset, skipped))
    ]
