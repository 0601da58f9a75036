"""`crawlog snapshot`: copies of the states, made now or listed; workers may be running."""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings
    from crawlog.streams.state import Manifest, Snapshots

Say = Callable[[str], None]


class Copied(msgspec.Struct):
    """One snapshot.

    Attributes:
        at: When it was made, ISO 8601, UTC.
        fold: The version of the fold that made the state.
    """

    partition: int
    offset: int
    bytes: int
    at: str
    fold: str

    def __str__(self) -> str:
        return f"{self.partition:>9}  {self.offset:>12,}  {self.bytes / 1e6:>10,.1f} MB  {self.at}"


def make(settings: "Settings", report: Say) -> list[Copied]:
    """Makes a snapshot of every state in the data folder.

    Raises: Misconfigured: `snapshots.to` is empty.
    """
    return [_copied(one) for one in _made(settings, _snapshots(settings), report)]


def listed(settings: "Settings") -> list[Copied]:
    """All snapshots of this crawl.

    Raises: Misconfigured: `snapshots.to` is empty.
    """
    from crawlog.streams.log import partition_count

    snapshots = _snapshots(settings)
    return [_copied(one) for number in range(partition_count(settings)) for one in snapshots.of(number)]


def _snapshots(settings: "Settings") -> "Snapshots":
    from crawlog.streams import logs
    from crawlog.streams.cluster import log_identity
    from crawlog.streams.log import Topics
    from crawlog.streams.state import Snapshots, store_of

    logs.configure("debug" if settings.log.level == "debug" else "warning")  # standard output is for answers
    if not settings.snapshots.to:
        raise Misconfigured("snapshots.to is empty: say where to, with -s snapshots.to=DIR or a URL such as s3://…")
    kept = settings.snapshots
    log = log_identity(settings, Topics(settings.kafka.prefix).urls)
    return Snapshots(store_of(kept.to), log, kept.keep)


def _made(settings: "Settings", snapshots: "Snapshots", report: Say) -> "Iterator[Manifest]":
    from crawlog.streams.cluster import log_end
    from crawlog.streams.errors import NotCopied, Unusable
    from crawlog.streams.fold import rows as r
    from crawlog.streams.log import Topics
    from crawlog.streams.state import Database, StateMemory, check_database, copy_database

    state, memory = settings.run.data / "state", StateMemory(settings.state.memory_mb)
    topic = Topics(settings.kafka.prefix).urls
    for folder in sorted(path for path in state.glob("*") if path.name.isdigit()):
        copy = state / f".frozen-{folder.name}-{secrets.token_hex(4)}"
        try:
            copy_database(folder, copy)
            check_database(copy)
            database = Database(copy, memory)
            stored = database.get(r.META)
            database.close()
            if stored:
                manifest, sent = snapshots.make(copy, r.read_meta(stored), time.time())
                number = manifest.meta.partition
                snapshots.prune(number, log_end(settings, topic, number))
                report(f"partition {folder.name}: offset {manifest.offset:,}, {sent / 1e6:,.1f} MB sent")
                yield manifest
        except NotCopied as error:
            report(str(error))
        except Unusable as error:
            report(f"partition {folder.name}: no snapshot, the state {folder} is {error}")
        finally:
            _remove(copy)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _copied(one: "Manifest") -> Copied:
    at = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="seconds")
    return Copied(one.meta.partition, one.offset, one.bytes, at, one.meta.fold)
