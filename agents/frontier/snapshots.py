"""Snapshots in the background: each live partition's state is flushed, copied and sent in threads; dispatch goes on.

Checkpoints go on too, but a copy holds exactly one of them, because it is thrown away if anything was written:
    1 the meta row is read → 2 the files are linked, or copied where they grow → 3 the meta row is read again, and is
    the same
Every checkpoint writes the meta row. A failure is logged, and the snapshot is tried again when the next is due: no
crawl depends on it.
"""

import asyncio
import secrets
import shutil
import time
from pathlib import Path

import structlog
from confluent_kafka import TopicPartition

from crawlog.streams.cluster import Admin, log_end
from crawlog.streams.errors import NotCopied
from crawlog.streams.fold import rows as r
from crawlog.streams.state import Manifest, Partition, Snapshots, check_database, copy_database

from .frontier_agent import OwnedFrontier

log = structlog.get_logger()

LOOK_S = 0.5

# Copies made until one lies between two checkpoints. A copy takes some 20 ms; a checkpoint comes each second.
TRIES = 10

# Pause after every 2,000 rows of a check, which take half a millisecond, so that the event loop has its turns.
CHECK_REST_S = 0.002


class Snapshotter:
    """Makes snapshots of one worker's partitions, one after the other."""

    def __init__(self, stage: OwnedFrontier) -> None:
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
                if self._stage.live.get(number) is not partition:
                    continue  # 1 another one's snapshot is made → 2 a rebalance → 3 this one is closed, and open anew
                if now >= self._due.setdefault(number, now + every_s):
                    self._due[number] = now + every_s
                    await self._make(partition)

    async def _make(self, partition: Partition) -> None:
        snapshots = self._stage.snapshots
        if snapshots is None:
            return
        self._stage.checkpoint(partition)
        frozen = self._folder / f".frozen-{partition.number}-{secrets.token_hex(4)}"
        try:
            began = time.monotonic()
            meta = await self._frozen(partition, frozen)
            if meta is None:
                return
            kept, sent = await asyncio.to_thread(self._copy, snapshots, frozen, meta)
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

    async def _frozen(self, partition: Partition, target: Path) -> r.Meta | None:
        """Make `target` a copy of a live state as of one of its checkpoints; None where it is not live any more.

        Raises: NotCopied: Each copy met a checkpoint.
        """
        database = partition.db
        await asyncio.to_thread(database.flush)  # else each copy would have a write-ahead log of its own to be sent
        for _ in range(TRIES):
            if not database.is_open:
                return None
            before = database.get(r.META)
            await asyncio.to_thread(copy_database, database.path, target)
            if database.is_open and database.get(r.META) == before:
                return r.read_meta(before) if before else None
            await asyncio.to_thread(shutil.rmtree, target)
        raise NotCopied(f"{database.path} was written during each of {TRIES} copies")

    def _copy(self, snapshots: Snapshots, frozen: Path, meta: r.Meta) -> tuple[list[Manifest], int]:
        check_database(frozen, CHECK_REST_S)  # before older snapshots, and perhaps the log, are deleted
        _, sent = snapshots.make(frozen, meta, time.time())
        end = log_end(self._settings, self._stage.names.urls, meta.partition)
        kept = snapshots.prune(meta.partition, end)
        if self._settings.snapshots.trim_log:
            self._trim(meta.partition, kept[-1].offset)
        return kept, sent

    def _trim(self, number: int, offset: int) -> None:
        """Delete the log before the oldest snapshot: no restore needs it."""
        admin = Admin(self._settings)
        for future in admin.client.delete_records([TopicPartition(self._stage.names.urls, number, offset)]).values():
            admin.result(future)
