"""The fold of one output: records that come twice, garbage, a job that its pipelines close."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from crawlog.agents.outputs.items_log import ItemsLog
from crawlog.agents.outputs.output import Output
from crawlog.schemas import control, items
from crawlog.schemas.control import Command
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster.client import LogIdentity
from crawlog.streams.log.topics import Topics
from crawlog.streams.settings.settings import Settings
from crawlog.streams.sink.registry import sink_of
from crawlog.streams.sink.state import SinkState

NAMES = Topics(Settings().kafka.prefix)


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
        assert topic == NAMES.dead
        self.dead.append((value, dict(rest["headers"])))
        self.outstanding += 1

    def poll(self) -> int:
        """All arrived."""
        self.outstanding = 0
        return 1


class Bench:
    """An output of job j."""

    def __init__(self, data: Path) -> None:
        self.producer = cast("Any", FakeProducer())
        run = Settings().run.model_copy(update={"data": data})
        settings = Settings().model_copy(update={"run": run})
        self.log = ItemsLog(settings, LogIdentity("cluster", "topic"), self.producer)
        wanted = cast("Any", None)  # only its completion needs it
        self.output = Output(self.log, lambda: None, wanted, sink_of("j", str(data / "out.jsonl")), 0, {0: 0})

    async def write(self, records: list[Read], read: dict[int, int]) -> None:
        """Take records and write them, also such as were taken before."""
        self.output.pending += records
        await self.output.write(read)

    async def state(self) -> SinkState:
        """The state, open."""
        return await self.output.open()

    async def rows(self) -> list[int]:
        """The rows in the file so far."""
        return [json.loads(line)["n"] for chunk in (await self.state()).chunks() for line in chunk.splitlines()]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """Closed at the end."""
    made = Bench(tmp_path)
    yield made
    await made.output.close()


async def test_records_that_come_twice_count_once(bench: Bench) -> None:
    """After a rebalance, or a read from an earlier offset."""
    await bench.write([row(0), row(1)], {0: 2})
    await bench.write([row(1), row(2)], {0: 5})
    assert (await bench.rows(), (await bench.state()).meta.offsets) == ([0, 1, 2], {0: 5})


async def test_garbage_goes_to_the_dead_letters_and_stops_nothing(bench: Bench) -> None:
    """With its own value, and where it was."""
    await bench.write([row(0), Read(0, 1, None, b"garbage"), row(2)], {0: 3})
    assert await bench.rows() == [0, 2]
    [(dead, headers)] = bench.producer.dead
    assert (dead, headers["topic"], headers["offset"], headers["stage"]) == (
        b"garbage",
        NAMES.items.encode(),
        b"1",
        b"sink",
    )


async def test_garbage_under_the_key_of_another_job_is_left_to_its_sink(bench: Bench) -> None:
    """One dead letter for one record, however many outputs there are."""
    await bench.write([Read(0, 0, b"other http://a.example/", b"garbage"), Read(0, 1, b"j x", b"garbage")], {})
    assert [headers["job"] for _, headers in bench.producer.dead] == [b"j"]


async def test_garbage_under_a_key_that_names_no_job_is_buried(bench: Bench) -> None:
    """No sink would come that it could be left to."""
    await bench.write([Read(0, 0, b"127.0.0.1", b"garbage"), Read(0, 1, b"\xff", b"garbage")], {})
    assert len(bench.producer.dead) == 2


async def test_a_job_that_its_pipelines_close_is_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command that a spider's own CloseSpider gives."""
    sent: list[tuple[str, Any]] = []

    def send(topic: str, value: bytes, **rest: Any) -> None:
        sent.append((topic, control.decode(rest["key"], value)))

    monkeypatch.setattr(bench.producer, "send", send)
    await bench.log.stop_job("j", "no database")
    [(topic, command)] = sent
    assert topic == NAMES.control
    assert isinstance(command, Command)
    assert (command.action, command.job, command.reason) == ("stop", "j", "no database")
