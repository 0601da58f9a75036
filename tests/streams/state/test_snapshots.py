"""Snapshots: seen whole or not at all, sent once, pruned, and the one that fits is where a lost state begins again."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import DamagedSnapshot, Misconfigured, SnapshotsAway
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import Changes
from crawlog.streams.state import partition as partition_of
from crawlog.streams.state import snapshots
from crawlog.streams.state.copies import copy_database
from crawlog.streams.state.partition import Database, Partition, StateMemory, fold_version
from crawlog.streams.state.restore import Restorer
from crawlog.streams.state.snapshots import Manifest, Snapshots, StateOrigin, fitting
from crawlog.streams.state.stores import FolderStore, store_of
from crawlog.streams.url.place import Places

LOG = LogIdentity("c", "t")
JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))


def found(number: int) -> bytes:
    """A found of 100 URLs."""
    return u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(f"http://a{n % 7}.com/{number}/{n}") for n in range(100)]))


class Owner:
    """The owner of partition 0 and its snapshots."""

    def __init__(self, folder: Path, to: str, **kept: Any) -> None:
        self.folder = folder
        self.to = folder / "snapshots"
        self.snapshots = Snapshots(store_of(to), LOG, **kept)
        self.open = [self.partition("state")]
        self.made = 0

    def partition(self, name: str, origin: StateOrigin | None = None) -> Partition:
        """Open a state that may begin from a snapshot."""
        origin = origin or StateOrigin(self.snapshots)
        return Partition(self.folder / name, 0, Places(1), LOG, StateMemory(8), 64, origin)

    def lost(self, origin: StateOrigin | None = None) -> Partition:
        """The state of a new machine."""
        self.open.append(self.partition(f"new-{len(self.open)}", origin))
        return self.open[-1]

    @property
    def state(self) -> Partition:
        """The live one."""
        return self.open[0]

    def make(self, offset: int, at: float = 1.0) -> tuple[Manifest, int]:
        """Fold up to an offset, and make a snapshot."""
        for number in range(self.state.offset, offset):
            self.state.take(found(number) if number else JOB, number, 1.0)
        self.state.checkpoint()
        self.made += 1
        frozen = self.folder / f"frozen-{self.made}"
        self.state.db.flush()
        copy_database(self.state.db.path, frozen)
        return self.snapshots.make(frozen, r.read_meta(self.state.db.get(r.META) or b""), at)

    def files(self) -> list[Path]:
        """Every file in the store."""
        return sorted(path for path in self.to.rglob("*") if path.is_file())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """With a folder as its store."""
    made = Owner(tmp_path, str(tmp_path / "snapshots"))
    yield made
    for partition in made.open:
        partition.close()


def test_a_lost_state_begins_at_the_newest_snapshot(owner: Owner) -> None:
    """With the digest, offset and last hash of that checkpoint; what came since is folded from the log."""
    owner.make(20)
    owner.make(30)
    before = owner.state.digest(), owner.state.offset, owner.state.last_hash
    for number in range(30, 40):
        owner.state.take(found(number), number, 1.0)
    owner.state.checkpoint()
    new = owner.lost()
    assert new.leap()
    assert (new.digest(), new.offset, new.last_hash) == before
    for number in range(30, 40):
        new.take(found(number), number, 1.0)
    new.checkpoint()
    assert new.digest() == owner.state.digest()


def test_each_file_of_a_snapshot_that_comes_is_told(owner: Owner, tmp_path: Path) -> None:
    """All of them may take longer than the watchdog waits: the worker would begin anew, and so for ever."""
    made, _ = owner.make(2)
    came: list[int] = []
    told = Snapshots(store_of(str(owner.to)), LOG, came=lambda: came.append(1))
    told.fetch(made, tmp_path / "fetched")
    assert len(came) == len(made.files) > 1


def test_only_new_tables_are_sent(owner: Owner) -> None:
    """A table that did not change is stored once, whatever it is called."""
    _, first = owner.make(200)
    manifest, second = owner.make(202)
    assert sum(file.size for file in manifest.files if file.name.endswith(".sst")) > 0
    assert second < first / 2


def test_a_snapshot_is_not_there_before_its_manifest(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent before a death is used by the next one, and shows nowhere."""
    put, count = FolderStore.put, [0]

    def dies(self: FolderStore, source: Path | bytes, name: str) -> None:
        count[0] += 1
        if count[0] > 2:
            raise OSError("killed")
        put(self, source, name)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "put", dies)
        with pytest.raises(OSError, match="killed"):
            owner.make(20)
    assert owner.snapshots.of(0) == []
    owner.make(21)
    assert [one.offset for one in owner.snapshots.of(0)] == [21]


def spoil(path: Path) -> None:
    """Other bytes, as many."""
    path.write_bytes(bytes(len(path.read_bytes())))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "spoilt": spoil,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["table", "manifest"])
def test_a_damaged_snapshot_is_passed_over(owner: Owner, damage: str, kind: str) -> None:
    """The one before it is taken."""
    owner.make(20)
    before = set(owner.files())
    owner.make(40)
    new = [path for path in owner.files() if path not in before]
    chosen = next(path for path in new if (path.suffix == ".json") == (kind == "manifest") and path.stat().st_size > 99)
    DAMAGES[damage](chosen)
    state = owner.lost()
    assert state.leap()
    assert state.offset == 20


def flip_largest_table(folder: Path) -> None:
    """Bytes in the middle of a database's largest table become others."""
    table = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(byte ^ 0xFF for byte in content[middle : middle + 20])
    table.unlink()  # it may be a link to another database's
    table.write_bytes(content)


def test_a_snapshot_of_a_damaged_state_is_passed_over(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are as they were sent, and a block of them cannot be read."""
    owner.make(20)
    make = owner.snapshots.make

    def of_damaged(folder: Path, *more: Any) -> tuple[Manifest, int]:
        flip_largest_table(folder)
        return make(folder, *more)

    monkeypatch.setattr(owner.snapshots, "make", of_damaged)
    owner.make(200)
    state = owner.lost()
    assert state.leap()
    assert state.offset == 20


def test_a_state_of_another_version_begins_at_a_snapshot_where_the_log_is_trimmed(owner: Owner) -> None:
    """Only without one that lies within the log is it refused."""
    owner.make(20)
    path = owner.folder / "old"
    old = Database(path, StateMemory(8))
    old.write(Changes({r.META: r.pack({"format": 1})}))
    old.close()
    origin = StateOrigin(owner.snapshots, lambda: (20, 20))
    owner.open.append(Partition(path, 0, Places(1), LOG, StateMemory(8), 64, origin))
    assert (owner.open[-1].offset, "of another version" in owner.open[-1].note) == (20, True)
    owner.open[-1].close()
    old = Database(path, StateMemory(8))
    old.write(Changes({r.META: r.pack({"format": 1})}))
    old.close()
    with pytest.raises(Misconfigured, match="begins at offset 21"):
        Partition(path, 0, Places(1), LOG, StateMemory(8), 64, StateOrigin(owner.snapshots, lambda: (21, 30)))
    with pytest.raises(Misconfigured, match="begins at offset 7"):
        Partition(path, 0, Places(1), LOG, StateMemory(8), 64, StateOrigin(owner.snapshots, lambda: (7, 19)))
    owner.open.pop()


@pytest.mark.parametrize("field", ["name", "sum"])
@pytest.mark.parametrize("word", ["", ".", "..", "a/b", "../../x", "/etc/passwd", "a\0b", "\ud800", "x" * 256])
def test_a_manifest_with_a_bad_name_is_damaged(owner: Owner, field: str, word: str) -> None:
    """A name is one of a file in the snapshot's own folder; nothing is read or written elsewhere."""
    bad = msgspec.structs.replace(snapshots.File("x", 1, "y"), **{field: word})
    with pytest.raises(DamagedSnapshot, match="bad name"):
        owner.snapshots.fetch(Manifest(manifest(1).meta, 0.0, (bad,)), owner.folder / "fetched")
    assert not list(owner.folder.glob("*fetched*"))


def test_a_manifest_that_names_a_file_twice_is_damaged(owner: Owner) -> None:
    """The second one would take the place of the first."""
    twice = Manifest(manifest(1).meta, 0.0, (snapshots.File("x", 1, "y"), snapshots.File("x", 2, "z")))
    with pytest.raises(DamagedSnapshot, match="bad name"):
        owner.snapshots.fetch(twice, owner.folder / "fetched")


def test_a_manifest_under_another_name_than_its_own_is_no_snapshot(owner: Owner) -> None:
    """Pruning removes manifests by the name that is in them: it would remove another file."""
    made, _ = owner.make(20)
    (stored,) = [path for path in owner.files() if path.suffix == ".json"]
    other = msgspec.structs.replace(made, meta=msgspec.structs.replace(made.meta, fold="x/../../../../../victim"))
    (stored.parent / "00000000000000000099.x.json").write_bytes(msgspec.json.encode(other))
    assert [one.offset for one in owner.snapshots.of(0)] == [20]


def test_without_a_snapshot_a_state_begins_at_the_start(owner: Owner) -> None:
    """A rebuild says why, and is none the wiser."""
    owner.state.take(JOB, 0, 1.0)
    owner.state.rebuild("it was wrong")
    assert owner.state.offset == 0


def test_a_wrong_state_begins_below_where_it_was_found_wrong(owner: Owner) -> None:
    """Its own snapshots are as wrong: each is only tried once."""
    for offset in (10, 20, 30):
        owner.make(offset)
    offsets = []
    while owner.state.offset:
        owner.state.rebuild("its last record is another one", high=owner.state.offset - 1)
        offsets.append(owner.state.offset)
    assert offsets == [20, 10, 0]


def test_a_rewind_begins_at_a_snapshot_before_its_start(owner: Owner) -> None:
    """Not at one that has folded what is taken back; of what is skipped, the new state knows."""
    for offset in (10, 30):
        owner.make(offset)
    skip = r.Skip(15, 40, 1)
    owner.state.rewind(skip)
    assert (owner.state.offset, owner.state.fold.skipped) == (10, (skip,))


def manifest(offset: int, at: float = 0.0, *, fold: str = "", skipped: tuple[r.Skip, ...] = ()) -> Manifest:
    """One without files."""
    return Manifest(r.Meta(r.FORMAT, fold or fold_version(), 0, offset, "c", "t", 0, skipped), at, ())


SKIP = r.Skip(50, 80, 1)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, [90, 60, 40]),
        ({"high": 70}, [60, 40]),
        ({"low": 50}, [90, 60]),
        ({"low": 95}, []),
        ({"skipped": (SKIP,)}, [90, 40]),
        ({"skipped": ()}, [60, 40]),
    ],
)
def test_only_what_fits_the_log_is_begun_from(limits: dict[str, Any], expected: list[int]) -> None:
    """Within the log, of this fold; for a rewind only what has folded nothing that it takes back."""
    found = [manifest(90, skipped=(SKIP,)), manifest(60), manifest(55, fold="0"), manifest(40)]
    assert [one.offset for one in fitting(found, fold_version(), **({"skipped": None} | limits))] == expected


def test_pruning_keeps_the_newest(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contents that nobody names go with their snapshot, once they are old enough not to be of one in the making."""
    keeper = Snapshots(store_of(str(owner.to)), LOG, keep=2)
    for number, hour in enumerate((0.0, 1.1, 1.5, 2.2, 3.4, 3.5)):
        owner.make(10 * (number + 1), at=hour * 3600)
    assert [one.offset for one in keeper.prune(0, end=60)] == [60, 50]
    before = len(owner.files())
    monkeypatch.setattr(snapshots, "ORPHAN_S", -1.0)
    kept = Snapshots(store_of(str(owner.to)), LOG, keep=1).prune(0, end=60)
    assert [one.offset for one in kept] == [60]
    assert len(owner.files()) == len({file.content for file in kept[0].files}) + 1 < before
    state = owner.lost()
    assert state.leap()
    assert state.offset == 60


def test_pruning_removes_what_lies_beyond_the_logs_end(owner: Owner) -> None:
    """The log was put back from a backup: such a snapshot would take the place of a good one."""
    for number in (10, 20, 30, 40):
        owner.make(number)
    assert [one.offset for one in owner.snapshots.prune(0, end=29)] == [20, 10]
    assert [one.offset for one in owner.snapshots.of(0)] == [20, 10]


def test_snapshots_of_another_log_are_not_seen(owner: Owner) -> None:
    """The store may hold those of many crawls."""
    owner.make(20)
    assert Snapshots(store_of(str(owner.to)), LogIdentity("c", "new")).of(0) == []


def test_an_object_store_is_like_a_folder(tmp_path: Path) -> None:
    """Any that fsspec opens; its package is the user's."""
    pytest.importorskip("fsspec")
    owner = Owner(tmp_path, "memory://bucket/crawl")
    owner.make(20)
    _, sent = owner.make(30)
    assert sent > 0
    assert [one.offset for one in owner.snapshots.prune(0, end=30)] == [30, 20]
    state = owner.lost()
    assert state.leap()
    assert state.digest() == owner.state.digest()
    gone = Manifest(manifest(1).meta, 0.0, (snapshots.File("x", 1, "y"),))
    with pytest.raises(DamagedSnapshot, match="missing"):
        owner.snapshots.fetch(gone, tmp_path / "x")
    for partition in owner.open:
        partition.close()


def test_a_store_without_its_package_is_refused() -> None:
    """With the command that mends it, and without the password in its URL."""
    with pytest.raises(Misconfigured, match=r"nosuchstore://\*+@bucket.*fsspec") as refused:
        store_of("nosuchstore://me:hunter2@bucket")
    assert "hunter2" not in str(refused.value)


def test_a_store_that_is_away_stops_nobody(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state begins from its log instead."""

    def fails(*_: object) -> list[str]:
        raise ConnectionError("no route to the store")

    owner.make(20)
    monkeypatch.setattr(FolderStore, "names", fails)
    state = owner.lost()
    assert not state.leap()
    assert state.offset == 0


TRIMMED = {0: (15, 30)}
"""Bounds of a log that was trimmed."""


def fails(error: Exception) -> Callable[..., Any]:
    """Anything of a store."""

    def fail(*_: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("method", "error", "raised"),
    [
        ("names", ConnectionError("no route to the store"), SnapshotsAway),
        ("read", TimeoutError("timed out"), SnapshotsAway),
        ("get", TimeoutError("timed out"), SnapshotsAway),
        ("get", OSError(errno.ENOSPC, "No space left on device"), OSError),
    ],
)
def test_a_lost_state_waits_for_the_snapshots_of_a_trimmed_log(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception, raised: type[Exception]
) -> None:
    """Nothing else has the queue. The next try, when the store or the disk is well again, has it."""
    owner.make(20)
    state = owner.lost()
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, method, fails(error))
        with pytest.raises(raised, match=str(error.args[-1])):
            Restorer._prepare({0: state}, TRIMMED)
    assert (state.offset, state.note) == (0, "")
    Restorer._prepare({0: state}, TRIMMED)
    assert (state.offset, "j" in state.fold.jobs) == (20, True)


def test_a_lost_state_waits_where_snapshots_change_meanwhile(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former owner, which keeps one, has made the next and removed the one that is being copied."""
    owner.make(20)
    state = owner.lost()
    old = next(path for path in owner.files() if path.suffix == ".json")
    with monkeypatch.context() as patched:

        def get(_store: FolderStore, name: str, _target: Path) -> None:
            owner.make(25)
            old.unlink()
            raise FileNotFoundError(name)

        patched.setattr(FolderStore, "get", get)
        with pytest.raises(SnapshotsAway, match="they changed meanwhile"):
            Restorer._prepare({0: state}, TRIMMED)
    Restorer._prepare({0: state}, TRIMMED)
    assert (state.offset, "j" in state.fold.jobs) == (25, True)


def of_another_fold(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another suffix list is installed on this machine."""
    monkeypatch.setattr(partition_of, "fold_version", lambda: "another")


def of_a_cut_manifest(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, and cannot be decoded."""
    DAMAGES["cut"](next(path for path in owner.files() if path.suffix == ".json"))


def of_a_lost_file(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the manifest names."""
    next(path for path in owner.files() if path.suffix != ".json").unlink()


@pytest.mark.parametrize("misfit", [of_another_fold, of_a_cut_manifest, of_a_lost_file])
def test_a_lost_state_is_not_begun_empty_where_a_snapshot_does_not_fit(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, misfit: Callable[[Owner, pytest.MonkeyPatch], None]
) -> None:
    """Its queue may still be had: the user is told which snapshot is there, and what to do."""
    owner.make(20)
    state = owner.lost()
    misfit(owner, monkeypatch)
    with pytest.raises(Misconfigured, match=r"begins at offset 15.*, or run what made 0+20\..*-s snapshots\.to= "):
        Restorer._prepare({0: state}, TRIMMED)
    assert (state.offset, state.note) == (0, "")


@pytest.mark.parametrize("may_lack", [True, False])
def test_only_what_no_snapshot_can_have_is_left_out(owner: Owner, may_lack: bool) -> None:
    """Records that expired are said; of a log that is trimmed for snapshots there must be one somewhere."""
    owner.make(10)
    state = owner.lost(StateOrigin(owner.snapshots, may_lack=may_lack))
    if may_lack:
        Restorer._prepare({0: state}, TRIMMED)
        assert (state.offset, "has lost its records 0 to 14" in state.note) == (15, True)
    else:
        with pytest.raises(Misconfigured, match=r"begins at offset 15.*-s snapshots\.to=DIR"):
            Restorer._prepare({0: state}, TRIMMED)
        assert state.offset == 0


def test_a_manifest_that_cannot_be_read_now_costs_its_snapshot_no_file(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pruning would not know which files it names."""
    owner.make(20)
    monkeypatch.setattr(snapshots, "ORPHAN_S", -1.0)
    before = owner.files()
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "read", fails(TimeoutError("timed out")))
        with pytest.raises(TimeoutError):
            owner.snapshots.prune(0, end=20)
    assert owner.files() == before


def test_a_rewind_that_a_trimmed_log_cannot_follow_leaves_the_state(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each snapshot has folded what it takes back, or the store is away: nothing is wiped or read for ever."""
    owner.make(16)
    owner.make(20)
    owner.open.append(owner.partition("other", StateOrigin(owner.snapshots, lambda: TRIMMED[0])))
    state = owner.open[-1]
    assert state.leap()
    before = state.digest()
    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "names", fails(ConnectionError("no route to the store")))
        with pytest.raises(SnapshotsAway):
            state.rewind(r.Skip(17, 30, 1))
    with pytest.raises(Misconfigured, match=r"the record at offset 30 rewinds it to offset 15.*begins at offset 15"):
        state.rewind(r.Skip(15, 30, 1))
    assert (state.offset, state.fold.skipped, state.digest()) == (20, (), before)
    state.rewind(r.Skip(17, 30, 1))
    assert (state.offset, state.fold.skipped) == (16, (r.Skip(17, 30, 1),))
