"""Runs crawlog's own spiders: a page to its callback, and what it yields to records.

    PageCall ─► receiver: callback, errback or nothing ─► Response ─► the spider's method ─► OwnOutputs ─► CallResult
    start ─────────────────────────────────────────────────────────────────────────────► OwnOutputs ─► CallResult …

A page is all or nothing: after an exception its items and requests are dropped.
"""

import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from types import GeneratorType
from typing import Any

import msgspec
from selectolax.lexbor import SelectolaxError

from crawlog.schemas.pages import PageMeta
from crawlog.streams.html import Links
from crawlog.streams.url import Canonicaliser, Places

from .default import parse_page
from .exchange import CallResult, PageCall, SpiderFacts, SpiderRef
from .failure import failure_of
from .own_outputs import (
    PAUSE,
    Bounds,
    OutputRules,
    OwnOutputs,
    Parent,
    TooMuch,
    each_output,
    each_start,
    parent_of,
    row_of,
    start_parent,
    written,
)
from .own_warnings import SharedState
from .page import is_redirect, receiver
from .pipelines import Pipelines, of_spider
from .request_records import is_method, request_of
from .response import Response
from .scrapy_names import of_selector
from .spider import Spider, is_searched, rule_requests
from .traces import user_trace
from .values import Untravelled, Values

Call = tuple[Callable[..., Any], object, Mapping[str, Any]]  # A method, the page or failure, and further arguments

# Outputs of `start` in one result, at most. The first results are smaller, so that a crawl begins at once.
START_BATCH = 100


class OwnRunner:
    """A spider of crawlog's own class, loaded.

    Args:
        facts: The spider as its job must know it.
        ref: As the job's record names it, with the rules of the job.
        values: Packs and unpacks `meta` and `cb_kwargs`.

    Attributes:
        values: The same.
    """

    def __init__(self, spider: Spider, facts: SpiderFacts, ref: SpiderRef, bounds: Bounds, values: Values) -> None:
        self._spider = spider
        self._facts = facts
        self._ref = ref
        self._spec = ref.spec
        self.values = values
        canonicaliser = Canonicaliser(ref.spec.canonical)
        self._links = Links(canonicaliser, Places(1))
        self._statuses = frozenset(facts.statuses)
        self._has_parse = type(spider).parse is not Spider.parse
        self._shared = SharedState(spider)
        values.on_mutable = self._shared.meet
        named = tuple(name.lower() for name in ref.spec.fingerprint_headers)
        self._rules = OutputRules(
            canonicaliser.canonical, values, bounds, facts.has_pipelines, named, self._shared.next_request
        )

    @property
    def facts(self) -> SpiderFacts:
        return self._facts

    def pipelines(self) -> Pipelines:
        """The spider's pipelines, not open yet: items as scraped in, rows out."""
        return of_spider(self._spider, self._item_of, lambda item: msgspec.Raw(written(item)))

    def row(self, raw: bytes) -> bytes:
        """The row of an item as scraped, without pipelines."""
        return row_of(self._item_of(raw))

    def _item_of(self, raw: bytes) -> object:
        return self.values.unpacked(msgspec.json.decode(raw))

    def has_callback(self, name: str) -> bool:
        return is_method(self._spider, name)

    async def page(self, call: PageCall) -> CallResult:
        """What the spider makes of a page."""
        try:
            return await self.made_of(call)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code: any of them is the page's result
            return failed(error)

    async def made_of(self, call: PageCall) -> CallResult:
        """What the spider makes of a page. Raises: BaseException: those of the spider."""
        page = call.meta
        outputs = self._outputs(parent_of(page))
        try:
            for method, argument, kwargs in self._called(page, call.body, outputs):
                await self._take_all(method(argument, **kwargs), outputs)
        finally:
            warnings = self._shared.page_ended()
        result = outputs.taken_out()
        result.warnings = warnings
        return result

    async def start(self) -> AsyncGenerator[CallResult, bytes | None]:
        """The first requests."""
        outputs = self._outputs(start_parent(self._ref.job, self._ref.epoch, self._ref.after))
        size = 1
        try:
            async with aclosing(each_start(self._spider.start())) as given:
                async for output in given:
                    if output is not PAUSE:
                        outputs.take(output)
                    if len(outputs) >= (size if output is not PAUSE else 1):
                        yield self._part(outputs)
                        size = min(2 * size, START_BATCH)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the user's code
            yield self._part(outputs)
            yield failed(error)
            return
        if len(outputs):
            yield self._part(outputs)

    def _part(self, outputs: OwnOutputs) -> CallResult:
        """A part of what `start` gives: as with a page, its requests are compared with each other alone."""
        result = outputs.taken_out()
        result.warnings = self._shared.page_ended()
        return result

    def _outputs(self, parent: Parent) -> OwnOutputs:
        return OwnOutputs(self._spider, parent, self._rules)

    def _called(self, page: PageMeta, body: bytes, outputs: OwnOutputs) -> Iterator[Call]:
        """The methods that get the page, with their arguments."""
        spider, record = self._spider, page.request
        goes_to = receiver(page, self._statuses)
        if goes_to == "nobody":
            return
        if goes_to == "callback" and not self._may_be_read(page, body, outputs):
            return
        request = request_of(page.url, record, spider, self.values) if record is not None else None
        response = Response(page, body, request)
        if goes_to == "errback":
            assert request is not None
            assert callable(request.errback)
            yield request.errback, failure_of(page, request, response), {}
            return
        if request is not None and callable(request.callback):
            yield request.callback, response, request.cb_kwargs
        elif self._has_parse or not spider.rules:
            yield spider.parse, response, request.cb_kwargs if request is not None else {}
        if is_searched(spider, request):
            yield partial(rule_requests, spider), response, {}

    def _may_be_read(self, page: PageMeta, body: bytes, outputs: OwnOutputs) -> bool:
        """Whether the job's rules show the page to a spider; its links are taken where the spider wants all."""
        if is_redirect(page) or (not self._spider.follow_links and not self._spec.meta_robots):
            return True
        by_default = parse_page(page, body, self._links, self._spec)
        if self._spec.meta_robots and not by_default.items:
            return False
        if self._spider.follow_links:
            outputs.follow(by_default.outlinks)
        return True

    async def _take_all(self, given: Any, outputs: OwnOutputs) -> None:
        if not isinstance(given, GeneratorType):
            async for output in each_output(given):
                _take(output, outputs, given)
            return
        try:
            for output in given:
                _take(output, outputs, given)
        finally:
            given.close()  # now, while the clock watches: its `finally` may be endless too


def _take(output: object, outputs: OwnOutputs, given: object) -> None:
    try:
        outputs.take(output)
    except TypeError as error:
        kind = Untravelled if isinstance(error, Untravelled) else TypeError
        raise kind(f"{error}{_where(given)}") from error


def failed(error: BaseException) -> CallResult:
    """The result of a page whose callback raised."""
    if isinstance(error, SelectolaxError):
        error = ValueError(_unreadable(error)).with_traceback(error.__traceback__)
    told = f"{type(error).__name__}: {error}".strip()
    line = _lines(told)
    return CallResult(error=line, is_final=isinstance(error, TooMuch | Untravelled), trace=user_trace(error))


def _lines(text: str) -> str:
    return " ".join(text.splitlines())[:1000]


def _where(given: object) -> str:
    """The line of the spider's last yield; empty without one."""
    frame = given.gi_frame if isinstance(given, GeneratorType) else getattr(given, "ag_frame", None)
    return f" (line {frame.f_lineno})" if frame is not None else ""


def _unreadable(error: SelectolaxError) -> str:
    """The message for an invalid selector on a node: selectolax names neither the selector nor the line."""
    at = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")][-1]
    return f"line {at.lineno}: a selector cannot be read in `{at.line}`: {of_selector(at.line or '')}"
