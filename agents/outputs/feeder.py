"""Feeds a store from the open state of an output, while rows come and until the store has them all.

SinkState.changes ─► a thread: Store.write ─► position; an error: Store.open again, AGAIN_S later

A store that is away holds no other output: its rows wait in the state.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog

from crawlog.streams import crash_points
from crawlog.streams.errors import CrawlError
from crawlog.streams.sink import SinkState
from crawlog.streams.stores import MOST_CHANGES, Store

if TYPE_CHECKING:
    from crawlog.streams.sink_groups import SinkSpec

log = structlog.get_logger()

LOOK_S = 0.2  # Pause between two looks for changes: a transaction costs as much as some hundred rows

AGAIN_S = 5.0  # Pause after an error

_T = TypeVar("_T")


class Feeder:
    """See the module.

    Args:
        store: Which is closed at the end.

    Attributes:
        error: Why the store takes no rows; None if all is well.
        position: Number of the last change that the store has; -1 before it was asked.
    """

    def __init__(self, spec: "SinkSpec", store: Store, results: SinkState) -> None:
        self.spec = spec
        self.error: Exception | None = None
        self.position = -1
        self._store = store
        self._results = results
        self._serial = ""
        self._thread = ThreadPoolExecutor(1, "store")
        self._task = asyncio.create_task(self._run())

    @property
    def place(self) -> str:
        """Its address, without its password."""
        return self._store.place

    @property
    def waiting(self) -> int:
        """How many changes of keys wait."""
        return self._results.changed - max(self.position, 0)

    @property
    def is_done(self) -> bool:
        """Whether the store has all rows of the state."""
        is_open = self.position >= 0 and self._serial == self._results.meta.serial
        return is_open and self.error is None and self.position == self._results.changed

    async def finish(self) -> None:
        """The job is finished, and the store has all rows. Raises: as `Store.finish`."""
        try:
            await self._in_thread(self._store.finish)
        except Exception:
            self.position = -1
            raise

    async def end(self) -> None:
        """Feed no more. A write that is under way ends by itself: what it wrote is known at the next opening."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                try:
                    pause_s = await self._step()
                    self.error = None
                except Exception as error:
                    if not isinstance(error, CrawlError | OSError):
                        log.exception("store_broken", output=self._store.place)
                    elif str(error) != str(self.error):
                        log.warning("store_failed", job=self.spec.job, output=self._store.place, error=str(error))
                    self.error, self.position, pause_s = error, -1, AGAIN_S
                await asyncio.sleep(pause_s)
        finally:
            self._thread.submit(self._store.close)
            self._thread.shutdown(wait=False)

    async def _step(self) -> float:
        """Give the store what it lacks; returns how long to rest."""
        results = self._results
        if self.position < 0 or self._serial != results.meta.serial:
            self._serial, self.position = results.meta.serial, -1
            feed = results.feed_for(self.spec)
            self.position = min(await self._in_thread(lambda: self._store.open(feed)), results.changed)
        if self.position == results.changed:
            return LOOK_S
        changes = results.changes(self.position)
        crash_points.point("store.writing")
        await self._in_thread(lambda: self._store.write(changes))
        crash_points.point("store.written")
        self.position = changes.end
        return 0.0 if results.changed - self.position >= MOST_CHANGES else LOOK_S

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Run a call of the store; a cancelled one goes on, and `close` comes behind it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
