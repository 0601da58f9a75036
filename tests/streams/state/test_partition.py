"""The state on disk: a checkpoint is all or nothing, and what does not fit the log is built again."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.errors import Misconfigured, StateLocked, Unusable
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import Changes
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import database as databases_of
from crawlog.streams.state import partition as partition_of
from crawlog.streams.state.partition import Database, Partition, StateMemory, check_database
from crawlog.streams.state.snapshots import FROM_THE_START, StateOrigin
from crawlog.streams.url.place import Places

PLACES = Places(1)
LOG = LogIdentity("cluster", "topic")
JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))


def found(first: int, number: int = 100) -> bytes:
    """A found of so many URLs on ten hosts."""
    urls = [u.FoundUrl(f"http://host{n % 10}.com/{n}") for n in range(first, first + number)]
    return u.encode(u.UrlsRecord(job="j", urls=urls))


class Opened:
    """Partitions of one folder, closed at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path / "state" / "0"
        self.memory = StateMemory(8)
        self.open: list[Partition] = []

    def __call__(self, identity: LogIdentity = LOG, number: int = 0, origin: StateOrigin = FROM_THE_START) -> Partition:
        """Open the partition."""
        partition = Partition(self.path, number, PLACES, identity, self.memory, 64, origin)
        self.open.append(partition)
        return partition

    def close(self, partition: Partition) -> None:
        """Close one as a death would: without a checkpoint."""
        self.open.remove(partition)
        partition.close()

    def filled(self, records: int = 20) -> Partition:
        """A job and some founds, checkpointed."""
        partition = self()
        for value in [JOB, *(found(n * 100) for n in range(records))]:
            partition.take(value, partition.offset, 1.0)
        partition.checkpoint()
        return partition


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens partitions, and closes them."""
    opener = Opened(tmp_path)
    yield opener
    for partition in opener.open:
        partition.close()


def test_a_checkpoint_survives(opened: Opened) -> None:
    """Offset, hash, rows and digest are the same after reopening."""
    partition = opened.filled()
    before = (partition.offset, partition.last_hash, partition.digest())
    opened.close(partition)
    again = opened()
    assert (again.offset, again.last_hash, again.digest()) == before
    assert before[0] == 21


def test_a_state_that_cannot_be_opened_anew_tells_why(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one, of another log, is closed and discarded already; nothing of it hides the error."""
    opened.close(opened.filled())

    def open_once(*arguments: Any) -> Database:
        monkeypatch.setattr(partition_of, "Database", full)
        return Database(*arguments)

    def full(*_: Any) -> Database:
        raise Exception("IO error: No space left on device: While open a file")  # noqa: TRY002  # as rocksdict

    monkeypatch.setattr(partition_of, "Database", open_once)
    with pytest.raises(Exception, match="No space left on device") as told:
        opened(LogIdentity("cluster", "another"))
    assert databases_of.is_environment_error(told.value)


def test_what_was_not_checkpointed_is_not_there(opened: Opened) -> None:
    """Neither rows nor offset: the log is read again from the checkpoint on, to the same state."""
    partition = opened.filled()
    before = partition.digest()
    partition.take(found(9_000), 21, 1.0)
    partition.fold.flush()
    opened.close(partition)
    again = opened()
    assert (again.offset, again.digest()) == (21, before)


def test_one_checkpoint_or_many_give_one_digest(opened: Opened, tmp_path: Path) -> None:
    """The meta row included."""
    whole = opened.filled()
    other = Opened(tmp_path / "other")
    partition = other()
    for value in [JOB, *(found(n * 100) for n in range(20))]:
        partition.take(value, partition.offset, 1.0)
        partition.checkpoint()
        other.close(partition)
        partition = other()
    digest = partition.digest()
    other.close(partition)
    assert digest == whole.digest()


def test_a_checkpoint_without_a_new_record_writes_nothing(opened: Opened) -> None:
    """It would only cost the disk."""
    partition = opened.filled()
    before = partition.db._db.latest_sequence_number()
    assert partition.checkpoint() == 21
    assert partition.db._db.latest_sequence_number() == before


def test_a_checkpoint_that_fails_keeps_its_changes(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one writes them."""
    partition = opened.filled()
    partition.take(found(9_000), 21, 1.0)
    changes = dict(partition.rows.dirty)
    with monkeypatch.context() as patched:
        patched.setattr(partition.db, "write", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            partition.checkpoint()
    assert partition.checkpointed == 21
    assert changes.items() <= partition.rows.dirty.items()
    assert partition.checkpoint() == 22


def test_the_hash_is_that_of_the_record_folded_last(opened: Opened) -> None:
    """Before a checkpoint too: a restore of an open state compares it with the log."""
    partition = opened.filled()
    before = partition.last_hash
    partition.take(found(9_000), 21, 1.0)
    after = partition.last_hash
    assert after != before
    partition.checkpoint()
    assert partition.last_hash == after


def test_no_hash_is_known_behind_a_gap(opened: Opened) -> None:
    """The record before the offset is not one that was folded."""
    partition = opened.filled()
    partition.skip_to(30)
    assert partition.last_hash == 0


def meta_of(partition: Partition, **other: object) -> bytes:
    """The meta row, with some fields changed."""
    return r.pack(msgspec.structs.replace(r.read_meta(partition.db.get(r.META) or b""), **other))


OTHER_VERSIONS: dict[str, Callable[[Partition], bytes | None]] = {
    "another fold": lambda partition: meta_of(partition, fold="0 old"),
    "another format": lambda partition: meta_of(partition, format=0),
    "a meta row of another layout": lambda _: r.pack({"format": 1}),
    "no meta row": lambda _: None,
}


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_a_state_of_another_version_is_set_aside_and_folded_again(opened: Opened, version: str) -> None:
    """The note says what happened and where the old one is; that one is whole."""
    partition = opened.filled()
    partition.db.write(Changes({r.META: OTHER_VERSIONS[version](partition)}))
    opened.close(partition)
    again = opened()
    assert (again.offset, list(again.db.scan(b""))) == (0, [])
    aside = opened.path.with_name("aside-0")
    assert "of another version" in again.note
    assert str(aside.with_name("aside-*")) in again.note
    database = Database(aside, opened.memory)
    assert database.get(r.job_key(1)) is not None
    database.close()


def test_only_the_state_that_was_set_aside_last_is_kept(opened: Opened) -> None:
    """They would fill the disk."""
    for mark in (b"first", b"second"):
        partition = opened()
        partition.db.write(Changes({b"z": mark}))
        opened.close(partition)
    opened()
    assert [path.name for path in sorted(opened.path.parent.iterdir())] == ["0", "aside-0"]
    aside = Database(opened.path.with_name("aside-0"), opened.memory)
    assert aside.get(b"z") == b"second"
    aside.close()


@pytest.mark.parametrize("harm", ["damaged", "of another version"])
def test_a_state_that_cannot_be_folded_again_is_refused_and_stays(opened: Opened, harm: str) -> None:
    """The log does not begin at 0 any more, and there is no snapshot: the message says what can be done."""
    partition = opened.filled(200)
    partition.db.write(Changes({r.META: meta_of(partition, format=0)} if harm != "damaged" else {}))
    opened.close(partition)
    if harm == "damaged":
        flip("MANIFEST-*", 0.5)(opened.path)
    with pytest.raises(Misconfigured, match=rf"{harm}.*begins at offset 7.*snapshots\.to.*remove the folder"):
        opened(origin=StateOrigin(bounds=lambda: (7, 300)))
    assert [path.name for path in opened.path.parent.iterdir()] == ["0"]
    assert opened().offset == 0


@pytest.mark.parametrize("identity", [LogIdentity("other", "topic"), LogIdentity("cluster", "other")])
def test_a_state_of_another_log_is_built_again(opened: Opened, identity: LogIdentity) -> None:
    """It starts empty, at offset 0, and is that log's from its first checkpoint on."""
    opened.close(opened.filled())
    partition = opened(identity)
    assert (partition.offset, partition.fold.jobs, list(partition.db.scan(b""))) == (0, {}, [])
    partition.take(JOB, 0, 1.0)
    partition.checkpoint()
    opened.close(partition)
    assert opened(identity).offset == 1


def test_a_held_state_is_locked(opened: Opened) -> None:
    """Not damaged: it must not be thrown away."""
    partition = opened.filled()
    with pytest.raises(StateLocked):
        opened()
    assert partition.db.get(r.META) is not None


def flip(pattern: str, at: float) -> Callable[[Path], None]:
    """Overwrite 20 bytes of each such file, at this part of its length."""

    def damage(path: Path) -> None:
        for file in path.glob(pattern):
            content = bytearray(file.read_bytes())
            where = int((len(content) - 20) * at)
            content[where : where + 20] = b"\xff" * 20
            file.write_bytes(content)

    return damage


def cut(pattern: str) -> Callable[[Path], None]:
    """Cut such files in half."""

    def damage(path: Path) -> None:
        for file in path.glob(pattern):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    return damage


def remove(pattern: str) -> Callable[[Path], None]:
    """Delete such files."""

    def damage(path: Path) -> None:
        for file in path.glob(pattern):
            file.unlink()

    return damage


def empty(name: str) -> Callable[[Path], None]:
    """Leave nothing in such a file."""

    def damage(path: Path) -> None:
        (path / name).write_text("")

    return damage


DAMAGES = {
    "CURRENT gone": remove("CURRENT"),
    "CURRENT empty": empty("CURRENT"),
    "MANIFEST gone": remove("MANIFEST-*"),
    "MANIFEST damaged": flip("MANIFEST-*", 0.5),
    "table gone": remove("*.sst"),
    "table cut": cut("*.sst"),
    "table's end damaged": flip("*.sst", 1.0),
    "table's start damaged": flip("*.sst", 0.0),
    "table's middle damaged": flip("*.sst", 0.5),
    "log gone": remove("*.log"),
    "log cut": cut("*.log"),
    "log damaged": flip("*.log", 0.5),
    "settings gone": remove("OPTIONS-*"),
    "rocksdict's settings gone": remove("rocksdict-config.json"),
    "rocksdict's settings empty": empty("rocksdict-config.json"),
}


def refilled(opened: Opened) -> Partition:
    """Open, fold the log from the state's offset on, and read all rows; as often as a supervisor would try."""
    log = [JOB, *(found(n * 100) for n in range(40))]
    for _ in range(3):
        partition = opened()
        with contextlib.suppress(Exception):
            for offset in range(partition.offset, len(log)):
                partition.take(log[offset], offset, 1.0)
            partition.checkpoint()
            partition.digest()
            return partition
        assert "Corruption" in partition.db.damage
        opened.close(partition)
    raise AssertionError("it never gets well")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_becomes_that_of_the_log(opened: Opened, tmp_path: Path, damage: str) -> None:
    """Built again or read on from an older offset: never a state with rows missing."""
    intact = refilled(Opened(tmp_path / "intact"))
    partition = opened.filled()
    partition.db.flush()
    partition.take(found(2_000), 21, 1.0)
    partition.checkpoint()
    opened.close(partition)
    DAMAGES[damage](opened.path)
    assert refilled(opened).digest() == intact.digest()
    intact.close()


def test_a_damaged_block_ends_a_scan_with_an_error(opened: Opened) -> None:
    """RocksDB's own iterator only ends early, as if there were no more rows; the next who opens it builds it again."""
    partition = opened.filled(200)
    partition.db.flush()
    opened.close(partition)
    flip("*.sst", 0.5)(opened.path)
    partition = opened()
    assert partition.offset == 201
    with pytest.raises(Exception, match="Corruption"):
        partition.digest()
    opened.close(partition)
    assert opened().offset == 0


def test_damage_that_a_compaction_meets_costs_one_restart(opened: Opened) -> None:
    """RocksDB then refuses every write: the database is marked, closes, frees its lock, and begins again."""
    partition = opened.filled(200)
    partition.db.flush()
    partition.take(found(0, 5_000), 201, 1.0)
    partition.checkpoint()
    partition.db.flush()  # of two tables a compaction makes one
    opened.close(partition)
    flip(max(opened.path.glob("*.sst"), key=lambda path: path.stat().st_size).name, 0.5)(opened.path)
    opened.memory = StateMemory(8)  # its cache knows the blocks as they were
    partition = opened()
    partition.db._db.compact_range(None, None)
    partition.take(found(90_000), 202, 1.0)
    with pytest.raises(Unusable, match="Corruption"):
        partition.checkpoint()
    opened.close(partition)
    again = opened()
    assert (again.offset, "Corruption" in again.note) == (0, True)


def test_damage_of_what_is_cached_beside_a_state_costs_one_restart(opened: Opened) -> None:
    """A compaction of that column fails as any other, and takes all writes with it."""
    partition = opened.filled()
    for number in range(2_000):
        partition.db.remember(b"robots%d" % number, b"%d rules " % number * 9)
    partition.take(found(2_000), partition.offset, 1.0)
    partition.checkpoint()
    partition.db.flush()
    tables = {row["name"] for row in partition.db._cache.live_files()} - {
        row["name"] for row in partition.db._db.live_files() if row.get("column_family_name") == "default"
    }
    opened.close(partition)
    for name in tables:
        flip(name.removeprefix("/"), 0.5)(opened.path)
    partition = opened()
    with pytest.raises(Unusable, match="Corruption"):
        [partition.db.cached(b"robots%d" % number) for number in range(2_000)]
    opened.close(partition)
    assert opened().offset == 0


def test_a_check_reads_every_row_and_changes_no_file(opened: Opened) -> None:
    """It finds damage that nobody has met."""
    partition = opened.filled(200)
    partition.db.flush()
    opened.close(partition)
    files = {path.name: path.read_bytes() for path in opened.path.iterdir() if not path.name.startswith("LOG")}
    check_database(opened.path)
    assert {name: (opened.path / name).read_bytes() for name in files} == files
    flip("*.sst", 0.5)(opened.path)
    with pytest.raises(Unusable, match="Corruption"):
        check_database(opened.path)


@pytest.mark.parametrize("words", databases_of._NOT_DAMAGE)
def test_a_machine_at_fault_costs_no_state(opened: Opened, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A full disk or a missing right is reported; deleting the state would not mend it."""
    opened.close(opened.filled())

    def fails(*_: object, **__: object) -> None:
        raise OSError(f"IO error: {words} left")

    with monkeypatch.context() as patched:
        patched.setattr(databases_of, "Rdict", fails)
        with pytest.raises(OSError, match="IO error"):
            opened()
    assert opened().offset == 21


def test_a_database_gives_rows_in_key_order(opened: Opened) -> None:
    """From a key on; deleted ones are gone."""
    partition = opened()
    partition.db.write(Changes({b"b": b"2", b"a": b"1", b"c": b"3"}))
    partition.db.write(Changes({b"b": None}))
    assert list(partition.db.scan(b"a")) == [(b"a", b"1"), (b"c", b"3")]
    assert list(partition.db.scan(b"b")) == [(b"c", b"3")]


def test_small_checkpoints_of_many_partitions_need_no_flush(tmp_path: Path) -> None:
    """What write buffers take while they are nearly empty, which the budget of all of them counts, is little."""
    memory = StateMemory(Settings().state.memory_mb)
    databases = [Database(tmp_path / str(number), memory) for number in range(Settings().kafka.partitions)]
    for second in range(30):
        for database in databases:
            database.write(Changes({f"q{second}/{row}".encode(): b"x" * 60 for row in range(100)}, ()))
    assert not list(tmp_path.rglob("*.sst"))
    for database in databases:
        database.close()


def test_a_short_read_sees_what_was_written_since_the_last_one(opened: Opened) -> None:
    """Rows at [start, end), so many at most; its iterator is of the database as it is."""
    database = opened().db
    for number in range(3):
        database.write(Changes({b"a%d" % number: b"", b"b": b"%d" % number}))
        assert database.read(b"a", b"b", 9) == [(b"a%d" % n, b"") for n in range(number + 1)]
    assert database.read(b"a1", b"c", 2) == [(b"a1", b""), (b"a2", b"")]
    assert database.read(b"b", b"c", 2) == [(b"b", b"2")]


def test_the_cache_is_no_part_of_the_state(opened: Opened) -> None:
    """It is kept, and no digest sees it."""
    partition = opened.filled()
    before = partition.digest()
    partition.db.cache(b"robots", b"rules")
    assert (partition.digest(), partition.db.cached(b"robots"), partition.db.cached(b"x")) == (before, b"rules", None)


def test_what_is_remembered_is_written_by_a_checkpoint_and_survives_a_rewind(opened: Opened) -> None:
    """A rewind throws rows away, not what servers said of pages; another log's state goes with all."""
    partition = opened.filled()
    partition.db.remember(b"v1", b"lost")
    opened.close(partition)
    partition = opened()
    assert partition.db.cached(b"v1") is None
    before = partition.digest()
    partition.db.remember(b"v1", b"kept")
    assert (partition.db.cached(b"v1"), partition.digest()) == (b"kept", before)
    partition.take(found(5000), partition.offset, 1.0)
    partition.checkpoint()
    opened.close(partition)
    partition = opened()
    partition.rebuild("rewound", (r.Skip(3, partition.offset, 1),))
    assert (partition.offset, list(partition.db.scan(b""))) == (0, [])
    assert partition.db.cached(b"v1") == b"kept"
    partition.rebuild("another log")
    assert partition.db.cached(b"v1") is None


def test_a_record_out_of_turn_is_refused(opened: Opened) -> None:
    """Only the one at exactly the state's offset may be folded."""
    partition = opened.filled()
    with pytest.raises(AssertionError):
        partition.take(JOB, 20, 1.0)
