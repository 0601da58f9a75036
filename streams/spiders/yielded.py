"""Calls a user's spider with a page, and collects all that its `parse` yields; after an error, nothing."""

import json
import traceback
from collections.abc import Generator, Iterable, Mapping
from types import GeneratorType
from typing import NamedTuple

import msgspec
from selectolax.lexbor import SelectolaxError

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import (
    Links,
    Outlink,
)

from .default import parse_page
from .page import NOTHING, SOFT_404, Parse, Parsed, is_followed, is_redirect
from .response import Request, Response
from .scrapy_names import of_selector
from .spider import Spider

_encode = msgspec.json.Encoder().encode


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


def parser_of(spider: Spider, bounds: Bounds) -> Parse:
    """A user's spider as a parser. It raises the exceptions of the spider's `parse`; the page then gives nothing."""
    statuses = frozenset(spider.handle_httpstatus_list)

    def parse(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
        told = _as_told(meta)
        if is_redirect(meta) or not meta.kept or not (is_followed(meta) or told.http in statuses):
            return NOTHING
        by_default = parse_page(meta, body, links, spec) if spider.follow_links or spec.meta_robots else NOTHING
        if spec.meta_robots and not by_default.items:
            return NOTHING
        given = _outputs(spider, Response(told, body), bounds)
        outlinks, priorities = _requested(given.requests, meta.url, links)
        if spider.follow_links:
            outlinks |= {link.url: link for link in by_default.outlinks}
        return Parsed(given.items, list(outlinks.values()), priorities)

    return parse


def _outputs(spider: Spider, response: Response, bounds: Bounds) -> "_Given":
    """All outputs that a spider yields for a page."""
    given = _Given(bounds)
    try:
        outputs = spider.parse(response)
        try:
            for output in _each(outputs):
                try:
                    given.take(output)
                except TypeError as error:
                    raise TypeError(f"{error}{_where(outputs)}") from error
        finally:
            if isinstance(outputs, Generator):
                outputs.close()  # now, while the clock watches: its `finally` may be endless too
    except SelectolaxError as error:
        raise ValueError(_unreadable(error)) from error
    return given


def _as_told(meta: PageMeta) -> PageMeta:
    """A page as spiders see it: a soft 404 has status 404."""
    return msgspec.structs.replace(meta, http=404, same_as=None) if meta.error == SOFT_404 else meta


class _Given:
    """The outputs that a spider has yielded so far. An item is encoded at once: the spider may change it later."""

    def __init__(self, bounds: Bounds) -> None:
        self.items: list[msgspec.Raw] = []
        self.requests: list[Request] = []
        self._bounds = bounds
        self._size_bytes = 0

    def take(self, output: object) -> None:
        """Take one output; None is ignored.

        Raises: TypeError: it is neither an item nor a request. TooMuch: it exceeds the limits.
        """
        if output is None:
            return
        if len(self.items) + len(self.requests) >= self._bounds.outputs:
            raise TooMuch(f"more than {self._bounds.outputs} items and requests from one page; see spider.max_items")
        if isinstance(output, Request):
            self.requests.append(output)
            return
        item = _written(output)
        if item[:1] != b"{":
            raise TypeError(f"a spider yields dicts (or dataclasses) and Requests, got {type(output).__name__}")
        self._size_bytes += len(item)
        if self._size_bytes > self._bounds.size_bytes:
            raise TooMuch(
                f"items of more than {self._bounds.size_bytes} bytes from one page; see kafka.max_record_bytes"
            )
        self.items.append(msgspec.Raw(item))


def _written(output: object) -> bytes:
    try:
        try:
            return _encode(output)
        except UnicodeEncodeError:  # a lone surrogate, from JSON or a script: no valid character
            return json.dumps(msgspec.to_builtins(output), ensure_ascii=False).encode("utf-8", "replace")
    except TypeError as error:
        raise TypeError(f"{_unwritable(output)}: {error}") from None


def _unwritable(output: object) -> str:
    """The part of an item that JSON cannot express."""
    if isinstance(output, Mapping):
        for key, value in output.items():
            try:
                _encode({key: value})
            except TypeError:
                return f"an item's {key!r:.80} is no JSON"
            except UnicodeEncodeError:
                continue
    return f"an item of type {type(output).__name__} is no JSON"


def _where(outputs: object) -> str:
    """The line of the spider's last yield; empty without one."""
    frame = outputs.gi_frame if isinstance(outputs, GeneratorType) else None
    return f" (line {frame.f_lineno})" if frame is not None else ""


def _unreadable(error: SelectolaxError) -> str:
    """The message for an invalid selector on a node: selectolax names neither the selector nor the line."""
    at = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")][-1]
    return f"line {at.lineno}: a selector cannot be read in `{at.line}`: {of_selector(at.line or '')}"


def _each(outputs: Iterable[object] | None) -> Iterable[object]:
    """The outputs that `parse` returned, one by one; it may also return a single item or request."""
    if outputs is None:
        return ()
    is_single = isinstance(outputs, dict | Request) or not isinstance(outputs, Iterable)
    return (outputs,) if is_single else outputs


def _requested(requests: list[Request], url: str, links: Links) -> tuple[dict[str, Outlink], dict[str, int]]:
    """The requests' links by URL, in order, and their priorities, if any; of several for one URL the highest."""
    outlinks: dict[str, Outlink] = {}
    priorities: dict[str, int] = {}
    for request in requests:
        for link in links.resolve(url, [request.url]):
            outlinks.setdefault(link.url, link)
            priority = max(-128, min(request.priority, 127))
            if priority and priority >= priorities.get(link.url, priority):
                priorities[link.url] = priority
    return outlinks, priorities
