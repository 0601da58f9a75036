"""The stores of snapshots: a folder, or an object store by its URL. `SnapshotStore` is their interface."""

import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any, Protocol

from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import without_secrets

CHUNK_BYTES = 1 << 20  # Bytes of a file read at once


class SnapshotStore(Protocol):
    """A store of named files."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder; empty if there is no such folder."""

    def read(self, name: str) -> bytes:
        """The content of a small file.

        Raises: OSError: there is no such file.
        """

    def put(self, source: Path | bytes, name: str) -> None:
        """Store a file atomically: readers see the whole file or none."""

    def get(self, name: str, target: Path) -> None:
        """Copy a file to the disk.

        Raises: OSError: there is no such file.
        """

    def remove(self, name: str) -> None:
        """Remove a file."""

    def age_s(self, name: str) -> float:
        """Seconds since the file was stored; 0 where unknown."""


class FolderStore:
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
        """The content of a small file."""
        return (self._root / name).read_bytes()

    def put(self, source: Path | bytes, name: str) -> None:
        """Written to a temporary file, synced, then renamed."""
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
        """Remove a file."""
        (self._root / name).unlink(missing_ok=True)

    def age_s(self, name: str) -> float:
        """Seconds since the file was written."""
        return time.time() - (self._root / name).stat().st_mtime


class BucketStore:
    """An object store, or any other file system that fsspec opens by a URL."""

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
        """Names in a folder, without fsspec's cache of listings."""
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return sorted(one["name"].rpartition("/")[2] for one in found if one["type"] == "file")

    def read(self, name: str) -> bytes:
        """The content of a small file."""
        return bytes(self._fs.cat_file(self._path(name)))

    def put(self, source: Path | bytes, name: str) -> None:
        """Object stores are atomic: an object appears when it is complete."""
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
        """Remove a file."""
        self._fs.rm_file(self._path(name))

    def age_s(self, name: str) -> float:
        """Seconds since the object was stored; 0 where the store reports no time."""
        try:
            return max(time.time() - float(self._fs.modified(self._path(name)).timestamp()), 0.0)
        except (NotImplementedError, AttributeError):
            return 0.0


def store_of(to: str) -> SnapshotStore:
    """The store that `snapshots.to` names.

    Raises: Misconfigured: fsspec, or its package for this store, is not installed.
    """
    return BucketStore(to) if "://" in to else FolderStore(Path(to))
