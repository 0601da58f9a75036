"""Pages that helpers parse: none is lost or doubled, whatever becomes of the helper, and commits keep their order."""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

import pytest

from crawlog.agents.parse import lending
from crawlog.agents.parse.guard import Guard
from crawlog.agents.parse.helper import serve
from crawlog.agents.parse.lending import BATCH_PAGES, BATCHES, MOST, Lender, helper_count
from crawlog.schemas.urls import JobSpec, ScopeSpec
from tests.support.parsing import Noted, Stage, buried, links, told

ROOM = 1 << 20


class NearHelper:
    """A helper in a thread: it answers once it may, and dies like a process."""

    def __init__(self, theirs: socket.socket) -> None:
        self._may_answer = threading.Event()
        self._socket = theirs.dup()  # its owner closes the other one
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._may_answer.wait()
        with suppress(OSError):  # it was killed
            serve(self._socket.dup(), 8, ROOM)

    def go(self) -> None:
        """Answer what was asked, and what comes."""
        self._may_answer.set()

    def kill(self) -> None:
        """End it."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._may_answer.set()

    def wait(self) -> int:
        """Its end."""
        self._thread.join()
        self._socket.close()
        return 0


class Lending:
    """A stage with a helper."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.helpers: list[NearHelper] = []
        self.lender = stage.stage.lender = Lender(1, self._start, stage.stage.came_back)

    def _start(self, theirs: socket.socket) -> NearHelper:
        self.helpers.append(NearHelper(theirs))
        return self.helpers[-1]

    async def started(self) -> NearHelper:
        """The helper, once its process runs."""
        await until(lambda: self.helpers)
        return self.helpers[-1]

    def take(self, count: int) -> None:
        """So many pages come, each with a link of its own and one that all have."""
        for number in range(self.stage.offsets, self.stage.offsets + count):
            self.stage.take(links(f"of-{number}", "all"), lends=True, url=f"http://a.test/{number}")

    async def all_in_the_log(self, count: int) -> None:
        """Until so many pages are done."""

        def done() -> bool:
            self.stage.stage.flush()
            self.stage.log.acknowledge()
            return self.stage.done[-1:] == [(3, count)]

        await until(done)


async def until(holds: Callable[[], object]) -> None:
    """Until it holds."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # a thread answers
            await asyncio.sleep(0.005)


@asynccontextmanager
async def lent(stage: Stage | None = None) -> AsyncIterator[Lending]:
    """A stage that lends pages."""
    one = Lending(stage or Stage())
    tasks = [asyncio.create_task(task) for task in one.lender.tasks()]
    try:
        yield one
    finally:
        for helper in one.helpers:
            helper.go()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_whole(one: Lending, count: int) -> None:
    """Each page has one row, and its links are in the log."""
    assert sorted(map(int, told(one.stage))) == list(range(count))
    found = {url.url for url in one.stage.founds()}
    assert found == {"http://a.test/all", *(f"http://a.test/of-{number}" for number in range(count))}
    assert buried(one.stage) == []


MANY = BATCHES * BATCH_PAGES + 7
"""More pages than a helper takes at once."""


async def test_a_helper_parses_some_pages_and_the_owner_the_others() -> None:
    """What it has no room for is parsed at once; the commit waits for the earlier pages, which it has."""
    async with lent() as one:
        one.take(MANY)
        helper = await one.started()
        one.stage.stage.flush()
        one.stage.log.acknowledge()
        assert (sorted(map(int, told(one.stage))), one.stage.done) == (list(range(BATCHES * BATCH_PAGES, MANY)), [])
        helper.go()
        await one.all_in_the_log(MANY)
        is_whole(one, MANY)


async def test_offsets_are_done_in_order() -> None:
    """Whoever parses a page, and whenever its answer comes."""
    async with lent() as one:
        one.take(MANY)
        (await one.started()).go()
        await one.all_in_the_log(MANY)
        offsets = [offset for _, offset in one.stage.done]
        assert offsets == sorted(offsets)


async def test_the_owner_parses_the_pages_of_a_helper_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it had; another process takes its place after a pause."""
    monkeypatch.setattr(lending, "AGAIN_S", 0.0)
    async with lent() as one:
        one.take(MANY)
        (await one.started()).kill()
        await one.all_in_the_log(MANY)
        is_whole(one, MANY)
        await until(lambda: not one.lender._helpers[0]._flying)  # its batches are forgotten: there is room again
        one.take(3)
        await until(lambda: len(one.helpers) == 2)
        one.helpers[1].go()
        await one.all_in_the_log(MANY + 3)
        is_whole(one, MANY + 3)


async def test_a_helper_that_cannot_be_started_costs_no_page() -> None:
    """There is no memory for a process."""
    stage = Stage()

    def fail(_: socket.socket) -> NearHelper:
        raise OSError("no process")

    one = Lending(stage)
    one.lender = stage.stage.lender = Lender(1, fail, stage.stage.came_back)
    tasks = [asyncio.create_task(task) for task in one.lender.tasks()]
    one.take(MANY)
    await one.all_in_the_log(MANY)
    is_whole(one, MANY)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_late_answer_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has parsed an overdue batch itself; the next batch may use links of the late answer."""
    monkeypatch.setattr(lending, "OVERDUE_S", 0.001)
    async with lent() as one:
        one.take(MANY)
        helper = await one.started()
        await one.all_in_the_log(MANY)
        is_whole(one, MANY)
        monkeypatch.setattr(lending, "OVERDUE_S", 600.0)
        helper.go()
        await until(lambda: one.lender._helpers[0]._flying == deque())
        one.take(BATCH_PAGES)
        await one.all_in_the_log(MANY + BATCH_PAGES)
        is_whole(one, MANY + BATCH_PAGES)


async def test_a_helper_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages were parsed by then."""
    monkeypatch.setattr(lending, "OVERDUE_S", 0.001)
    monkeypatch.setattr(lending, "HUNG_S", 0.002)
    monkeypatch.setattr(lending, "TEND_S", 0.01)
    async with lent() as one:
        one.take(BATCH_PAGES)
        helper = await one.started()
        await until(lambda: not helper._thread.is_alive())
        await one.all_in_the_log(BATCH_PAGES)
        is_whole(one, BATCH_PAGES)


async def test_pages_of_an_older_revision_are_parsed_by_the_newest_one() -> None:
    """The job was changed while a helper had them."""
    async with lent() as one:
        one.take(BATCH_PAGES)
        helper = await one.started()
        one.stage.learn(JobSpec(rev=2, scope=ScopeSpec(names=("a.test",), exclude=("all$",))))
        helper.go()
        await one.all_in_the_log(BATCH_PAGES)
        assert "http://a.test/all" not in {url.url for url in one.stage.founds()}
        assert sorted(map(int, told(one.stage))) == list(range(BATCH_PAGES))


async def test_pages_of_a_partition_that_was_given_up_have_no_outputs_here() -> None:
    """Its next owner reads them again."""
    async with lent() as one:
        one.take(BATCH_PAGES)
        helper = await one.started()
        one.stage.stage.give_up()
        helper.go()
        await until(lambda: one.lender._helpers[0]._flying == deque())
        assert told(one.stage) == []


async def test_a_rebalance_waits_for_no_helper() -> None:
    """The owner parses what helpers have: they may get no CPU for seconds."""
    async with lent() as one:
        one.take(MANY)
        await one.started()
        await one.lender.take_back()
        await one.all_in_the_log(MANY)
        is_whole(one, MANY)


async def test_a_page_that_killed_workers_and_a_helper_is_a_dead_letter() -> None:
    """It comes back to its owner, which gave it up."""
    async with lent(Stage(guard=Guard(notes=Noted(at_0="give_up")))) as one:
        one.take(2)
        one.stage.stage.flush()
        (await one.started()).kill()
        await one.all_in_the_log(2)
        assert (told(one.stage), [offset for offset, _ in buried(one.stage)]) == (["1"], [0])


@pytest.mark.parametrize(
    ("wanted", "cores", "count"), [("auto", 1, 0), ("auto", 2, 1), ("auto", 64, MOST), (0, 8, 0), (5, 2, 5)]
)
def test_a_worker_has_as_many_helpers_as_idle_cores(wanted: int | Literal["auto"], cores: int, count: int) -> None:
    """Unless the setting says how many."""
    assert helper_count(wanted, cores) == count
