"""Jobs: list, submit, show, change; their lines, their stats, and `why` of a URL."""

import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from crawlog.commands.job_logs import job_log_lines
from crawlog.commands.recrawl import Recrawl, RecrawlChoice, recrawl
from crawlog.commands.why import Story, moment, why
from crawlog.jobs.changes import (
    cancel_job,
    delete_job,
    listed_jobs,
    pause_job,
    resume_job,
    shown_job,
    stop_job,
)
from crawlog.jobs.job_closing import stats_of
from crawlog.jobs.request import MAX_URLS, JobRequest
from crawlog.jobs.submit import submit
from crawlog.jobs.update import JobUpdate, update_job
from crawlog.schemas.log_lines import LogLine
from crawlog.streams.fleet import FleetState, JobView
from crawlog.streams.jobs import traits
from crawlog.streams.redaction import for_readers
from crawlog.streams.url import InvalidUrl, serialise

from .answers import AnswerError
from .endpoint import ApiCall, ApiEndpoint

# How long an answer waits until the live view, which answers the next request, shows what was written, seconds.
SEEN_S = 2.0

Limit = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class JobsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs.

    Attributes:
        state: No job is `watching` yet.
        name: Part of the name.
    """

    state: Literal[
        "", "pending", "waiting", "running", "paused", "stopped", "finished", "failed", "cancelled", "watching"
    ] = ""
    name: str = ""
    spider: str = ""
    project: str = ""
    offset: Offset = 0
    limit: Limit = 100


class JobsPage(msgspec.Struct, frozen=True):
    """Some jobs, the last submitted first; `total` counts all that fit."""

    jobs: list[JobView]
    total: int


class LinesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which lines: none older than `since` (UTC epoch seconds)."""

    since: Annotated[float, msgspec.Meta(ge=0, le=1e11)] | None = None
    limit: Limit = 1_000


class LinesPage(msgspec.Struct, frozen=True):
    """The newest lines, the oldest first."""

    lines: list[LogLine]


class StatsPage(msgspec.Struct, frozen=True):
    """Scrapy's stats by name, of all pages so far and, once an output is made, of the pipelines; none for others."""

    stats: dict[str, float]


class WhyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which URL, in which job, and as of when (ISO 8601 or epoch seconds)."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]
    job: str = ""
    at: str = ""


def known_job(call: ApiCall) -> str:
    """The job that a path names. Raises: AnswerError: there is none."""
    name = call.path["job"]
    if call.fleet.job(name) is None:
        raise AnswerError(404, f"there is no job {name!r:.120}")
    return name


def _list(call: ApiCall) -> JobsPage:
    query: JobsQuery = call.query
    found = [
        one
        for one in listed_jobs(call.fleet)
        if query.state in ("", one.state)
        and query.name in one.name
        and query.spider in ("", one.spider)
        and query.project in ("", one.code.project if one.code else "")
    ]
    return JobsPage(found[query.offset : query.offset + query.limit], len(found))


def _submit(call: ApiCall) -> JobView:
    view = submit(call.settings, call.body, call.user)

    def shows_it(state: FleetState) -> bool:
        copy = state.copy(view.name)
        return copy is not None and (copy.epoch, copy.spec.rev) >= (view.epoch, view.rev)

    is_shown = call.fleet.wait_until(shows_it, SEEN_S)
    return (call.fleet.job(view.name) if is_shown else None) or view


def _show(call: ApiCall) -> JobView:
    return shown_job(call.fleet, known_job(call))


def _lines(call: ApiCall) -> LinesPage:
    return LinesPage(job_log_lines(call.settings, known_job(call), call.query.since, call.query.limit))


def _stats(call: ApiCall) -> StatsPage:
    return StatsPage(stats_of(call.settings, call.fleet, known_job(call)))


def url_story(call: ApiCall) -> Story:
    """The life of the URL of a `WhyQuery`; readers are shown less of it."""
    query: WhyQuery = call.query
    try:
        serialise(query.url)
    except (InvalidUrl, ValueError):
        raise AnswerError(400, f"{query.url!r:.200} is no URL") from None
    if query.job and call.fleet.job(query.job) is None:
        raise AnswerError(404, f"there is no job {query.job!r:.120}")
    at = moment(query.at, time.time()) if query.at else None
    story = why(call.settings, query.url, at, query.job, lambda _: None)
    if call.role == "read":
        story.events = [
            msgspec.structs.replace(
                event, detail={name: _for_reader(name, value) for name, value in event.detail.items()}
            )
            for event in story.events
        ]
    return story


def _for_reader(name: str, value: Any) -> Any:
    """A detail of an event; rows of items are results, which every user may see."""
    return for_readers(value) if name in ("found", "meta") else value


class Removal(msgspec.Struct, frozen=True):
    """What was deleted."""

    name: str
    state: str = "deleted"


class RetryBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which URLs of a job are fetched again, as `crawlog recrawl` has them; without `execute` they are only counted.

    Attributes:
        statuses: Codes, classes (`5xx`) and words for why there is no page.
        older_than_s: Only those whose result is older, seconds.
    """

    urls: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_URLS)] = ()
    failed: bool = False
    statuses: Annotated[tuple[str, ...], msgspec.Meta(max_length=100)] = ()
    older_than_s: Annotated[float, msgspec.Meta(ge=0, le=1e10)] | None = None
    execute: bool = False


def retried(call: ApiCall) -> Recrawl:
    """Has URLs fetched again, or counts them."""
    body: RetryBody = call.body
    before = None if body.older_than_s is None else time.time() - body.older_than_s
    choice = RecrawlChoice(body.urls, body.failed, body.statuses, before)
    return recrawl(call.settings, known_job(call), choice, execute=body.execute, report=lambda _: None)


def _update(call: ApiCall) -> JobView:
    update: JobUpdate = call.body
    return _changed(lambda settings, name, by: update_job(settings, name, update, by))(call)


def _changed(change: Callable[..., JobView]) -> Callable[[ApiCall], JobView]:
    def does(call: ApiCall) -> JobView:
        view = change(call.settings, known_job(call), call.user)
        call.fleet.wait_until(lambda state: _shows(state, view), SEEN_S)
        return view

    return does


def _shows(state: FleetState, changed: JobView) -> bool:
    """Whether the live view has a job as a command left it, or as a later one did."""
    found = state.job(changed.name)
    if found is None or (found.epoch, found.rev) > (changed.epoch, changed.rev):
        return True
    is_same = (found.epoch, found.rev) == (changed.epoch, changed.rev)
    return is_same and traits(found.state).waits == traits(changed.state).waits  # `resume` may end a command alone


def _delete(call: ApiCall) -> Removal:
    name = known_job(call)
    delete_job(call.settings, name, call.user)
    call.fleet.wait_until(lambda state: state.copy(name) is None, SEEN_S)
    return Removal(name)


def _action(name: str, summary: str, change: Callable[..., JobView]) -> ApiEndpoint:
    return ApiEndpoint("POST", f"/jobs/{{job}}/{name}", "operate", summary, JobView, _changed(change), errors=(409,))


ENDPOINTS = (
    ApiEndpoint("GET", "/jobs", "read", "Jobs, the last submitted first", JobsPage, _list, query=JobsQuery),
    ApiEndpoint(
        "POST", "/jobs", "operate", "Submit a job", JobView, _submit, body=JobRequest, status=201, errors=(409,)
    ),
    ApiEndpoint("GET", "/jobs/{job}", "read", "A job with its settings, secrets hidden", JobView, _show),
    ApiEndpoint("GET", "/jobs/{job}/logs", "read", "The newest lines of a job", LinesPage, _lines, query=LinesQuery),
    ApiEndpoint("GET", "/jobs/{job}/stats", "read", "Scrapy's stats of a job, read from its items", StatsPage, _stats),
    ApiEndpoint(
        "GET", "/why", "read", "The life of one URL, from the log", Story, url_story, query=WhyQuery, errors=(404,)
    ),
    _action("pause", "Pause a job: no further request is made", pause_job),
    _action("resume", "Let a paused or stopped job go on", resume_job),
    _action("stop", "Stop a job: its outputs stay partial, its queue stays", stop_job),
    _action("cancel", "Cancel a job for good", cancel_job),
    ApiEndpoint(
        "POST",
        "/jobs/{job}/retry",
        "operate",
        "Have URLs fetched again that are done",
        Recrawl,
        retried,
        body=RetryBody,
        errors=(409,),
    ),
    ApiEndpoint(
        "POST",
        "/jobs/{job}/update",
        "operate",
        "Change a job's code, settings or priority, or parse its pages again",
        JobView,
        _update,
        body=JobUpdate,
        errors=(409,),
    ),
    ApiEndpoint("DELETE", "/jobs/{job}", "operate", "Delete a job", Removal, _delete, errors=(409,)),
)
