"""The downloads that the code of one child waits for: `crawler.engine.download`.

child ─ FETCH ─► begin ─► Downloader.got ─► FETCHED ─► child      its body is held until the child has read it
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.streams.downloads import MOST_ASKED, DownloadAsk, Downloaded

from .calls import Calls
from .frames import FETCHED, SpiderFrame, TooLong

# Downloads of a child at a time: one ends here when all of it was written, which the child may know before.
MOST_FETCHING = 10 * MOST_ASKED

WRITTEN_S = 0.01  # Time between two looks whether the child has read a download

NO_DOWNLOADS = "no_downloads: crawler.engine.download works in the callbacks and pipelines of a crawl"

_encode = msgspec.json.Encoder().encode
_read_ask = msgspec.json.Decoder(DownloadAsk).decode


class Downloader(Protocol):
    """Makes the requests that a spider's code asks for."""

    def got(self, job: str, ask: DownloadAsk) -> AbstractAsyncContextManager[tuple[PageMeta, bytes]]:
        """The answer, whose body is held in memory until the context ends. Raises nothing."""


class ChildDownloads:
    """Those of one child.

    Args:
        downloader: None where nothing can be downloaded.
        write_soon: Sends what `Calls.send` took.
    """

    def __init__(
        self,
        job: str,
        loop: asyncio.AbstractEventLoop | None,
        downloader: Downloader | None,
        write_soon: Callable[[], None],
    ) -> None:
        self._job = job
        self._loop = loop
        self._downloader = downloader
        self._write_soon = write_soon
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended_s = 0.0

    @property
    def are_open(self) -> bool:
        return bool(self._tasks)

    @property
    def waited_s(self) -> float:
        """When the child last waited for one, by the monotonic clock."""
        return time.monotonic() if self._tasks else self._ended_s

    def begin(self, calls: Calls, frame: SpiderFrame) -> None:
        """Begin one. Raises: TooLong: it cannot be read, or there are too many."""
        try:
            ask = _read_ask(frame.text)
        except (ValueError, RecursionError) as error:
            raise TooLong(f"a download that cannot be read: {error}") from None
        if self._loop is None or self._downloader is None:
            self._give(calls, ask, PageMeta(ask.url, self._job, error=NO_DOWNLOADS, kept=False), b"")
            return
        if len(self._tasks) >= MOST_FETCHING:
            raise TooLong(f"more than {MOST_FETCHING:,} downloads at a time")
        task = self._loop.create_task(self._fetch(self._downloader, calls, ask))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def cancel(self) -> None:
        """End all: their child is gone."""
        for task in self._tasks:
            task.cancel()

    def _give(self, calls: Calls, ask: DownloadAsk, meta: PageMeta, body: bytes) -> None:
        calls.send(SpiderFrame(FETCHED, _encode(Downloaded(ask.number, meta)), body))
        self._write_soon()

    async def _fetch(self, downloader: Downloader, calls: Calls, ask: DownloadAsk) -> None:
        async with downloader.got(self._job, ask) as (meta, body):
            self._give(calls, ask, meta, body)
            while calls.unsent:  # noqa: ASYNC110  # cheaper than an event for each write
                await asyncio.sleep(WRITTEN_S)

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._ended_s = time.monotonic()
