"""The watchdog: who is stuck is ended with the reason, who waits for good cause is not."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from crawlog.streams import watchdog as module
from crawlog.streams.positions import Range
from crawlog.streams.settings import Settings
from crawlog.streams.watchdog import Watchdog

STUCK_S = 0.2


@dataclass
class Worker:
    """As much of an app as is watched: two partitions, at the log's end."""

    moves: int = 0
    owned: frozenset[int] = frozenset({0, 1})
    failure: str | None = None
    ends: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 5})
    is_silent: bool = False
    is_member: bool = True
    is_reachable: bool = True
    ended: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def app(self) -> Any:
        """The app."""
        return SimpleNamespace(
            reader=SimpleNamespace(thread=self, ranges=self.ranges),
            positions=self,
            lease=SimpleNamespace(held=lambda _: self.is_member),
            crawl=Settings(),
        )

    def next(self, _partition: int) -> int:
        """Where it is."""
        return 5

    async def ranges(self, partitions: set[int]) -> dict[int, Range]:
        """What the log holds."""
        if self.is_silent:
            raise KafkaError
        return {partition: Range(5, 0, self.ends[partition]) for partition in partitions}


@asynccontextmanager
async def watched(worker: Worker, monkeypatch: pytest.MonkeyPatch, *, assigned: bool = True) -> AsyncIterator[Watchdog]:
    """A watchdog that notes an end instead of ending this process."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)

    async def answers() -> bool:
        return worker.is_reachable

    dog = Watchdog(worker.app(), stuck_s=STUCK_S, assignment_s=STUCK_S)
    monkeypatch.setattr(dog, "end", lambda why, **fields: worker.ended.append((why, fields)))
    monkeypatch.setattr(dog, "_broker_answers", answers)
    if assigned:
        dog.assigned()
    await dog.start()
    try:
        yield dog
    finally:
        await dog.stop()


async def why_ended(worker: Worker, monkeypatch: pytest.MonkeyPatch, *, assigned: bool = True) -> str:
    """The reason given after a while; empty for none."""
    async with watched(worker, monkeypatch, assigned=assigned):
        await asyncio.sleep(4 * STUCK_S)
    return worker.ended[0][0] if worker.ended else ""


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (Worker(), ""),
        (Worker(ends={0: 5, 1: 9}), "no_progress"),
        (Worker(failure="broken"), "coordination_ended"),
        (Worker(is_silent=True), ""),
        (Worker(is_silent=True, is_member=False), "heartbeats"),
        (Worker(is_silent=True, is_member=False, is_reachable=False), ""),
    ],
    ids=["idle", "records wait", "no coordination", "slow answer", "no heartbeats", "broker away"],
)
async def test_only_who_could_get_on_is_stuck(worker: Worker, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away is nobody's fault: a new process could do nothing better."""
    said = await why_ended(worker, monkeypatch)
    if why == "heartbeats":
        assert worker.ended[0][1]["waiting"] == why
    else:
        assert said == why


@pytest.mark.parametrize(("is_reachable", "why"), [(True, "no_assignment"), (False, "")])
async def test_an_assignment_must_come(is_reachable: bool, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is a broker that could give one."""
    assert await why_ended(Worker(is_reachable=is_reachable), monkeypatch, assigned=False) == why


@pytest.mark.parametrize("how", ["beat", "moves"])
async def test_who_moves_or_says_that_it_waits_is_not_stuck(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits: a paused stage, a full disk, back-pressure."""
    worker = Worker(ends={0: 5, 1: 9})
    async with watched(worker, monkeypatch) as dog:
        for _ in range(20):
            await asyncio.sleep(STUCK_S / 5)
            worker.moves += how == "moves"
            if how == "beat":
                dog.beat()
    assert worker.ended == []


async def test_a_blocked_loop_is_told_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line it stands at; what the worker holds then may be the cause."""
    worker = Worker()
    blamed: list[str] = []
    async with watched(worker, monkeypatch) as dog:
        dog.on_blocked = blamed.append
        time.sleep(3 * STUCK_S)  # noqa: ASYNC251  # on purpose
    assert worker.ended[0][0] == "loop_blocked"
    assert f"{__file__}:" in str(worker.ended[0][1]["at"])
    assert blamed[0].startswith("loop_blocked at ")


def test_a_stopped_process_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP stops the loop and its watchdog alike: the hours that nobody had count as one look."""
    worker, looks = Worker(), 0
    dog = Watchdog(worker.app(), stuck_s=3 * module.LOOK_S)
    monkeypatch.setattr(dog, "end", lambda why, **_: worker.ended.append((why, {})))

    def rest(*_: object) -> None:
        """An hour passes; the loop gets its turn after every second look."""
        nonlocal looks
        looks += 1
        dog._loop_at += 3600.0 if looks % 2 else 0.0
        if looks == 10:
            dog._stopped.set()

    monkeypatch.setattr("time.sleep", rest)
    dog._watch_loop()
    assert (worker.ended, looks) == ([], 10)


async def test_a_watchdog_that_breaks_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without its guard: a blocked loop would hold its partitions for ever."""

    def broken(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("time.sleep", broken)
    worker = Worker()
    async with watched(worker, monkeypatch):
        async with asyncio.timeout(60.0):
            while not worker.ended:  # noqa: ASYNC110  # a thread ends it
                await asyncio.sleep(0.01)
    assert worker.ended == [("watchdog_broken", {"error": "OSError(22, 'Invalid argument')"})]


def test_a_watchdog_that_breaks_at_the_end_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops has its own exit code."""
    worker = Worker()
    dog = Watchdog(worker.app())
    monkeypatch.setattr(dog, "end", lambda why, **fields: worker.ended.append((why, fields)))

    def broken(*_: object) -> None:
        dog._stopped.set()
        raise OSError

    monkeypatch.setattr("time.sleep", broken)
    dog._guard()
    assert worker.ended == []
