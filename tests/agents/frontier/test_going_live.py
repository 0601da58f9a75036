"""Restored partitions are taken over one after the other, while the event loop goes on and reads."""

import asyncio
from pathlib import Path

import pytest

from crawlog.agents.frontier import restoring
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import EngineError, SnapshotsAway
from crawlog.streams.frontier import partition as owned_partition
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.url.place import Places
from tests.support.fetching import alone

PLACES = Places(2)
JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))


def found(partition: int, number: int) -> bytes:
    """A found of a host of a partition."""
    urls = (f"http://site{n}.com/" for n in range(1_000))
    mine = [url for url in urls if PLACES.of(url).partition == partition]
    return u.encode(u.UrlsRecord("j", 0, urls=[u.FoundUrl(mine[number])]))


async def test_a_record_of_a_partition_that_is_loaded_next_is_folded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the last one for long: nobody would read the log again for its sake."""
    monkeypatch.setattr(owned_partition, "LOADED_AT_ONCE", 1)
    stage, _ = alone(Settings(), monkeypatch)
    memory = StateMemory(8)
    for number in range(2):
        opened = Partition(tmp_path / str(number), number, PLACES, LogIdentity("cluster", "topic"), memory, 64)
        for offset, value in enumerate([JOB, found(number, 0), found(number, 1)]):
            opened.take(value, offset, 0.0)
        stage.restoring.opened[number] = opened
    going = asyncio.create_task(stage._go_live())
    await asyncio.sleep(0)
    assert not stage.live
    stage.take(1, 3, None, found(1, 2), 0.0)
    await going
    assert stage.live.keys() == {0, 1}
    assert stage.live[1].fold.jobs["j"].counts.queued == 3
    stage._close()


@pytest.mark.parametrize(("error", "beats"), [(SnapshotsAway(0, "timed out"), 1), (EngineError("no answer"), 0)])
async def test_the_watchdog_knows_that_a_restore_waits_for_snapshots(
    monkeypatch: pytest.MonkeyPatch, error: EngineError, beats: int
) -> None:
    """The log answers meanwhile: it would take the worker for stuck, and the next one would wait for them anew."""
    monkeypatch.setattr(restoring, "RESTORE_AGAIN_S", 0.0)
    stage, _ = alone(Settings(), monkeypatch)
    heard: list[None] = []
    monkeypatch.setattr(stage.app.watchdog, "beat", lambda: heard.append(None))
    await stage.restoring._wait_for_the_log(error)
    assert len(heard) == beats
