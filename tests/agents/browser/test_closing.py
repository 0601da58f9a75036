"""The end of a browser whose page, or whose worker, is cancelled meanwhile; without a real one."""

import asyncio
import signal
from typing import Any

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
