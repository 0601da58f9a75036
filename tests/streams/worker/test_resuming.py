"""Reading resumes after a rebalance, however long its start takes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IllegalStateError
from faust.types import TP

from crawlog.streams.errors import EngineError
from crawlog.streams.worker.consumer import Consumer
from crawlog.streams.worker.crawl_app import NoTables

LIMIT_S = 0.01
"""Faust's limit of a start."""


class Reader:
    """As much of a consumer as the service needs."""

    def __init__(self) -> None:
        self.may_start, self.starts, self.is_flowing = asyncio.Event(), 0, asyncio.Event()

    def assignment(self) -> set[TP]:
        """One partition."""
        return {TP("t", 0)}

    def resume_partitions(self, _: object) -> None:
        """Nothing is paused."""

    async def perform_seek(self) -> None:
        """Wait for a broker."""
        self.starts += 1
        await self.may_start.wait()

    def resume_flow(self) -> None:
        """Reading goes on."""
        self.is_flowing.set()


async def nothing() -> None:
    """Do nothing."""


async def test_a_start_may_take_longer_than_a_request_to_the_broker() -> None:
    """Faust's service ended there, and no later rebalance resumed reading."""
    reader = Reader()
    app: Any = SimpleNamespace(
        conf=SimpleNamespace(stream_recovery_delay=0, broker_request_timeout=LIMIT_S, store=None),
        consumer=reader,
        consumer_generation_id=1,
        on_rebalance_complete=SimpleNamespace(send=nothing),
        tracer=None,
        flow_control=SimpleNamespace(resume=lambda: None),
        _fetcher=SimpleNamespace(maybe_start=nothing),
        on_rebalance_end=lambda: None,
        in_recovery=False,
    )
    recovery = NoTables(app).recovery
    recovery._generation_id = 1
    service: Any = recovery
    running = asyncio.create_task(service._restart_recovery.fun(recovery))
    for rebalance in (1, 2):  # the second one begins while the first start waits
        recovery.signal_recovery_start.set()
        async with asyncio.timeout(60.0):
            while reader.starts < rebalance:  # noqa: ASYNC110  # the service has no event for it
                await asyncio.sleep(LIMIT_S)
        await asyncio.sleep(5 * LIMIT_S)
        assert not running.done()
    reader.may_start.set()
    await asyncio.wait_for(reader.is_flowing.wait(), 60.0)
    running.cancel()


async def test_a_start_asks_until_the_log_answers_or_another_rebalance_begins() -> None:
    """A broker that is away for a minute ends no worker."""
    answers: list[dict[int, int] | Exception] = [EngineError("no answer"), {0: 7}]

    async def starts(_: set[int]) -> dict[int, int]:
        answer = answers.pop(0) if answers else EngineError("no answer")
        if isinstance(answer, Exception):
            raise answer
        return answer

    reader: Any = Consumer.__new__(Consumer)
    reader.app = SimpleNamespace(positions=SimpleNamespace(start=starts), conf=SimpleNamespace(id="g"))
    reader._thread = SimpleNamespace(rebalances=1)
    assert await reader._asked({0}, 1) == {0: 7}
    reader._thread.rebalances = 2
    with pytest.raises(IllegalStateError):
        await asyncio.wait_for(reader._asked({0}, 1), 60.0)


async def test_an_empty_assignment_is_over_when_the_next_one_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks wait for those of the rebalance, and would give up what came after it."""
    owned, assigned = list[set[int]](), set[int]()

    async def own(partitions: set[int]) -> None:
        owned.append(partitions)

    reader: Any = Consumer.__new__(Consumer)
    reader.app, reader._turn = SimpleNamespace(owned=own), asyncio.Lock()
    monkeypatch.setattr(Consumer, "assignment", lambda _: assigned)
    async with reader._turn:
        waiting = asyncio.create_task(reader.own_nothing())
        await asyncio.sleep(0)
        assert owned == []
    await waiting
    assert owned == [set()]
    assigned.add(1)
    await reader.own_nothing()
    assert owned == [set()]
