"""Standbys: two machines with a data folder each on one log; who takes a partition over goes on from its warm copy."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from crawlog.agents.frontier import standby as standbys
from crawlog.agents.frontier.standby import Standby, chosen
from crawlog.schemas import urls as u
from crawlog.streams.cluster.client import LogIdentity, kafka_config
from crawlog.streams.errors import NotCopied, Unusable
from crawlog.streams.log import provision, topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.state import newest_copy
from crawlog.streams.state.newest_copy import States
from crawlog.streams.state.partition import Partition
from crawlog.streams.state.restore import Restorer
from crawlog.streams.url.place import Places

JOB = u.encode(u.UrlsRecord(job="j", spec=u.JobSpec(scope=u.ScopeSpec(kind="any"))))
SITES = {Places(8).of(f"http://site{n}.com/").partition: f"http://site{n}.com" for n in range(200)}


class Full:
    """A partition on a full disk."""

    is_closed = False

    def checkpoint(self: object) -> None:
        """As rocksdict fails."""
        raise Exception("IO error: No space left on device: While appending to file")  # noqa: TRY002  # as rocksdict

    def close(self) -> None:
        """Its end."""
        self.is_closed = True


class Machine:
    """A worker with a data folder of its own, as far as states go."""

    def __init__(self, settings: Settings, data: Path, name: str) -> None:
        self.settings = settings.model_copy(
            update={
                "run": settings.run.model_copy(update={"data": data}),
                "state": settings.state.model_copy(update={"standby": 2}),
            }
        )
        self.names = topics.Topics(settings.kafka.prefix)
        self.states = States(self.settings, self.names.urls)
        self.app: Any = SimpleNamespace(worker_name=name)
        self.dispatching = True
        self.standby = Standby(self)  # type: ignore[arg-type]  # as much of a stage as it needs
        self.open: dict[int, Partition] = {}

    def own(self, *numbers: int) -> dict[int, int]:
        """Take partitions over; records folded for it, by partition."""
        self.standby.release(set(numbers))
        self.states.ask()
        fresh = {number: self.states.open(number, threading.Event()) for number in numbers}
        self.open |= fresh
        return self.fold(*fresh.values())

    def fold(self, *partitions: Partition) -> dict[int, int]:
        """Fold to the log's end, checkpoint, and commit as owners do."""
        folded = Restorer(self.settings, self.names.urls).restore(partitions, lambda *_: None, lambda _: None)
        for partition in partitions:
            partition.checkpoint()
        name = topics.stage_group(self.settings, "fetch")
        group = Consumer(kafka_config(self.settings) | {"group.id": name})
        places = [TopicPartition(self.names.urls, partition.number, partition.offset) for partition in partitions]
        group.commit(offsets=places, asynchronous=False)
        group.close()
        return folded

    def keep_up(self) -> None:
        """One look of the standby."""
        self.standby.keep_up(frozenset(self.open))

    def close(self) -> None:
        """The end of the worker."""
        self.standby.release(set(range(8)))
        while self.open:
            self.open.popitem()[1].close()


@pytest.fixture
def machines(cluster: Settings, tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two, on a log with records in every partition."""
    provision.ensure_topics(cluster)
    made = Machine(cluster, tmp_path / "a", "fetch-0-a"), Machine(cluster, tmp_path / "b", "fetch-0-b")
    write(made[0], 0, 20)
    yield made
    for machine in made:
        machine.close()


def write(machine: Machine, first: int, last: int) -> None:
    """Append records to every partition."""
    producer = Producer(kafka_config(machine.settings) | {"linger.ms": 5})
    for number in range(8):
        for at in range(first, last):
            urls = [u.FoundUrl(f"{SITES[number]}/{at}/{n}") for n in range(20)]
            producer.produce(
                machine.names.urls, u.encode(u.UrlsRecord(job="j", urls=urls)) if at else JOB, partition=number
            )
    assert producer.flush(30) == 0


@pytest.mark.broker
def test_a_take_over_goes_on_from_the_standby(machines: tuple[Machine, Machine]) -> None:
    """Only what came since its last look is folded, to the owner's very state; the partition has one folder again."""
    one, other = machines
    one.own(*range(8))
    other.keep_up()
    write(one, 20, 30)
    one.fold(*one.open.values())
    other.keep_up()
    write(one, 30, 33)
    warm = sorted(other.standby._open)
    assert len(warm) == 2
    one.fold(*one.open.values())
    cold = next(number for number in range(8) if number not in warm)
    assert other.own(*warm, cold) == {warm[0]: 3, warm[1]: 3, cold: 33}
    assert [other.open[n].digest() for n in (*warm, cold)] == [one.open[n].digest() for n in (*warm, cold)]
    folders = sorted(path.name for path in (other.settings.run.data / "state").iterdir())
    assert folders == sorted(str(number) for number in (*warm, cold))


@pytest.mark.broker
def test_a_standby_of_a_partition_given_up_goes_on_from_its_state(machines: tuple[Machine, Machine]) -> None:
    """It need not be folded from the start, and is never ahead of its owner; an interrupted look lets go at once."""
    one, other = machines
    warm = min(chosen("fetch-0-b", 8, frozenset(), 2))
    other.own(warm)
    other.close()
    one.own(warm)
    write(one, 20, 25)
    other.keep_up()
    assert other.standby._open[warm].offset == 20  # what is misplaced behind it, its next owner forwards
    one.fold(*one.open.values())
    other.keep_up()
    assert other.standby._open[warm].offset == 25
    assert other.standby._open[warm].digest() == one.open[warm].digest()
    thread = threading.Thread(target=other.keep_up)
    thread.start()
    other.standby.release({warm})
    thread.join(10)
    assert not thread.is_alive()


def test_workers_keep_different_partitions() -> None:
    """By their names; none keeps what is its own, and none more than asked for."""
    picks = {name: chosen(name, 8, frozenset({1, 2}), 3) for name in ("a", "b", "c")}
    assert {len(pick) for pick in picks.values()} == {3}
    assert len({frozenset(pick) for pick in picks.values()}) > 1
    assert not any(pick & {1, 2} for pick in picks.values())
    assert chosen("a", 8, frozenset(range(7)), 3) == {7}


async def test_without_the_setting_nothing_is_kept(tmp_path: Path) -> None:
    """The service ends where it begins."""
    stage: Any = SimpleNamespace(settings=Settings(), restoring=SimpleNamespace(on_opening=[]))
    await asyncio.wait_for(Standby(stage).run(), 30)
    assert stage.restoring.on_opening == []


def test_standbys_come_back_after_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are closed, and neither a look nor a release ends the worker."""
    stage: Any = SimpleNamespace(settings=Settings())
    standby, looks = Standby(stage), list[frozenset[int]]()
    partitions = [Full() for _ in range(4)]
    standby._open = dict(enumerate(partitions))  # type: ignore[arg-type]  # as much of one as it needs
    standby.release({0, 1})
    monkeypatch.setattr(standby, "_fold", Full.checkpoint)
    standby.keep_up(frozenset())
    assert all(partition.is_closed for partition in partitions)
    monkeypatch.setattr(standby, "_fold", looks.append)
    standby.keep_up(frozenset({7}))
    assert looks == [frozenset({7})]


def test_a_standby_that_breaks_amid_a_record_keeps_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint would hold a part of the record: its owner would fold it once more on top."""
    monkeypatch.setattr(newest_copy, "log_bounds", lambda *_: {0: (0, 100)})
    machine = Machine(Settings(), tmp_path, "w")
    machine.states._log, machine.states.places = LogIdentity("c", "t"), Places(8)
    kept = machine.states.standby(0, "w")
    kept.take(JOB, 0, 1.0)
    kept.checkpoint()
    whole = kept.digest()
    kept.take(JOB, 1, 1.0)
    fold = kept.fold.take

    def broken(*record: Any) -> None:
        fold(*record)
        raise Exception("IO error: While open a file for random read: Too many open files")  # noqa: TRY002  # as rocksdict

    monkeypatch.setattr(kept.fold, "take", broken)
    record = u.encode(u.UrlsRecord("j", 0, urls=[u.FoundUrl(f"{SITES[0]}/")]))
    monkeypatch.setattr(machine.standby, "_fold", lambda _: kept.take(record, 2, 1.0))
    machine.standby._open[0] = kept
    machine.standby.keep_up(frozenset())
    again = machine.states.standby(0, "w")
    assert (again.offset, again.digest()) == (1, whole)
    again.close()


def test_a_damaged_standby_is_closed_and_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's crawl depends on it: the worker goes on, and its next look makes a new one."""
    monkeypatch.setattr(newest_copy, "log_bounds", lambda *_: {0: (0, 100)})
    machine = Machine(Settings(), tmp_path, "w")
    machine.states._log, machine.states.places = LogIdentity("c", "t"), Places(8)
    kept = machine.states.standby(0, "w")
    kept.take(JOB, 0, 1.0)
    with pytest.raises(Unusable):
        kept.db.condemn("Corruption")
    monkeypatch.setattr(kept.db, "apply", lambda _: kept.db.condemn("Corruption"))
    machine.standby._open[0] = kept
    machine.standby.release({0})
    assert not kept.db.is_open
    again = machine.states.standby(0, "w")
    assert (again.offset, "damaged: Corruption" in again.note) == (0, True)
    again.close()


def test_a_worker_looks_each_hour_for_standbys_that_nobody_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its own partitions stay, as those that it follows: they may be the furthest copies."""
    machine = Machine(Settings(), tmp_path, "w")
    machine.states.places, machine.states.partitions = Places(8), 8
    kept: list[set[int]] = []
    monkeypatch.setattr(machine.states, "forget_standbys", kept.append)
    monkeypatch.setattr(machine.standby, "_begin", lambda _: None)
    monkeypatch.setattr(standbys, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(standbys, "Restorer", lambda *_: SimpleNamespace(restore=lambda *_, **__: None))
    owned = frozenset({1, 2})
    for _ in range(2):
        machine.standby.keep_up(owned)
    assert kept == [chosen("w", 8, owned, 2) | owned]


def test_a_standby_that_cannot_begin_is_left_out_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are folded, and the store is not asked every two seconds."""
    machine = Machine(Settings(), tmp_path, "w")
    machine.states.places, machine.states.partitions = Places(8), 8
    tried: list[int] = []

    def standby(number: int, _: str) -> Partition:
        tried.append(number)
        raise NotCopied("it ends at offset 0, the log begins at 5")

    folded: list[list[Partition]] = []
    restorer = SimpleNamespace(restore=lambda opened, *_, **__: folded.append(opened))
    monkeypatch.setattr(machine.states, "standby", standby)
    monkeypatch.setattr(standbys, "committed_offsets", lambda *_: {})
    monkeypatch.setattr(standbys, "Restorer", lambda *_: restorer)
    for _ in range(2):
        machine.keep_up()
    assert (sorted(tried), folded) == (sorted(chosen("w", 8, frozenset(), 2)), [[], []])
    monkeypatch.setattr(standbys, "AGAIN_S", 0.0)
    machine.standby._again_at.clear()
    machine.keep_up()
    machine.keep_up()
    assert len(tried) == 6
