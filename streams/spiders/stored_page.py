"""A page in a file, and a spider tried on it: for tests that ask nobody.

crawlog fetch URL --save FILE ─► metadata as one line of JSON, then the body ─► try_page(Spider(), FILE) ─► Tried
"""

import asyncio  # noqa: TID251  # for async callbacks
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.schemas.requests import RequestRecord
from crawlog.streams.errors import Misconfigured

from .exchange import CallResult, PageCall, RequestOut, SpiderFacts, SpiderRef
from .item_classes import classes_of
from .loading import FoundClass, found_class
from .own import OwnRunner
from .own_loading import own_runner
from .own_outputs import Bounds
from .request_records import record_of, request_carrier
from .response import Response
from .spider import Spider
from .spider_request import Request
from .values import Values


class StoredPage(NamedTuple):
    """A page as crawl.pages and files have it."""

    meta: PageMeta
    body: bytes

    def as_file(self) -> bytes:
        """The file's bytes."""
        return pages.encode(self.meta) + b"\n" + self.body

    def to_callback(self, callback: str, cb_kwargs: dict[str, Any], values: Values | None = None) -> "StoredPage":
        """The same page as the answer to a request with this callback; without one with that of its own request.

        The further arguments of its own request stay where none are given for its own callback.
        """
        record = self.meta.request or RequestRecord()
        callback = callback or record.callback
        if cb_kwargs or callback != record.callback:
            packed = (values or Values()).packed_dict(cb_kwargs, "cb_kwargs")
            record = msgspec.structs.replace(record, callback=callback, kwargs=packed)
        return StoredPage(with_request(self.meta, record), self.body)


def with_request(meta: PageMeta, record: RequestRecord | None) -> PageMeta:
    """The page's metadata with another request."""
    return msgspec.structs.replace(meta, request=record)


def read_page(path: Path) -> StoredPage:
    """The page in a file of `crawlog fetch --save`. Raises: ValueError: it is none. OSError."""
    head, _, body = path.read_bytes().partition(b"\n")
    try:
        return StoredPage(pages.decode(head), body)
    except ValueError as error:
        raise ValueError(f"{path} is no page; `crawlog fetch URL --save {path}` makes one ({error})") from None


class Tried(NamedTuple):
    """What a callback made of a page.

    Attributes:
        items: Rows, as they would be written; of a spider with pipelines those of the items before them.
        requests: With canonical URLs; `.request` has callback and values, None for a plain GET.
        warnings: What a worker would log.
    """

    items: list[Any]
    requests: list[RequestOut]
    warnings: list[str]

    @property
    def urls(self) -> list[str]:
        """The URLs of the requests."""
        return [one.url for one in self.requests]


def try_page(spider: Spider | Path | str, page: StoredPage | Path | str, callback: str = "", **cb_kwargs: Any) -> Tried:
    """What a spider makes of a stored page; nothing is asked and nothing is written.

    Args:
        spider: A spider, or its `FILE.py[:Class]`.
        page: A file of `crawlog fetch --save`, or a page.
        callback: The method that gets it; by default that of the page's own request.
        cb_kwargs: Its further arguments; by default those of the page's own request, for its callback.

    Raises: Misconfigured: the file has no spider. BaseException: those of the callback.
    """
    stored = page if isinstance(page, StoredPage) else read_page(Path(page))
    runner = _runner_of(spider) if isinstance(spider, Spider) else _own_runner(found_class(str(spider)))
    if callback or cb_kwargs:
        stored = stored.to_callback(callback, cb_kwargs, runner.values)
    result = _ran(runner.made_of(PageCall(stored.meta, stored.body)))
    rows = [runner.row(item) for item in result.items] if result.is_raw else result.items
    return Tried([msgspec.json.decode(row) for row in rows], result.requests, result.warnings)


def _ran(made: Coroutine[Any, Any, CallResult]) -> CallResult:
    """What a coroutine returns, in a thread of its own where this one has a loop: in a notebook, in an async test."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(made)
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(asyncio.run, made).result()


def _runner_of(spider: Spider) -> OwnRunner:
    module = sys.modules.get(type(spider).__module__)
    classes = classes_of([("spider", module)]) if module is not None else {}
    facts = SpiderFacts("", "", statuses=tuple(spider.handle_httpstatus_list), has_pipelines=bool(spider.pipelines))
    return OwnRunner(spider, facts, _TRIED, Bounds(), Values(classes, [request_carrier(spider)]))


def _own_runner(found: FoundClass) -> OwnRunner:
    if not issubclass(found.kind, Spider):
        raise Misconfigured(f"{found.file}: {found.kind.__name__} is no crawlog.Spider")
    return own_runner(found, _TRIED, Bounds())


_TRIED = SpiderRef("", job="test")


def opened(page: StoredPage) -> Response:
    """The response of a page, without its spider: callbacks are names."""
    record = page.meta.request
    if record is None:
        return Response(page.meta, page.body)
    callbacks: dict[str, Any] = {"callback": record.callback or None, "errback": record.errback or None}
    sent: dict[str, Any] = {"method": record.method, "headers": record.headers, "body": record.body}
    request = Request(page.meta.url, **callbacks, **sent, flags=record.flags, **_values(record))
    return Response(page.meta, page.body, request)


def bare_record(request: Request) -> RequestRecord | None:
    """How a request is sent, without its callbacks; None for a plain GET. Raises: Untravelled: a value cannot."""
    return record_of(request.replace(callback=None, errback=None), object(), Values())


def _values(record: RequestRecord) -> dict[str, Any]:
    """The values of a request; as tagged JSON where they have classes of a spider."""
    values = Values()
    try:
        return {"meta": values.unpacked_dict(record.meta), "cb_kwargs": values.unpacked_dict(record.kwargs)}
    except ValueError:
        return {"meta": record.meta, "cb_kwargs": record.kwargs}
