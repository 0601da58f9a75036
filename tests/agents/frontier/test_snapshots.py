"""The snapshots that a worker makes of its live states: of one checkpoint each, while all else goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crawlog.agents.frontier import snapshots
from crawlog.agents.frontier.snapshots import Snapshotter
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import Changes
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.copies import copy_database
from crawlog.streams.state.partition import Database, StateMemory
from crawlog.streams.state.snapshots import Manifest, Snapshots
from crawlog.streams.state.stores import store_of
from tests.support.fetching import World, changed, running

LOG = LogIdentity("cluster", "topic")


@asynccontextmanager
async def kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[World, Snapshots]]:
    """A world whose states have snapshots, and some rows."""
    store = Snapshots(store_of(str(folder / "snapshots")), LOG)
    async with running(folder, monkeypatch) as world:
        world.stage.states.snapshots = store
        monkeypatch.setattr(snapshots, "log_end", lambda *_: 1000)
        world.find("http://a.com/x")
        await world.all_done("http://a.com/x")
        yield world, store


def is_whole(one: Manifest, store: Snapshots, folder: Path) -> bool:
    """Whether a snapshot holds the checkpoint that it says."""
    store.fetch(one, folder)
    database = Database(folder, StateMemory(8))
    stored = database.get(r.META)
    database.close()
    return stored is not None and r.read_meta(stored) == one.meta


async def test_a_snapshot_in_the_making_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs are fetched and checkpoints written while RocksDB flushes; the snapshot is of one of these checkpoints."""
    begun, may_end = threading.Event(), threading.Event()
    flush = Database.flush

    def slow(self: Database) -> None:
        begun.set()
        assert may_end.wait(60.0)
        flush(self)

    monkeypatch.setattr(Database, "flush", slow)
    async with kept(tmp_path, monkeypatch) as (world, store):
        state = world.stage.live[0]
        making = asyncio.create_task(Snapshotter(world.stage)._make(state))
        await world.until(begun.is_set)
        before = state.checkpointed
        world.find("http://b.com/x")
        await world.all_done("http://b.com/x")
        world.stage.checkpoint(state)
        may_end.set()
        await making
        (one,) = store.of(0)
        assert one.offset == state.checkpointed > before
        assert is_whole(one, store, tmp_path / "fetched")


async def test_a_copy_that_a_checkpoint_fell_into_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold the older checkpoint or the newer one."""
    copies: list[int] = []
    async with kept(tmp_path, monkeypatch) as (world, store):
        state = world.stage.live[0]

        def copied(source: Path, target: Path) -> None:
            copy_database(source, target)
            copies.append(state.checkpointed)
            if len(copies) < 3:
                state.skip_to(state.offset + 1)
                state.checkpoint()

        monkeypatch.setattr(snapshots, "copy_database", copied)
        await Snapshotter(world.stage)._make(state)
        (one,) = store.of(0)
        assert len(copies) == 3
        assert one.offset == copies[-1] > copies[0]
        assert is_whole(one, store, tmp_path / "fetched")
        assert not list((tmp_path / "state").glob(".*"))


async def test_a_state_that_is_lost_meanwhile_gives_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker may be writing to it."""
    async with kept(tmp_path, monkeypatch) as (world, store):
        state = world.stage.live[0]

        def copied(source: Path, target: Path) -> None:
            copy_database(source, target)
            asyncio.run_coroutine_threadsafe(revoked(), loop).result(10.0)

        async def revoked() -> None:
            world.stage._close()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(snapshots, "copy_database", copied)
        await Snapshotter(world.stage)._make(state)
        assert store.of(0) == []
        assert not list((tmp_path / "state").glob(".*"))


async def test_no_snapshot_of_a_damaged_state_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones would be removed for it, and the log before it trimmed."""
    async with kept(tmp_path, monkeypatch) as (world, store):
        state = world.stage.live[0]

        def damaged(source: Path, target: Path) -> None:
            copy_database(source, target)
            table = max(target.glob("*.sst"), key=lambda path: path.stat().st_size)
            content = bytearray(table.read_bytes())
            content[:20] = bytes(20)
            table.unlink()
            table.write_bytes(content)

        monkeypatch.setattr(snapshots, "copy_database", damaged)
        await Snapshotter(world.stage)._make(state)
        assert store.of(0) == []
        monkeypatch.setattr(snapshots, "copy_database", copy_database)
        await Snapshotter(world.stage)._make(state)
        assert len(store.of(0)) == 1


def test_a_database_closes_once_its_flush_has_ended(tmp_path: Path) -> None:
    """In another thread; a flush that comes too late does nothing."""
    database = Database(tmp_path / "0", StateMemory(64))
    database.write(Changes({b"k%d" % number: bytes(2000) for number in range(10_000)}, ()))
    flushing = threading.Thread(target=database.flush)
    flushing.start()
    while not database._flushing.locked():
        assert flushing.is_alive()
    database.close()
    flushing.join()
    database.flush()
    again = Database(tmp_path / "0", StateMemory(64))
    assert again.get(b"k9999") == bytes(2000)
    again.close()


async def test_no_snapshot_is_made_of_a_state_that_was_opened_anew_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed one cannot be checkpointed, which would end the worker; its offset is an old one."""
    before, after, made = (object(), object()), object(), list[object]()
    live: dict[int, Any] = dict(enumerate(before))
    settings = changed(Settings(), {"snapshots.to": "/tmp/snapshots", "snapshots.every_s": 0.001})

    async def make(_: Snapshotter, partition: object) -> None:
        made.append(partition)
        live[1] = after

    monkeypatch.setattr(snapshots, "LOOK_S", 0.01)
    monkeypatch.setattr(Snapshotter, "_make", make)
    stage: Any = SimpleNamespace(settings=settings, live=live)
    task = asyncio.create_task(Snapshotter(stage).run())
    async with asyncio.timeout(60):
        while after not in made:  # noqa: ASYNC110  # a fake tells nobody
            await asyncio.sleep(0.01)
    task.cancel()
    assert before[1] not in made
