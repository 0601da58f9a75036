"""`crawlog snapshot`: copies of the states, made now or listed; workers may be running."""

import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import without_secrets

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings
    from crawlog.streams.state import Manifest, Snapshots

Say = Callable[[str], None]


def snapshot(settings: "Settings", action: str, *, as_json: bool, say: Say, report: Say) -> int:
    """Makes a snapshot of every state in the data folder, or lists all that there are of this crawl."""
    from crawlog.streams.log import Topics, log_identity, partition_count
    from crawlog.streams.state import Snapshots, store_of
    from crawlog.streams.worker import logs

    logs.configure("debug" if settings.log.level == "debug" else "warning")  # standard output is for answers
    if not settings.snapshots.to:
        raise Misconfigured("snapshots.to is empty: say where to, with -s snapshots.to=DIR or a URL such as s3://…")
    kept = settings.snapshots
    log = log_identity(settings, Topics(settings.kafka.prefix).urls)
    snapshots = Snapshots(store_of(kept.to), log, kept.keep, kept.rewind_h)
    if action == "make":
        found = list(_made(settings, snapshots, report))
    else:
        found = [one for number in range(partition_count(settings)) for one in snapshots.of(number)]
    if as_json:
        for one in found:
            say(json.dumps(_facts(one)))
        return outcome.FINISHED
    for one in found:
        say(f"{one.meta.partition:>9}  {one.offset:>12,}  {one.bytes / 1e6:>10,.1f} MB  {_facts(one)['at']}")
    where = without_secrets(kept.to)
    report(f"{len(found)} snapshots in {where}" if found else f"no snapshots of this crawl in {where}")
    return outcome.FINISHED


def _made(settings: "Settings", snapshots: "Snapshots", report: Say) -> "Iterator[Manifest]":
    from crawlog.streams.errors import NotCopied, Unusable
    from crawlog.streams.fold import rows as r
    from crawlog.streams.state import Database, StateMemory, check_database, copy_database

    state, memory = settings.run.data / "state", StateMemory(settings.state.memory_mb)
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
                snapshots.prune(manifest.meta.partition, time.time())
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


def _facts(one: "Manifest") -> "dict[str, int | str]":
    return {
        "partition": one.meta.partition,
        "offset": one.offset,
        "bytes": one.bytes,
        "at": datetime.fromtimestamp(one.at, UTC).isoformat(timespec="seconds"),
        "fold": one.meta.fold,
    }
