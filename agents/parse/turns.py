"""Pages that wait in parse get their turn, while others go on.

    large ones (`aside`)     one at a time; then others have as much CPU time as it took, while the log holds more
    `untried` ones           one at a time, in a child process (`agents/sandbox/trial.py`)
    without a body           read again from crawl.pages, in batches (`stored_bodies.py`)
    of an unknown job        looked at now and then, until they wait no more

This module decides when a page is due, by the loop's clock and the log's end; `ParseStage` decides what becomes of it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaException

from crawlog.agents.control import BEAT_S, Obedience
from crawlog.agents.sandbox import Trial
from crawlog.streams.errors import DamagedLog, EngineError, TrialError
from crawlog.streams.parse import Message, Waiting
from crawlog.streams.worker import LARGE_BYTES, CrawlApp

from .stage import ParseStage
from .stored_bodies import BATCH, Bodies

log = structlog.get_logger()

GATHER_S = 0.010
"""Longest time that a found waits for others, seconds; and between two looks at what keeps pages waiting."""

LOOK_AFTER_S = 5.0
"""Between two looks at pages whose job is not known, and after a failure to read a body."""

T = TypeVar("T")


class PageTurns:
    """Gives pages of one stage their turn.

    Args:
        orders: Whether a page may be worked on, and whether a rebalance takes them all away.
        flush_soon: Called after each page that had its turn.
    """

    def __init__(self, app: CrawlApp, stage: ParseStage, orders: Obedience, flush_soon: Callable[[], None]) -> None:
        self._app = app
        self._stage = stage
        self._orders = orders
        self._flush_soon = flush_soon
        self._bodies: Bodies | None = None
        self._reading = asyncio.Lock()
        self._owed_s = 0.0  # CPU time that others have before the next large page

    def tasks(self, trial: Trial) -> list[Coroutine[Any, Any, None]]:
        """What is to run beside the events until the worker stops."""
        return [self._look_after_held(), self._read_bodies(), self._try_pages(trial)]

    def take(self, message: Message, *, alone: bool) -> None:
        """Let the stage have a page; a large one lets others go first, unless it is to be parsed alone."""
        began_s = time.thread_time() if self._owed_s > 0 else 0.0  # a call into the kernel
        self._stage.take(message, aside=not alone and self._lets_others_go(message))
        if self._owed_s > 0:
            self._owed_s -= time.thread_time() - began_s

    async def breathe(self) -> None:
        """Several slow pages in a row must not look like a loop that stands still."""
        if self._stage.guard.clock.is_slow:
            self._app.watchdog.beat()
            await asyncio.sleep(0)

    # Large pages.

    def _is_behind(self) -> bool:
        """Whether more pages wait in the log."""
        held, taken = self._app.positions, self._stage.taken
        return self._app.reader.is_behind({p: taken.get(p) or held.next(p) or 0 for p in held.owned})

    def _lets_others_go(self, message: Message) -> bool:
        """Whether a page is so large that those behind it go first, as each may be a host's only source of URLs."""
        return len(message.value or b"") >= LARGE_BYTES and (bool(self._stage.aside) or self._is_behind())

    async def parse_asides(self) -> None:
        """Give pages that were put aside their turn as long as one is due, and none of them waits for a trial."""
        stage = self._stage
        while stage.aside and (self._owed_s <= 0 or stage.is_far or not self._is_behind()):
            if stage.untried.size_bytes >= LARGE_BYTES:
                if self._is_behind() or self._orders.is_rebalancing:
                    return
                await asyncio.sleep(GATHER_S)
                continue
            if not await self._orders.admitted(self._app.watchdog.beat) or not await self.parse_aside():
                return

    async def parse_aside(self) -> bool:
        """Give one page that was put aside its turn, then others as much time; False when a rebalance took it away."""
        stage = self._stage
        first = stage.aside.first
        assert first is not None
        body = first.body
        if body is None:
            try:
                body = await self._body_of(first)
            except (EngineError, KafkaException) as error:
                await self._bodies_unread(error)
                return not self._orders.is_rebalancing
            if stage.aside.first is not first:
                return False
        began_s = time.thread_time()
        stage.parse_aside(body)
        self._owed_s = time.thread_time() - began_s
        await self.breathe()
        return not self._orders.is_rebalancing

    # Trials.

    async def _try_pages(self, trial: Trial) -> None:
        """Have the pages tried that might take the parser too long, one after the other, until stopped."""
        lacking = asyncio.Event()
        self._stage.lacks_trial = lacking.set
        try:
            while not self._app.should_stop:
                await lacking.wait()
                lacking.clear()
                while self._stage.untried and not self._app.should_stop:
                    if self._orders.is_rebalancing:
                        await asyncio.sleep(GATHER_S)
                    elif await self._orders.admitted(self._app.watchdog.beat):
                        await self.try_page(trial)
        finally:
            trial.close()

    async def try_page(self, trial: Trial) -> None:
        """Have the first one tried; dropped when a rebalance takes it away meanwhile."""
        stage, refusal = self._stage, ""
        first = stage.untried.first
        assert first is not None
        try:
            body = await self._body_of(first) if first.body is None else first.body
        except (EngineError, KafkaException) as error:
            await self._bodies_unread(error)
            return
        try:
            domain, waiting = stage.domain(first.meta.url), len(stage.untried) - 1
            refusal = await self._beating(trial.verdict(body, first.meta.content_type, domain, waiting))
        except TrialError as error:
            log.warning(
                "page_untried", url=first.meta.url, error=str(error), then="parsed under the worker's own timer"
            )
        if self._orders.is_rebalancing or stage.untried.first is not first:
            return
        stage.tried(body, refusal)
        self._flush_soon()
        await self.breathe()
        self._app.watchdog.beat()

    # Bodies.

    async def _read_bodies(self) -> None:
        """Fetch from the log the bodies of pages that were not modified, in batches, until stopped."""
        stage, bodies, lacking = self._stage, self._new_bodies(), asyncio.Event()
        stage.lacks_bodies = lacking.set
        while not self._app.should_stop:
            await lacking.wait()
            lacking.clear()
            await asyncio.sleep(GATHER_S)  # for others: a batch is a request a partition
            while stage.bodiless and not self._app.should_stop:
                wanted = {at: held.meta for at, held in islice(stage.bodiless.items(), BATCH)}
                try:
                    found = await self._beating(asyncio.to_thread(bodies.read, wanted))
                except (EngineError, KafkaException) as error:
                    await self._bodies_unread(error)
                    continue
                for at, (old, body) in found.items():
                    stage.body_came(at, old, body)
                    await asyncio.sleep(0)
                stage.flush()

    async def _body_of(self, waiting: Waiting) -> bytes:
        """A body that was let go; empty where crawl.pages has it no more. Raises: EngineError, KafkaException."""
        self._bodies = self._bodies or self._new_bodies()
        at = waiting.message.partition, waiting.message.offset
        async with self._reading:
            found = await self._beating(asyncio.to_thread(self._bodies.read, {at: waiting.of_log}))
        return found[at][1]

    def _new_bodies(self) -> Bodies:
        return Bodies(self._app.crawl, self._app.input_name)

    async def _bodies_unread(self, error: Exception) -> None:
        if isinstance(error, DamagedLog):
            self._app.watchdog.end("bodies_unread", error)
        log.warning("bodies_unread", error=str(error), again_in_s=LOOK_AFTER_S)
        self._app.watchdog.beat()
        await asyncio.sleep(LOOK_AFTER_S)

    # Jobs that are not known.

    async def _look_after_held(self) -> None:
        while not self._app.should_stop:
            await asyncio.sleep(LOOK_AFTER_S)
            if self._stage.holds:
                self._app.watchdog.beat()
            self._stage.look_after_held()

    async def _beating(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, which has a limit of its own; the watchdog is told meanwhile that pages wait for it."""
        working = asyncio.create_task(work)
        try:
            while not working.done():
                self._app.watchdog.beat()
                await asyncio.wait([working], timeout=BEAT_S)
        finally:
            working.cancel()
        return working.result()
