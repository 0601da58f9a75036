"""Requests that are never sent twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.schemas import urls as u
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.fold import rows as r
from crawlog.streams.http.answer import Answer
from tests.support.fetching import PAGES, URLS, Web, World, running

PAY = "http://a.com/pay"
ONCE = RequestRecord("POST", once=True, errback="failed")


def statuses(world: World) -> list[str]:
    """Of the dones of `PAY`, in the order of the log."""
    return [done.status for done in world.log.dones if done.url == PAY]


@asynccontextmanager
async def restoring(world: World) -> AsyncIterator[None]:
    """Records that are folded before anything is dispatched."""
    world.stage.dispatching = False
    yield
    await world.until(lambda: not world.log.outstanding and world.is_folded)
    world.stage.dispatching = True
    world.stage.wake()


async def test_the_log_says_that_it_begins_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary request is sent without."""
    known: list[list[str]] = []
    web = Web()
    async with running(tmp_path, monkeypatch, web) as world:
        web.before = lambda _url: known.append(statuses(world))
        world.ask(PAY, ONCE, 7)
        await world.until(lambda: statuses(world) == ["began", "fetched"])
        assert known == [["began"]]
        world.ask("http://a.com/read", RequestRecord(callback="parse_more"), 0)
        await world.all_done("http://a.com/read")
        assert [done.status for done in world.log.dones] == ["began", "fetched", "fetched"]
        assert [record.topic for record in world.log.records if record.topic == PAGES] == [PAGES] * 2


async def test_nothing_is_sent_while_the_log_does_not_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow log delays the request; other hosts go on."""
    async with running(tmp_path, monkeypatch, Web()) as world:
        async with restoring(world):
            world.ask(PAY, ONCE, 7)
            world.find("http://b.com/")
        world.log.is_silent = True
        await world.until(lambda: world.web.asked)
        assert world.web.times(PAY) == 0


@pytest.mark.parametrize("settings", [{}, {"fetch__repeat_posts": False}])
async def test_what_had_begun_when_its_worker_died_fails_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    """With a page, so that its errback is called; the next worker has nothing but the log."""
    request = RequestRecord("POST") if settings else ONCE
    web = Web(latency_s={"any": 600.0})
    async with running(tmp_path / "1", monkeypatch, web, **settings) as world:
        world.ask(PAY, request, 7)
        await world.until(lambda: web.times(PAY))
        await world.until(lambda: world.is_folded)
        written = [record.value for record in world.log.records if record.topic == URLS]
    async with running(tmp_path / "2", monkeypatch, Web(), **settings) as world:
        async with restoring(world):
            for value in written[1:]:
                world.log.send(URLS, value)
        await world.until(lambda: statuses(world) == ["began", "failed"])
        assert world.web.asked == []
        [(page, _)] = world.log.pages
        assert (page.error, page.http, page.request, page.attempt) == ("interrupted", None, request, 1)
        await world.until(lambda: world.is_folded)
        assert list(world.stage.live[0].rows.scan(b"q")) == []


async def test_a_request_that_never_left_this_machine_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt begins for itself."""

    class Away(Web):
        async def get(self, request: object) -> Answer:
            answer = await super().get(request)  # type: ignore[arg-type]  # as it is given
            return Answer(None, "connection_refused") if self.times(PAY) == 1 else answer

    async with running(tmp_path, monkeypatch, Away()) as world:
        world.ask(PAY, ONCE, 7)
        await world.until(lambda: statuses(world) == ["began", "failed", "began", "fetched"])
        assert [done.attempt for done in world.log.dones] == [1, 1, 2, 2]


async def test_a_request_that_is_not_answered_is_not_sent_again_by_its_own_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It broke while it was sent, and nobody knows how far it came."""

    class Broken(Web):
        async def get(self, request: object) -> Answer:
            await super().get(request)  # type: ignore[arg-type]  # as it is given
            raise RuntimeError

    async with running(tmp_path, monkeypatch, Broken()) as world:
        world.ask(PAY, ONCE, 7)
        await world.until(lambda: statuses(world) == ["began", "failed"])
        assert world.web.times(PAY) == 1
        assert [(done.status, done.reason) for done in world.log.dones] == [("began", ""), ("failed", "interrupted")]


async def test_the_mark_is_in_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the next owner finds it."""
    async with running(tmp_path, monkeypatch, Web(latency_s={"any": 600.0})) as world:
        world.ask(PAY, ONCE, 7)
        await world.until(lambda: world.web.asked)
        await world.until(lambda: world.is_folded)
        [(_, stored)] = world.stage.live[0].rows.scan(b"q")
        assert r.read_queued(stored).began
        assert u.decode(world.log.records[-1].value).results[0].status == "began"  # type: ignore[index]  # a done
