"""Copies of a database that another process has open, made without its help.

Tables never change once they are written, so a link is a copy of one; what is appended to (manifest, write-ahead log)
is copied byte for byte, so that what its owner writes later never shows in the copy.

Why the copy is whole, without a lock:
    1 the manifest is read → 2 files are listed, then linked or copied → 3 the manifest is read again, and is the same
A file is deleted only after the manifest has let go of it, and a write-ahead log only after the manifest has the tables
that took its place. So between 1 and 3 nothing that the manifest needs was deleted, and the list of 2 has it all. A log
copied while it grows is cut somewhere, and RocksDB reads it up to the last whole batch: an older checkpoint, never half
of one.
"""

import contextlib
import shutil
import time
from pathlib import Path

from crawlog.streams.errors import NotCopied

TRIES = 50
AGAIN_S = 0.02
"""Rest before a copy during which the manifest changed is made again; a flush or a compaction takes some 10 ms."""

_LEFT_OUT = frozenset({"LOCK", "LOG", "CURRENT"})


def copy_database(source: Path, target: Path) -> None:
    """Make `target`, which is not there yet, a copy of `source` as of one of its checkpoints.

    Raises:
        NotCopied: There is no database, or it never stood still.
        OSError: The disk is full, or may not be written.
    """
    for _ in range(TRIES):
        try:
            if _copied(source, target):
                return
        except FileNotFoundError:
            if not (source / "CURRENT").exists():
                break
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(AGAIN_S)
    shutil.rmtree(target, ignore_errors=True)
    raise NotCopied(f"{source} could not be copied: there is no database, or it never stands still")


def _copied(source: Path, target: Path) -> bool:
    current, manifest = _manifest(source)
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.name in _LEFT_OUT or file.name.startswith(("MANIFEST-", "LOG.old")):
            continue
        (link if file.suffix == ".sst" else shutil.copyfile)(file, target / file.name)
    (target / current.strip()).write_bytes(manifest)
    (target / "CURRENT").write_text(current)
    return _manifest(source) == (current, manifest)


def _manifest(folder: Path) -> tuple[str, bytes]:
    current = (folder / "CURRENT").read_text()
    return current, (folder / current.strip()).read_bytes()


def link(source: Path, target: Path) -> None:
    """Give a file that never changes a second name; where the file system has no links, a copy of it."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        shutil.copyfile(source, target)
