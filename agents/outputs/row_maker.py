"""Makes rows of raw items: gives them to the job's pipelines, in a child process, and keeps what these give.

    raw items of the state ─► child: pipelines ─► dead letters ─► rows in FILE.partial ─► state
      └ the child died, or items that it had were replaced: a fresh child, rows from the first item on

`pipelines.resume=continue`, and a job that is fed, go on behind the last row instead. An item that ends the child twice
is left out.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from crawlog.agents.sandbox import (
    CALL,
    FAILED,
    MAX_TEXT,
    BackgroundChild,
    ChildRules,
    Died,
    SpiderFrame,
    fault_of,
    misconfigured,
)
from crawlog.schemas import items
from crawlog.schemas.dead import DeadLetter, of_item, told_error
from crawlog.streams import crash_points
from crawlog.streams.control import known_job
from crawlog.streams.errors import CrawlError, Misconfigured, SpiderDied
from crawlog.streams.log import Topics
from crawlog.streams.sink import PipelineRows, RawBlock, SinkState, lines, summed
from crawlog.streams.spiders import MadeItem, MadeItems, read_made, ref_of, trust_of
from crawlog.streams.state import environment_error

if TYPE_CHECKING:
    from crawlog.agents.downloads import Downloads
    from crawlog.streams.settings import Settings
    from crawlog.streams.spiders import SpiderRef

    from .items_log import ItemsLog

log = structlog.get_logger()

LOOK_S = 0.2  # Time between two looks for new items, and for the end of the job

AGAIN_S = 5.0  # Pause before pipelines that cannot be opened are tried again, seconds

DEATHS = 2  # Deaths of the child at one item, after which the item is left out; in `close`, after which the rows stay

MOST_REST_S = 60.0  # Longest pause before rows are made anew because items were replaced, seconds

DIED = "spider_died"

LOADER = "crawlog.streams.spiders.pipelines:load_pipelines"  # Loads what answers the calls of the child


class PipelinesChild:
    """The child process with the pipelines of one job.

    Args:
        patience_s: Longest time of one call, by the clock, without that of downloads.
        downloads: Makes the requests that pipelines ask for; None for none.

    Attributes:
        goes_on: Whether the job goes on until somebody ends it: its rows are too many to be made anew.
    """

    def __init__(
        self, ref: "SpiderRef", rules: ChildRules, patience_s: float, downloads: "Downloads | None" = None
    ) -> None:
        self._patience_s = patience_s
        self.goes_on = ref.spec.fed or ref.spec.recurs
        self._child = BackgroundChild(ref, rules, LOADER, asyncio.get_running_loop(), downloads)

    async def call(self, name: str, argument: bytes = b"") -> bytes:
        """The answer of a call. Raises: SpiderDied: the child ended. Misconfigured: the user's code failed."""
        asked: asyncio.Future[SpiderFrame | Died] = asyncio.get_running_loop().create_future()

        def then(answer: SpiderFrame | Died) -> None:
            if not asked.done():
                asked.set_result(answer)

        began_s = time.monotonic()
        self._child.submit(SpiderFrame(CALL, name.encode(), argument), then)
        while not asked.done():
            left_s = max(began_s, self._child.downloads.waited_s) + self._patience_s - time.monotonic()
            if left_s <= 0:
                self.kill()
                raise SpiderDied(f"the pipelines took more than pipelines.timeout_s = {self._patience_s:g}")
            await asyncio.wait([asked], timeout=left_s)
        answer = asked.result()
        if isinstance(answer, Died):
            raise SpiderDied(answer.reason)
        if answer.kind == FAILED:
            raise misconfigured(fault_of(answer))
        return answer.body

    def close(self) -> None:
        """Let the child end by itself, without waiting for it."""
        self._child.close()

    async def end(self) -> None:
        """Let it end by itself, and wait until it has, which takes a second or two at most."""
        self._child.close()
        await asyncio.to_thread(self._child.wait_ended)

    def kill(self) -> None:
        """End the child at once."""
        self._child.kill("it is not needed any more")
        self._child.close()


async def pipelines_of(settings: "Settings", job: str, downloads: "Downloads | None" = None) -> PipelinesChild:
    """A fresh child with a job's pipelines. Raises: Misconfigured: the log does not know the job's spider."""
    copy = await asyncio.to_thread(known_job, settings, Topics(settings.kafka.prefix), job)
    if copy is None or not copy.spec.spider:
        raise Misconfigured(f"job {job} has items for pipelines, and the log does not name its spider")
    rules = ChildRules.of(settings, trust_of(settings))
    return PipelinesChild(ref_of(job, copy.epoch, copy.spec), rules, settings.pipelines.timeout_s, downloads)


class Closing(NamedTuple):
    """The order to close the pipelines.

    Attributes:
        offsets: Of crawl.items, by partition, behind which they are closed.
        reason: Why the job ended, as `closed(reason)` of a spider gets it.
    """

    offsets: dict[int, int]
    reason: str


class RowMaker:
    """The rows of one sink of raw items; does nothing for other sinks.

    Args:
        start: Starts a child. Raises: Misconfigured: the job has no spider.
        goes_on: Whether a fresh child goes on behind the last row; else the rows are made anew.
        must_write: Whether rows could not be written: it then works when some are, not when the pipelines are opened.

    Attributes:
        trouble: Why no row is made; empty if all is well.
        works: Whether the pipelines were opened, or had nothing to do, and met no trouble since.
        needs_opening: Whether the state's database takes no write until it is opened again: one of rows has failed.
        tried_at: When the try began that met the trouble, by a monotonic clock.
        closing: The order to close the pipelines; None while the job goes on.
    """

    def __init__(
        self,
        results: SinkState,
        start: Callable[[], Awaitable[PipelinesChild]],
        log: "ItemsLog",
        *,
        goes_on: bool = False,
        must_write: bool = False,
    ) -> None:
        self.trouble = ""
        self.works = self.needs_opening = False
        self.tried_at = 0.0
        self.closing: Closing | None = None
        self._results = results
        self._start = start
        self._log = log
        self._goes_on = goes_on
        self._must_write = must_write
        self._stats: dict[str, float] = {}
        self._child: PipelinesChild | None = None
        self._made: PipelineRows | None = None
        self._began_s = self._rests_until_s = 0.0
        self._careful = (0, 0)
        self._deaths: dict[tuple[int, int], int] = {}
        self._deaths_in_close = 0

    async def run(self) -> None:
        """Make rows until cancelled, or until the database must be opened again."""
        try:
            while not self.needs_opening:
                pause_s = await self._pause_s()
                await asyncio.sleep(pause_s)
        finally:
            self.drop()

    def drop(self) -> None:
        """Let the child end."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    async def _pause_s(self) -> float:
        began_at = time.monotonic()
        try:
            has_worked = await self.step()
        except SpiderDied as error:
            log.warning("pipelines_died", reason=str(error))
            self._die()
            return LOOK_S
        except (CrawlError, OSError) as error:  # such as a full disk, or a broker that is away
            self._must_write |= isinstance(error, OSError)
            self._fail_for_now(str(error), began_at)
            return AGAIN_S
        except Exception as error:  # RocksDB's have no class of their own
            log.exception("pipelines_broken")
            fault = environment_error(error)
            self.needs_opening = fault != ""
            self._fail_for_now(fault or f"{type(error).__name__}: {error}", began_at)
            return AGAIN_S
        return 0.0 if has_worked else LOOK_S

    def _fail_for_now(self, why: str, began_at: float) -> None:
        self.trouble, self.tried_at, self.works = f"pipelines: {why}", began_at, False
        log.warning("pipelines_failed", error=why, again_in_s=AGAIN_S)
        self._die()

    def _die(self) -> None:
        if self._made is not None:
            self._made.untake()
        self.drop()

    async def step(self) -> bool:
        """Make the rows of some items, or close; whether there was something to do.

        Raises: SpiderDied, Misconfigured: the next step begins with a fresh child.
        """
        made = self._results.made
        if made is None:
            return False
        if self._goes_on:
            made.go_on()
        if self._rests(made):
            return False
        closing = self._due()
        if made.is_done or not (made.has_more or closing is not None):
            self.works = not self.trouble
            return False
        await self._opened(made)
        if blocks := made.blocks():
            await self._make(made, blocks)
        elif closing is not None:
            await self._close(made, closing.reason)
        return True

    def _rests(self, made: PipelineRows) -> bool:
        """End the child whose items were replaced; whether to wait before rows are made anew."""
        if self._child is not None and (made.meta.is_stale or made is not self._made):
            log.info("rows_anew", reason="items were replaced that the pipelines had")
            now = time.monotonic()
            self._rests_until_s = now + min(now - self._began_s, MOST_REST_S)
            self._child.kill()  # a fresh child may open the same files at once
            self._child = None
        return made.meta.is_stale and self._due() is None and time.monotonic() < self._rests_until_s

    def _due(self) -> Closing | None:
        """The order to close, once everything before is in the state."""
        known = self._results.meta.offsets
        is_due = self.closing is not None and all(known.get(at, 0) >= end for at, end in self.closing.offsets.items())
        return self.closing if is_due else None

    async def _opened(self, made: PipelineRows) -> None:
        if self._child is not None:
            return
        self._made, self._began_s, self._stats = made, time.monotonic(), {}
        self._child = await self._start()
        self._goes_on |= self._child.goes_on
        try:
            closes = (await self._call("open")).closes[:MAX_TEXT]
        except SpiderDied as error:
            raise Misconfigured(f"not opened: {error}") from error
        if closes and self._due() is None:  # else the job has ended
            await self._log.stop_job(self._results.sink.job, closes)
        self.trouble, self.works = "", not self._must_write
        is_anew = not self._goes_on and (made.meta.at or made.meta.is_stale)
        if is_anew and self._results.made is made:  # the rows of the process before stay until this one can make some
            made.begin_again()

    async def _call(self, name: str, argument: bytes = b"") -> MadeItems:
        assert self._child is not None
        answer = read_made(await self._child.call(name, argument), argument.count(b"\n") + 1 if name == "rows" else 0)
        self._stats = summed(self._stats, answer.stats)
        return answer

    async def _make(self, made: PipelineRows, blocks: list[RawBlock]) -> None:
        """Rows of these blocks; after a death of the child at them, item by item."""
        first, last = self._careful
        if first <= blocks[0].start < last:
            for block in blocks:
                found = [await self._one(made, block, number) for number in range(len(block.lines))]
                await self._keep(made, [block], found)
            return
        try:
            found = (await self._call("rows", b"\n".join(line for block in blocks for line in block.lines))).items
        except SpiderDied:
            self._careful = blocks[0].start, blocks[-1].start + 1
            raise
        await self._keep(made, blocks, found)

    async def _one(self, made: PipelineRows, block: RawBlock, number: int) -> MadeItem:
        """What becomes of one item of a block. It is left out if it ended the child several times."""
        if (error := made.failed(block).get(number, "")).startswith(DIED):
            return MadeItem(error=error)
        try:
            [item] = (await self._call("rows", block.lines[number])).items
        except SpiderDied as error:
            deaths = self._deaths[block.start, number] = self._deaths.get((block.start, number), 0) + 1
            if deaths < DEATHS:
                raise
            told = str(error) if str(error).startswith(DIED) else f"{DIED}: {error}"
            await self._fail(made, block, {number: MadeItem(error=told)})
            raise
        return item

    async def _keep(self, made: PipelineRows, blocks: list[RawBlock], found: list[MadeItem]) -> None:
        """Say which items failed, then keep the rows."""
        rows: list[tuple[RawBlock, list[bytes]]] = []
        items_left = iter(found)
        for block in blocks:
            of_block = [next(items_left) for _ in block.lines]
            texts, errors = _sorted(of_block)
            if errors:
                await self._fail(made, block, errors)
            rows.append((block, texts))
        if self._results.made is not made:
            return  # the state began again meanwhile
        made.take(rows, self._taken_stats())
        self.works, self._must_write = True, False

    def _taken_stats(self) -> dict[str, float]:
        """What the pipelines counted since the last rows."""
        stats, self._stats = self._stats, {}
        return stats

    async def _fail(self, made: PipelineRows, block: RawBlock, errors: dict[int, MadeItem]) -> None:
        known = made.failed(block)
        new = {number: item for number, item in errors.items() if number not in known}
        if not new:
            return
        first = next(iter(new.values()))
        log.error("items_failed", job=self._results.sink.job, items=len(new), **told_error(first.error, first.trace))
        value = await self._log.original(block.partition, block.offset)
        await self._log.bury([self._letter(block, number, item, value) for number, item in new.items()])
        if self._results.made is made:
            made.fail(block, known | {number: item.error for number, item in new.items()})

    def _letter(self, block: RawBlock, number: int, item: MadeItem, value: bytes | None) -> DeadLetter:
        job = self._results.sink.job
        return DeadLetter(
            topic=self._log.topic,
            partition=block.partition,
            offset=block.offset,
            stage="sink",
            job=job,
            error=of_item(item.error, number + 1, len(block.lines)),
            key=items.key(job, "") + block.key,
            value=value,
            traceback=item.trace,
        )

    async def _close(self, made: PipelineRows, reason: str) -> None:
        failed = ""  # as in Scrapy: the rows stay
        try:
            await self._call("close", reason.encode())
        except SpiderDied as error:
            self._deaths_in_close += 1
            if self._deaths_in_close < DEATHS:
                raise
            failed = str(error)
        except Misconfigured as error:
            failed = str(error)
        if failed:
            log.warning("pipelines_close_failed", job=self._results.sink.job, error=failed)
        self._deaths_in_close = 0
        crash_points.point("pipelines.closed")
        child, self._child = self._child, None
        assert child is not None
        await child.end()  # files that the pipelines left open are whole when the job has finished
        if self._results.made is made and not made.has_more and not made.meta.is_stale:
            made.closed(self._taken_stats(), reason)


def _sorted(found: list[MadeItem]) -> tuple[list[bytes], dict[int, MadeItem]]:
    """The rows, and the items that failed, by number."""
    texts: list[bytes] = []
    errors: dict[int, MadeItem] = {}
    for number, item in enumerate(found):
        if item.error:
            errors[number] = item
        elif bytes(item.row) != b"null":
            try:
                texts.append(lines([item.row])[:-1])
            except ValueError as error:
                errors[number] = MadeItem(error=f"ValueError: {error}")
    return texts, errors
