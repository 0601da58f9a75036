"""Restores from a real log: to its end, from the checkpoint on, and from the start where the state does not fit."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition

from crawlog.schemas import urls as u
from crawlog.streams.cluster import Admin
from crawlog.streams.cluster.client import LogIdentity, kafka_config
from crawlog.streams.errors import Misconfigured, RestoreInterrupted
from crawlog.streams.log import provision, topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import restore
from crawlog.streams.state.partition import Partition, StateMemory
from crawlog.streams.url.place import Places

if TYPE_CHECKING:
    from crawlog.streams.fold.revisions import Effects

pytestmark = pytest.mark.broker

JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))
PLACES = Places(8)


def home(number: int, count: int) -> list[bytes]:
    """Founds of URLs that belong to a partition."""
    sites = (f"http://site{n}.com/" for n in range(10_000))
    own = [site for site in sites if PLACES.of(site).partition == number][:count]
    return [u.encode(u.UrlsRecord(job="j", urls=[u.FoundUrl(site)])) for site in own]


class Restoring:
    """A log and the states folded from it."""

    def __init__(self, settings: Settings, path: Path) -> None:
        provision.ensure_topics(settings)
        self.settings = settings
        self.path = path
        self.topic = topics.Topics(settings.kafka.prefix).urls
        self.memory = StateMemory(8)
        self.open: list[Partition] = []
        self.effects: list[Effects] = []

    def write(self, number: int, *values: bytes) -> None:
        """Append to a partition of the log."""
        producer = Producer(kafka_config(self.settings) | {"linger.ms": 0})
        for value in values:
            producer.produce(self.topic, value, partition=number)
        assert producer.flush(30) == 0

    def partition(self, number: int, name: str = "state") -> Partition:
        """A state on disk."""
        path = self.path / name / str(number)
        opened = Partition(path, number, PLACES, LogIdentity("c", "t"), self.memory, cached_pages=64)
        self.open.append(opened)
        return opened

    def __call__(self, *partitions: Partition, after: Callable[[Partition], None] = lambda _: None) -> dict[int, int]:
        """Restore; returns the records folded by partition."""
        restorer = restore.Restorer(self.settings, self.topic)
        return restorer.restore(partitions, lambda _, __, e: self.effects.append(e), after, threading.Event())


@pytest.fixture
def restoring(cluster: Settings, tmp_path: Path) -> Iterator[Restoring]:
    """A log of this test alone."""
    made = Restoring(cluster, tmp_path)
    yield made
    for partition in made.open:
        partition.close()


def test_all_partitions_are_folded_to_the_logs_end(restoring: Restoring) -> None:
    """Together, an empty one among them."""
    restoring.write(0, JOB, *home(0, 5))
    restoring.write(1, JOB, *home(1, 7))
    states = [restoring.partition(n) for n in (0, 1, 2)]
    assert restoring(*states) == {0: 6, 1: 8, 2: 0}
    assert [state.fold.jobs["j"].counts.queued for state in states[:2]] == [5, 7]


def test_a_restore_goes_on_from_the_checkpoint(restoring: Restoring) -> None:
    """And ends as one fold of the whole log would."""
    log = [JOB, *home(0, 9)]
    restoring.write(0, *log[:5])
    state = restoring.partition(0)
    restoring(state)
    state.checkpoint()
    restoring.write(0, *log[5:])
    assert restoring(state) == {0: 5}
    state.checkpoint()
    whole = restoring.partition(0, "whole")
    restoring(whole)
    whole.checkpoint()
    assert whole.digest() == state.digest()


def test_an_open_state_with_changes_is_restored_as_it_is(restoring: Restoring) -> None:
    """The log has grown since its checkpoint, and so has the state: it is not built again."""
    log = [JOB, *home(0, 9)]
    restoring.write(0, *log[:4])
    state = restoring.partition(0)
    restoring(state)
    state.checkpoint()
    state.take(log[4], 4, 1.0)
    restoring.write(0, *log[4:])
    assert restoring(state) == {0: 5}


def test_a_state_of_another_history_is_built_again(restoring: Restoring) -> None:
    """Its last record is not the one in the log, though the log's identity is the same."""
    state = restoring.partition(0)
    for offset, value in enumerate([JOB, *home(0, 3)]):
        state.take(value, offset, 1.0)
    state.checkpoint()
    restoring.write(0, JOB, *home(0, 9)[3:])
    assert restoring(state) == {0: 7}
    assert state.fold.jobs["j"].counts.queued == 6


def test_a_state_ahead_of_the_log_is_built_again(restoring: Restoring) -> None:
    """The log lost its end, or is a younger one."""
    state = restoring.partition(0)
    for offset, value in enumerate([JOB, *home(0, 5)]):
        state.take(value, offset, 1.0)
    state.checkpoint()
    restoring.write(0, JOB)
    assert restoring(state) == {0: 1}


@pytest.mark.parametrize(
    ("records", "why"), [(3, "the log ends at 3"), (9, "is not the one it folded")], ids=["shorter", "other"]
)
def test_a_state_that_the_log_cannot_replace_stays(restoring: Restoring, records: int, why: str) -> None:
    """The log lacks its first records: without the state the queue would be gone too."""
    state = restoring.partition(0)
    for offset, value in enumerate([JOB, *home(0, 5)]):
        state.take(value, offset, 1.0)
    state.checkpoint()
    before = state.digest()
    restoring.write(0, JOB, *home(0, 20)[-records + 1 :])
    admin = Admin(restoring.settings)
    for future in admin.client.delete_records([TopicPartition(restoring.topic, 0, 2)]).values():
        admin.result(future)
    with pytest.raises(Misconfigured, match=f"{why}.*begins at offset 2.*remove the folder"):
        restoring(state)
    assert (state.offset, state.digest()) == (6, before)


def test_effects_happen_in_a_restore_too(restoring: Restoring) -> None:
    """Forwarding and dead letters, wherever the record stood."""
    restoring.write(0, JOB, b"garbage", *home(3, 1))
    restoring(restoring.partition(0))
    assert [(bool(effects.dead), list(effects.forward)) for effects in restoring.effects] == [(True, []), (False, [3])]


def test_a_long_restore_can_be_checkpointed_on_its_way(restoring: Restoring) -> None:
    """So its memory is bounded, and a death costs only what came after."""
    restoring.write(0, JOB, *home(0, 1) * 1500)
    state = restoring.partition(0)
    seen: list[int] = []
    restoring(state, after=lambda partition: seen.append(partition.checkpoint()))
    assert seen[-1] == 1501
    assert len(seen) >= 1501 // restore.AFTER_RECORDS, "within a batch too: its records may make a million changes"


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ((restore.RESTORE_CHANGES, 0, 0, 0), 0),
        ((restore.RESTORE_CHANGES - 1, 0, 0, 0), None),
        ((restore.RESTORE_CHANGES // 8 - 1, restore.RESTORE_CHANGES, 0, 0), 1),
    ],
)
def test_partitions_restored_together_share_the_memory_for_changes(changes: tuple[int, ...], due: int | None) -> None:
    """One alone may use all of it; once it is used, those with few changes are left."""
    partitions: Any = [SimpleNamespace(changes=each) for each in changes]
    is_due = restore.checkpoint_due(5_000, partitions)
    assert [at for at, one in enumerate(partitions) if is_due(one)] == ([] if due is None else [due])


def test_an_interrupted_restore_says_so(restoring: Restoring) -> None:
    """A rebalance begins while it reads."""
    restoring.write(0, JOB)
    interrupt = threading.Event()
    interrupt.set()
    restorer = restore.Restorer(restoring.settings, restoring.topic)
    with pytest.raises(RestoreInterrupted):
        restorer.restore([restoring.partition(0)], lambda *_: None, lambda _: None, interrupt)
