"""`crawlog parse`: what a spider makes of one page, in its own process, as a worker would run it.

`crawlog shell`: a Python prompt with a page's response; IPython where it is installed.
"""

import code
import importlib
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from crawlog.streams.errors import CrawlError, Misconfigured, SpiderDied
from crawlog.streams.http import essence
from crawlog.streams.sink import plain_row
from crawlog.streams.spiders import CallResult, PageCall, Request, Response, StoredPage, bare_record, opened, ref_of

if TYPE_CHECKING:
    from crawlog.schemas.requests import RequestRecord
    from crawlog.streams.settings import Settings

    from .named_spider import NamedSpider

TRIED_LOADER = "crawlog.streams.spiders.runners:load_tried"  # What loads the spider in its process


def parsed_page(
    settings: "Settings", spider: "NamedSpider", page: StoredPage, callback: str = "", cb_kwargs: str = ""
) -> CallResult:
    """What a spider makes of a page; items are rows, of a spider with pipelines without these.

    Args:
        callback: The method that gets the page; by default that of the page's own request.
        cb_kwargs: Its further arguments, a JSON object.

    Raises: Misconfigured: the spider cannot be loaded, ended its process, or has no such method; `cb_kwargs` is no
        object.
    """
    from crawlog.agents.sandbox import ChildRules, SpiderChild
    from crawlog.streams.job_spec import JobSpider, resolve_spec

    ref, facts = spider.ref, spider.facts
    spec = resolve_spec(settings, JobSpider(facts.path, ref.args, ref.scrapy, facts.starts))
    if callback or cb_kwargs:
        page = page.to_callback(callback, _object(cb_kwargs))
    try:
        with SpiderChild(ref_of("trying", 0, spec), ChildRules.of(settings, None), loader=TRIED_LOADER) as child:
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
