"""The fold of one output: records that come twice, garbage, a job that its pipelines close."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from crawlog.agents.outputs.output_stage import OutputStage
from crawlog.schemas import control, items
from crawlog.schemas.control import Command
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState


class Read(NamedTuple):
    """A record."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def row(n: int) -> Read:
    """A record of crawl.items with one row."""
    record = ItemsRecord("j", f"http://a.example/{n}", (0, n), [msgspec.Raw(b'{"n":%d}' % n)])
    return Read(0, n, None, items.encode(record))


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
    """A stage on a state of job j."""

    def __init__(self, data: Path) -> None:
        self.producer = FakeProducer()
        self.results = SinkState(data, sink_of("j", str(data / "out.jsonl")), LogIdentity("cluster", "topic"))
        self.stage = OutputStage(Settings(), ("t.items", "t.dead"), self.results, self.producer)  # type: ignore[arg-type]  # as much of it as is needed

    def rows(self) -> list[int]:
        """The rows in the file so far."""
        return [json.loads(line)["n"] for chunk in self.results.chunks() for line in chunk.splitlines()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Closed at the end."""
    made = Bench(tmp_path)
    yield made
    made.results.close()


async def test_records_that_come_twice_count_once(bench: Bench) -> None:
    """After a rebalance, or a read from an earlier offset."""
    await bench.stage.write([row(0), row(1)], {0: 2})
    await bench.stage.write([row(1), row(2)], {0: 5})
    assert (bench.rows(), bench.results.meta.offsets) == ([0, 1, 2], {0: 5})


async def test_garbage_goes_to_the_dead_letters_and_stops_nothing(bench: Bench) -> None:
    """With its own value, and where it was."""
    await bench.stage.write([row(0), Read(0, 1, None, b"garbage"), row(2)], {0: 3})
    assert bench.rows() == [0, 2]
    [(dead, headers)] = bench.producer.dead
    assert (dead, headers["topic"], headers["offset"], headers["stage"]) == (b"garbage", b"t.items", b"1", b"sink")


async def test_garbage_under_the_key_of_another_job_is_left_to_its_sink(bench: Bench) -> None:
    """One dead letter for one record, however many outputs there are."""
    await bench.stage.write([Read(0, 0, b"other http://a.example/", b"garbage"), Read(0, 1, b"j x", b"garbage")], {})
    assert [headers["job"] for _, headers in bench.producer.dead] == [b"j"]


async def test_garbage_under_a_key_that_names_no_job_is_buried(bench: Bench) -> None:
    """No sink would come that it could be left to."""
    await bench.stage.write([Read(0, 0, b"127.0.0.1", b"garbage"), Read(0, 1, b"\xff", b"garbage")], {})
    assert len(bench.producer.dead) == 2


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
