"""Standbys: a worker keeps warm copies of partitions that other workers own, so that a take-over is quick.

A standby is folded like any state, in its own folder `state/<partition>.standby-<worker>`. Nothing is dispatched from
it, forwarded or dead-lettered: the owner does that. So it is folded no further than the owner's checkpoint, the offset
that the group has committed: the next owner may have to forward a later record. When this worker gets the partition,
the copy with the highest offset wins, as always; on another machine than the last owner's that is the standby. A
worker's name decides which partitions it keeps, so that several workers keep different ones. After a rebalance it may
keep others; a standby that nobody has opened for a day is removed.
"""

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import structlog
import xxhash

from crawlog.streams.cluster import committed_offsets
from crawlog.streams.errors import EngineError, Misconfigured, NotCopied, RestoreInterrupted, Unusable
from crawlog.streams.log import stage_group
from crawlog.streams.state import Partition, Restorer, bounding

if TYPE_CHECKING:
    from .frontier_agent import OwnedFrontier

log = structlog.get_logger()

EVERY_S = 2.0  # Between two looks at the log: a take-over has to fold the records of so many seconds

SWEEP_S = 3600.0  # Between two looks for standbys that nobody keeps any more

AGAIN_S = 60.0  # Pause before a standby that nothing gives a start is tried again: a snapshot of its partition may come


class Standby:
    """The standbys of one worker. One thread folds; `release` may be called from another."""

    def __init__(self, stage: "OwnedFrontier") -> None:
        self._stage = stage
        self._settings = stage.settings
        self._open: dict[int, Partition] = {}
        self._again_at: dict[int, float] = {}
        self._sweep_at = 0.0
        self._lock = threading.Lock()
        self._interrupt = threading.Event()
        self._releasing = 0

    async def run(self) -> None:
        """Until the worker ends."""
        if not self._settings.state.standby:
            return
        self._stage.restoring.on_opening.append(self.release)
        while True:
            await asyncio.sleep(EVERY_S)
            if self._stage.dispatching:  # not amid a rebalance: a partition may be back in a moment
                await asyncio.to_thread(self.keep_up, self._stage.owned_now())

    def keep_up(self, owned: frozenset[int]) -> None:
        """Fold the standbys to the log's end; one that is no longer wanted is closed."""
        self._interrupt = threading.Event()
        with self._lock:
            if self._releasing:
                return
            try:
                self._fold(owned)
            except (RestoreInterrupted, EngineError) as error:
                log.info("standby_waits", reason=repr(error))
            except Exception as error:  # noqa: BLE001  # rocksdict raises bare Exception; no crawl depends on a standby
                log.warning("standby_failed", error=str(error), then="opened again")
                self._close(set(self._open))

    def _fold(self, owned: frozenset[int]) -> None:
        states = self._stage.states
        if states.places is None:
            states.ask()
        wanted = chosen(self._stage.app.worker_name, states.partitions, owned, self._settings.state.standby)
        self._close(self._open.keys() - wanted)
        if time.monotonic() >= self._sweep_at:
            states.forget_standbys(wanted | owned)
            self._sweep_at = time.monotonic() + SWEEP_S
        for number in wanted - self._open.keys():
            self._begin(number)
        opened = list(self._open.values())
        bounded = bounding(self._settings.state.checkpoint_changes, opened)
        topic = self._stage.names.urls
        checkpointed = committed_offsets(self._settings, stage_group(self._settings, "fetch"), topic, self._open)
        most = {number: offset for number, (offset, _) in checkpointed.items()}
        Restorer(self._settings, topic).restore(opened, lambda *_: None, bounded, self._interrupt, most=most)
        for partition in opened:
            partition.checkpoint()

    def _begin(self, number: int) -> None:
        """Open a standby; one that cannot begin is left out for a while."""
        if time.monotonic() < self._again_at.get(number, 0.0):
            return
        try:
            self._open[number] = self._stage.states.standby(number, self._stage.app.worker_name)
        except (NotCopied, Misconfigured) as error:
            log.info("standby_left_out", partition=number, reason=str(error), again_in_s=AGAIN_S)
            self._again_at[number] = time.monotonic() + AGAIN_S

    def release(self, partitions: set[int]) -> None:
        """Close the standbys of partitions that this worker is about to open as its own."""
        self._releasing += 1
        self._interrupt.set()
        try:
            with self._lock:
                self._close(partitions & self._open.keys())
        finally:
            self._releasing -= 1

    def _close(self, partitions: set[int]) -> None:
        for number in partitions:
            partition = self._open.pop(number)
            try:
                try:
                    partition.checkpoint()
                finally:
                    partition.close()
            except Unusable as error:  # the next one that opens it sets it aside
                log.warning("standby_damaged", partition=number, error=str(error))
            except Exception as error:  # noqa: BLE001  # as above: a full disk, as a rule
                log.warning("standby_not_written", partition=number, error=str(error))


def chosen(worker: str, partitions: int, owned: frozenset[int], count: int) -> set[int]:
    """The partitions of which a worker keeps a standby: those of others with the lowest hash with its name."""
    others = (number for number in range(partitions) if number not in owned)
    return set(sorted(others, key=lambda number: xxhash.xxh3_64_intdigest(f"{worker}/{number}".encode()))[:count])
