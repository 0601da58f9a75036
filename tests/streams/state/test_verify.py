"""Verification: the second fold of a log, compared with states that are open, damaged, or not of that log at all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from crawlog import outcome
from crawlog.cli import stored_text
from crawlog.commands.verify import verify
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity, kafka_config, log_identity
from crawlog.streams.errors import NotCopied
from crawlog.streams.fold import rows as r
from crawlog.streams.fold.explained import decoded
from crawlog.streams.fold.overlay import Changes, digest
from crawlog.streams.log import provision, topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import copies
from crawlog.streams.state.copies import copy_database
from crawlog.streams.state.database import DAMAGED
from crawlog.streams.state.partition import Database, Partition, StateMemory
from crawlog.streams.state.verify import as_json, differences
from crawlog.streams.url.place import Places

JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))
PLACES = Places(8)


def founds(number: int, records: int) -> list[bytes]:
    """Founds of 20 URLs each that belong to a partition."""
    sites = (f"http://site{n}.com" for n in range(10_000))
    site = next(site for site in sites if PLACES.of(site + "/").partition == number)
    return [
        u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(f"{site}/{record}/{n}") for n in range(20)]))
        for record in range(records)
    ]


@pytest.fixture
def memory() -> StateMemory:
    """A small budget."""
    return StateMemory(8)


@pytest.fixture
def live(tmp_path: Path, memory: StateMemory) -> Iterator[Partition]:
    """An open state with a checkpoint."""
    partition = Partition(tmp_path / "live", 0, PLACES, LogIdentity("c", "t"), memory, cached_pages=64)
    for value in [JOB, *founds(0, 20)]:
        partition.take(value, partition.offset, 1.0)
    partition.checkpoint()
    yield partition
    partition.close()


def test_a_copy_of_an_open_database_is_its_last_checkpoint(
    live: Partition, tmp_path: Path, memory: StateMemory
) -> None:
    """And what the owner writes afterwards, flushes and compactions included, never shows in it."""
    before = live.digest()
    copy_database(live.path, tmp_path / "copy")
    for value in founds(0, 40)[20:]:
        live.take(value, live.offset, 1.0)
        live.checkpoint()
        live.db.flush()
    live.db._db.compact_range(None, None)
    copy = Database(tmp_path / "copy", memory)
    assert digest(copy.scan(b"")) == before
    copy.close()


def test_what_is_written_into_a_copy_never_shows_in_its_source(
    live: Partition, tmp_path: Path, memory: StateMemory
) -> None:
    """Both go on from here, each in its own folder."""
    live.db.flush()
    before = live.digest()
    copy_database(live.path, tmp_path / "copy")
    copy = Database(tmp_path / "copy", memory)
    copy.write(Changes({key: None for key, _ in live.db.scan(b"")}))
    copy.flush()
    copy._db.compact_range(None, None)
    copy.close()
    assert live.digest() == before


def test_a_copy_has_its_name_once_it_is_whole(live: Partition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill leaves behind is hidden: no worker, and no check, takes it for a state."""
    names: list[set[str]] = []

    def manifest(folder: Path) -> tuple[str, bytes]:
        names.append({path.name for path in tmp_path.iterdir()})
        return read(folder)

    read = copies._manifest
    monkeypatch.setattr(copies, "_manifest", manifest)
    before = {path.name for path in tmp_path.iterdir()}
    copy_database(live.path, tmp_path / "copy")
    begun, copied = ({name for name in now - before if not name.startswith(".")} for now in names)
    assert (begun, copied) == (set(), set())
    assert {path.name for path in tmp_path.iterdir()} == before | {"copy"}


def test_a_folder_without_a_database_is_not_copied(tmp_path: Path) -> None:
    """The error says where; nothing is left behind."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotCopied, match="empty"):
        copy_database(tmp_path / "empty", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_differences_name_rows_of_either_side() -> None:
    """Changed, missing and added ones, in key order; equal ones are left out."""
    kept = [(r.host_key(1), r.pack(r.HostRow(1.0, 0.0, 0))), (r.depth_key(1, 0, 2, 3), b""), (b"z", b"9")]
    folded = [
        (r.host_key(1), r.pack(r.HostRow(2.0, 0.0, 0))),
        (r.queue_key(1, 2, 5, 7, False), r.pack(1)),
        (b"z", b"9"),
    ]
    found = list(differences(iter(sorted(kept)), iter(sorted(folded))))
    assert [(one.kept and one.kept.kind, one.folded and one.folded.kind) for one in found] == [
        ("depth", None),
        ("host", "host"),
        (None, "queued"),
    ]


@pytest.mark.parametrize(
    ("key", "value", "kind", "part", "shown"),
    [
        (r.META, r.pack(r.Meta(1, "1", 0, 9, "c", "t", 5)), "meta", {}, 9),
        (r.job_key(2), r.pack(r.JobRow("j", 0, u.JobSpec())), "job", {"job": 2}, "j"),
        (r.queue_key(1, 2, 5, 7, False), r.pack(r.QueueRow("http://a/")), "queued", {"priority": 5}, "http://a/"),
        (r.joined_key(1, "a.com"), b"", "joined", {"name": "a.com"}, "null"),
        (r.exact_key(1, 0, 2, 4), bytes(24), "page", {"page": 4}, '"count":3'),
        (r.filter_key(1, 0), r.pack(9), "filter", {"epoch": 0}, '"urls":9'),
        (r.block_key(r.filter_prefix(1, 0, 3), 4), b"\x05\x80", "filter block", {"filter": 3, "block": 4}, "3"),
        (r.parked_key(9, "j"), r.pack(u.FoundUrl("http://a/")), "parked", {"sequence": 9, "name": "j"}, "http://a/"),
        (b"?", b"\xff", "unknown", {}, ""),
        (r.host_key(1), b"\xc1", "host", {}, "c1"),
    ],
)
def test_rows_are_told_in_words(key: bytes, value: bytes, kind: str, part: dict[str, object], shown: object) -> None:
    """Whatever the kind, and whatever bytes a wrong state holds."""
    row = decoded(key, value)
    assert (row.kind, row.key | part) == (kind, row.key)
    assert str(shown) in json.dumps(row.value, separators=(",", ":"))


class Verifying:
    """A log, the states of three partitions, held open, and the command."""

    def __init__(self, settings: Settings, data: Path) -> None:
        provision.ensure_topics(settings)
        run = settings.run.model_copy(update={"data": data})
        self.settings = settings.model_copy(update={"run": run})
        self.topic = topics.Topics(settings.kafka.prefix).urls
        self.log = log_identity(settings, self.topic)
        self.memory = StateMemory(8)
        self.states = {n: self.open(n) for n in range(3)}
        producer = Producer(kafka_config(settings) | {"linger.ms": 5})
        stamps: dict[tuple[int, int], float] = {}

        def stamped(_: object, message: object) -> None:
            stamps[message.partition(), message.offset()] = message.timestamp()[1] / 1000  # type: ignore[attr-defined]  # a message that came has one

        for number, state in self.states.items():
            values = [JOB, *founds(number, 30)]
            for value in values:
                producer.produce(self.topic, value, partition=number, on_delivery=stamped)
            assert producer.flush(30) == 0
            for offset, value in enumerate(values[:25]):
                state.take(value, offset, stamps[number, offset])
            state.checkpoint()

    def open(self, number: int, log: LogIdentity | None = None) -> Partition:
        """A state on disk."""
        path = self.settings.run.data / "state" / str(number)
        return Partition(path, number, PLACES, log or self.log, self.memory, cached_pages=64)

    def __call__(self, rows: int = 0) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the verdicts."""
        verified = verify(self.settings, rows)
        code = outcome.FINISHED if verified.is_equal else outcome.DIFFERENT
        return code, [json.loads(as_json(verdict)) for verdict in verified.verdicts]

    def close(self) -> None:
        """Release what is open."""
        for state in self.states.values():
            state.close()


@pytest.fixture
def verifying(cluster: Settings, tmp_path: Path) -> Iterator[Verifying]:
    """A log of this test alone."""
    made = Verifying(cluster, tmp_path)
    yield made
    made.close()


def change_a_row(state: Partition) -> None:
    """As a worker would that writes beside the fold."""
    key, value = next(state.rows.scan(b"g"))
    row = r.read_host_queue(value)
    state.db.write(Changes({key: r.pack(r.HostQueueRow(row.host, row.domain, row.queued + 1))}))


def move_ahead(state: Partition) -> None:
    """Past the log's end."""
    state.skip_to(1_000)
    state.checkpoint()


@pytest.mark.broker
def test_verification_tells_right_states_from_wrong_ones(verifying: Verifying) -> None:
    """While they are open, up to their checkpoint and no further; nothing is left in the data folder."""
    code, verdicts = verifying()
    assert (code, [one["equal"] for one in verdicts], [one["records"] for one in verdicts]) == (0, [True] * 3, [25] * 3)
    change_a_row(verifying.states[1])
    move_ahead(verifying.states[2])
    code, verdicts = verifying(rows=5)
    assert code == outcome.DIFFERENT
    assert [one["equal"] for one in verdicts] == [True, False, False]
    assert "ahead of the log, which ends at 31" in str(verdicts[2]["reason"])
    assert [(row["kept"]["kind"], row["kept"]["value"]["queued"]) for row in verdicts[1]["rows"]] == [
        ("host queue", 481)
    ]
    assert "1: host queue job=1" in "\n".join(stored_text.verified_lines(verify(verifying.settings, 5)))
    assert [path.name for path in verifying.settings.run.data.iterdir()] == ["state"]


@pytest.mark.broker
def test_a_damaged_block_of_a_state_is_told(verifying: Verifying) -> None:
    """It does not pass for the end of the rows; its neighbours are compared, and the state stays as it is."""
    state = verifying.states[1]
    state.db.flush()
    path = max(state.db.path.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(byte ^ 0xFF for byte in content[middle : middle + 20])
    path.write_bytes(content)
    code, verdicts = verifying()
    assert (code, [one["equal"] for one in verdicts]) == (outcome.DIFFERENT, [True, False, True])
    assert "damaged: Corruption" in str(verdicts[1]["reason"])
    assert not (state.db.path / DAMAGED).exists()
