"""Snapshots in the background: each live partition's state is frozen by links, then copied in a thread.

The links are made right after a checkpoint, which takes as long as a flush of RocksDB; dispatch goes on. What fails
here is said and tried again when the next snapshot is due: no crawl depends on it.
"""

import asyncio
import secrets
import shutil
import time
from pathlib import Path

import structlog
from confluent_kafka import TopicPartition

from crawlog.streams import rows as r
from crawlog.streams import topics
from crawlog.streams.snapshot import Manifest, Snapshots, freeze
from crawlog.streams.store import Partition

from .frontier import Stage

log = structlog.get_logger()

LOOK_S = 0.5


class Snapshotter:
    """Makes the snapshots of one worker's partitions, one after the other."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._settings = stage.settings
        self._folder = Path(stage.settings.run.data) / "state"
        self._due: dict[int, float] = {}

    async def run(self) -> None:
        """Until the worker ends."""
        every_s = self._settings.snapshots.every_s
        if not self._settings.snapshots.to or not every_s:
            return
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for number, partition in list(self._stage.live.items()):
                if now >= self._due.setdefault(number, now + every_s) and number in self._stage.live:
                    self._due[number] = now + every_s
                    await self._make(partition)

    async def _make(self, partition: Partition) -> None:
        snapshots = self._stage.snapshots
        self._stage.checkpoint(partition)
        stored = partition.db.get(r.META)
        if snapshots is None or stored is None:
            return
        frozen = self._folder / f".frozen-{partition.number}-{secrets.token_hex(4)}"
        try:
            freeze(partition.db, frozen)
            began = time.monotonic()
            kept, sent = await asyncio.to_thread(self._copy, snapshots, frozen, r.read_meta(stored))
            log.info(
                "snapshot_made",
                partition=partition.number,
                offset=kept[0].offset,
                sent_bytes=sent,
                kept=len(kept),
                took_s=round(time.monotonic() - began, 2),
            )
        except Exception as error:  # noqa: BLE001  # whatever a store raises
            log.warning(
                "snapshot_failed", partition=partition.number, error=str(error), then="tried when the next is due"
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, frozen, ignore_errors=True)

    def _copy(self, snapshots: Snapshots, frozen: Path, meta: r.Meta) -> tuple[list[Manifest], int]:
        _, sent = snapshots.make(frozen, meta, time.time())
        kept = snapshots.prune(meta.partition, time.time())
        if self._settings.snapshots.trim_log:
            self._trim(meta.partition, kept[-1].offset)
        return kept, sent

    def _trim(self, number: int, offset: int) -> None:
        """What lies before the oldest snapshot is not needed for any restore."""
        admin = topics.Admin(self._settings)
        for future in admin.client.delete_records([TopicPartition(self._stage.names.urls, number, offset)]).values():
            admin.result(future)
