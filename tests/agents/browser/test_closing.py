"""The start and the end of a browser, also where its page or its worker is cancelled meanwhile; without a real one."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from crawlog.agents.browser.chromium import Chromium
from crawlog.agents.browser.render import Renderer
from crawlog.streams.settings.settings import Settings


class Slow:
    """A driver, its browser and their process in one; the browser takes long to close."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.is_killed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.has_closed = False

    async def close(self) -> None:
        """The browser's end."""
        self.begun.set()
        await self.may_end.wait()
        self.has_closed = True

    async def stop(self) -> None:
        """The driver's end."""

    def children(self, *, recursive: bool) -> list[Any]:
        """No processes besides."""
        assert recursive
        return []

    def send_signal(self, number: int) -> None:
        """Its kill."""
        assert number == signal.SIGKILL
        self.is_killed.set()


def chromium_of(slow: Any) -> Chromium:
    """A browser made of it."""
    return Chromium(slow, slow, [slow])


async def cancelled_once_begun(task: asyncio.Task[Any], slow: Slow) -> None:
    """Cancel a task while the browser closes."""
    await slow.begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_page_cancelled_while_the_browser_is_changed_leaves_none_behind() -> None:
    """The old one is closed all the same."""
    slow, settings = Slow(), Settings()
    resources: Any = None
    renderer = Renderer(settings, resources)
    renderer.browser = chromium_of(slow)
    renderer.browser.served = settings.render.recycle_pages
    await cancelled_once_begun(asyncio.create_task(renderer._ready()), slow)
    slow.may_end.set()
    await asyncio.wait_for(slow.is_killed.wait(), 10)
    assert slow.has_closed


async def test_a_close_that_is_cancelled_kills_the_browser() -> None:
    """An event loop that ends cancels all of its tasks."""
    slow = Slow()
    await cancelled_once_begun(asyncio.create_task(chromium_of(slow).close()), slow)
    assert slow.is_killed.is_set()


class Starting:
    """Playwright: its driver starts while another child of the worker does. As much of its browser as a start uses.

    Attributes:
        driver: The driver's process.
        other: The other child.
        hangs_at: What does not end.
    """

    driver: asyncio.subprocess.Process
    other: asyncio.subprocess.Process
    version = "1"

    def __init__(self, hangs_at: str) -> None:
        self.hangs_at = hangs_at
        self.is_hanging = asyncio.Event()
        self.chromium = self

    async def start(self) -> "Starting":
        """A driver."""
        self.other = await _child()
        self.driver = await _child("run-driver")
        await self._goes_on("start")
        return self

    async def launch(self, **_: object) -> "Starting":
        """A browser."""
        await self._goes_on("launch")
        return self

    async def stop(self) -> None:
        """The driver does not end by itself."""

    async def _goes_on(self, at: str) -> None:
        if self.hangs_at == at:
            self.is_hanging.set()
            await asyncio.sleep(600.0)


async def _child(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)", *arguments)


@asynccontextmanager
async def starting(monkeypatch: pytest.MonkeyPatch, hangs_at: str = "") -> AsyncIterator[Starting]:
    """Playwright in this process; its children end with it."""
    pytest.importorskip("playwright")
    one = Starting(hangs_at)
    monkeypatch.setattr("playwright.async_api.async_playwright", lambda: one)
    try:
        yield one
    finally:
        for child in (one.driver, one.other):
            if child.returncode is None:
                child.kill()
            await child.wait()


async def test_a_child_that_comes_while_the_browser_starts_is_not_taken_for_its_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its memory would count as the browser's, and it would be killed with the browser."""
    async with starting(monkeypatch) as one:
        chromium = await Chromium.start("chromium", Settings())
        assert [driver.pid for driver in chromium.drivers] == [one.driver.pid]


@pytest.mark.parametrize("hangs_at", ["start", "launch"])
async def test_a_driver_that_does_not_come_up_in_time_is_ended(monkeypatch: pytest.MonkeyPatch, hangs_at: str) -> None:
    """Each later try would leave one more. Other children go on."""
    async with starting(monkeypatch, hangs_at=hangs_at) as one:
        task = asyncio.create_task(Chromium.start("chromium", Settings()))
        await one.is_hanging.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await asyncio.wait_for(one.driver.wait(), 30) == -signal.SIGKILL
        assert one.other.returncode is None
