"""Try a spider of a deployed project on one page: what it makes of it, and what it prints. Nothing is written.

    TryBody ─► `code_of`, `deployed_facts`, as for a job ─► the page: asked for now, or from the log
            ─► `parsed_page`: the spider in a child process, as a worker would run it ─► TriedPage

Who may submit a job may try its spider: both run deployed code, and ask sites. A page is asked for as a job of this
spider would ask, within what the service's own settings allow, whatever the spider sets.
"""

from typing import Annotated, Any

import msgspec

from crawlog.commands.named_spider import NamedSpider
from crawlog.commands.one_page import fetched_page, parsed_page, place_of, stored_at, stored_page, unlike_a_crawl
from crawlog.jobs.request import JobRequest, checked
from crawlog.jobs.submit import code_of, deployed_facts, job_settings
from crawlog.schemas.urls import JobSpec
from crawlog.streams.redaction import shown_headers, shown_request
from crawlog.streams.settings import Settings
from crawlog.streams.spiders import CallResult, RequestOut, SpiderRef, StoredPage

from .answers import AnswerError
from .endpoint import ApiCall, ApiEndpoint

MOST_LINES = 1_000  # Lines of what the spider prints

Text = Annotated[str, msgspec.Meta(max_length=16_384)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class TryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A spider, and the page that it gets: of a URL, or at a place of the log.

    Attributes:
        version: Of the project; empty for the newest one.
        stored: Whether the newest page of the URL in the log is taken, so that nobody is asked.
        page: PARTITION:OFFSET of a page in the log, instead of a URL.
        job: With `stored`, only pages of this job.
        callback: The method that gets the page; empty for that of the page's own request.
        cb_kwargs: Its further arguments, a JSON object.
    """

    project: Name
    spider: Name
    version: Annotated[str, msgspec.Meta(max_length=200)] = ""
    url: Text = ""
    stored: bool = False
    page: Annotated[str, msgspec.Meta(max_length=40)] = ""
    job: Annotated[str, msgspec.Meta(max_length=100)] = ""
    args: dict[str, str] = {}
    callback: Annotated[str, msgspec.Meta(max_length=200)] = ""
    cb_kwargs: Text = ""


class TriedRequest(msgspec.Struct, frozen=True):
    """A request that the spider made.

    Attributes:
        callback: Of its answer; empty for `parse`.
        detail: All of it, without its secrets; empty for a plain GET.
    """

    url: str
    method: str
    callback: str
    priority: int
    detail: dict[str, Any]


class TriedPage(msgspec.Struct, frozen=True):
    """What a spider made of a page.

    Attributes:
        status: Of the answer; None without one.
        no_answer: Why there is no answer, or no body.
        bytes: Size of the body.
        lines: What its code printed and logged.
        notes: What a crawl would do otherwise, and warnings.
        error: Of the callback; empty without one.
    """

    url: str
    status: int | None
    no_answer: str
    content_type: str
    bytes: int
    headers: list[list[str]]
    items: list[Any]
    requests: list[TriedRequest]
    lines: list[str]
    notes: list[str]
    error: str
    trace: str
    version: str


def try_spider(call: ApiCall) -> tuple[StoredPage, TriedPage]:
    """The page, and what the spider of a `TryBody` makes of it.

    Raises: Misconfigured: there is no such spider or page, or it cannot be asked for. AnswerError.
    """
    body: TryBody = call.body
    if bool(body.url) == bool(body.page):
        raise AnswerError(400, "one page is tried\nGive a URL, or the place of a page in the log as PARTITION:OFFSET.")
    urls = (body.url,) if body.url else ()
    request = checked(
        JobRequest(project=body.project, version=body.version, spider=body.spider, args=body.args, urls=urls)
    )
    code = code_of(call.settings, request)
    facts = deployed_facts(call.settings, request, code)
    assert code is not None
    assert facts is not None  # the body names a project
    settings = _within(job_settings(call.settings, request, facts), call.settings)
    ref = SpiderRef(body.spider, tuple(sorted(body.args.items())), spec=JobSpec(spider=body.spider, code=code))
    page, lines, spider = _page(settings, body), list[str](), NamedSpider(ref, facts)

    def take(line: str) -> None:
        if len(lines) < MOST_LINES:
            lines.append(line)

    result = parsed_page(settings, spider, page, body.callback, body.cb_kwargs, take)
    notes = [*facts.notes, *unlike_a_crawl(settings, spider, page), *result.warnings]
    return page, _tried(page, result, lines, notes, code.version)


def _within(settings: Settings, own: Settings) -> Settings:
    """The settings of a job of the spider, where they are no wider than the service's own."""
    network = {
        "allow_private": settings.network.allow_private and own.network.allow_private,
        "verify_tls": settings.network.verify_tls or own.network.verify_tls,
    }
    return settings.model_copy(update={"network": settings.network.model_copy(update=network)})


def _page(settings: Settings, body: TryBody) -> StoredPage:
    if body.page:
        return stored_at(settings, *place_of(body.page))
    if body.stored:
        return stored_page(settings, body.url, body.job, lambda _: None)
    return fetched_page(settings, body.url)


def _tried(page: StoredPage, result: CallResult, lines: list[str], notes: list[str], version: str) -> TriedPage:
    meta = page.meta
    return TriedPage(
        url=meta.url,
        status=meta.http,
        no_answer=meta.error,
        content_type=meta.content_type,
        bytes=len(page.body),
        headers=shown_headers(meta.headers),
        items=[msgspec.json.decode(item) for item in result.items],
        requests=[_request(one) for one in result.requests],
        lines=lines,
        notes=notes,
        error=result.error,
        trace=result.trace,
        version=version,
    )


def _request(out: RequestOut) -> TriedRequest:
    record = out.request
    if record is None:
        return TriedRequest(out.url, "GET", "", out.priority, {})
    return TriedRequest(out.url, record.method, record.callback, out.priority, shown_request(record))


ENDPOINTS = (
    ApiEndpoint(
        "POST",
        "/try",
        "operate",
        "Try a deployed spider on one page; nothing is written",
        TriedPage,
        lambda call: try_spider(call)[1],
        body=TryBody,
    ),
)
