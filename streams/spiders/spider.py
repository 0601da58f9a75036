"""What a spider makes of a page: items and links. Pure: the same page and spider give the same bytes.

Here is the spider that users write (`Spider`, `Request`; what they get is a `Response`), and the default one, which
follows every link and gives one row a page; where `robots.meta` is obeyed, a page that says `noindex` gives nothing.
Redirects are no spider's business: they are links of the same depth.
"""

import hashlib
import json
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import GeneratorType
from typing import NamedTuple

import msgspec
from selectolax.lexbor import SelectolaxError

from crawlog.schemas.pages import PageMeta
from crawlog.schemas.urls import JobSpec
from crawlog.streams.html import (
    NOTHING_SAID,
    Links,
    Outlink,
    directives_of,
    extracted,
    found_priority,
    header_links,
    newest_first,
    refresh_target,
    sitemap,
    with_scheme,
)
from crawlog.streams.http import essence

from .response import Request, Response
from .scrapy_names import of_selector

SPIDER = "default@1"
"""Name and version in each record of crawl.items; counted up when the same page gives another row."""

SOFT_404 = "soft_404"
"""The error of a page that its host would send for any URL: such a page counts as a 404."""

_HTML_TYPES = ("text/html", "application/xhtml+xml")


class TooMuch(Exception):
    """A page gave more than a page may give; it is not tried again."""


class Spider:
    """What to take from pages and where to go from there: a subclass with a `parse`.

    `crawlog run --spider FILE.py[:Class]` makes one object of the class in each worker and calls `parse` with each page
    that was answered with 2xx and whose body was kept. Pages come to several workers, in no order, and after a kill
    some come twice: an object's own memory says nothing about the whole crawl.

    Attributes:
        name: Stands in each item record; the class's name by default.
        version: Stands beside it; a short hash of the file by default.
        start_urls: Seeds, when the command line names none.
        settings: By dotted name; stronger than environment and file, weaker than `-s` and flags.
        follow_links: Whether all links of a page are followed beside the requests that `parse` yields.
        handle_httpstatus_list: Status codes beyond 2xx that `parse` is called for.
    """

    name: str = ""
    version: str = ""
    start_urls: Sequence[str] = ()
    settings: Mapping[str, object] = {}
    follow_links: bool = False
    handle_httpstatus_list: Sequence[int] = ()

    def parse(self, response: Response) -> Iterable[object] | None:
        """Yields items and requests, in any order; they leave together once all are there, or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no parse")


class Row(msgspec.Struct, frozen=True):
    """One URL answered, as users read it.

    Attributes:
        url: Canonical.
        status: None for a network failure, with `error`.
        title: None when the page has none, or is not HTML.
        depth: Links between a seed and this page.
        links: Distinct http(s) outlinks, before any scope; 0 when the page is not HTML.
        fetched_at: UTC epoch seconds.
        sha256: Of the body, hex; None when there is no body.
        rendered: Only where a browser was asked: why it rendered the page, or `failed:` and why it did not.
    """

    url: str
    status: int | None
    error: str | None
    title: str | None
    depth: int
    links: int
    fetched_at: float
    sha256: str | None
    rendered: str | msgspec.UnsetType = msgspec.UNSET


class Parsed(NamedTuple):
    """What a page gave.

    Attributes:
        items: Each one a JSON object.
        outlinks: In the order of the page, each once.
        priorities: Of the outlinks that have one, by URL.
        sitemaps: URLs of sitemaps.
        reached: The setting whose limit cut what the page would have given; empty where none did.
    """

    items: list[msgspec.Raw]
    outlinks: list[Outlink]
    priorities: Mapping[str, int] = {}
    sitemaps: Sequence[Outlink] = ()
    reached: str = ""


class Bounds(NamedTuple):
    """What one page may give, at most.

    Attributes:
        outputs: Items and requests together.
        size_bytes: Of the items.
    """

    outputs: int = 10_000
    size_bytes: int = 8 << 20


Parse = Callable[[PageMeta, bytes, Links, JobSpec], Parsed]
"""A spider at work: the page's metadata and body, the job's resolver of links, the job."""

_encode = msgspec.json.Encoder().encode
NOTHING = Parsed([], [])


def parse_page(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
    """The default spider: one row a page, and its links.

    Args:
        links: Resolves hrefs by the job's canonical rules.
        spec: Its job's: where links are taken from, and what of the page's own wishes is obeyed.
    Raises: ValueError: the parser refuses the body.
    """
    if is_redirect(meta):
        return NOTHING
    title: str | None = None
    outlinks: list[Outlink] = []
    followed = outlinks
    hrefs: list[str] = []
    obeyed = NOTHING_SAID
    if body and is_html(meta):
        page = extracted(
            body,
            meta.content_type,
            meta.url,
            spec.links,
            nofollow=not spec.nofollow,
            metas=spec.meta_robots,
            most=spec.max_links,
        )
        title, hrefs = page.title, page.hrefs
        outlinks = followed = links.resolve(page.base, hrefs)
        if page.nofollowed:
            followed = links.resolve(page.base, [href for href in page.hrefs if href not in page.nofollowed])
        if spec.meta_robots:
            obeyed = directives_of(meta.x_robots, page.metas, spec.token)
    elif spec.meta_robots:
        obeyed = directives_of(meta.x_robots, (), spec.token)
    headed = _headed(meta, spec)
    if headed:
        named = links.resolve(meta.url, headed)
        followed, outlinks = _together(followed, named), _together(outlinks, named)
    row = Row(
        url=meta.url,
        status=meta.http,
        error=meta.error or None,
        title=title,
        depth=meta.depth,
        links=len(outlinks),
        fetched_at=meta.fetched_at,
        sha256=hashlib.sha256(body).hexdigest() if body else None,
        rendered=meta.rendered or (f"failed: {meta.render_error}" if meta.render_error else msgspec.UNSET),
    )
    takes_links = is_followed(meta) and not obeyed.nofollow
    return Parsed(
        [] if obeyed.noindex else [msgspec.Raw(_encode(row))],
        followed if takes_links else [],
        reached="links.max_per_page" if len(hrefs) >= spec.max_links else "",
    )


def _headed(meta: PageMeta, spec: JobSpec) -> list[str]:
    """What the response's headers link to, as written."""
    hrefs = header_links(meta.link) if meta.link and "header" in spec.links else []
    target = refresh_target(meta.refresh) if meta.refresh and "refresh" in spec.links else None
    return [*hrefs, target] if target else hrefs


def _together(some: list[Outlink], others: list[Outlink]) -> list[Outlink]:
    return list({link.url: link for link in (*some, *others)}.values())


def parser_of(spider: Spider, bounds: Bounds) -> Parse:
    """A user's spider as the parse stage calls it. What its `parse` raises, a call raises, and nothing was given."""
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
    """All that a spider yields for a page."""
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
    """A page as spiders see it: a soft 404 has that status."""
    return msgspec.structs.replace(meta, http=404, same_as=None) if meta.error == SOFT_404 else meta


class _Given:
    """What a spider has yielded so far. An item is encoded at once: the spider may change it afterwards."""

    def __init__(self, bounds: Bounds) -> None:
        self.items: list[msgspec.Raw] = []
        self.requests: list[Request] = []
        self._bounds = bounds
        self._size_bytes = 0

    def take(self, output: object) -> None:
        """One output; None is none.

        Raises: TypeError: neither an item nor a request. TooMuch: one too many.
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
        except UnicodeEncodeError:  # a lone surrogate, as JSON and scripts have them, is no character
            return json.dumps(msgspec.to_builtins(output), ensure_ascii=False).encode("utf-8", "replace")
    except TypeError as error:
        raise TypeError(f"{_unwritable(output)}: {error}") from None


def _unwritable(output: object) -> str:
    """Which part of an item JSON has no word for."""
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
    """The line of a spider that yielded last; empty where it yielded none."""
    frame = outputs.gi_frame if isinstance(outputs, GeneratorType) else None
    return f" (line {frame.f_lineno})" if frame is not None else ""


def _unreadable(error: SelectolaxError) -> str:
    """What is wrong where a spider asks a node: selectolax tells neither the selector nor the line."""
    at = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(".py")][-1]
    return f"line {at.lineno}: a selector cannot be read in `{at.line}`: {of_selector(at.line or '')}"


def _each(outputs: Iterable[object] | None) -> Iterable[object]:
    """What `parse` returned, one by one; a single item or request counts as one."""
    if outputs is None:
        return ()
    is_single = isinstance(outputs, dict | Request) or not isinstance(outputs, Iterable)
    return (outputs,) if is_single else outputs


def _requested(requests: list[Request], url: str, links: Links) -> tuple[dict[str, Outlink], dict[str, int]]:
    """The requests' links by URL, in order, and the priorities of those that have one, the highest each."""
    outlinks: dict[str, Outlink] = {}
    priorities: dict[str, int] = {}
    for request in requests:
        for link in links.resolve(url, [request.url]):
            outlinks.setdefault(link.url, link)
            priority = max(-128, min(request.priority, 127))
            if priority and priority >= priorities.get(link.url, priority):
                priorities[link.url] = priority
    return outlinks, priorities


def parse_listing(meta: PageMeta, body: bytes, links: Links, spec: JobSpec) -> Parsed:
    """What a sitemap lists, the newest first, or which sitemaps a robots.txt names; it gives no rows."""
    if meta.kind == "robots":
        named = [with_scheme(line, meta.url) for line in body.decode("utf-8", "replace").split("\n")]
        return Parsed([], [], sitemaps=links.resolve(meta.url, named))
    if is_redirect(meta) or not is_followed(meta):
        return NOTHING
    listed = sitemap.parse(
        body, meta.url, meta.content_type, max_urls=spec.max_sitemap_urls, max_bytes=spec.max_sitemap_bytes
    )
    entries = newest_first(listed.urls)
    priorities = {
        link.url: priority
        for entry in entries
        if (priority := found_priority(entry))
        for link in links.resolve(meta.url, [entry.loc])
    }
    outlinks = links.resolve(meta.url, [entry.loc for entry in entries])
    return Parsed([], outlinks, priorities, links.resolve(meta.url, [entry.loc for entry in listed.sitemaps]))


def is_redirect(meta: PageMeta) -> bool:
    """Whether the answer only points elsewhere."""
    return meta.http is not None and bool(meta.location)


def is_html(meta: PageMeta) -> bool:
    """Whether header and bytes say HTML; where both say nothing, a kept body is read as HTML, as browsers do."""
    kind = meta.sniffed or essence(meta.content_type)
    return kind in _HTML_TYPES or (not kind and meta.kept)


def is_followed(meta: PageMeta) -> bool:
    """Whether links of this answer are taken: an error page's links are the server's, not the site's."""
    if meta.error == SOFT_404:
        return False
    return meta.same_as is not None or (meta.http is not None and 200 <= meta.http < 300)
