"""Jobs and workers of a fleet, and the status of a data folder: as text, and as JSON."""

import json
from typing import TYPE_CHECKING

import msgspec
from msgspec import to_builtins

from crawlog import outcome
from crawlog.commands.up import COUNTS, Status
from crawlog.outcome import by_rule, by_status_class, counted, left_text, needed, partitions, without_page
from crawlog.schemas.log_lines import GOES_ON
from crawlog.schemas.urls import USUAL_PRIORITY
from crawlog.streams.fleet import STILL
from crawlog.streams.jobs import how_ended
from crawlog.streams.printable import utc_text
from crawlog.terminal import table

from .operate_text import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crawlog.schemas.control import WorkerAction
    from crawlog.schemas.log_lines import LogLine
    from crawlog.streams.fleet import ExitView, HookView, JobView, LostWorker, OutputView, WorkerView

CHANGED = {
    "pause": "paused; `crawlog jobs resume {}` lets it go on",
    "resume": "goes on",
    "stop": "stopped: its queue stays, `crawlog jobs resume {}` lets it go on",
    "cancel": "cancelled; what it has fetched stays, `crawlog submit … --job {} --fresh` crawls it anew",
    "update": "is updated; `crawlog jobs show {}`",
}


def job_json(view: "JobView") -> str:
    """A job as one line of JSON."""
    return msgspec.json.encode(view).decode()


def job_lines(views: "Sequence[JobView]") -> list[str]:
    """The jobs as a table."""
    if not views:
        return ["there is no job; `crawlog submit URL…` gives one"]
    has_priorities = any(one.priority != USUAL_PRIORITY for one in views)
    has_pace = any(one.pace.pages for one in views)
    head = ("job", "state", "spider", "queued", "fetched", "failed", "rows", "dead", "submitted", "by")
    rows = [
        (
            one.name,
            state(one),
            one.spider or "-",
            *(
                f"{count:,}" if one.is_counted else "-"
                for count in (one.counts.queued + one.counts.in_flight, one.counts.fetched, one.counts.failed)
            ),
            "-" if one.rows is None else f"{one.rows:,}",
            f"{one.dead:,}",
            time_text(one.submitted_at),
            one.by or "-",
            *((str(one.priority),) if has_priorities else ()),
            *((f"{one.pace.pages:,.0f}",) if has_pace else ()),
        )
        for one in views
    ]
    more = ("priority",) * has_priorities + ("pages/min",) * has_pace
    return table([head + more, *rows], right=(3, 4, 5, 6, 7, *((9 + len(more),) if has_pace else ())))


def state(view: "JobView") -> str:
    return f"{view.state} ({view.reason})" if view.reason else view.state


def time_text(at: float) -> str:
    """A time in UTC; `-` if it is unknown."""
    return utc_text(at) if at else "-"


def job_details(view: "JobView") -> list[str]:
    """All of one job."""
    counts = view.counts
    start = "its spider is fed until the job is stopped" if view.is_fed else "its `start` goes on"
    if view.next_start:
        start = f"its `start` begins again at {time_text(view.next_start)}"
    code = f"{view.code.project} {view.code.version} ({view.code.sha256[:12]})" if view.code else ""
    due = f"; {counted(counts.again, 'URL')} due again later" if counts.again else ""
    told = [
        ("job", view.name),
        ("state", state(view) + (f"; {start}" if view.is_starting or view.next_start else "")),
        ("spider", view.spider),
        ("code", code),
        ("arguments", " ".join(f"{name}={value}" for name, value in view.args.items())),
        ("submitted", _submitted(view)),
        ("after", " ".join(view.flow.after) + (" (however they end)" if view.flow.after_any else "")),
        ("group", view.flow.group),
        ("priority", str(view.priority) if view.priority != USUAL_PRIORITY else ""),
        *(("on finish", hook_text(one)) for one in view.hooks),
        *(("fed by", output_text(one)) for one in view.feeds),
        ("started", time_text(view.started_at)),
        ("ended", time_text(view.ended_at)),
        ("counts", "" if view.is_counted else "too low: not all partitions have been reported yet"),
        ("pages", f"{counts.fetched:,} fetched, {counts.redirected:,} redirected, {counts.failed:,} failed"),
        ("bodies", f"{counts.bytes / 1e6:,.1f} MB" if counts.bytes else ""),
        ("statuses", ", ".join(f"{count:,} × {name}" for name, count in by_status_class(counts.statuses).items())),
        ("rows", f"{view.rows:,}" if view.rows is not None else ""),
        ("pace", f"{view.pace.pages:,.0f} pages, {view.pace.rows:,.0f} rows a minute" if view.pace != STILL else ""),
        ("end", f"{left_text(view.left)}, if no more is found" if view.left is not None else ""),
        ("URLs", f"{counts.queued:,} queued, {counts.in_flight:,} in flight, {counts.refused:,} refused{due}"),
        (
            "held",
            f"{counts.held:,}: no URL of them is asked for while the job, or its host, may not go on"
            if counts.held
            else "",
        ),
        *(
            ("waits for", f"worker {one}, which is paused: `crawlog workers resume {one}`")
            for one in view.paused_workers
        ),
        ("parsed again", _again_text(view)),
        ("dropped", by_rule(counts.dropped)),
        ("answers", "; ".join(without_page(counts))),
        ("needs", needed(counts.needs)),
        ("not handled", f"{view.dead:,}: `crawlog dead list --job {view.name}`" if view.dead else ""),
        *(("output", output_text(one, view.dead)) for one in view.outputs),
    ]
    settings = [("setting", f"{key} = {value}") for key, value in sorted(view.settings.items())]
    return table([(name, text) for name, text in (*told, *settings) if text and text != "-"])


def _again_text(view: "JobView") -> str:
    """How far stored pages are parsed again; empty without an order."""
    again = view.parsed_again
    if again is None:
        return ""
    return f"{counted(again.pages, 'stored page')}" + (
        "" if again.is_done else f", {again.read:.0%} of crawl.pages read"
    )


def _submitted(view: "JobView") -> str:
    """The time at which a job was submitted, and by whom; empty for the job of bare records."""
    by = f" by {view.by}" if view.by else ""
    return f"{time_text(view.submitted_at)} UTC{by}" if view.submitted_at else ""


def output_text(view: "OutputView", dead: int = 0) -> str:
    """An output in words, with the machine that FILE lies on, or that cannot write it.

    Args:
        dead: Open dead letters of its job: rows of them are missing.
    """
    where = f" in {view.place}" if view.place and view.place != view.name else ""
    where += f" on {view.machine}" if view.machine and (where or view.error) else ""
    by = f", by worker {view.worker}" if view.worker and (view.place or view.error) else ""
    rows = outcome.counted(view.rows, outcome.written_to(view.place))
    lacks = f"; {outcome.counted(dead, 'record')} could not be handled" if dead and view.state == "complete" else ""
    state = f"{view.state}, " if not lacks else ""
    waits = f", {outcome.counted(view.waiting, 'record')} waiting" if view.waiting else ""
    return f"{view.name}: {state}{rows}{waits}{where}{by}{lacks}" + (f"; {view.error}" if view.error else "")


def hook_text(view: "HookView") -> str:
    """What became of a call at the end of a job, in words."""
    tries = f" after {outcome.counted(view.tries, 'call')}" if view.tries > 1 or view.error else ""
    again = f", again at {time_text(view.next_at)}" if view.next_at else ""
    state = {"waiting": "waiting for the end", "again": "not taken"}.get(view.state, view.state)
    return f"{view.target}: {state}{tries}{again}" + (f"; {view.error}" if view.error else "")


def changed(action: str, view: "JobView") -> str:
    """What a change has made of a job."""
    how, closed = how_ended(view.state, view.reason)
    if action == "stop" and how in ("max_pages", "closed"):
        return f"job {view.name}: has ended already ({closed or how}); nothing was changed"
    return f"job {view.name}: {CHANGED[action].format(view.name)}"


def log_line(line: "LogLine", *, as_json: bool) -> str:
    """A line of a job's log."""
    if as_json:
        return msgspec.json.encode(line).decode()
    if line.level == GOES_ON:
        return line.text
    source = f" {line.source}:" if line.source else ""
    return f"{time_text(line.at)} {line.level:7}{source} {line.text}" + (f" {line.url}" if line.url else "")


def worker_lines(views: "Sequence[WorkerView]") -> list[str]:
    """The workers as a table."""
    if not views:
        return ["no worker reports; `crawlog up` or `crawlog worker STAGE` starts some"]
    head = ("worker", "stage", "host", "pid", "partitions", "pages/s", "CPU", "RSS", "version", "")
    rows = [
        (
            one.id,
            one.stage,
            one.host or "-",
            str(one.pid),
            partitions(one.partitions),
            f"{one.pages_per_s:.1f}",
            f"{one.cpu:.0%}",
            f"{one.rss / 1e6:.0f} MB",
            one.version or "-",
            "; ".join(filter(None, (coordinates(one), pause(one), one.trouble, _lends(one)))),
        )
        for one in views
    ]
    return table([head, *rows], right=(3, 5, 6, 7))


LOST_SHOWN = 20  # Lost workers that are listed, at most

NOT_READ = (
    "the workers lost in the last hour are not known: its reports are too many; `GET /api/v1/workers/lost` has them"
)


def lost_lines(views: "Sequence[LostWorker]") -> list[str]:
    """The workers that ended in the last hour as a table."""
    if not views:
        return ["no worker was lost in the last hour"]
    rows = [
        (
            time_text(one.lost_at),
            one.id,
            one.stage,
            one.host or "-",
            str(one.pid),
            one.reason + ("; another process of this name came" if one.is_replaced else ""),
        )
        for one in views[:LOST_SHOWN]
    ]
    more = [f"and {len(views) - LOST_SHOWN} more"] if len(views) > LOST_SHOWN else []
    return [*table([("lost (UTC)", "worker", "stage", "host", "pid", "reason"), *rows], right=(4,)), *more]


def coordinates(one: "WorkerView") -> str:
    return "coordinator" if one.is_coordinator else ""


def pause(one: "WorkerView") -> str:
    """That a worker is paused, with the command that ends it; empty if it works."""
    if not one.paused and not one.is_held:
        return ""
    return f"paused: `crawlog {f'workers resume {one.id}' if one.is_held else f'control resume --stage {one.stage}'}`"


def _lends(one: "WorkerView") -> str:
    exits = ", ".join(f"{name} at {place}" for name, place in one.exits.items())
    return f"lends {exits}; {counted(one.tunnels, 'tunnel')}" if exits else ""


def ordered_line(worker: "WorkerView", action: "WorkerAction") -> str:
    """What a worker does at an order, and what may start another one after it was drained."""
    if action == "pause":
        return (
            f"worker {worker.id} (pid {worker.pid}) pauses within 2 s and keeps its partitions, whose jobs wait;"
            f" `crawlog workers resume {worker.id}` lets it go on"
        )
    if action == "resume":
        also = f"; its stage is paused too: `crawlog control resume --stage {worker.stage}`"
        return f"worker {worker.id} (pid {worker.pid}) goes on within 2 s" + also * (
            worker.paused and not worker.is_held
        )
    how = "it lets answers under way end" if worker.stage == "exit" else "it hands its partitions over"
    told = f"worker {worker.id} (pid {worker.pid}) is told to {action}: {how} and ends"
    if action == "drain" and not worker.supervisor:
        told += ". It is none of `crawlog up`: what started it (Docker, systemd) may start another one; stop it there"
    return told


RARE = ("paused", "held")  # Counts that are left out if they are 0


def status_json(found: Status) -> str:
    """One object on one line."""
    held = found.holder._asdict() if found.holder else None
    commands = [to_builtins(command) for command in found.commands]
    told = {"data": str(found.data), "bootstrap": found.bootstrap or None, "engine": found.engine}
    fleet = to_builtins(found.fleet) if found.fleet else {}
    lists = {name: fleet.get(name, []) for name in ("workers", "stages", "hosts", "exits")}
    of_fleet = lists | {"dead": fleet.get("dead", 0)}
    return json.dumps(told | {"holder": held, "jobs": found.jobs, "commands": commands} | of_fleet)


def status_lines(found: Status) -> list[str]:
    """The status as text."""
    held = found.holder
    foreign = "not started by crawlog" if found.bootstrap else "not running"
    broker = f"pid {found.engine}" if found.engine else foreign
    lines = [f"data     {found.data}", f"kafka    {found.bootstrap or '-'} ({broker})"]
    lines.append(f"held by  crawlog {held.what} (pid {held.pid})" if held else "held by  nobody")
    lines += [f"worker   {name} (pid {pid})" for name, pid in _silent(found).items()]
    lines += _fleet(found)
    if held and not held.workers:
        lines.append(f"worker   none is alive; their logs: {found.data / 'logs'}")
    for job in found.jobs:
        counts = ", ".join(f"{job[name]} {name}" for name in COUNTS if name in job and (job[name] or name not in RARE))
        if job.get("dropped"):
            counts += f", {sum(job['dropped'].values())} dropped ({by_rule(job['dropped'])})"
        if job.get("needs"):
            counts += f"; {needed(job['needs'])}"
        if not job.get("is_counted", True):
            counts = "its counts are not known: not all partitions have been reported yet"
        elif job.get("reported", 0) < job.get("partitions", 0):
            counts += f" (only {job['reported']} of {job['partitions']} partitions have reported)"
        state = f"{job['state']} ({job['reason']})" if job.get("reason") else job["state"]
        lines.append(f"job      {job['name']}: {state}{', ' + counts if counts else ''}")
        for one in job.get("outputs", ()):
            waits = f"{counted(one['waiting'], 'record')} waiting"
            lines.append(f"output   {one['name']} of {job['name']}: {one['error'] or waits}")
    return [*lines, *(f"command  {command}" for command in map(described, found.commands))]


def _silent(found: Status) -> dict[str, int]:
    """The workers of this folder that have not reported, by name: the others stand in the fleet's table."""
    reported = {one.id for one in found.fleet.workers} if found.fleet else set()
    return {name: pid for name, pid in (found.holder.workers if found.holder else {}).items() if name not in reported}


def _fleet(found: Status) -> list[str]:
    """The workers of all machines, and the lag of each stage."""
    if found.fleet is None or not found.fleet.workers:
        return []
    workers = [f"worker   {line}" for line in worker_lines(found.fleet.workers)[1:]]
    lags = [
        f"stage    {one.stage}: {counted(one.workers, 'worker')}, {counted(one.lag, 'record')} behind,"
        f" {one.pages_per_s:.1f} pages/s" + (", paused" if one.is_paused else "")
        for one in found.fleet.stages
    ]
    exits = [f"exit     {_exit_text(one)}" for one in found.fleet.exits]
    waiting = [
        f"host     {one.host}: {counted(one.queued, 'URL')}, {one.reason}, the first one wakes in {one.wait_s:.0f} s"
        for one in found.fleet.hosts
        if one.reason
    ]
    return [*workers, *lags, *exits, *waiting]


def _exit_text(view: "ExitView") -> str:
    of = view.figures
    told = [counted(of.requests, "request"), counted(of.bans, "ban"), counted(of.failures, "failure")]
    told += [f"{of.bytes / 1e6:.1f} MB", f"median {of.median_s:.3g} s"]
    told += [f"rests {of.rests_s:.0f} s"] if of.rests_s else []
    told += [f"rests for {counted(of.rests_at, 'host')}"] if of.rests_at else []
    return f"{view.name} of {view.worker}: {', '.join(told)}"
