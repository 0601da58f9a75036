"""What `crawlog jobs top` shows: a moment of the fleet as sections that fill a terminal. Pure.

FleetStatus, alerts, TopView (order, place), height ─► head ─► what needs a look ─► stages ─► jobs, workers, hosts
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from crawlog.outcome import counted, span
from crawlog.service.watch import Alert
from crawlog.streams.fleet import FleetStatus, HostView, JobView, StageView, WorkerView
from crawlog.streams.jobs import traits
from crawlog.streams.printable import escaped

from .fleet_text import coordinates

HOSTS, LOOKS = 5, 3  # Lines of these sections, at most

PLAIN = 1_000  # Lines of each section where nobody pages: in a pipe

KEYS = "q quit  ↑ ↓ jobs  sort: s state  n name  p pages  r rows  f failed  d dead"

Cell = tuple[str, str]  # Text, and its style


class TopView(NamedTuple):
    """What the user has chosen.

    Attributes:
        sort: Key of `SORTS`.
        is_reversed: Whether the usual end comes first.
        first: Jobs above the first one shown.
    """

    sort: str = "s"
    is_reversed: bool = False
    first: int = 0


# How jobs are sorted, by the key that chooses it.
SORTS: dict[str, Callable[[JobView], tuple[object, ...]]] = {
    "s": lambda job: (traits(job.state).ended, job.state != "running", -job.pace.pages, -job.submitted_at, job.name),
    "n": lambda job: (job.name,),
    "p": lambda job: (-job.pace.pages, job.name),
    "r": lambda job: (-(job.rows or 0), job.name),
    "f": lambda job: (-job.counts.failed, job.name),
    "d": lambda job: (-job.dead, job.name),
}

# Keys that move the list of jobs, and by how many lines; None for a page.
MOVES: dict[str, int | None] = {"\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": None, "\x1b[6~": None}


def pressed(view: TopView, key: str, jobs: int, page: int) -> TopView | None:
    """The view after a key; None if it quits, the same one if it does nothing.

    Args:
        jobs: Their number.
        page: Lines that jobs have.
    """
    if key in ("q", "Q"):
        return None
    if key in SORTS:
        return TopView(key, key == view.sort and not view.is_reversed)
    if key in MOVES:
        lines = MOVES[key] or (page if key == "\x1b[6~" else -page)
        return view._replace(first=max(0, min(view.first + lines, jobs - page)))
    return view


def room(status: FleetStatus, alerts: int, height: int | None) -> tuple[int, int, int]:
    """Lines for jobs, workers and hosts, without their heads; all of them if there is no height.

    Hosts and workers take what they need up to a limit; jobs have the rest.
    """
    if height is None:
        return PLAIN, PLAIN, PLAIN
    left = height - min(alerts, LOOKS) - len(status.stages) - 4  # the head, the heads of stages and jobs, the keys
    hosts = min(HOSTS, len(status.hosts), max(0, left // 4 - 1))
    workers = min(len(status.workers), max(1, left // 3))
    return max(1, left - workers - 1 - (hosts + 1 if hosts else 0)), workers, hosts


def frame(
    status: FleetStatus,
    alerts: Sequence[Alert],
    view: TopView,
    at: float,
    height: int | None = None,
    note: str = "",
) -> RenderableType:
    """All sections.

    Args:
        alerts: What needs a look, the worst first.
        at: UTC epoch seconds.
        height: Lines of the terminal; None for a text without keys.
        note: In the head: what is wrong with this view itself.
    """
    jobs_room, workers_room, hosts_room = room(status, len(alerts), height)
    jobs = sorted(status.jobs, key=SORTS[view.sort], reverse=view.is_reversed)
    first = 0 if height is None else min(view.first, max(0, len(jobs) - jobs_room))
    parts: list[RenderableType] = [_head(status, at, note), *_looks(alerts)]
    parts.append(_section(("stage", "workers", "to read", "pages/s", ""), map(_stage, status.stages)))
    shown = jobs[first : first + jobs_room]
    title = f"job{_place(first, len(shown), len(jobs))}"
    columns = (title, "state", "queued", "pages", "failed", "rows", "dead", "pages/min")
    parts.append(_section(columns, map(_job, shown)))
    workers = sorted(status.workers, key=lambda one: (not one.trouble, -round(one.cpu, 1), one.id))[:workers_room]
    title = f"worker{_place(0, len(workers), len(status.workers))}"
    parts.append(_section((title, "stage", "machine", "CPU", "memory", "pages/s", ""), map(_worker, workers)))
    if hosts := status.hosts[:hosts_room]:
        parts.append(_section(("slowest host", "queued", "next in", ""), map(_host, hosts)))
    if height is not None:
        parts.append(Text(KEYS, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _looks(alerts: Sequence[Alert]) -> Iterator[Text]:
    """The first alerts, with the command that shows or mends what is wrong."""
    for number, one in enumerate(alerts[:LOOKS], start=1):
        more = f" (and {len(alerts) - LOOKS} more)" if number == LOOKS < len(alerts) else ""
        told = ": ".join(filter(None, (f"{one.kind} {one.subject}".strip(), one.text, one.hint)))
        style = "bold red" if one.severity == "critical" else "bold yellow"
        yield Text(escaped(told + more), style=style, no_wrap=True, overflow="ellipsis")


def _head(status: FleetStatus, at: float, note: str) -> Text:
    running = sum(1 for job in status.jobs if job.state == "running")
    told = [
        *([note] if note else []),
        f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC",
        f"{counted(len(status.jobs), 'job')}, {running} running",
    ]
    told += [counted(len(status.workers), "worker"), counted(status.dead, "dead letter")]
    return Text(
        escaped("crawlog · " + " · ".join(told)),
        style="bold red" if note else "bold",
        no_wrap=True,
        overflow="ellipsis",
    )


def _place(first: int, shown: int, total: int) -> str:
    return f" {first + 1}-{first + shown} of {total}" if shown < total else ""


NARROW = ("stage", "state")  # Columns of short words

WIDE = ("machine", "")  # Columns of words that are cut where there is no room, as is the first one


def _section(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table over the whole width; columns that are neither wide nor narrow have numbers."""
    table = Table(box=None, expand=True, header_style="reverse", padding=(0, 1, 0, 0), pad_edge=False)
    for number, name in enumerate(columns):
        is_wide = name in WIDE or (not number and name not in NARROW)
        table.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if is_wide or name in NARROW else "right",
            ratio=(2 if number == 0 else 1) if is_wide else None,
            min_width=0 if is_wide else len(name),
        )
    for cells in rows:
        table.add_row(*(Text(escaped(text), style=style) for text, style in cells))
    return table


def _stage(one: StageView) -> list[Cell]:
    state = ("paused: crawlog control resume --stage " + one.stage, "yellow") if one.is_paused else ("", "")
    style = "bold red" if one.lag and not one.workers else ""
    return [(one.stage, ""), (str(one.workers), style), (f"{one.lag:,}", ""), (f"{one.pages_per_s:,.1f}", ""), state]


# Styles of a job's states; the word alone says it, too.
STATES = {"running": "green", "failed": "bold red", "paused": "yellow", "waiting": "yellow", "pending": "yellow"}


def _job(one: JobView) -> list[Cell]:
    counts = one.counts
    known = one.is_counted
    return [
        (one.name, ""),
        (one.state, STATES.get(one.state, "dim") if not one.dead else "yellow"),
        (f"{counts.queued + counts.in_flight:,}" if known else "-", ""),
        (f"{counts.fetched:,}" if known else "-", ""),
        (f"{counts.failed:,}" if known else "-", "yellow" if counts.failed else ""),
        ("-" if one.rows is None else f"{one.rows:,}", ""),
        (f"{one.dead:,}", "bold red" if one.dead else ""),
        (f"{one.pace.pages:,.0f}", ""),
    ]


def _worker(one: WorkerView) -> list[Cell]:
    state = "; ".join(filter(None, (one.trouble, "paused" if one.paused or one.is_held else "", coordinates(one))))
    return [
        (one.id, ""),
        (one.stage, ""),
        (one.host or "-", ""),
        (f"{one.cpu:.0%}", ""),
        (f"{one.rss / 1e6:,.0f} MB", ""),
        (f"{one.pages_per_s:,.1f}", ""),
        (state, "bold red" if one.trouble else "yellow" if one.paused or one.is_held else ""),
    ]


def _host(one: HostView) -> list[Cell]:
    wait = f"{one.wait_s:.1f} s" if one.wait_s < 60 else span(one.wait_s)
    return [(one.host, ""), (f"{one.queued:,}", ""), (wait, ""), (one.reason, "yellow")]
