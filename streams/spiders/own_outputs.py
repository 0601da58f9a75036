"""The outputs of `start` and of callbacks of crawlog's own spiders: items and requests, encoded as they are yielded."""

import asyncio  # noqa: TID251  # for its error: in the child alone, whose loop an async `start` waits for
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final, NamedTuple

import msgspec

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.html import Outlink
from crawlog.streams.url import InvalidUrl, fingerprint

from . import scrapy_names
from .exchange import CallResult, RequestOut
from .item_classes import shape_of
from .request_records import record_of
from .spider_request import Request, request_id, unfiltered_id
from .values import Values, as_json

_HTTP = ("http://", "https://")


def _plain(value: Any) -> Any:
    """A value that JSON has no form for: a mapping, or an object with fields."""
    if isinstance(value, Mapping):
        return dict(value)
    shape = shape_of(type(value))
    if shape is None:
        raise NotImplementedError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return shape.fields(type(value), value)


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


class TooMuch(Exception):
    """A page gave more outputs than allowed; it is not tried again."""


class Bounds(NamedTuple):
    """Limits of one page's outputs.

    Attributes:
        outputs: Items and requests together.
        size_bytes: Of the items.
    """

    outputs: int = 10_000
    size_bytes: int = 8 << 20


class Parent(NamedTuple):
    """What gives the requests: a page, or `start`.

    Attributes:
        url: Base of relative URLs; empty for `start`.
        id: Identity of the page; of `start` that of job and epoch.
    """

    url: str
    id: int
    attempt: int = 1
    depth: int = -1


def parent_of(page: PageMeta) -> Parent:
    return Parent(page.url, page.id or fingerprint(page.url), page.attempt)


class OutputRules(NamedTuple):
    """How the outputs of a job's spider are encoded.

    Attributes:
        canonical: Makes a URL canonical by the job's rules; its second argument is the base. Raises: InvalidUrl.
        values: Packs `meta`, `cb_kwargs`, and the items of a spider with pipelines.
        is_raw: Whether items are kept as scraped.
        named: Names of headers that tell requests apart, in lower case.
        on_request: Called before a request is packed.
    """

    canonical: Callable[[str, str | None], str]
    values: Values
    bounds: Bounds
    is_raw: bool = False
    named: tuple[str, ...] = ()
    on_request: Callable[[], None] = lambda: None


class OwnOutputs:
    """The outputs that a callback has yielded so far. An item is encoded at once: the spider may change it later."""

    def __init__(self, spider: object, parent: Parent, rules: OutputRules) -> None:
        self._spider = spider
        self._parent = parent
        self._rules = rules
        self._items: list[msgspec.Raw] = []
        self._size_bytes = 0
        self._requests: dict[tuple[str, int], RequestOut] = {}
        self._links: list[Outlink] = []
        self._given: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """Outputs that were not taken out yet."""
        return len(self._items) + len(self._requests)

    def take(self, output: object) -> None:
        """Take one output; None is ignored.

        Raises: TypeError: it is neither an item nor a request, or holds what cannot travel. TooMuch: it exceeds the
        limits.
        """
        if output is None:
            return
        self._count += 1
        if self._count > self._rules.bounds.outputs:
            raise TooMuch(
                f"more than {self._rules.bounds.outputs} items and requests from one page; see spider.max_items"
            )
        if isinstance(output, Request):
            self._request(output)
        else:
            self._item(output)

    def follow(self, links: list[Outlink]) -> None:
        """Take links of the page: they are followed where its callbacks give no request for the same URL."""
        self._links = links

    def taken_out(self) -> CallResult:
        """The outputs so far; the next ones begin anew."""
        for link in self._links:
            self._requests.setdefault((link.url, link.fingerprint), RequestOut(link.url, depth=self._parent.depth))
        result = CallResult(self._items, self._rules.is_raw, list(self._requests.values()))
        self._items, self._requests, self._links = [], {}, []
        self._size_bytes = self._count = 0
        return result

    def _request(self, request: Request) -> None:
        self._rules.on_request()
        record = record_of(request, self._spider, self._rules.values)
        try:
            url = self._rules.canonical(
                request.url, None if request.url.startswith(_HTTP) else self._parent.url or None
            )
        except InvalidUrl:
            if not self._parent.url:
                raise ValueError(f"start gives {request.url!r:.200}: its URLs are absolute, http or https") from None
            return
        identity = self._identity(url, record) if record is not None else 0
        key = url, identity or fingerprint(url)
        known = self._requests.get(key)
        priority = request.priority
        timing = request.timing
        if known is not None:  # asked for twice: the first one, with the higher priority of both
            identity, record, priority = known.id, known.request, max(known.priority, priority)
            timing = known.timing
        out = RequestOut(url, identity, priority, record, depth=self._parent.depth, timing=timing)
        self._requests[key] = out

    def _identity(self, url: str, record: RequestRecord) -> int:
        asked = request_id(url, record, self._rules.named)
        if not record.unfiltered:
            return asked
        before = self._given[asked] = self._given.get(asked, -1) + 1
        return unfiltered_id(self._parent.id, self._parent.attempt, asked, before)

    def _raw(self, output: object) -> bytes:
        """An item as scraped. Raises: TypeError: it is no item, whatever pipelines may make of it."""
        if isinstance(output, str | bytes | int | float | list | tuple | set | frozenset):
            raise TypeError(f"a spider yields dicts (or dataclasses) and Requests, got {type(output).__name__}")
        return _encode(self._rules.values.packed(output, "an item"))

    def _item(self, output: object) -> None:
        item = self._raw(output) if self._rules.is_raw else row_of(output)
        self._size_bytes += len(item)
        if self._size_bytes > self._rules.bounds.size_bytes:
            raise TooMuch(
                f"items of more than {self._rules.bounds.size_bytes} bytes from one page; see kafka.max_record_bytes"
            )
        self._items.append(msgspec.Raw(item))


def row_of(item: object) -> bytes:
    """The row of an item, a JSON object. Raises: TypeError: it is none."""
    row = written(item)
    if row[:1] != b"{":
        raise TypeError(f"a spider yields dicts (or dataclasses) and Requests, got {type(item).__name__}")
    return row


def written(output: object) -> bytes:
    """Any value as JSON. Raises: TypeError: JSON cannot express it."""
    try:
        try:
            return _encode(output)
        except UnicodeEncodeError:  # a lone surrogate, from JSON or a script: no valid character
            return _encode(as_json(msgspec.to_builtins(output, enc_hook=_plain)))
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{_unwritable(output)}: {error}") from None


def _unwritable(output: object) -> str:
    """The part of an item that JSON cannot express."""
    if type(output).__module__.startswith("scrapy.http"):
        return f"a {type(output).__name__} of Scrapy's; {scrapy_names.IMPORT}"
    if isinstance(output, Mapping):
        for key, value in output.items():
            try:
                _encode({key: value})
            except (TypeError, NotImplementedError):
                return f"an item's {key!r:.80} is no JSON"
            except UnicodeEncodeError:
                continue
    return f"an item of type {type(output).__name__} is no JSON"


def start_parent(job: str, epoch: int, after: float = 0.0) -> Parent:
    """The parent of the requests of `start`: a job's epoch, and the end of the `start` before it where that repeats."""
    return Parent("", fingerprint(f"start {job} {epoch}{f' {after}' if after else ''}"), 0, depth=0)


PAUSE: Final = object()  # Given before an async `start` waits: what it gave before need not wait with it


async def each_output(given: Any) -> AsyncIterator[object]:
    """The outputs that a callback returned, one by one: nothing, one, several, now or later."""
    if isawaitable(given):
        given = await given
    if not hasattr(given, "__aiter__"):
        for output in several(given):
            yield output
        return
    async for output in given:
        yield output


async def each_start(given: Any) -> AsyncGenerator[object, None]:
    """The same, with `PAUSE` between them. When it is closed, it closes an async `start` too, so its `finally` runs."""
    iterator = given.__aiter__() if hasattr(given, "__aiter__") else each_output(given)
    try:
        while True:
            stepping = iterator.__anext__().__await__()
            try:
                waits_for = next(stepping)
            except StopIteration as done:
                yield done.value
                continue
            rest = _Rest(waits_for, stepping)
            try:
                yield PAUSE
            except GeneratorExit:
                await rest.cancelled()
                raise
            yield await rest
    except StopAsyncIteration:
        return
    finally:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()


class _Rest(Awaitable[Any]):
    """The rest of an awaitable that was begun: what it waits for first is passed on to the event loop."""

    def __init__(self, waits_for: Any, stepping: Generator[Any, Any, Any]) -> None:
        self._waits_for = waits_for
        self._stepping = stepping

    async def cancelled(self) -> None:
        """Ends it as a task that is cancelled: a generator that still waits cannot be closed."""
        with suppress(asyncio.CancelledError, StopIteration, StopAsyncIteration):
            self._waits_for = self._stepping.throw(asyncio.CancelledError())
            await self

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    answer = yield waits_for
                except BaseException as error:  # noqa: BLE001  # a cancellation among them: it is the generator's
                    waits_for = self._stepping.throw(error)
                else:
                    waits_for = self._stepping.send(answer)
            except StopIteration as done:
                return done.value


def several(given: Any) -> Iterable[object]:
    """What a callback returned, as several outputs."""
    if given is None:
        return ()
    is_single = isinstance(given, Mapping | Request) or not isinstance(given, Iterable)
    return (given,) if is_single else given
