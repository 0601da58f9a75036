"""A fleet's sink worker without Kafka: what was heard of a job is planned, whatever fails meanwhile."""

from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from crawlog.agents.sink import fleet_sink
from crawlog.agents.sink.fleet_sink import FleetSink
from crawlog.schemas.control import Finished, JobCopy
from crawlog.schemas.job_orders import OutputSpec
from crawlog.schemas.urls import JobSpec
from crawlog.streams.errors import EngineError
from crawlog.streams.log.client import LogIdentity
from crawlog.streams.settings.settings import Settings


class EmptyLog:
    """A producer and a reader of a crawl.items without records; its bounds are told once it answers."""

    outstanding = 0
    is_open = True

    def __init__(self) -> None:
        self.at: dict[int, int] = {}
        self.failures = 1

    def send(self, *_: Any, **__: Any) -> None:
        """Take a note."""

    def seek(self, offsets: dict[int, int]) -> None:
        """Read on from these offsets."""
        self.at = dict(offsets)

    def take(self, _wait_s: float) -> list[Any]:
        """Nothing comes."""
        return []

    def passed(self, _records: list[Any]) -> None:
        """Nothing came."""

    def bounds(self, *_: Any) -> dict[int, tuple[int, int]]:
        """The log's first and last offsets."""
        if self.failures:
            self.failures -= 1
            raise EngineError("no answer")
        return {0: (0, 0)}


def jobs_with_file(data: Path) -> set[str]:
    """The jobs whose FILE was made."""
    return {path.parent.name for path in data.glob("outputs/*/rows.jsonl")}


async def test_an_end_that_was_heard_while_the_log_did_not_answer_makes_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """crawl.control is not read again: the worker would learn of the end at its next start only."""
    log = EmptyLog()
    for name in ("Producer", "ItemsReader"):
        monkeypatch.setattr(fleet_sink, name, lambda *_: log)
    monkeypatch.setattr(fleet_sink, "partition_count", lambda _: 1)
    monkeypatch.setattr(fleet_sink, "log_identity", lambda *_: LogIdentity("cluster", "topic"))
    monkeypatch.setattr(fleet_sink, "log_bounds", log.bounds)
    settings = Settings()
    app = SimpleNamespace(
        crawl=settings.model_copy(update={"run": settings.run.model_copy(update={"data": tmp_path})}),
        worker_name="sink-0",
        positions=SimpleNamespace(done=lambda *_: None, cuts={}),
    )
    sink = FleetSink(app)  # type: ignore[arg-type]  # as much of an app as it needs
    sink._owned = {0}
    sink._passes_at = inf
    sink.orders.caught_up()
    for job in ("a", "b"):
        spec = msgspec.structs.replace(JobSpec(), outputs=(OutputSpec("rows.jsonl"),), rev=2, state="finished")
        sink._wanted.heard(JobCopy(job, spec))
        sink._wanted.heard(Finished(job, 1.0, items=(0,), rev=2))
    with pytest.raises(EngineError):
        await sink._turn()
    for _ in range(2):
        await sink._turn()
    assert jobs_with_file(tmp_path) == {"a", "b"}
