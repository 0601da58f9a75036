"""The watch: what it keeps, whom it calls, and what /api/v1 answers of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from crawlog.service import watch
from crawlog.service.process import make_app
from crawlog.service.watch import RateHistory, Watcher, watcher
from crawlog.service.watch.alerts import CLEAR_S
from crawlog.streams.errors import EngineError
from crawlog.streams.fleet import FleetState, FleetStatus, FleetView, LostWorker
from crawlog.streams.settings import Settings, load
from tests.support.serving import OWN_TOKEN, told_fleet

AUTHORISED = {"Authorization": f"Bearer {OWN_TOKEN}"}


class Fleet:
    """A view of a fleet with dead letters."""

    def __init__(self) -> None:
        self.dead = Counter[str]()
        self.letters = SimpleNamespace(by_job=lambda _: self.dead)
        self.error: Exception | None = None

    def status(self) -> FleetStatus:
        """Without jobs and workers."""
        if self.error is not None:
            raise self.error
        return FleetStatus((), (), ())

    def lost(self) -> list[LostWorker]:
        """None."""
        return []

    def look(self, ask: Callable[[FleetState], Any]) -> Any:
        """As a view."""
        return ask(FleetState())


class Receiver:
    """Takes calls.

    Attributes:
        calls: What came, and how it is identified.
        errors: Answers to the next calls.
    """

    def __init__(self, *errors: str) -> None:
        self.calls: list[tuple[dict[str, Any], str]] = []
        self.errors = list(errors)
        self.came = asyncio.Event()

    async def send(self, target: str, body: bytes, delivery: str) -> str:
        """Take one."""
        assert target == "http://pager.example/"
        self.calls.append((msgspec.json.decode(body), delivery))
        self.came.set()
        return self.errors.pop(0) if self.errors else ""

    @property
    def states(self) -> list[str]:
        """The states that came."""
        return [body["state"] for body, _ in self.calls]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a service that calls."""
    return load({"service.alert": "http://pager.example/", "run.data": str(tmp_path)}, environ={})


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "AGAIN_S", 0.0)


def watching(settings: Settings, fleet: Fleet, send: Callable[[str, bytes, str], Awaitable[str]]) -> Watcher:
    """A watcher of a new process."""
    return Watcher(settings, cast("FleetView", fleet), RateHistory(settings.run.data / "service"), send, 0.0)


async def called(of: Watcher) -> None:
    """Lets the watcher call until no change waits, and that is kept."""
    calling = asyncio.create_task(of._call_all())
    assert of.history is not None
    async with asyncio.timeout(30):
        while of.history.alerts()[watcher.CALLS] != "[]":  # noqa: ASYNC110  # the condition is of a task without an event
            await asyncio.sleep(0.005)
    calling.cancel()
    await asyncio.wait([calling])


async def test_a_change_is_called_once_whatever_fails_and_restarts(settings: Settings) -> None:
    """Again while the receiver does not take it; a new process calls only what was not taken."""
    fleet, receiver = Fleet(), Receiver("it answered 500", "dns")
    first = watching(settings, fleet, receiver.send)
    fleet.dead["shop"] = 3
    await first._note(first.look(1_000.0))
    await called(first)
    assert len(receiver.calls) == 3
    [(body, delivery)] = {repr(call): call for call in receiver.calls}.values()
    assert delivery == "dead_letters:shop/1000/raised"
    assert {name: body[name] for name in ("state", "rule", "kind", "subject", "text", "severity", "since")} == {
        "state": "raised",
        "rule": "dead_letters",
        "kind": "job",
        "subject": "shop",
        "text": "3 open dead letters",
        "severity": "warning",
        "since": 1_000.0,
    }
    second = watching(settings, fleet, receiver.send)
    assert [alert.id for alert in second.raised] == ["dead_letters:shop"]
    await second._note(second.look(1_010.0))
    fleet.dead.clear()
    await second._note(second.look(2_000.0))
    await second._note(second.look(2_000.0 + CLEAR_S))
    third = watching(settings, fleet, receiver.send)
    assert third.raised == []
    await called(third)
    assert receiver.states == ["raised"] * 3 + ["cleared"]
    fourth = watching(settings, fleet, receiver.send)
    assert fourth._waiting == []


async def test_a_receiver_that_never_answers_is_given_up(settings: Settings) -> None:
    """The next change is called all the same."""
    fleet = Fleet()
    receiver = Receiver(*["no"] * watcher.MOST_CALLS)
    one = watching(settings, fleet, receiver.send)
    fleet.dead.update(a=1)
    await one._note(one.look(1_000.0))
    fleet.dead.update(b=1)
    await one._note(one.look(1_010.0))
    await called(one)
    assert [body["subject"] for body, _ in receiver.calls] == ["a"] * watcher.MOST_CALLS + ["b"]


async def test_the_watch_goes_on_when_the_log_does_not_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again, and tells of what it finds then."""
    monkeypatch.setattr(watcher, "EVERY_S", 0.01)
    fleet, receiver = Fleet(), Receiver()
    fleet.error = EngineError("away")
    fleet.dead.update(a=1)
    one = watching(settings, fleet, receiver.send)
    running = asyncio.create_task(one.run())
    await asyncio.sleep(0.03)
    fleet.error = None
    async with asyncio.timeout(30):
        await receiver.came.wait()
    running.cancel()
    await asyncio.wait([running])
    assert receiver.states == ["raised"]


async def test_history_and_alerts_are_answered(settings: Settings, tmp_path: Path) -> None:
    """An unknown series is named with those that there are; a service without a file for its history says so."""
    from aiohttp.test_utils import TestClient, TestServer

    app = make_app(settings, told_fleet(), OWN_TOKEN)
    watch.prepare(app, settings, told_fleet())
    async with TestClient(TestServer(app)) as client:
        async with asyncio.timeout(30):
            points: dict[str, Any] = {"at": []}
            while not points["at"]:
                answer = await client.get("/api/v1/history?series=pages,fetch.lag", headers=AUTHORISED)
                points = await answer.json()
        assert points["series"] == {"pages": [0.0] * len(points["at"]), "fetch.lag": [0.0] * len(points["at"])}
        assert (points["step_s"], answer.status) == (10, 200)
        answer = await client.get("/api/v1/history?job=j", headers=AUTHORISED)
        assert list((await answer.json())["series"]) == ["pages", "rows", "2xx", "3xx", "4xx", "5xx"]
        answer = await client.get("/api/v1/history?series=moon", headers=AUTHORISED)
        assert (answer.status, (await answer.json())["error"]) == (400, "no series 'moon'")
        answer = await client.get("/api/v1/alerts", headers=AUTHORISED)
        assert (answer.status, await answer.json()) == (200, [])
        assert (await client.get("/api/v1/alerts")).status == 401
    (tmp_path / "file").write_text("")
    broken = load({"run.data": str(tmp_path / "file")}, environ={})
    app = make_app(broken, told_fleet(), OWN_TOKEN)
    watch.prepare(app, broken, told_fleet())
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/api/v1/history", headers=AUTHORISED)
        assert (answer.status, (await answer.json())["error"]) == (503, "the service keeps no history")
