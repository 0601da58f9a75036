"""Copies of a database that another process has open, made without its help.

A table never changes once it is written, so a link is enough. Files that grow (manifest, write-ahead log) are copied
byte for byte, so later writes of the owner never show in the copy.

Why the copy is whole, without a lock:
    1 the manifest is read → 2 files are listed, then linked or copied → 3 the manifest is read again, and is the same
RocksDB deletes a table only after the manifest has dropped it, and a write-ahead log only after the manifest lists the
tables that replace it. So no file that the manifest needs was deleted between 1 and 3, and the list of 2 has all of
them. The copy of a growing log may end amid a batch. RocksDB reads it up to the last whole batch: an older checkpoint,
never half of one.
"""

import contextlib
import secrets
import shutil
import time
from pathlib import Path

from crawlog.streams.errors import NotCopied

TRIES = 50
# Pause before the next try if the manifest has changed, seconds; a flush or a compaction takes some 10 ms.
AGAIN_S = 0.02

_LEFT_OUT = frozenset({"LOCK", "LOG", "CURRENT"})


def copy_database(source: Path, target: Path) -> None:
    """Copy a database, as of one of its checkpoints, to `target`, which must not exist.

    The copy gets its name when it is whole. Until then it is a hidden folder beside it, which a kill leaves behind.

    Raises:
        NotCopied: There is no database, or its manifest changed during each of TRIES tries.
        OSError: The disk is full or not writable.
    """
    hidden = target.with_name(f".copy-{secrets.token_hex(4)}")
    try:
        for _ in range(TRIES):
            try:
                if _copied(source, hidden):
                    hidden.rename(target)
                    return
            except FileNotFoundError:
                if not (source / "CURRENT").exists():
                    break
            shutil.rmtree(hidden, ignore_errors=True)
            time.sleep(AGAIN_S)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
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
    """Link a file that never changes; copy it where the file system has no links."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        shutil.copyfile(source, target)
