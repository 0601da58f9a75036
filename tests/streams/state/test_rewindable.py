"""Rewinds of a log that lost its first records: refused, before they are written, without a snapshot to begin at."""

from pathlib import Path

import msgspec
import pytest

from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import EngineError, Misconfigured
from crawlog.streams.fold import rows as r
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import rewindable
from crawlog.streams.state.partition import fold_version
from crawlog.streams.state.rewindable import see_rewindable
from crawlog.streams.state.snapshots import Manifest
from crawlog.streams.state.stores import FolderStore, store_of

LOG = LogIdentity("c", "t")
LOW = 50


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a crawl whose log begins at 50 in partition 0, and at 0 in partition 1."""
    monkeypatch.setattr(rewindable, "log_identity", lambda *_: LOG)
    monkeypatch.setattr(rewindable, "log_bounds", lambda _, __, numbers: {n: ((LOW, 0)[n], 99) for n in numbers})
    plain = Settings()
    return plain.model_copy(update={"snapshots": plain.snapshots.model_copy(update={"to": str(tmp_path)})})


def have(settings: Settings, *offsets: int, fold: str = "", skipped: tuple[r.Skip, ...] = ()) -> None:
    """Store manifests of partition 0."""
    for offset in offsets:
        one = Manifest(r.Meta(r.FORMAT, fold or fold_version(), 0, offset, *LOG, 0, skipped), 0.0, ())
        store_of(settings.snapshots.to).put(msgspec.json.encode(one), f"c/t/0/{one.name}")


@pytest.mark.parametrize(("offsets", "start"), [((50, 60), 50), ((40, 60), 75), ((), 0)])
def test_a_rewind_to_a_snapshot_or_later_is_possible(settings: Settings, offsets: tuple[int, ...], start: int) -> None:
    """So is any that concerns only partitions whose log is whole."""
    have(settings, *offsets)
    see_rewindable(settings, {0: start, 1: 7} if offsets else {1: start})


@pytest.mark.parametrize(
    ("offsets", "fold", "why"),
    [
        ((40, 65), "", "between there and 60.*Rewind that partition to 65 or later"),
        ((55,), "another", r"-s snapshots\.to=DIR"),
        ((), "", r"-s snapshots\.to=DIR"),
    ],
)
def test_a_rewind_that_no_worker_could_follow_is_refused(
    settings: Settings, offsets: tuple[int, ...], fold: str, why: str
) -> None:
    """Its record would stay in the log, and end each worker that reads it."""
    have(settings, *offsets, fold=fold)
    with pytest.raises(Misconfigured, match=rf"urls\[0\] begins at offset {LOW}.*{why}.*--fresh"):
        see_rewindable(settings, {0: 60, 1: 7})


def test_a_snapshot_that_an_earlier_rewind_took_back_is_no_start(settings: Settings) -> None:
    """The newest snapshot knows of that rewind."""
    have(settings, 55)
    have(settings, 90, skipped=(r.Skip(52, 57, 1),))
    with pytest.raises(Misconfigured, match="Rewind that partition to 90 or later"):
        see_rewindable(settings, {0: 60})


def test_a_store_that_is_away_is_no_empty_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command may be right a moment later."""

    def fails(*_: object) -> list[str]:
        raise ConnectionError("no route to the store")

    monkeypatch.setattr(FolderStore, "names", fails)
    with pytest.raises(EngineError, match="partition 0 cannot be read: no route to the store"):
        see_rewindable(settings, {0: 60})
