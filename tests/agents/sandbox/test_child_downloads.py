"""Downloads that a child waits for: beside its calls, in any number, and without time by the clock."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crawlog.agents.sandbox import CALL, BackgroundChild, ChildRules, Died, SpiderFrame
from crawlog.schemas.pages import PageMeta
from crawlog.streams.downloads import DownloadAsk
from crawlog.streams.spiders import SpiderRef

ROOT = Path(__file__).parents[3]
LOADER = "tests.support.asking_spiders:load"


class Slow:
    """A downloader.

    Attributes:
        open: Downloads under way.
        most: Most of them at a time.
    """

    def __init__(self, wait_s: float, size: int) -> None:
        self._wait_s = wait_s
        self._size = size
        self.open = self.most = 0

    @asynccontextmanager
    async def got(self, job: str, ask: DownloadAsk) -> AsyncIterator[tuple[PageMeta, bytes]]:
        """A body, after a while."""
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(self._wait_s)
            yield PageMeta(ask.url, job), bytes(self._size)
        finally:
            self.open -= 1


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child finds the loader."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def called(child: BackgroundChild, count: int, limit_s: float | None = None) -> SpiderFrame | Died:
    """The answer of a call with so many downloads."""
    asked: asyncio.Future[SpiderFrame | Died] = asyncio.get_running_loop().create_future()
    child.submit(SpiderFrame(CALL, b"http://a.test/", str(count).encode()), asked.set_result, limit_s)
    return await asked


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not is_so():  # noqa: ASYNC110  # of this test
        await asyncio.sleep(0.01)


def child_of(downloads: Slow | None) -> BackgroundChild:
    """A child."""
    return BackgroundChild(SpiderRef("asking", job="j"), ChildRules(), LOADER, asyncio.get_running_loop(), downloads)


async def test_many_downloads_come_at_a_time_each_to_its_own_wait() -> None:
    """Further ones wait in the child. Large bodies pass the socket in pieces; a call behind it is answered after it."""
    downloads = Slow(0.0, 300_000)
    child = child_of(downloads)
    several, one = await asyncio.gather(called(child, 130), called(child, 1))
    assert isinstance(several, SpiderFrame)
    assert isinstance(one, SpiderFrame)
    assert several.body.decode().split("\n") == [f"http://a.test/{number} 300000" for number in range(130)]
    assert one.body == b"http://a.test/0 300000"
    child.close()


async def test_a_call_that_waits_for_a_download_takes_no_time_by_the_clock() -> None:
    """The limit is 0.6 s of CPU, thrice that by the clock; the download takes longer."""
    child = child_of(Slow(2.2, 10))
    answer = await called(child, 1, limit_s=0.6)
    assert isinstance(answer, SpiderFrame), answer
    child.close()


async def test_downloads_end_with_their_child() -> None:
    """Nobody waits for them."""
    downloads = Slow(60, 10)
    child = child_of(downloads)
    calling = asyncio.create_task(called(child, 5))
    await until(lambda: downloads.open == 5)
    child.kill("enough")
    assert await calling == Died("spider_died: enough", ran=True)
    await until(lambda: not downloads.open)
    child.close()


async def test_a_child_without_a_downloader_is_told_so() -> None:
    """In `start`, and in the commands that try a spider."""
    child = child_of(None)
    answer = await called(child, 1)
    assert isinstance(answer, SpiderFrame)
    assert answer.body.startswith(b"http://a.test/0 no_downloads: ")
    child.close()
