"""Selects the copy of a partition's state from which a new owner continues, among those in its data folder.

    <data>/state/<partition>            the state, unless its last owner could not release it
    <data>/state/<partition>.<mark>     a copy, made because the state was locked; or a standby fold

Every copy is a correct fold of the log, whichever process wrote it and whenever. So the new owner takes the copy with
the highest offset, and no copy needs fencing. A paused process and its successor never write to the same file:

    1  worker A is paused
    2  its session ends; B owns the partition and finds the lock held
    3  B copies the database (`copies.py`) and continues in the folder of the copy
    4  A resumes and checkpoints into its old folder, which no other process reads
    5  A loses its membership, closes the database and joins again
    6  the next owner takes the folder with the higher offset, gives it the plain name, and removes the other
"""

import contextlib
import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import structlog

from crawlog.streams import files
from crawlog.streams.cluster import LogIdentity, log_bounds, log_identity
from crawlog.streams.errors import EngineError, NotCopied, RestoreInterrupted, StateLocked
from crawlog.streams.fold import rows as r
from crawlog.streams.log import partition_count
from crawlog.streams.settings import Settings
from crawlog.streams.url import Places

from .copies import copy_database
from .database import is_environment_error
from .partition import Database, Partition, StateMemory, fold_version
from .snapshots import Snapshots, StateOrigin
from .stores import store_of

log = structlog.get_logger()

# How long to wait until a former owner closes its database, seconds. After a normal rebalance it is closed already.
LOCK_WAIT_S = 2.0

LOCK_AGAIN_S = 0.1

LEFT_BEHIND_S = 3600.0  # Age from which a temporary copy counts as left by a killed process, seconds

# Age from which a closed standby counts as left, seconds. Not at once: a new owner may be about to open it, as the
# furthest copy.
STANDBY_LEFT_S = 86400.0

MIN_FREE_BYTES = 16 << 20  # Free disk space required to open a state: RocksDB's write-ahead log alone may take so much

SPACE_AGAIN_S = 1.0  # Time between two looks for space


class States:
    """Opens the states of one data folder.

    Args:
        topic: Full name of crawl.urls.
        came: Called for each fetched file of a snapshot.

    Attributes:
        places: Maps URLs to partitions; None before `ask`.
        partitions: Number of partitions of crawl.urls; 0 before `ask`.
        snapshots: Snapshots of this log; None before `ask`, or without `snapshots.to`.
    """

    def __init__(self, settings: Settings, topic: str, came: Callable[[], None] = lambda: None) -> None:
        self.places: Places | None = None
        self.partitions = 0
        self.snapshots: Snapshots | None = None
        self._settings = settings
        self._topic = topic
        self._came = came
        self._folder = Path(settings.run.data) / "state"
        self._memory = StateMemory(settings.state.memory_mb)
        self._log: LogIdentity | None = None

    def ask(self) -> None:
        """Ask the cluster for the log's identity. Call it before each restore: topics may have been recreated.

        Raises: EngineError: no answer.
        """
        self._sweep()
        self._log = log_identity(self._settings, self._topic)
        self.partitions = partition_count(self._settings)
        self.places = Places(self.partitions)
        kept = self._settings.snapshots
        if kept.to:
            self.snapshots = Snapshots(store_of(kept.to), self._log, kept.keep, self._came)

    def _sweep(self) -> None:
        """Remove temporary copies of killed processes: their links keep disk space allocated."""
        for left in self._folder.glob(".*"):
            with contextlib.suppress(FileNotFoundError):
                if left.is_dir() and time.time() - left.stat().st_mtime > LEFT_BEHIND_S:
                    shutil.rmtree(left, ignore_errors=True)

    def open(self, number: int, interrupt: threading.Event) -> Partition:
        """The state of a partition, from which the fold continues.

        Raises:
            RestoreInterrupted: `interrupt` was set while the former owner still had it open.
            OSError: The disk is full.
            Misconfigured: The state cannot be used or rebuilt.
            EngineError: No answer.
        """
        self._see_space()
        path = self._settled(number)
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                state = self._opened(path, number)
            except StateLocked:
                if interrupt.wait(LOCK_AGAIN_S):
                    raise RestoreInterrupted from None
                if time.monotonic() > until:
                    path = self._copied(path, number)
            else:
                self._take_further(state, state.fold.skipped or None)
                return state

    def standby(self, number: int, worker: str) -> Partition:
        """A standby fold of a partition that another worker owns. It starts from the copy with the highest offset here.

        Raises:
            NotCopied: The log has lost its first records, and nothing here goes on from its start.
            OSError: The disk is full. EngineError: No answer.
        """
        self._see_space()
        path = self._folder / f"{number}.standby-{worker}"
        if not (path / "CURRENT").exists():
            shutil.rmtree(path, ignore_errors=True)  # left by a kill; only this worker uses it
            best = max((self._folder / str(number), *self._others(number)), key=self._offset)
            with contextlib.suppress(NotCopied):
                copy_database(best, path)
        state = self._opened(path, number, may_lack=False)
        try:
            self._take_further(state)
            if state.offset < (low := self._bounds(number)[0]):  # it would soon be further than the owner's snapshots
                raise NotCopied(f"it ends at offset {state.offset}, the log begins at {low}, and no snapshot fits")
        except Exception:
            state.close()
            raise
        return state

    def forget_standbys(self, keep: Collection[int]) -> None:
        """Remove standbys that nobody has open, and nobody wrote to for long: of any worker, since their names change.

        Args:
            keep: Partitions whose copies stay: this worker has them, or follows them.
        """
        kept = {str(number) for number in keep}
        for path in self._folder.glob("*.standby-*"):
            with contextlib.suppress(FileNotFoundError):
                is_old = time.time() - path.stat().st_mtime > STANDBY_LEFT_S
                if is_old and path.name.partition(".")[0] not in kept and not self._is_locked(path):
                    log.info("standby_removed", path=str(path))
                    shutil.rmtree(path, ignore_errors=True)

    def _take_further(self, state: Partition, skipped: tuple[r.Skip, ...] | None = None) -> None:
        """Go on from a snapshot that is further than the state and lies within the log.

        A log that was put back from a backup may end before snapshots that its former self has made. They are removed:
        the log will pass their offsets with other records.
        """
        if self.snapshots is None:
            return
        number = state.number
        try:
            further = [one.offset for one in self.snapshots.of(number) if one.offset > state.offset]
            end = self._bounds(number)[1] if further else 0
            if further and max(further) > end:
                self.snapshots.prune(number, end)
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001  # a store may raise anything, and no crawl depends on it
            log.warning("snapshots_unreachable", partition=number, error=str(error))
            return
        if further:
            state.leap(state.offset + 1, end, skipped)

    def _opened(self, path: Path, number: int, *, may_lack: bool = True) -> Partition:
        assert self._log is not None
        assert self.places is not None
        may_lack = may_lack and not (self.snapshots and self._settings.snapshots.trim_log)
        origin = StateOrigin(self.snapshots, partial(self._bounds, number), may_lack)
        cached = self._settings.state.cached_pages
        return Partition(path, number, self.places, self._log, self._memory, cached, origin)

    def _bounds(self, number: int) -> tuple[int, int]:
        return log_bounds(self._settings, self._topic, [number])[number]

    def _others(self, number: int) -> list[Path]:
        return [path for path in sorted(self._folder.glob(f"{number}.*")) if (path / "CURRENT").exists()]

    def wait_for_space(self) -> None:
        """Wait while the disk has no room for a state; other errors of it are told when one is opened."""
        is_told = False
        while error := self._lack_of_space():
            self._sweep()
            if not is_told:
                log.error("no_space_for_states", error=str(error), then="it joins no group until there is space")
                is_told = True
            time.sleep(SPACE_AGAIN_S)

    def _lack_of_space(self) -> OSError | None:
        try:
            self._see_space()
        except OSError as error:
            return error if error.errno == errno.ENOSPC else None
        return None

    def _see_space(self) -> None:
        files.own(self._folder)
        if shutil.disk_usage(self._folder).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

    def _settled(self, number: int) -> Path:
        """The copy with the highest offset. Other copies that no process has open are removed."""
        main = self._folder / str(number)
        others = self._others(number)
        if not others:
            return main
        best = max((main, *others), key=self._offset)
        for path in (main, *others):
            if path != best and path.exists() and not self._is_locked(path):
                shutil.rmtree(path, ignore_errors=True)
        if best == main:
            return main
        if self._is_locked(best):
            return self._copied(best, number)
        if not main.exists():
            best = best.rename(main)
        return best

    def _offset(self, path: Path) -> int:
        """The offset of a copy; -1 if it is damaged, or of another log or fold version."""
        look = self._folder / f".look-{secrets.token_hex(4)}"
        try:
            copy_database(path, look)
            database = Database(look, self._memory)
            try:
                stored = database.get(r.META)
            finally:
                database.close()
            meta = r.read_meta(stored) if stored else None
        except Exception as error:  # damaged; rocksdict raises bare Exception
            if is_environment_error(error):
                raise
            log.info("candidate_unreadable", path=str(path), error=str(error))
            return -1
        finally:
            shutil.rmtree(look, ignore_errors=True)
        if meta is None or (meta.cluster, meta.topic) != self._log or meta.fold != fold_version():
            return -1
        return meta.offset

    def _is_locked(self, path: Path) -> bool:
        try:
            Database(path, self._memory).close()
        except StateLocked:
            return True
        except Exception:  # noqa: BLE001  # damaged, so not open
            return False
        return False

    def _copied(self, path: Path, number: int) -> Path:
        """The path for a copy of a database that another process has open; no folder is there if copying failed."""
        copy = self._folder / f"{number}.{secrets.token_hex(4)}"
        log.warning(
            "state_locked", path=str(path), owner="stopped, or slow to close", then=f"a copy goes on in {copy.name}"
        )
        try:
            copy_database(path, copy)
        except NotCopied as error:
            log.warning("state_not_copied", error=str(error), then="folded from the log's start")
        return copy
