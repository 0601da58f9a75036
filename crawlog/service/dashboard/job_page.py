"""The page of a job: how far it is, what is wrong with it, its actions; its rows, failures and lines; its export.

/ui/jobs/NAME ─┬─ block live: figures, outputs          ┌─ …/rows  …/failures  …/lines: pages of their own, which the
               └─ block foot: settings, forms, charts ──┘   browser loads into the page after its first paint
"""

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast
from urllib.parse import quote, urlsplit

import msgspec
from aiohttp import web

from crawlog.commands.dead import listed as listed_letters
from crawlog.commands.export import export_job
from crawlog.commands.failures import newest_failures
from crawlog.commands.items import ItemRow, newest_rows
from crawlog.commands.job_logs import job_log_lines
from crawlog.jobs.changes import shown_job
from crawlog.outcome import by_rule, by_status_class, counted, left_text, needed, without_page
from crawlog.schemas.urls import USUAL_PRIORITY, ScopeSpec
from crawlog.service.answers import AnswerError
from crawlog.service.api_jobs import RetryBody, known_job, retried
from crawlog.service.endpoint import call_of
from crawlog.service.routing import SETTINGS, add, fleet_of, in_thread, is_part
from crawlog.streams.dead_letters import LetterChoice
from crawlog.streams.fleet import FleetView, HostView, JobView
from crawlog.streams.job_spec import job_values, resolve_spec
from crawlog.streams.jobs import OrderName, after, is_final
from crawlog.streams.settings import Settings

from .charts import last_hour
from .forms import RESULTS, body_of, form_of
from .jobs_page import alerts_by_job, chip_of
from .layout import NavEntry, add_page, page, with_errors

if TYPE_CHECKING:
    from crawlog.schemas.job_orders import JobStateName

NAV: tuple[NavEntry, ...] = ()

COLUMNS, CELL_CHARS = 12, 300  # Of the table of the newest rows

ORDERS: tuple[OrderName, ...] = ("pause", "resume", "stop", "cancel")  # Of people

PART, WHOLE = 20, 500  # Rows, failures or lines: in the page of the job, and on a page of their own

CHARTS = (
    ("Pages and rows", "a minute", {"pages": "pages", "rows": "rows"}),
    ("Answers by status", "a minute", {"2xx": "2xx", "3xx": "3xx", "4xx": "4xx", "5xx": "5xx"}),
)

HOSTS = 5  # Hosts that are shown

FORMATS = ("jsonl", "csv", "json")  # Of an export

CHUNK = 1 << 18  # Bytes of a download that are read at once


class RowsTable(NamedTuple):
    """Rows as a table: the fields of the newest rows, and their values as text, None where a row lacks one."""

    fields: list[str]
    rows: list[tuple[str, list[str | None]]]


def routes(app: web.Application) -> None:
    """Adds the page, its parts, the export, and what counts before URLs are fetched again."""
    add_page(app, "/ui/jobs/{job}", _job)
    add_page(app, "/ui/jobs/{job}/rows", _rows)
    add_page(app, "/ui/jobs/{job}/failures", _failures)
    add_page(app, "/ui/jobs/{job}/lines", _lines)
    add(app, "GET", "/ui/jobs/{job}/export", with_errors(_export), "read")
    add(app, "POST", "/ui/jobs/{job}/retry", with_errors(_retry), "operate")


async def _job(request: web.Request) -> web.StreamResponse:
    call = call_of(request)
    job = await in_thread(request, shown_job, call.fleet, known_job(call))
    alerts = alerts_by_job(request.app)[job.name]
    return page(
        request,
        "job.html",
        job=job,
        chip=chip_of(job, alerts),
        alerts=alerts,
        charts=await last_hour(request, CHARTS, job.name),
        hosts=hosts_of(call.fleet, job.name),
        allowed=allowed(job),
        figures=figures(job),
        settings=own_settings(job),
        usual_priority=USUAL_PRIORITY,
        formats=FORMATS,
    )


def hosts_of(fleet: FleetView, name: str) -> list[HostView]:
    """The slowest hosts in the scope of a job, the longest queue first."""
    copy = fleet.look(lambda state: state.copy(name))
    scope = copy.spec.scope if copy is not None else ScopeSpec()
    endings = tuple(f".{one}" for one in scope.names)

    def is_inside(host: HostView) -> bool:
        return scope.kind == "any" or f".{urlsplit(host.host).hostname or ''}".endswith(endings)

    return [one for one in fleet.hosts() if is_inside(one)][:HOSTS]


def allowed(job: JobView) -> list[OrderName]:
    """The orders that lead its state elsewhere."""
    state = cast("JobStateName", "running" if job.state == "pending" else job.state)
    orders = [order for order in ORDERS if after(order, state) not in (None, state)]
    is_whole = state in ("finished", "stopped") and is_final(state, job.reason)  # as `cancel` refuses it
    return [order for order in orders if not (order == "cancel" and is_whole)]


def figures(job: JobView) -> list[tuple[str, str]]:
    """What there is to say of a job's counts beside its cards, by name."""
    counts, again = job.counts, job.parsed_again
    told = {
        "End": f"{left_text(job.left)}, if no more is found" if job.left is not None else "",
        "Statuses": ", ".join(f"{count:,} × {name}" for name, count in by_status_class(counts.statuses).items()),
        "Without a page": "; ".join(without_page(counts)),
        "Links dropped": by_rule(counts.dropped),
        "Redirects": f"{counts.redirected:,}" if counts.redirected else "",
        "Tried again": f"{counts.retried:,}" if counts.retried else "",
        "Due again later": f"{counts.again:,}" if counts.again else "",
        "Held": f"{counts.held:,}: no URL of them is asked for" if counts.held else "",
        "Waits": needed(counts.needs),
        "Waits for": ", ".join(f"worker {one}, which is paused" for one in job.paused_workers),
        "Parsed again": f"{again.pages:,} pages, {again.read:.0%} of the stored pages looked through" if again else "",
        "Pages without a row": f"{job.remarks.rowless:,}, the first: {job.remarks.first_rowless}"
        if job.remarks.rowless
        else "",
    }
    return [(name, text) for name, text in told.items() if text]


def own_settings(job: JobView) -> list[tuple[str, str, str]]:
    """The settings of a job that differ from the defaults: key, value and default as text."""
    usual = _usual()
    return [
        (key, _text(value), _text(usual.get(key)))
        for key, value in sorted(job.settings.items())
        if value != usual.get(key)
    ]


@cache
def _usual() -> dict[str, Any]:
    usual = job_values(resolve_spec(Settings()))
    found: dict[str, Any] = msgspec.to_builtins(usual, enc_hook=str)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


# ---------------------------------------------------------------------- parts


def _most(request: web.Request) -> int:
    return PART if is_part(request) else WHOLE


async def _rows(request: web.Request) -> web.StreamResponse:
    name = known_job(call_of(request))
    found = await in_thread(request, newest_rows, request.app[SETTINGS], name, _most(request))
    return page(request, "job_rows.html", part=is_part(request), name=name, table=rows_table(found))


def rows_table(found: list[ItemRow]) -> RowsTable:
    """Rows as a table: the first fields that they have beside their URL, long values cut."""
    read = ((row.url, msgspec.json.decode(row.item)) for row in found)
    items = [
        (url, {name: value for name, value in item.items() if (name, value) != ("url", url)}) for url, item in read
    ]
    fields = list(dict.fromkeys(name for _, item in items for name in item))[:COLUMNS]
    rows = [(url, [_text(item[name])[:CELL_CHARS] if name in item else None for name in fields]) for url, item in items]
    return RowsTable(fields, rows)


async def _failures(request: web.Request) -> web.StreamResponse:
    settings, fleet, name = request.app[SETTINGS], fleet_of(request), known_job(call_of(request))
    copy = fleet.look(lambda state: state.copy(name))
    since = fleet.look(lambda state: state.control.since(copy) if copy is not None else 0.0)
    choice = LetterChoice(job=name, since=since)

    most = _most(request)

    def read() -> tuple[Any, Any]:
        epoch = copy.epoch if copy is not None else 0
        return (
            listed_letters(settings, choice, most, handled=False),
            newest_failures(settings, name, epoch, most),
        )

    letters, failures = await in_thread(request, read)
    return page(request, "job_failures.html", part=is_part(request), name=name, letters=letters, failures=failures)


async def _lines(request: web.Request) -> web.StreamResponse:
    name = known_job(call_of(request))
    lines = await in_thread(request, job_log_lines, request.app[SETTINGS], name, None, _most(request))
    return page(request, "job_lines.html", part=is_part(request), name=name, lines=lines[::-1])


# ---------------------------------------------------------------------- export, retry


async def _export(request: web.Request) -> web.StreamResponse:
    """The rows as a file: as `crawlog export` writes it, complete or so far."""
    name, kind = known_job(call_of(request)), request.query.get("format", FORMATS[0])
    if kind not in FORMATS:
        raise AnswerError(400, f"no format {kind!r:.40}\nThere are: {', '.join(FORMATS)}.")
    with tempfile.TemporaryDirectory(prefix="crawlog-export-") as folder:
        made = await in_thread(request, export_job, request.app[SETTINGS], name, f"{folder}/rows.{kind}")
        shown = f"{name}{'' if made.is_complete else '.partial'}.{kind}"
        disposition = f"attachment; filename*=UTF-8''{quote(shown, safe='')}"  # RFC 6266: a record may hold any name
        headers = {"Content-Type": "application/octet-stream", "Content-Disposition": disposition}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with await in_thread(request, _opened, made.output) as file:
            while chunk := await in_thread(request, file.read, CHUNK):
                await response.write(chunk)
    return response


def _opened(path: str) -> BinaryIO:
    return Path(path).open("rb")


async def _retry(request: web.Request) -> web.StreamResponse:
    """Counts the URLs that a choice has; the page then has the button that does it."""
    form = await form_of(request)
    body = body_of(form, RetryBody)
    name = request.match_info["job"]
    plan = await in_thread(request, retried, call_of(request, msgspec.structs.replace(body, execute=False)))
    return page(request, "job_retry.html", name=name, plan=plan, body=body)


RESULTS["POST", "/jobs/{job}/retry"] = lambda done: f"{counted(done.asked, 'URL')} of job {done.job} due again"
