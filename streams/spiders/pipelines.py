"""Item pipelines: what a user's classes make of the items, in a child process beside the sink.

    raw items ─► read ─► process_item of each pipeline, in order ─► write ─► rows
                           └ DropItem: no row                └ another error: no row, a dead letter

A pipeline has Scrapy's methods, all optional: `open_spider`, `process_item`, `close_spider`, `from_crawler`; each takes
the spider as a last argument or not, and may be async. One class serves Scrapy's spiders and crawlog's own.
"""

import asyncio  # noqa: TID251  # runs in the child alone: pipelines may be async
import gc
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from crawlog.streams.downloads import WORKER
from crawlog.streams.errors import Misconfigured

from .traces import user_trace

CONCURRENT_ITEMS = 100  # Items of async pipelines under way at a time, as in Scrapy

TAGGED = b"~"  # First byte of an item as scraped; another one is a row already

MOST_STATS = 100_000  # Values of an answer beside its items, at most

NO_FILE_YET = (
    "WARNING: a file is missing that close_spider or closed wants. The FILE of `-o` is made after them, so that it is "
    "complete or absent; until then its rows are in FILE.partial. Run what needs FILE after the crawl"
)

METHODS = ("open_spider", "process_item", "close_spider")


class DropItem(Exception):  # Scrapy's name
    """Raised by a pipeline: the item gives no row."""


class MadeItem(msgspec.Struct, omit_defaults=True):
    """What became of one item: a row, or an error, or neither.

    Attributes:
        row: A JSON object; null without a row.
        error: One line.
        trace: Traceback of the error.
    """

    row: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    trace: str = ""


class MadeItems(msgspec.Struct, omit_defaults=True):
    """The answer of the pipelines' process.

    Attributes:
        items: In the order of the raw items.
        stats: Stats that they changed, as `ItemsRecord` has them.
        closes: Why one of them closed the spider when it was opened; empty for none.
    """

    items: list[MadeItem] = []
    stats: dict[str, float] = {}
    closes: str = ""


_read_head = msgspec.json.Decoder(MadeItems).decode
_read_item = msgspec.json.Decoder(MadeItem).decode


def written_made(made: MadeItems) -> bytes:
    """The answer as it travels: a line for each item behind a line without items, so that they can be counted first."""
    parts = [msgspec.structs.replace(made, items=[]), *made.items]
    return b"\n".join(msgspec.json.encode(part).replace(b"\n", b" ") for part in parts)


def read_made(answer: bytes, count: int) -> MadeItems:
    """The answer with so many items. Raises: ValueError: it is none, or has another number of items."""
    found = answer.count(b"\n")
    if found != count:
        raise ValueError(f"the process of the pipelines answers with {found:,} items for {count:,}")
    first, *lines = answer.split(b"\n")
    if first.count(b",") > MOST_STATS:
        raise ValueError(f"the process of the pipelines answers with more than {MOST_STATS:,} stats")
    made = _read_head(first)
    made.items = list(map(_read_item, lines))
    return made


class Pipelines:
    """The pipelines of one spider.

    Args:
        parts: The pipelines, in order.
        read: The item of a raw one. Raises: ValueError: of another version of the spider.
        write: The row of an item. Raises: TypeError: it is no item.
    """

    def __init__(
        self, spider: Any, parts: Sequence[object], read: Callable[[bytes], Any], write: Callable[[Any], bytes]
    ) -> None:
        self.spider = spider
        self._parts = parts
        self._read = read
        self._write = write

    async def open(self) -> str:
        """Call `open_spider` of each. Raises what it raises.

        Returns: Why one of them closes the spider; else empty.
        """
        for part in self._parts:
            await self._call(part, "open_spider")
        return ""

    async def made(self, marked: bytes) -> MadeItem:
        """What becomes of one raw item behind its mark."""
        item: Any = None
        try:
            line = marked[1:]
            item = self._read(line) if marked[:1] == TAGGED else msgspec.json.decode(line)
            item = await self.process(item)
            row = self.row(item)
        except _drops() as error:
            await self.dropped(item, error)
            return MadeItem()
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything: sys.exit, a cancellation
            await self.failed(item, error)
            return MadeItem(error=_said(error), trace=user_trace(error))
        await self.scraped(item)
        return MadeItem(msgspec.Raw(row))

    def row(self, item: Any) -> bytes:
        """The row of an item behind all pipelines; null for none. Raises: Exception: the item is an error."""
        row = self._write(item)
        if bytes(row)[:1] != b"{":
            raise TypeError(f"pipelines give an item, or raise DropItem; they gave {type(item).__name__}")
        return row

    async def process(self, item: Any) -> Any:
        """The item behind all pipelines. Raises what they raise."""
        for part in self._parts:
            item = await self._call(part, "process_item", item)
            if item is None:
                raise TypeError(f"{type(part).__name__}.process_item gave None: it gives an item, or raises DropItem")
        return item

    async def close(self, reason: str) -> None:
        """Call `close_spider` of each, the last one first. Raises what it raises."""
        for part in reversed(self._parts):
            await self._call(part, "close_spider")
        closed = getattr(self.spider, "closed", None)
        if callable(closed):
            await _awaited(closed(reason))

    async def scraped(self, item: Any) -> None:
        """An item passed all pipelines."""

    async def dropped(self, item: Any, error: Exception) -> None:
        """A pipeline dropped an item."""

    async def failed(self, item: Any, error: BaseException) -> None:
        """A pipeline, or the making of the row, failed."""

    def stats(self) -> dict[str, float]:
        """Stats that changed since the last call, as `ItemsRecord` has them."""
        return {}

    async def _call(self, part: object, name: str, *arguments: Any) -> Any:
        method = getattr(part, name, None)
        if method is None:
            return arguments[0] if arguments else None
        if _takes(method, len(arguments) + 1):
            arguments = (*arguments, self.spider)
        return await _awaited(method(*arguments))


class HasPipelines(Protocol):
    """A loaded spider that has pipelines: a `Runner`."""

    @property
    def facts(self) -> Any:
        """The spider as its job must know it."""

    def pipelines(self) -> Pipelines:
        """Its pipelines, not open yet."""


class PipelinesService:
    """Answers the sink's calls in the child: `open`, `rows`, `close`."""

    def __init__(self, runner: HasPipelines) -> None:
        self.facts = runner.facts
        self._runner = runner
        self._pipelines: Pipelines | None = None
        self._items = 0

    async def call(self, name: str, argument: bytes) -> bytes:
        """The answer of a call, as `read_made` reads it.

        Raises: Misconfigured: files of items cannot be written now. What the user's code raises in `open` and `close`.
        """
        if self._pipelines is None:
            self._pipelines = self._runner.pipelines()
        pipelines, made, closes = self._pipelines, list[MadeItem](), ""
        if name == "open":
            closes = await pipelines.open()
        elif name == "close":
            try:
                await pipelines.close(argument.decode())
            except FileNotFoundError:
                sys.stderr.write(NO_FILE_YET + "\n")  # a line of the job
                raise
        else:
            lines = argument.split(b"\n")
            for first in range(0, len(lines), CONCURRENT_ITEMS):
                several = lines[first : first + CONCURRENT_ITEMS]
                made += await asyncio.gather(*(self._made(pipelines, one) for one in several))
            if WORKER.trouble:
                told, WORKER.trouble = WORKER.trouble, ""
                raise Misconfigured(told)
        return written_made(MadeItems(made, pipelines.stats(), closes))

    async def _made(self, pipelines: Pipelines, marked: bytes) -> MadeItem:
        """What becomes of one item. Then its objects in cycles go, such as a connection that nobody closes.

        In Scrapy's one process requests and responses make Python look for them at about each item; here nothing does.
        """
        made = await pipelines.made(marked)
        self._items += 1
        gc.collect(2 if self._items % 1000 == 0 else 1 if self._items % 10 == 0 else 0)
        return made


def load_pipelines(*given: Any, **named: Any) -> PipelinesService:
    """What answers the calls: the loader of the pipelines' process. Raises: Misconfigured: as `load_runner`."""
    room = import_module(__package__ or "")  # it imports this module
    return PipelinesService(room.load_runner(*given, **named))


def of_spider(spider: Any, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> Pipelines:
    """The pipelines that a spider of crawlog's own names: `pipelines = [Class, …]`."""
    crawler = SimpleNamespace(spider=spider, settings=dict(getattr(spider, "settings", {})))
    return Pipelines(spider, [_made(kind, crawler) for kind in spider.pipelines], read, write)


def check_pipelines(pipelines: object, path: object) -> None:
    """Refuse what cannot be pipelines, before anything is asked. Raises: Misconfigured."""
    if isinstance(pipelines, str) or not isinstance(pipelines, Sequence):
        raise Misconfigured(f"--spider {path}: pipelines = {pipelines!r:.80}: it is a list of classes")
    media = sys.modules.get("scrapy.pipelines.media")
    for kind in pipelines:
        if media is not None and isinstance(kind, type) and issubclass(kind, media.MediaPipeline):
            raise Misconfigured(f"--spider {path}: pipelines: {kind.__name__} is for spiders of Scrapy's")
        if not any(callable(getattr(kind, name, None)) for name in METHODS):
            raise Misconfigured(f"--spider {path}: pipelines: {kind!r:.80} has no method process_item(self, item)")


def _made(kind: Any, crawler: Any) -> object:
    if not isinstance(kind, type):
        return kind
    return kind.from_crawler(crawler) if hasattr(kind, "from_crawler") else kind()


def _takes(method: Callable[..., Any], count: int) -> bool:
    """Whether a method takes so many arguments."""
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    return True


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _drops() -> tuple[type[Exception], ...]:
    """The exceptions that drop an item: ours, and Scrapy's where it is loaded."""
    scrapys = sys.modules.get("scrapy.exceptions")
    return (DropItem,) if scrapys is None else (DropItem, scrapys.DropItem)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:1000]
