"""One page for `fetch`, `parse`, `shell` and `pages cat`: asked for now, or stored.

A request goes through the egress guard. Nothing is written to the log.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from crawlog import __version__
from crawlog.schemas import pages
from crawlog.schemas.pages import PageMeta
from crawlog.streams.coded_pages import older_page, page_of
from crawlog.streams.errors import Misconfigured
from crawlog.streams.http import REDIRECTS
from crawlog.streams.parse import redirected
from crawlog.streams.requests import NEEDS_PRIVATE
from crawlog.streams.robots import RobotsRules
from crawlog.streams.settings import MAX_BODY_BYTES
from crawlog.streams.spiders import StoredPage
from crawlog.streams.url import Canonicaliser, Places

if TYPE_CHECKING:
    from crawlog.agents.client import Client
    from crawlog.schemas.requests import RequestRecord
    from crawlog.streams.http import Answer
    from crawlog.streams.settings import Settings

TRIED = "trying"  # Name of the job whose cookies these requests have; it ends with the command


def fetched_page(
    settings: "Settings", url: str, request: "RequestRecord | None" = None, *, redirects: bool = True
) -> StoredPage:
    """The page of a URL, asked for now.

    Args:
        url: Without a login.
        redirects: Whether redirects are followed.

    Raises: Misconfigured: robots.txt forbids it, and `robots.obey` is on.
    """
    return asyncio.run(_fetched(settings, url, request, redirects))


async def _fetched(settings: "Settings", url: str, request: "RequestRecord | None", redirects: bool) -> StoredPage:
    from crawlog.agents.client import Client
    from crawlog.streams.job_spec import resolve_spec

    canonical = Canonicaliser(resolve_spec(settings).canonical).canonical
    client = Client(settings, f"crawlog/{__version__}", lambda: True)
    try:
        at, depth = canonical(url), settings.scope.max_redirects if redirects else 0
        for hops in range(depth + 1):
            await _check_robots(settings, client, at)
            answer = await _answer(client, at, request)
            page = StoredPage(_meta(at, answer, request, hops), answer.body)
            target = answer.target(at) if answer.http in REDIRECTS else ""
            if not target or hops == depth:
                return page
            at = canonical(target)
            _, request = redirected(page.meta, at, Places(1).of(at))
            await asyncio.sleep(settings.politeness.delay_s)
    finally:
        await client.close()
    raise AssertionError("the last hop returns")


async def _answer(client: "Client", url: str, request: "RequestRecord | None") -> "Answer":
    from crawlog.agents.client import HttpRequest

    answer = await client.get(HttpRequest(url, any_type=True, job=TRIED, record=request, all_headers=True))
    answer.held.give()  # no other request waits for this memory
    return answer


async def _check_robots(settings: "Settings", client: "Client", url: str) -> None:
    """Raises: Misconfigured: robots.txt forbids the URL, or cannot be read."""
    if not settings.robots.obey:
        return
    answer = await _robots(client, f"{Places(1).of(url).host}/robots.txt")
    if answer.http is None or answer.http >= 500 or answer.http == 429:
        why = answer.error or f"HTTP {answer.http}"
        raise Misconfigured(f"{url}: its robots.txt cannot be read ({why}){_way_out(answer)}")
    rules = RobotsRules.parse(answer.body if answer.http < 300 else b"")
    allowed, rule = rules.allowed(url, settings.robots.token)
    if not allowed:
        raise Misconfigured(f"{url}: robots.txt forbids it ({rule}); -s robots.obey=false asks all the same")


def _way_out(robots: "Answer") -> str:
    """The setting with which a page is asked for whose robots.txt cannot be read; empty if there is none."""
    if robots.private:  # the page would be refused as well
        return f"; -s {NEEDS_PRIVATE} asks for it" * robots.is_closed
    return "; -s robots.obey=false asks without it"


async def _robots(client: "Client", url: str) -> "Answer":
    answer = await _answer(client, url, None)
    for _ in range(5):  # RFC 9309 2.3.1.2: at least five
        target = answer.target(url)
        if not target:
            break
        url = target
        answer = await _answer(client, url, None)
    return answer


def _meta(url: str, answer: "Answer", request: "RequestRecord | None", hops: int) -> PageMeta:
    return PageMeta(
        url,
        TRIED,
        hops=hops,
        http=answer.http,
        error=answer.error,
        location=answer.location,
        content_type=answer.content_type,
        fetched_at=time.time(),
        took_s=round(answer.took_s, 4),
        kept=answer.kept,
        sniffed=answer.sniffed,
        link=answer.link,
        x_robots=answer.x_robots,
        refresh=answer.refresh,
        request=request,
        headers=answer.headers,
    )


def stored_page(settings: "Settings", url: str, job: str, report: Callable[[str], None]) -> StoredPage:
    """The newest page of a URL in the log, which must be reachable.

    Args:
        job: The only job of interest; empty for all.

    Raises: Misconfigured: there is none with a body.
    """
    from .why import why

    story = why(settings, url, None, job, report)
    places = [(event.at, event.partition, event.offset) for event in story.events if event.kind == "page"]
    why_not = ""
    for _, partition, offset in sorted(places, reverse=True):
        try:
            return page_at(settings, partition, offset)
        except Misconfigured as error:
            why_not = why_not or str(error)
    why_not = why_not or f"the log has no page of it; `crawlog why {url}` tells its life"
    raise Misconfigured(f"{url}: {why_not}")


def page_at(settings: "Settings", partition: int, offset: int) -> StoredPage:
    """The page at a place of crawl.pages, with the body of the older page that it repeats.

    Raises: Misconfigured: it is not there, or that body is not. ValueError: the record there is no page.
    """
    found = _record(settings, partition, offset)
    if found is None:
        raise Misconfigured(f"there is no page at {partition}:{offset}: it is not written yet, or was trimmed")
    headers, value = found
    meta = pages.meta_in(headers)
    if meta.same_as is None:
        return StoredPage(*page_of(meta, value, headers, MAX_BODY_BYTES))
    its_body = "the page at {}:{} was not modified: its body, page {}:{},".format(partition, offset, *meta.same_as)
    found = _record(settings, *meta.same_as)
    if found is None:
        raise Misconfigured(f"{its_body} was trimmed")
    old, body = older_page(*found, meta, MAX_BODY_BYTES)
    if old is None:
        raise Misconfigured(f"{its_body} cannot be read, or that place has another page now")
    return StoredPage(pages.with_body(meta, old), body)


def _record(settings: "Settings", partition: int, offset: int) -> tuple[list[tuple[str, bytes]], bytes | None] | None:
    """Headers and value of the record at a place of crawl.pages; None if it is not there."""
    from crawlog.streams.cluster import log_bounds
    from crawlog.streams.log import Topics, record_at, record_headers

    topic = Topics(settings.kafka.prefix).pages
    start, end = log_bounds(settings, topic, [partition])[partition]
    if not start <= offset < end:
        return None
    record = record_at(settings, topic, partition, offset)
    return None if record is None else (record_headers(record), record.value())


_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})", re.ASCII)


def place_of(text: str) -> tuple[int, int]:
    """Partition and offset. Raises: Misconfigured: the text has another form."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Misconfigured(f"{text!r:.60} is no place of a page: PARTITION:OFFSET, as `crawlog why URL` tells it")
    return int(found[1]), int(found[2])


def stored_at(settings: "Settings", partition: int, offset: int) -> StoredPage:
    """The page at a place. A page that was not modified has the body of the older one.

    Raises: Misconfigured: it is not there, or that body is not.
    """
    from crawlog.streams.log import partition_count

    count = partition_count(settings)
    if partition >= count:
        raise Misconfigured(f"there is no partition {partition}: the log has {count}, from 0 to {count - 1}")
    try:
        return page_at(settings, partition, offset)
    except ValueError as error:
        raise Misconfigured(f"{partition}:{offset} of crawl.pages is no page: {error}") from None


def body_of(page: StoredPage) -> bytes:
    """The body of a page. Raises: Misconfigured: it has none, because of an error."""
    if page.meta.error and not page.body:
        raise Misconfigured(f"the page of {page.meta.url} has no body: {page.meta.error}; --headers has what is known")
    return page.body


def text_of(page: StoredPage) -> str:
    """The body as text, by the encoding that the parser takes. Raises: as `body_of`."""
    from crawlog.streams.html import charset

    return charset.decode(body_of(page), page.meta.content_type)[1]
