"""`crawlog schedule`: jobs that are submitted again and again."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.streams.printable import escaped, shown_time, utc_text
from crawlog.terminal import answer, table, tell

from .jobs import requested, submit
from .options import CommandGroup, settings_of, settings_options
from .reach import existing_log, reachable_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crawlog.jobs.schedules import NextRun, ScheduleView
    from crawlog.streams.jobs import ControlState
    from crawlog.streams.settings import Settings

T = TypeVar("T")

AT_ONCE = ("wait", "as_json")  # Options of `submit` that are about the command, not about the job


@click.group(cls=CommandGroup)
def schedule() -> None:
    """Submit jobs again and again, at times of the clock or at intervals; the fleet's workers do it."""


@schedule.command()
@click.argument("name")
@click.option("--cron", metavar="EXPR", default="", help="Minute, hour, day, month, weekday, such as '0 6 * * 1-5'.")
@click.option("--tz", metavar="ZONE", default="UTC", help="Time zone of --cron, such as Europe/Berlin (UTC).")
@click.option("--every", metavar="T", default="", help="A time such as 90s, 15m, 6h or 1d12h, from now on.")
@click.option(
    "--catch-up",
    type=click.Choice(("none", "last", "all")),
    default="none",
    help="Times that no worker was there for: none of them is made up for, the last one, or all (at most 100).",
)
@click.option(
    "--overlap",
    type=click.Choice(("skip", "queue", "replace")),
    default="skip",
    help="A time at which the former run goes on: skip it, queue it, or replace that run, which is cancelled.",
)
@click.argument("command", nargs=-1, required=True, metavar="-- submit …")
@click.option("--json", "as_json", is_flag=True, help="Print the schedule as one JSON object.")
@settings_options
def add(name: str, command: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Add a schedule.

    Each run is a new job, NAME with the planned time in UTC: news-20261129T0600Z.

    Behind -- stands the `submit` that each run does. A pattern as its spider, such as 'shop-*', is one job each. Of a
    project without --version it is the newest one at that time.

    Example: crawlog schedule add news --cron "0 6 * * 1-5" --tz Europe/Berlin -- submit --project P --spider news
    """
    from crawlog.jobs.record import outputs_of
    from crawlog.jobs.schedules import ScheduleRequest, add_schedule

    from . import arguments

    of_submit = _submitted(command)
    urls, sitemaps = arguments.sitemaps_apart([*of_submit["urls"], *_seeds(of_submit.pop("seeds"))])
    names = ("verbose", "bootstrap", "data", "config")
    merged = of_submit | {one: given[one] or of_submit[one] for one in names}
    own, request = requested(merged | {"urls": urls})
    wanted = ScheduleRequest(
        name=name,
        submit=request,
        cron=given["cron"],
        tz=given["tz"],
        every=given["every"],
        catch_up=given["catch_up"],
        overlap=given["overlap"],
        sitemaps=tuple(one.removeprefix(arguments.SITEMAP) for one in sitemaps),
    )
    settings = settings_of(own | {"pairs": (*given["pairs"], *own["pairs"])})
    outputs_of(settings, request.outputs)
    with reachable_log(settings) as reached:
        view = add_schedule(reached, wanted, say=tell)
    if as_json:
        answer(msgspec.json.encode(view).decode())
    else:
        tell(f"schedule {name} runs next at {_time(view.next_at, view.tz)}; `crawlog schedule next {name}` shows more")
    return outcome.FINISHED


def _submitted(command: tuple[str, ...]) -> dict[str, Any]:
    """The values of the options behind `--`. Raises: Misconfigured: it is no `submit` that can be done later."""
    name, *rest = command
    if name != "submit":
        raise Misconfigured(
            f"crawlog schedule add: behind -- stands what each run does, `submit …`, and not {name!r:.100}"
        )
    context = submit.make_context("crawlog schedule add … -- submit", rest)
    given: dict[str, Any] = context.params
    if at_once := [one for one in AT_ONCE if given.pop(one)]:
        option = "--json" if "as_json" in at_once else "--wait"
        raise Misconfigured(f"{option} behind --: nobody waits for a run; `crawlog jobs` and `schedule list` show them")
    return given


def _seeds(file: Path | None) -> list[str]:
    """The URLs in a file."""
    if file is None:
        return []
    from crawlog.agents.seed import Source

    from . import arguments

    with Source([str(arguments.existing_file(file, "--seeds"))]) as source:
        lines = [line.decode(errors="replace").strip() for _, part in source.parts() for line in part]
    return [line for line in lines if line and not line.startswith("#")]


@schedule.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a schedule.")
@settings_options
def schedule_list(as_json: bool, **given: Any) -> int:
    """List the schedules: their times, their last run and its jobs."""
    from crawlog.jobs.schedules import list_schedules

    found = _asked(settings_of(given), list_schedules)
    answer(*([msgspec.json.encode(one).decode() for one in found] if as_json else schedule_lines(found)))
    return outcome.FINISHED


@schedule.command("next")
@click.argument("name", default="", metavar="[NAME]")
@click.option("--limit", metavar="N", type=click.IntRange(1, 1_000), default=10, help="So many times (10).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
@settings_options
def schedule_next(name: str, limit: int, as_json: bool, **given: Any) -> int:
    """Show the next planned times of a schedule, or of all."""
    from crawlog.jobs.schedules import next_runs

    found = _asked(settings_of(given), lambda control: next_runs(control, name, limit))
    if as_json:
        answer(*(msgspec.json.encode(one._asdict()).decode() for one in found))
    else:
        rows = [(_time(one.at), one.schedule, _some(one.jobs)) for one in found]
        answer(*(table([("time", "schedule", "jobs"), *rows]) if rows else ["no time is planned"]))
    return outcome.FINISHED


def _changing(name: str, done: str, summary: str) -> None:
    """Adds a command that changes one schedule."""

    @schedule.command(name, help=summary)
    @click.argument("name", metavar="NAME")
    @click.option("--json", "as_json", is_flag=True, help="Print what became of it as one JSON object.")
    @settings_options
    def change(as_json: bool, **given: Any) -> int:
        from crawlog.jobs import schedules

        does: Callable[[Settings, str], ScheduleView | NextRun] = getattr(schedules, f"{name}_schedule")
        with existing_log(settings_of(given)) as reached:
            found = does(reached, given["name"])
        if as_json:
            answer(msgspec.json.encode(found).decode())
        else:
            jobs = _some(found.jobs) if isinstance(found, schedules.NextRun) else ""
            tell(done.format(name=given["name"], jobs=jobs))
        return outcome.FINISHED


_changing(
    "pause",
    "schedule {name} is paused; `crawlog schedule resume {name}` ends that",
    "Plan nothing more until `resume`.",
)
_changing("resume", "schedule {name} goes on", "Plan again, from now on: times of the pause are not made up for.")
_changing("run", "{jobs}: a fetch worker begins it within a second", "Begin a run now; the planned times stay.")
_changing("remove", "schedule {name} is removed; its jobs stay", "Remove a schedule; the jobs of its runs stay.")


def _asked(settings: "Settings", question: "Callable[[ControlState], T]") -> T:
    from crawlog.streams.control import read_control
    from crawlog.streams.log import Topics

    with existing_log(settings) as reached:
        return question(read_control(reached, Topics(reached.kafka.prefix)))


def schedule_lines(found: "Sequence[ScheduleView]") -> list[str]:
    """The schedules as a table, with the errors below it."""
    if not found:
        return ["there is no schedule; `crawlog schedule add NAME --every 6h -- submit URL` adds one"]
    heads = ("schedule", "times", "next", "last run", "its jobs", "waiting", "skipped")
    rows = [
        (
            one.name,
            f"{one.cron} {one.tz}" if one.cron else f"every {one.every_s} s",
            "paused" if one.paused else _time(one.next_at),
            _time(one.last_at),
            _some([f"{job.job.removeprefix(one.name)} {job.state or 'gone'}" for job in one.jobs]) or "-",
            f"{one.waiting:,}",
            f"{one.skipped:,}",
        )
        for one in found
    ]
    errors = [f"{one.name}: {escaped(one.error)}" for one in found if one.error]
    return [*table([heads, *rows], (5, 6)), *errors]


def _some(names: "Sequence[str]") -> str:
    return ", ".join(map(escaped, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _time(at: int | None, zone: str = "UTC") -> str:
    if at is None:
        return "-"
    text = f"{utc_text(at)} UTC"
    return text if zone == "UTC" else f"{text} ({shown_time(at, ZoneInfo(zone)):%H:%M} in {zone})"
