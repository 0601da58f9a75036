"""The sink's agent: order, gaps, dead letters, failing writes; then a real worker on a real broker, killed."""

import asyncio
import errno
import io
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from crawlog.agents.outputs import sink_agent as agent
from crawlog.agents.outputs.sink_agent import Read, SinkStage, SinkWorker
from crawlog.schemas import control, items
from crawlog.schemas.control import Command
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.errors import Misconfigured, Unusable
from crawlog.streams.exit_codes import EX_TEMPFAIL
from crawlog.streams.log.admin import Admin
from crawlog.streams.log.client import LogIdentity, kafka_config, log_bounds
from crawlog.streams.log.commits import REPLAY_ALL
from crawlog.streams.log.groups import Group, move
from crawlog.streams.log.offsets import Move
from crawlog.streams.log.producer import Producer
from crawlog.streams.log.provision import ensure_topics, partition_count
from crawlog.streams.log.read import read_records
from crawlog.streams.log.sink_groups import SinkSpec
from crawlog.streams.log.topics import Topics, stage_group
from crawlog.streams.settings.settings import Settings, to_environ
from crawlog.streams.sink.finish import finalise
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState
from crawlog.streams.sink.state_folder import state_of
from crawlog.streams.state.database import DAMAGED
from tests.support.forked import Forked, Server
from tests.support.processes import LIMIT_S

LOG = LogIdentity("cluster", "topic")


def value(n: int, url: str = "", job: str = "j") -> bytes:
    """A record of crawl.items with one row."""
    return items.encode(ItemsRecord(job, url or f"http://a.example/{n}", (0, n), [msgspec.Raw(b'{"n":%d}' % n)]))


class Kept(NamedTuple):
    """A record of the log that was read again, as confluent-kafka's messages answer."""

    at: int
    content: bytes

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def key(self) -> None:
        """None."""

    def value(self) -> bytes:
        """Its value."""
        return self.content


class FakeProducer:
    """Keeps dead letters; they are acknowledged at the next poll."""

    def __init__(self) -> None:
        self.dead: list[tuple[bytes | None, dict[str, bytes]]] = []
        self.outstanding = 0

    def send(self, topic: str, value: bytes | None, **rest: Any) -> None:
        """To crawl.dead only."""
        assert topic == "t.dead"
        self.dead.append((value, dict(rest["headers"])))
        self.outstanding += 1

    def poll(self) -> int:
        """All arrived."""
        self.outstanding = 0
        return 1


class Bench:
    """A stage on an in-memory log of one partition."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = [value(n) for n in range(10)]
        self.first = 0
        self.commits: dict[int, tuple[int, str]] = {}
        self.data = data
        self.sink = sink_of("j", str(data / "out.jsonl"))
        self.producer = FakeProducer()
        self.results = SinkState(data, self.sink, LOG)
        self.stage = SinkStage(Settings(), ("t.items", "t.dead"), self.results, self.producer)  # type: ignore[arg-type]  # as much of it as is needed
        monkeypatch.setattr(agent, "log_bounds", lambda *_: {0: (self.first, len(self.log))})
        monkeypatch.setattr(agent, "committed_offsets", lambda *_: self.commits)
        monkeypatch.setattr(agent, "read_records", self._read)

    def _read(self, _s: object, _t: str, _p: int, start: int, end: int) -> Iterator[Kept]:
        assert start >= self.first
        return (Kept(n, self.log[n]) for n in range(start, min(end, len(self.log))))

    def records(self, *offsets: int) -> list[Any]:
        """Records of the log, as Faust delivers them."""
        return [Read(0, n, None, self.log[n]) for n in offsets]

    def rows(self) -> list[int]:
        """The rows in the file so far."""
        return [json.loads(line)["n"] for chunk in self.results.chunks() for line in chunk.splitlines()]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Closed at the end."""
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.results.close()


async def test_a_job_that_its_pipelines_close_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that a spider's own CloseSpider gives."""
    sent: list[tuple[str, Any]] = []

    def send(topic: str, value: bytes, **rest: Any) -> None:
        sent.append((topic, control.decode(rest["key"], value)))

    monkeypatch.setattr(bench.producer, "send", send)
    await bench.stage.close_job("no database")
    [(topic, command)] = sent
    assert topic == Topics(Settings().kafka.prefix).control
    assert isinstance(command, Command)
    assert (command.action, command.job, command.reason) == ("stop", "j", "no database")


async def test_reading_starts_at_the_offset_of_the_state(bench: Bench) -> None:
    """Whatever the group has committed."""
    assert await bench.stage.starts({0}) == {0: 0}
    assert await bench.stage.fold(bench.records(0, 1, 2)) == {0: 3}
    assert await bench.stage.starts({0}) == {0: 3}


@pytest.mark.parametrize(
    ("commit", "start", "rows"),
    [
        ((1, "crawlog"), 3, [0, 1, 2]),
        ((1, "crawlog\x88!"), 3, [0, 1, 2]),
        ((1, ""), 1, [0, 1, 2]),
        ((0, ""), 0, []),
        ((5, REPLAY_ALL), 5, [0, 1, 2]),
        ((5, ""), 3, [0, 1, 2]),
        ((3, ""), 3, [0, 1, 2]),
    ],
)
async def test_a_commit_that_is_not_ours_is_an_order(
    bench: Bench, commit: tuple[int, str], start: int, rows: list[int]
) -> None:
    """Our own follows the state. Back to the log's start all rows are made anew; only a replay leaves records out."""
    await bench.stage.fold(bench.records(0, 1, 2))
    bench.commits = {0: commit}
    assert await bench.stage.starts({0}) == {0: start}
    assert bench.rows() == rows
    await bench.stage.fold(bench.records(*range(start, 10)))
    assert bench.rows() == [0, 1, 2, *range(max(start, 3), 10)]


async def test_a_state_that_is_empty_takes_no_orders(bench: Bench) -> None:
    """A file that was deleted with its state is filled from the first record on, whatever was committed."""
    bench.commits = {0: (5, "")}
    assert await bench.stage.starts({0}) == {0: 0}


async def test_an_order_for_a_trimmed_log_begins_with_what_is_left(bench: Bench) -> None:
    """The first record that is there counts as the start."""
    await bench.stage.fold(bench.records(*range(8)))
    bench.first, bench.commits = 4, {0: (4, "")}
    assert await bench.stage.starts({0}) == {0: 4}
    assert bench.rows() == []


async def test_records_that_were_left_out_are_read_again(bench: Bench) -> None:
    """Nothing depends on what Faust delivers or skips."""
    assert await bench.stage.fold(bench.records(0, 4, 7)) == {0: 8}
    assert bench.rows() == list(range(8))


async def test_records_that_come_twice_count_once(bench: Bench) -> None:
    """A rebalance delivers again what was not committed."""
    await bench.stage.fold(bench.records(0, 1, 2))
    assert await bench.stage.fold(bench.records(1, 2, 3, 2)) == {0: 4}
    assert bench.rows() == [0, 1, 2, 3]


async def test_a_trimmed_beginning_is_passed_over_and_said(bench: Bench) -> None:
    """An empty range is legal; rows that the state has folded are not missing."""
    bench.first = 4
    assert await bench.stage.starts({0}) == {0: 4}
    await bench.stage.fold(bench.records(4))
    assert bench.rows() == [4]
    assert bench.stage.note.startswith("t.items lost records before they were read")
    assert "(offsets 0 to 3 of partition 0)" in bench.stage.note
    assert bench.results.meta.gaps == [(0, 0, 4)]
    bench.stage.note, bench.first = "", 5
    assert await bench.stage.starts({0}) == {0: 5}
    assert bench.stage.note == ""


async def test_a_log_that_was_cut_is_read_from_its_beginning_and_the_rows_stay(bench: Bench) -> None:
    """The state is ahead of it: the rows that it has may be all that is left of their items."""
    await bench.stage.fold(bench.records(*range(10)))
    bench.log = [value(n) for n in (20, 21)]
    assert await bench.stage.starts({0}) == {0: 0}
    await bench.stage.fold(bench.records(0, 1))
    assert bench.rows() == [*range(10), 20, 21]


async def test_garbage_goes_to_the_dead_letters_and_stops_nothing(bench: Bench) -> None:
    """With its own value, and where it was."""
    bench.log[1] = b"garbage"
    assert await bench.stage.fold(bench.records(0, 1, 2)) == {0: 3}
    assert bench.rows() == [0, 2]
    [(dead, headers)] = bench.producer.dead
    assert (dead, headers["topic"], headers["offset"], headers["stage"]) == (b"garbage", b"t.items", b"1", b"sink")


async def test_garbage_under_the_key_of_another_job_is_left_to_its_sink(bench: Bench) -> None:
    """One dead letter for one record, however many sinks there are."""
    await bench.stage.fold([Read(0, 0, b"other http://a.example/", b"garbage"), Read(0, 1, b"j x", b"garbage")])
    assert [headers["job"] for _, headers in bench.producer.dead] == [b"j"]


async def test_garbage_under_a_key_that_names_no_job_is_buried(bench: Bench) -> None:
    """No sink would come that it could be left to."""
    await bench.stage.fold([Read(0, 0, b"127.0.0.1", b"garbage"), Read(0, 1, b"\xff", b"garbage")])
    assert len(bench.producer.dead) == 2


async def test_garbage_in_a_gap_is_a_dead_letter_too(bench: Bench) -> None:
    """Effects of reading happen however a record is read."""
    bench.log[1] = b"garbage"
    await bench.stage.fold(bench.records(0, 3))
    assert len(bench.producer.dead) == 1
    assert bench.rows() == [0, 2, 3]


class FakePositions:
    """Notes what is done."""

    def __init__(self) -> None:
        self.said: list[tuple[int, int]] = []

    def done(self, partition: int, offset: int) -> None:
        """As `Positions.done`."""
        self.said.append((partition, offset))


@pytest.fixture(autouse=True)
def nobody_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of these tests hears that crawl.control says nothing; those that are processes read it."""
    monkeypatch.setattr("crawlog.agents.outputs.sink_agent.follow", lambda _app, orders: orders.caught_up())


class FakeApp:
    """What a worker needs of its app."""

    def __init__(self) -> None:
        self.positions = FakePositions()
        self.watchdog = self.consumer = self.thread = self._fetcher = self
        self.beats = 0

    def client(self) -> "FakeApp":
        """As the consumer's thread."""
        return self

    def beat(self) -> None:
        """As `Watchdog.beat`."""
        self.beats += 1


class Stream:
    """Faust's stream, of given messages."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    async def records(self) -> Any:
        """One by one."""
        for message in self._messages:
            yield message


async def worked(bench: Bench, app: FakeApp, messages: list[Any]) -> None:
    """A worker takes messages, then its partitions are revoked."""
    worker = SinkWorker(app, bench.stage)  # type: ignore[arg-type]  # as much of it as is needed
    await worker.owned({0})
    await worker.events(Stream(messages))
    await worker.revoking({0})
    assert worker._folding is not None
    worker._folding.cancel()


async def test_what_gathered_is_folded_before_partitions_go(bench: Bench) -> None:
    """And only then acknowledged."""
    app = FakeApp()
    await worked(bench, app, bench.records(0, 1, 2))
    assert app.positions.said[-1] == (0, 3)
    assert bench.rows() == [0, 1, 2]


async def test_more_than_a_batch_waits_for_room(bench: Bench) -> None:
    """Memory is bounded by two batches."""
    bench.log = [value(n) for n in range(3000)]
    app = FakeApp()
    await worked(bench, app, bench.records(*range(3000)))
    assert app.positions.said[-1] == (0, 3000)
    assert len(app.positions.said) <= 6


async def test_nothing_is_acknowledged_while_the_disk_is_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is tried again, and the watchdog knows why it takes long."""
    app, left = FakeApp(), [2]
    whole = os.pwrite

    def full(*args: Any) -> int:
        left[0] -= 1
        if left[0] >= 0:
            assert app.positions.said == []
            raise OSError("disk full")
        return whole(*args)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(agent, "AGAIN_S", 0.01)
    await worked(bench, app, bench.records(0, 1))
    assert (app.beats, app.positions.said) == (2, [(0, 2)])
    assert bench.rows() == [0, 1]


async def test_a_worker_reports_why_no_row_is_written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of FILE may be another one than the log's, which is all that the supervisor looks at."""
    told: list[str] = []

    def positions(*_: object, trouble: str, **__: object) -> list[Any]:
        told.append(trouble)
        return []

    monkeypatch.setattr("crawlog.agents.progress.positions", positions)
    worker = SinkWorker(FakeApp(), bench.stage)  # type: ignore[arg-type]  # as much of it as is needed
    whole = os.pwrite

    def full(*_: Any) -> int:
        monkeypatch.setattr(os, "pwrite", whole)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def rest(_: float) -> None:
        worker.reports()

    monkeypatch.setattr(os, "pwrite", full)
    worker.reports()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", rest)
        worker._pending = bench.records(0)
        await worker._fold()
    worker.reports()
    assert told == ["", f"{bench.stage.results.path}: No space left on device", ""]


async def test_damage_ends_the_worker_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try would meet the same block; the next worker sets the state aside."""

    def damaged(_: object) -> int:
        raise Unusable("damaged: Corruption")

    monkeypatch.setattr(bench.results, "fold", damaged)
    monkeypatch.setattr(os, "_exit", sys.exit)
    worker = SinkWorker(FakeApp(), bench.stage)  # type: ignore[arg-type]  # as much of it as is needed
    worker._pending = bench.records(0)
    with pytest.raises(SystemExit) as ended:
        await worker._fold()
    assert ended.value.code == EX_TEMPFAIL


async def test_rows_of_pipelines_that_the_database_does_not_take_end_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes none until it is opened again; there may be no other item, whose write would end the worker."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    rows = Mock(run=AsyncMock(), trouble="pipelines: No space left on device")
    with pytest.raises(SystemExit) as ended:
        await SinkWorker(FakeApp(), bench.stage)._make(rows)  # type: ignore[arg-type]  # as much of it as is needed
    assert ended.value.code == EX_TEMPFAIL


def opened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[SinkState, str]:
    """The state, opened as a worker does."""
    settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": bench.data})})
    monkeypatch.setattr(agent, "log_identity", lambda *_: LOG)
    monkeypatch.setattr(agent, "partition_count", lambda _: 1)
    bench.results, note = agent.opened(settings, "t.items", bench.sink)
    return bench.results, note


async def test_a_state_that_is_damaged_is_set_aside_and_filled_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user is told, and where the old one is."""
    await bench.stage.fold(bench.records(*range(10)))
    bench.results.close()
    (state_of(bench.sink.folder(bench.data)) / DAMAGED).write_text("Corruption")
    results, note = opened(bench, monkeypatch)
    assert results.meta.offsets == {}
    assert "read again from the log: the sink's state was damaged: Corruption" in note
    assert str(bench.sink.folder(bench.data) / "aside-state") in note
    results.close()
    assert opened(bench, monkeypatch)[1] == ""


async def test_a_state_that_the_log_can_no_longer_fill_is_refused_and_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows may be nowhere else."""
    await bench.stage.fold(bench.records(*range(10)))
    bench.results.close()
    bench.first = 4
    mark = state_of(bench.sink.folder(bench.data)) / DAMAGED
    mark.write_text("Corruption")
    with pytest.raises(Misconfigured, match=r"t\.items\[0\] begins at offset 4.*remove the folder"):
        opened(bench, monkeypatch)
    mark.unlink()
    assert opened(bench, monkeypatch)[0].meta.rows == 10


# On the real engine


class Running:
    """Sink workers of one job on a cluster."""

    def __init__(self, forks: Server, settings: Settings, data: Path) -> None:
        self.forks = forks
        run = settings.run.model_copy(update={"data": data})
        kafka = settings.kafka.model_copy(update={"session_timeout_s": 3.0})  # that is how long a dead worker is missed
        self.settings = settings.model_copy(update={"run": run, "kafka": kafka})
        self.sink = sink_of("j", str(data / "out.jsonl"))
        self.topics = Topics(settings.kafka.prefix)
        self.producer = Producer(settings, "test")
        self.count = partition_count(settings)
        self.started: list[Forked] = []

    def worker(self, name: str = "sink-0") -> Forked:
        """A new worker process."""
        environ = os.environ | to_environ(self.settings) | self.sink.environ() | {"CRAWLOG_WORKER": name}
        code = "from crawlog.streams import app; app.worker('sink')"
        started = self.forks.fork(code, Path.cwd(), environ, sys.__stderr__ or sys.stderr)
        self.started.append(started)
        return started

    def kill_all(self) -> None:
        """Leave no worker behind, whatever became of the test."""
        for process in self.started:
            process.kill()
            process.wait()

    def send(self, numbers: range) -> None:
        """Records, keyed by URL, some of them newer pages of the same URL."""
        for n in numbers:
            url = f"http://a.example/{n % 700}"
            self.producer.send(
                self.topics.items, value(n, url), key=items.key("j", url), partition=n % 700 % self.count
            )
        assert self.producer.flush(30)

    def ends(self) -> dict[int, int]:
        """Where crawl.items ends."""
        held = log_bounds(self.settings, self.topics.items, list(range(self.count)))
        return {at: end for at, (_, end) in held.items()}

    def until(self, is_so: Callable[[], bool], limit_s: float = 120) -> None:
        """Wait."""
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, f"FILE has {self.size()} bytes, {[one.poll() for one in self.started]}"
            time.sleep(0.05)

    def size(self) -> int:
        """Bytes of the partial file."""
        partial = self.sink.partial(self.settings.run.data)
        return partial.stat().st_size if partial.exists() else 0

    def has_moved(self, size: int, process: Forked) -> bool:
        """Whether the worker has written, or ended."""
        return self.size() != size or process.poll() is not None

    def is_through(self) -> bool:
        """Whether the group committed the end of crawl.items."""
        admin = AdminClient(kafka_config(self.settings))
        groups = [one.group_id for one in admin.list_consumer_groups(request_timeout=LIMIT_S).result(LIMIT_S).valid]
        committed: dict[int, int] = {}
        for name in groups:
            if self.sink.id in name or self.sink.output in name:
                asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])
                committed |= {tp.partition: tp.offset for tp in asked[name].result(LIMIT_S).topic_partitions}
        return all(committed.get(at, 0) >= end for at, end in self.ends().items() if end)

    def rows(self) -> dict[int, int]:
        """The rows of the file that is made, by URL number."""
        finalise(self.settings.run.data, self.sink, self.ends(), io.BytesIO())
        numbers = [json.loads(line)["n"] for line in Path(self.sink.output).read_text().splitlines()]
        rows = {n % 700: n for n in numbers}
        assert len(rows) == len(numbers), "a URL has one row"
        return rows


@pytest.fixture
def running(forks: Server, cluster: Settings, tmp_path: Path) -> Iterator[Running]:
    """Topics and a data folder, no worker yet."""
    ensure_topics(cluster)
    made = Running(forks, cluster, tmp_path)
    yield made
    made.kill_all()


@pytest.mark.broker
@pytest.mark.slow
def test_a_worker_killed_at_any_instant_loses_and_doubles_nothing(running: Running) -> None:
    """Five kills while it writes, then the file is the newest row of each URL."""
    running.send(range(3000))
    chance, newest = random.Random(7), 2999
    for _ in range(5):
        size, process = running.size(), running.worker()
        running.until(partial(running.has_moved, size, process))
        time.sleep(chance.random() * 0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        more = chance.randrange(1500)
        running.send(range(newest + 1, newest + 1 + more))
        newest += more
    process = running.worker()
    running.until(running.is_through)
    process.terminate()
    assert process.wait(60) == 0
    rows = running.rows()
    assert rows == {n % 700: n for n in range(max(rows.values()) + 1)}
    assert max(rows.values()) == newest


@pytest.mark.broker
@pytest.mark.slow
def test_a_second_worker_waits_and_takes_over(running: Running) -> None:
    """It is in no group while it waits, so that the first one keeps all partitions."""
    first = running.worker("sink-0")
    running.send(range(500))
    running.until(running.is_through)
    second = running.worker("sink-1")
    time.sleep(2)
    running.send(range(500, 1000))
    running.until(running.is_through)
    first.kill()
    first.wait()
    running.send(range(1000, 1500))
    running.until(running.is_through)
    second.terminate()
    second.wait(60)
    assert running.rows() == {n % 700: n for n in range(1500)}


@pytest.mark.broker
def test_garbage_on_the_topic_ends_in_the_dead_letters(running: Running) -> None:
    """The rows around it are in the file."""
    running.producer.send(running.topics.items, b"\xff garbage", partition=0)
    running.send(range(10))
    process = running.worker()
    running.until(running.is_through)
    process.terminate()
    process.wait(60)
    assert len(running.rows()) == 10
    [dead] = read_records(running.settings, running.topics.dead, 0, 0, 1)
    assert dead.value() == b"\xff garbage"


@pytest.mark.broker
@pytest.mark.slow
def test_a_damaged_sink_is_filled_again_and_its_file_is_whole(running: Running) -> None:
    """Bytes flipped in its tables between two lives: workers end until one begins again, as a supervisor has it."""
    running.send(range(700))
    process = running.worker()
    running.until(running.is_through)
    process.terminate()
    assert process.wait(60) == 0
    data = running.settings.run.data
    SinkState(data, running.sink, None).close()  # the last rows are in a table, too
    for table in state_of(running.sink.folder(data)).glob("*.sst"):
        content = bytearray(table.read_bytes())
        for at in range(0, len(content) * 3 // 4, 1000):
            content[at] ^= 0xFF
        table.write_bytes(content)
    running.send(range(700, 1400))
    process = running.worker()
    codes = set()

    def is_through() -> bool:
        nonlocal process
        if process.poll() is not None:
            codes.add(process.poll())
            process = running.worker()
        return running.is_through()

    running.until(is_through)
    process.terminate()
    process.wait(60)
    assert codes <= {EX_TEMPFAIL}
    assert running.rows() == {n % 700: n for n in range(700, 1400)}
    assert (running.sink.folder(data) / "aside-state").is_dir()


def test_a_worker_that_was_not_told_its_sink_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 and one message."""
    monkeypatch.delenv("CRAWLOG_SINK", raising=False)
    app = type("App", (), {"crawl": Settings(), "input_name": "t.items"})
    with pytest.raises(Misconfigured, match="CRAWLOG_SINK"):
        agent.attach(app)  # type: ignore[arg-type]  # as much of it as is needed


@pytest.mark.broker
def test_a_sink_whose_file_is_anothers_leaves_no_group(cluster: Settings, tmp_path: Path) -> None:
    """It would show a lag for ever; a group with members, or one that never was, is nobody's trouble."""
    ensure_topics(cluster)
    settings = cluster.model_copy(update={"run": cluster.run.model_copy(update={"data": tmp_path})})
    names, file = Topics(settings.kafka.prefix), str(tmp_path / "out.jsonl")
    for epoch in range(3):
        sink = SinkSpec("j", file, epoch)
        agent.opened(settings, names.items, sink)[0].close()
        of = stage_group(settings, f"sink-{sink.id}")
        if epoch < 2:
            move(Admin(settings), Group(of, "sink", names.items), [Move(0, None, 0, 0, 0)])
            assert Admin(settings).groups(of[:-16]) == [of]
    assert Admin(settings).groups(stage_group(settings, "sink-")) == []


def test_the_state_of_a_sink_is_opened_once_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is not in the group."""
    settings = Settings().model_copy(update={"run": Settings().run.model_copy(update={"data": tmp_path})})
    sink = SinkSpec("j", str(tmp_path / "out.jsonl"))
    held = SinkState(tmp_path, sink, LOG)
    monkeypatch.setattr(agent, "log_identity", lambda *_: LOG)
    monkeypatch.setattr(time, "sleep", lambda _: held.close())
    agent.opened(settings, "t.items", sink)[0].close()
