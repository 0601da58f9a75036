"""The feed of a store from a state: rows wait for a store that is away, and none is lost with an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from crawlog.agents.outputs import feeder as feeding_module
from crawlog.agents.outputs.feeder import Feeder
from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.stores import Feed, RowChanges, Store
from tests.support.storing import Feeding


class FakeStore(Store):
    """A store in memory, whose connection breaks on request."""

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        self.rows: dict[bytes, bytes] = {}
        self.position, self.serial = 0, ""
        self.is_away = self.loses_answers = self.is_closed = False
        self.is_finished = False

    def check(self) -> None:
        """Nothing."""

    def open(self, feed: Feed) -> int:
        """Its position."""
        self._reach()
        if feed.serial != self.serial:
            self.serial, self.position = feed.serial, 0
        return self.position

    def write(self, changes: RowChanges) -> None:
        """Takes them, and may not say so."""
        self._reach()
        assert changes.start == self.position
        self.rows |= {one.key: one.block for one in changes.keys}
        self.position = changes.end
        if self.loses_answers:
            self.loses_answers = False
            raise Misconfigured("connection lost")

    def finish(self) -> None:
        """Notes it."""
        self._reach()
        self.is_finished = True

    def close(self) -> None:
        """Notes it."""
        self.is_closed = True

    def _reach(self) -> None:
        if self.is_away:
            raise Misconfigured("the store is away")


class Bench:
    """A state, a store, and the feeder between them."""

    def __init__(self, data: Path) -> None:
        self.feeding = Feeding(data, SinkSpec("j", "fake:", is_store=True))
        self.store = FakeStore(self.feeding.state.sink)
        self.feeder = Feeder(self.feeding.state.sink, self.store, self.feeding.state)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits for a condition."""
        async with asyncio.timeout(60):
            while not is_so():  # noqa: ASYNC110  # a condition of a thread's store
                await asyncio.sleep(0.01)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Tried again soon; closed at the end."""
    monkeypatch.setattr(feeding_module, "AGAIN_S", 0.01)
    made = Bench(tmp_path)
    yield made
    await made.feeder.end()
    made.feeding.state.close()


async def test_rows_wait_for_a_store_that_is_away(bench: Bench) -> None:
    """They are counted; when it is back, it gets them, and can be finished."""
    bench.store.is_away = True
    bench.feeding.page(1, "http://a/", {"n": 1})
    bench.feeding.page(2, "http://b/", {"n": 2})
    await bench.until(lambda: bench.feeder.error is not None)
    assert (bench.feeder.waiting, bench.feeder.is_done) == (2, False)
    bench.store.is_away = False
    await bench.until(lambda: bench.feeder.is_done)
    assert set(bench.store.rows) == {b"http://a/", b"http://b/"}
    await bench.feeder.finish()
    assert (bench.feeder.waiting, bench.store.is_finished) == (0, True)


async def test_a_lost_answer_loses_and_repeats_nothing(bench: Bench) -> None:
    """Only the store knows how far it is, so it is asked."""
    bench.store.loses_answers = True
    bench.feeding.page(1, "http://a/", {"n": 1})
    await bench.until(lambda: bench.feeder.is_done and not bench.store.loses_answers)
    bench.feeding.page(2, "http://a/", {"n": 2})
    await bench.until(lambda: bench.store.rows == {b"http://a/": b'{"n": 2}\n'})


async def test_a_state_that_begins_again_is_fed_from_its_beginning(bench: Bench) -> None:
    """Its numbers of changes are others."""
    bench.feeding.page(1, "http://a/", {"n": 1})
    await bench.until(lambda: bench.feeder.is_done)
    bench.feeding.state.begin_again()
    assert not bench.feeder.is_done
    bench.store.rows.clear()
    bench.feeding.offset = 0
    bench.feeding.page(1, "http://a/", {"n": 1})
    await bench.until(lambda: bench.feeder.is_done)
    assert set(bench.store.rows) == {b"http://a/"}


async def test_the_store_is_closed_at_the_end(bench: Bench) -> None:
    """Behind a call that is under way."""
    await bench.until(lambda: bench.feeder.is_done)
    await bench.feeder.end()
    await bench.until(lambda: bench.store.is_closed)
