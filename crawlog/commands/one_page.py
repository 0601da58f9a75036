"""One page for `fetch`, `parse`, `shell` and `pages cat`: asked for now, or stored; and what a spider makes of it.

    URL, PARTITION:OFFSET ─► StoredPage ─┬─► `parsed_page`: the spider in its own process, as a worker would run it
                                         └─► `Shell`: a Python prompt with its response; IPython where it is installed

A request goes through the egress guard. Nothing is written to the log.
"""

import asyncio
import code
import importlib
import re
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog import __version__
from crawlog.schemas import pages
from crawlog.streams.coded_pages import older_page, page_of
from crawlog.streams.errors import CrawlError, Misconfigured, SpiderDied
from crawlog.streams.http import REDIRECTS, essence
from crawlog.streams.parse import redirected
from crawlog.streams.requests import NEEDS_PRIVATE
from crawlog.streams.robots import RobotsRules
from crawlog.streams.settings import MAX_BODY_BYTES
from crawlog.streams.sink import plain_row
from crawlog.streams.spiders import CallResult, PageCall, Request, Response, StoredPage, bare_record, opened, ref_of
from crawlog.streams.url import Canonicaliser, Places

if TYPE_CHECKING:
    from crawlog.agents.client import Client
    from crawlog.schemas.requests import RequestRecord
    from crawlog.streams.http import Answer
    from crawlog.streams.settings import Settings

    from .named_spider import NamedSpider

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
    from crawlog.streams.fetch import outcome
    from crawlog.streams.job_spec import resolve_spec

    canonical = Canonicaliser(resolve_spec(settings).canonical).canonical
    client = Client(settings, f"crawlog/{__version__}", lambda: True)
    try:
        at, depth = canonical(url), settings.scope.max_redirects if redirects else 0
        for hops in range(depth + 1):
            await _check_robots(settings, client, at)
            answer = await _answer(client, at, request)
            page = StoredPage(outcome.asked(at, TRIED, answer, request, time.time(), hops=hops), answer.body)
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


TRIED_LOADER = "crawlog.streams.spiders.runners:load_tried"  # What loads the spider in its process


def parsed_page(
    settings: "Settings",
    spider: "NamedSpider",
    page: StoredPage,
    callback: str = "",
    cb_kwargs: str = "",
    take_line: Callable[[str], None] | None = None,
) -> CallResult:
    """What a spider makes of a page; items are rows, of a spider with pipelines without these.

    Args:
        callback: The method that gets the page; by default that of the page's own request.
        cb_kwargs: Its further arguments, a JSON object.
        take_line: Takes the lines that its code prints, instead of the log.

    Raises: Misconfigured: the spider cannot be loaded, ended its process, or has no such method; `cb_kwargs` is no
        object.
    """
    from crawlog.agents.sandbox import ChildRules, SpiderChild
    from crawlog.streams.job_spec import JobSpider, resolve_spec

    ref, facts = spider.ref, spider.facts
    spec = resolve_spec(settings, JobSpider(facts.path, ref.args, ref.scrapy, facts.starts))
    spec = msgspec.structs.replace(spec, code=ref.spec.code)
    rules = ChildRules.of(settings, None)._replace(take_line=take_line)
    if callback or cb_kwargs:
        page = page.to_callback(callback, _object(cb_kwargs))
    try:
        with SpiderChild(ref_of("trying", 0, spec), rules, loader=TRIED_LOADER) as child:
            if callback and not child.call("has_callback", callback.encode()):
                name, _, _ = facts.label.partition("@")
                raise Misconfigured(f"-c {callback}: {name} has no method {callback}")
            result = child.page(PageCall(page.meta, page.body))
    except SpiderDied as error:
        raise Misconfigured(f"--spider {ref.path}: {error}") from None
    if result.is_raw:
        result.items = [msgspec.Raw(plain_row(item)) for item in result.items]
        result.is_raw = False
    return result


def unlike_a_crawl(settings: "Settings", spider: "NamedSpider", page: StoredPage) -> list[str]:
    """What a crawl would do otherwise with the page, a line each."""
    meta, facts = page.meta, spider.facts
    told = []
    is_answer = meta.http is not None and (200 <= meta.http < 300 or meta.http in facts.statuses)
    is_answer = is_answer or meta.same_as is not None  # 304: the callback gets the older page
    if not is_answer and not facts.is_scrapy:
        status = f"status {meta.http}" if meta.http is not None else meta.error
        told.append(f"{status}: no page for a callback; see handle_httpstatus_list, and the errback of its request")
    kept, kind = settings.fetch.content_types, meta.sniffed or essence(meta.content_type)
    if kind and page.body and kind not in kept and "*/*" not in kept:
        told.append(f"of links that it only finds a crawl keeps no body of type {kind}: see fetch.content_types")
    return told


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Misconfigured(f"--cb-kwargs {text}: a JSON object, such as '{{\"page\": 2}}' ({error})") from None


Fetch = Callable[[str, "RequestRecord | None"], StoredPage]

BANNER = """
response   {response!r}
request    {request!r}
fetch(x)   asks for a URL or a request, and makes its page the response; response.follow(…) makes one
"""


NAME = "<shell>"  # Of the user's code in tracebacks


class Shell:
    """The names of a shell.

    Args:
        fetch: Asks for a page.

    Attributes:
        names: By name; `fetch` replaces `response` and `request` in it.
    """

    def __init__(self, page: StoredPage | None, fetch: Fetch) -> None:
        self._fetch = fetch
        self.names: dict[str, Any] = {"Request": Request, "fetch": self.fetch, "response": None, "request": None}
        if page is not None:
            self._show(page)

    def fetch(self, asked: "str | Request") -> Response:
        """Ask for a URL or a request; `response` is then its page."""
        if isinstance(asked, str):
            return self._show(self._fetch(asked, None))
        return self._show(self._fetch(asked.url, bare_record(asked)))

    def run(self, line: str) -> str:
        """The value of an expression, as the prompt shows it; empty for a statement.

        Raises: CrawlError: of `fetch`. Misconfigured: any other error of the line.
        """
        try:
            return self._value(line)
        except (CrawlError, BrokenPipeError):
            raise
        except Exception as error:
            raise Misconfigured(_told(line, error)) from error

    def prompt(self) -> None:
        """Ask for lines until the user leaves."""
        banner = BANNER.format(**self.names)
        try:
            ipython = importlib.import_module("IPython")
        except ModuleNotFoundError:
            code.interact(banner, local=self.names, exitmsg="")
        else:
            ipython.start_ipython(argv=["--no-banner"], user_ns=self.names)

    def _value(self, line: str) -> str:
        try:
            compiled = compile(line, NAME, "eval")
        except SyntaxError:
            exec(compile(line, NAME, "exec"), self.names)  # noqa: S102  # the user's own line
            return ""
        return repr(eval(compiled, self.names))  # noqa: S307  # the user's own line

    def _show(self, page: StoredPage) -> Response:
        response = opened(page)
        self.names |= {"response": response, "request": response.request}
        return response


def _told(code: str, error: Exception) -> str:
    """An error of the user's code, with the line of it that raised the error."""
    from crawlog.agents.sandbox import error_line

    at = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]
    at += [error.lineno or 0] if isinstance(error, SyntaxError) and error.filename == NAME else []
    number = at[-1] if at else 0
    return "\n  ".join([f"-c: {error_line(error)}", *map(str.strip, code.splitlines()[number - 1 : number])])
