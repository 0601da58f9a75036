"""How a URL ends in fetch: refused without a request, or by its answer, with a done and a page.

Pure: time is `now`, UTC epoch seconds. A refused URL has a done only, unless its request has an errback; every other
final one has a page too.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from crawlog.schemas import urls as u
from crawlog.schemas.pages import PageMeta, Was
from crawlog.streams import fold
from crawlog.streams.http import REDIRECTS, essence
from crawlog.streams.requests import NEEDS_LAX_TLS, NEEDS_PRIVATE
from crawlog.streams.url import fingerprint

if TYPE_CHECKING:
    from crawlog.schemas.requests import RequestRecord
    from crawlog.streams.frontier import Host, Task
    from crawlog.streams.http import Answer
    from crawlog.streams.requests import RequestPolicy

    from .retry import Again

# Reason of a URL that crashed its worker several times, the last time while it was fetched alone.
CRASH_LOOP = "crash_loop"

CONTROL = "control"  # Reason of a request that another host was to be sent, which a command keeps waiting

# Reason of a URL whose request may have been sent when its worker died, and is never sent twice.
INTERRUPTED = "interrupted"

# Length of a Content-Type in a page, and in one that is too large for a record.
TYPE_CHARS, SHORT_TYPE_CHARS = 1000, 100

REASON_CHARS = 200  # Length of a reason and of a rule in a done


class Unasked(NamedTuple):
    """The end of a URL without a request."""

    status: Literal["refused", "failed"]
    reason: str
    rule: str = ""


class Needs(NamedTuple):
    """The URL stays queued, for a worker that has a setting."""

    setting: str


EXPIRED = Unasked("refused", fold.EXPIRED)


def opens(answer: "Answer") -> str:
    """The setting that would change an answer; empty if there is none."""
    if answer.is_closed:
        return NEEDS_PRIVATE
    return NEEDS_LAX_TLS if answer.error == "tls_certificate" else ""


def needs(answer: "Answer", policy: "RequestPolicy") -> str:
    """The setting that the job has and the worker lacks, if the answer follows from that; else empty."""
    needed = opens(answer)
    return needed if needed in policy.lacks else ""


def unasked(host: "Host", url: str, policy: "RequestPolicy", now: float) -> Unasked | Needs | None:
    """The end of a URL by its host's robots.txt, as far as that is known; None if the URL is to be requested."""
    if not policy.rules.robots:
        return None
    if (closed := host.closed_to(policy, now)) is not None:
        return Needs(closed.to) if closed.to in policy.lacks else _unreachable(closed.reason)
    if host.rules is None:
        return None
    allowed, rule = host.rules.allowed(url, policy.token)
    return None if allowed else Unasked("refused", "robots", rule)


def _unreachable(reason: str) -> Unasked:
    return Unasked("failed", f"robots_unreachable: {reason}")


def page(task: "Task", answer: "Answer", now: float, rest_s: float = 0.0, worker: str = "") -> PageMeta:
    """The metadata of a final answer's page.

    Args:
        rest_s: As in its done.
    """
    row, spec = task.row, task.job.spec
    request = task.request
    kept = keeps_body(task, answer)
    return PageMeta(
        row.url,
        task.job.name,
        rev=spec.rev,
        epoch=task.epoch,
        depth=row.depth,
        hops=row.hops,
        via=row.via,
        seed=row.seed,
        http=answer.http,
        error=answer.reason,
        location=answer.location[: u.MAX_URL_BYTES],
        content_type=answer.content_type[:TYPE_CHARS],
        fetched_at=now,
        took_s=round(answer.took_s, 4),
        kept=kept,
        limit=answer.limit,
        sniffed=answer.sniffed,
        link=answer.link,
        x_robots=answer.x_robots,
        refresh=answer.refresh,
        kind="sitemap" if row.sitemap else "page",
        rendered=answer.rendered,
        render_error=answer.render_error,
        shown_url=answer.shown_url[: u.MAX_URL_BYTES],
        results=answer.results,
        same_as=answer.same_as,
        leads_back=bool(answer.location) and answer.leads_back,
        id=row.id,
        request=request,
        attempt=row.attempt + 1,
        headers=answer.headers,
        sent=answer.sent if spec.full_headers else (),
        status_line=answer.status_line if spec.full_headers else "",
        row=task.sequence,
        priority=row.priority,
        rest_s=rest_s,
        worker=worker,
        exit=answer.exit,
        was=Was(row.again.digest, row.again.item) if row.again is not None else None,
    )


def asked(
    url: str, job: str, answer: "Answer", request: "RequestRecord | None", now: float, *, hops: int = 0
) -> PageMeta:
    """The metadata of an answer that is no page of the log."""
    return PageMeta(
        url,
        job,
        hops=hops,
        http=answer.http,
        error=answer.reason,
        location=answer.location,
        content_type=answer.content_type,
        fetched_at=now,
        took_s=round(answer.took_s, 4),
        kept=answer.kept,
        sniffed=answer.sniffed,
        link=answer.link,
        x_robots=answer.x_robots,
        refresh=answer.refresh,
        request=request,
        headers=answer.headers,
    )


def keeps_body(task: "Task", answer: "Answer") -> bool:
    """Whether a page has the body of its answer. That of a redirect is for spiders alone: they may want it."""
    return answer.kept and (not answer.location or (bool(task.job.spec.spider) and answer.http in REDIRECTS))


def keeps_any_type(task: "Task") -> bool:
    """Whether a body is kept whatever its type: its spider asked for it, or it answers another request than a GET.

    The plain GETs of a spider that has no links followed for it are kept by the setting (`own_loading.py`).
    """
    request, has_spider = task.request, bool(task.job.spec.spider)
    if request is None:
        return has_spider and task.row.seed
    return has_spider or request.method.upper() != "GET"


def unkept(page: "PageMeta | Answer") -> str:
    """The type of a page whose body was not kept because of it; empty for any other page."""
    is_page = page.http is not None and 200 <= page.http < 300
    if page.kept or page.error or page.location or not is_page:
        return ""
    return (page.sniffed or essence(page.content_type))[:SHORT_TYPE_CHARS]


def is_plain(task: "Task") -> bool:
    """Whether a task's URL and job alone say what its page is: then the page's validators are the URL's.

    A spider's GET may be so, whatever its callback and data are, if it sends nothing of its own and may be sent twice.
    In a job that keeps cookies it is not: a spider that logs in gets the pages of its session.
    """
    row, request = task.row, task.request
    if row.id and row.id != fingerprint(row.url):
        return False
    if request is None:
        return True
    has_own = request.headers or request.without or request.cookies or request.jar or request.proxy
    is_in_session = task.policy.rules.cookies or not request.keeps_cookies
    return not (has_own or is_in_session or request.once)


def wants_headers(task: "Task") -> bool:
    """Whether a page has all headers of its answer: a spider sees them, a lost done has its cookies from them, or the
    job keeps them.
    """
    spec = task.job.spec
    return bool(spec.spider) or spec.full_headers or task.request is not None or task.policy.rules.cookies


def without_body(meta: PageMeta, reason: str) -> PageMeta:
    """The metadata of a page that is too large for a record."""
    return msgspec.structs.replace(
        meta,
        error=reason,
        kept=False,
        limit=0,
        content_type=meta.content_type[:SHORT_TYPE_CHARS],
        link=(),
        headers=(),
        sent=(),
        results=(),
    )


def status(answer: "Answer") -> u.Status:
    """The status of a final answer."""
    if answer.http is None:
        return "failed"
    if answer.same_as is not None:
        return "not_modified"
    return "redirected" if answer.location else "fetched"


def done(task: "Task", answer: "Answer", now: float, rest_s: float, again: "Again | None" = None) -> u.Result:
    """The done of an attempt.

    Args:
        rest_s: How long its host rests beside its crawl delay.
        again: The next attempt; None if the answer is final.
    """
    wait_s = again.wait_s if again is not None else 0.0
    return u.Result(
        task.row.url,
        task.sequence,
        status(answer) if again is None else "failed",
        priority=task.row.priority,
        reason=(answer.reason if again is None else again.reason)[:REASON_CHARS],
        http=answer.http,
        attempt=task.row.attempt + 1,
        depth=task.row.depth,
        at=now,
        took_s=round(answer.took_s, 4),
        next_at=now + wait_s if again is not None else 0.0,
        delay_s=wait_s,
        host_wait_s=rest_s,
        id=task.row.id,
        unkept=unkept(answer) if again is None else "",
    )


def began(task: "Task", now: float) -> u.Result:
    """The record that a request begins which is never sent twice."""
    return u.Result(
        task.row.url,
        task.sequence,
        "began",
        priority=task.row.priority,
        attempt=task.row.attempt + 1,
        depth=task.row.depth,
        at=now,
        id=task.row.id,
    )


def refused(task: "Task", end: Unasked, now: float) -> u.Result:
    return u.Result(
        task.row.url,
        task.sequence,
        end.status,
        priority=task.row.priority,
        reason=end.reason[:REASON_CHARS],
        rule=end.rule[:REASON_CHARS],
        attempt=task.row.attempt + 1,
        depth=task.row.depth,
        at=now,
        id=task.row.id,
    )
