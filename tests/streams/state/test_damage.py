"""States that are not what the log says, each in its own way: all are found out, and all become what the log says."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from crawlog.schemas import urls as u
from crawlog.streams.cluster.admin import Admin
from crawlog.streams.cluster.client import LogIdentity, kafka_config, log_identity
from crawlog.streams.fold import rows
from crawlog.streams.log import provision, topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state.copies import copy_database
from crawlog.streams.state.newest_copy import States
from crawlog.streams.state.partition import Database, Partition, StateMemory
from crawlog.streams.state.restore import Restorer
from crawlog.streams.state.snapshots import Snapshots
from crawlog.streams.state.stores import store_of
from crawlog.streams.state.verify import verify
from crawlog.streams.url.place import Places
from tests.support.processes import until

pytestmark = pytest.mark.broker

JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))
PLACES = Places(8)
RECORDS = 30
KEPT = 20
"""Records that the state has folded before it is damaged."""


def founds(number: int, word: str = "") -> list[bytes]:
    """The records of a partition."""
    sites = (f"http://site{n}.com" for n in range(10_000))
    site = next(site for site in sites if PLACES.of(site + "/").partition == number)
    return [
        JOB,
        *(
            u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(f"{site}/{word}{record}/{n}") for n in range(50)]))
            for record in range(RECORDS - 1)
        ),
    ]


def overwrite(pattern: str, keep: float) -> Callable[[Path], None]:
    """Write garbage into files from a part of their length on."""

    def damage(path: Path) -> None:
        files = list(path.glob(pattern))
        assert files
        for file in files:
            content = file.read_bytes()
            cut = int(len(content) * keep)
            file.write_bytes(content[:cut] + b"\xff" * (len(content) - cut))

    return damage


def truncate(path: Path) -> None:
    """Cut each table in half."""
    for file in path.glob("*.sst"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def nothing(_: Path) -> None:
    """What is wrong was folded in."""


CASES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "deleted": ("right", shutil.rmtree),
    "truncated": ("right", truncate),
    "corrupted": ("right", overwrite("*.sst", 0.3)),
    "its manifest corrupted": ("right", overwrite("MANIFEST-*", 0.5)),
    "of another cluster": ("cluster", nothing),
    "of a topic that was made anew": ("topic", nothing),
    "ahead of the log": ("ahead", nothing),
    "of another history": ("history", nothing),
}
"""How the state is filled, and what then happens to its files; each case has a partition of its own."""


class Damaged:
    """A log and a data folder with a state in each partition."""

    def __init__(self, settings: Settings, data: Path) -> None:
        provision.ensure_topics(settings)
        self.settings = settings.model_copy(update={"run": settings.run.model_copy(update={"data": data})})
        self.topic = topics.Topics(settings.kafka.prefix).urls
        self.log = log_identity(settings, self.topic)
        self.memory = StateMemory(8)
        producer = Producer(kafka_config(settings) | {"linger.ms": 5})
        for number in range(8):
            for value in founds(number):
                producer.produce(self.topic, value, partition=number)
        assert producer.flush(30) == 0

    def path(self, number: int) -> Path:
        """Folder of a state."""
        return self.settings.run.data / "state" / str(number)

    def fill(self, number: int, how: str) -> None:
        """Make a state and close it."""
        log = {"cluster": self.log._replace(cluster="x"), "topic": self.log._replace(topic="x")}.get(how, self.log)
        state = Partition(self.path(number), number, PLACES, log, self.memory, cached_pages=64)
        values = founds(number, "other" if how == "history" else "")
        for offset, value in enumerate(values[:KEPT]):
            state.take(value, offset, 1.0)
        if how == "ahead":
            state.skip_to(10_000)
        state.checkpoint()
        state.db.flush()
        state.close()

    def restored(self, states: list[Partition]) -> None:
        """Fold all to the log's end."""
        Restorer(self.settings, self.topic).restore(states, lambda *_: None, lambda _: None, threading.Event())
        for state in states:
            state.checkpoint()


@pytest.fixture
def damaged(cluster: Settings, tmp_path: Path) -> Damaged:
    """A log of this test alone."""
    return Damaged(cluster, tmp_path)


def opened(damaged: Damaged, number: int) -> Partition:
    """Open and restore a state, as often as a supervisor starts a worker that a damaged block ended."""
    for _ in range(3):
        states = States(damaged.settings, damaged.topic)
        states.ask()
        state = states.open(number, threading.Event())
        try:
            damaged.restored([state])
            state.digest()
        except Exception:
            if not state.db.damage:
                raise
            state.close()
        else:
            return state
    raise AssertionError("it never gets well")


def test_whatever_is_wrong_with_a_state_it_becomes_that_of_the_log(damaged: Damaged, tmp_path: Path) -> None:
    """Found out by its files, its identity, its offset or its last record; byte for byte what a fold from 0 gives."""
    for number, (how, damage) in enumerate(CASES.values()):
        damaged.fill(number, how)
        damage(damaged.path(number))
    for number, name in enumerate(CASES):
        state = opened(damaged, number)
        intact = Partition(tmp_path / "intact" / str(number), number, PLACES, damaged.log, damaged.memory, 64)
        damaged.restored([intact])
        assert (state.offset, state.digest()) == (RECORDS, intact.digest()), name
        assert bool(state.cut) == (name in ("ahead of the log", "of another history")), name
        state.close()
        intact.close()


def test_what_expired_is_said_and_left_out(damaged: Damaged, capsys: pytest.CaptureFixture[str]) -> None:
    """The log begins behind the state's offset: what the state has stays, and it goes on from the log's start."""
    damaged.fill(0, "right")
    admin = Admin(damaged.settings)
    for future in admin.client.delete_records([TopicPartition(damaged.topic, 0, KEPT + 5)]).values():
        admin.result(future)
    state = opened(damaged, 0)
    assert state.offset == RECORDS
    assert state.fold.jobs["j"].counts.queued == 50 * (RECORDS - 1 - 5)
    assert "records_gone" in capsys.readouterr().out
    assert f"crawl.urls[0] has lost its records {KEPT} to {KEPT + 4}" in state.note
    state.close()


def make_snapshot(damaged: Damaged, folder: Path) -> None:
    """Of partition 0, as it is on disk."""
    copy = folder / "frozen"
    copy_database(damaged.path(0), copy)
    database = Database(copy, damaged.memory)
    meta = rows.read_meta(database.get(rows.META) or b"")
    database.close()
    Snapshots(store_of(damaged.settings.snapshots.to), damaged.log, 2).make(copy, meta, time.time())


def test_a_snapshot_goes_on_where_state_and_log_are_gone(damaged: Damaged, tmp_path: Path) -> None:
    """The log is trimmed up to it; verification begins there too."""
    kept = damaged.settings.snapshots.model_copy(update={"to": str(tmp_path / "snapshots")})
    damaged.settings = damaged.settings.model_copy(update={"snapshots": kept})
    whole = Partition(tmp_path / "whole", 0, PLACES, damaged.log, damaged.memory, 64)
    damaged.restored([whole])
    damaged.fill(0, "right")
    make_snapshot(damaged, tmp_path)
    shutil.rmtree(damaged.path(0))
    admin = Admin(damaged.settings)
    for future in admin.client.delete_records([TopicPartition(damaged.topic, 0, KEPT)]).values():
        admin.result(future)
    state = opened(damaged, 0)
    assert (state.offset, state.digest()) == (RECORDS, whole.digest())
    assert [(one.equal, one.begun, one.records) for one in verify(damaged.settings, damaged.path(0).parent)] == [
        (True, KEPT, RECORDS - KEPT)
    ]
    state.close()
    whole.close()


def test_a_topic_that_was_made_anew_is_another_log(damaged: Damaged) -> None:
    """The cluster is asked before each restore, not once a process."""
    states = States(damaged.settings, damaged.topic)
    states.ask()
    before = states._log
    admin = Admin(damaged.settings)
    for future in admin.client.delete_topics([damaged.topic], operation_timeout=10).values():
        admin.result(future)
    until(lambda: damaged.topic not in admin.metadata().topics, "the deletion")  # the controller has answered
    provision.ensure_topics(damaged.settings)
    states.ask()
    assert isinstance(before, LogIdentity)
    assert states._log != before
