"""`crawlog recrawl`, and `crawlog jobs retry`: URLs that are done are fetched again, in the same epoch."""

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.outcome import counted
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import Command, settings_of, settings_options
from .reach import existing_log, login_of, while_up

if TYPE_CHECKING:
    from crawlog.commands.recrawl import Recrawl, RecrawlChoice
    from crawlog.streams.settings import Settings

NAMED = 20  # URLs without a result that are named, at most


def choice_options(command: Command) -> Command:
    """Adds the options that choose among the URLs of a job that are done."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only say how many URLs would be asked for again."),
        click.option("--older-than", metavar="7d", default="", help="Those whose result is older: 45s, 30m, 6h, 7d."),
        click.option(
            "--status", metavar="403,5xx,dns", default="", help="Those with one of these statuses or reasons."
        ),
        click.option("--failed", is_flag=True, help="Those without a whole answer, after all attempts."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL…]")
@click.option("--job", metavar="NAME", default="", help="Job of the URLs; may be left out if the log has only one.")
@choice_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options
def recrawl(urls: tuple[str, ...], job: str, as_json: bool, **given: Any) -> int:
    """Fetch URLs of a job again that are done: those named, failed ones, those of some statuses, or old ones.

    They keep their requests, depths and callbacks, and their new rows replace the old ones. Links of theirs that the
    job knows are not asked for again.

    Example: crawlog recrawl --job shop --older-than 7d
    """
    from . import arguments

    checked, _ = arguments.logins_apart(arguments.checked_urls(urls))
    if job:
        arguments.job_name(job)
    choice = choice_of(given, tuple(checked))
    with existing_log(settings := settings_of(given)) as reached:
        return asked_again(settings, reached, job or _only_job(reached), choice, given, as_json=as_json)


def choice_of(given: dict[str, Any], urls: tuple[str, ...] = ()) -> "RecrawlChoice":
    """The choice that the values of `choice_options` describe.

    Raises: Misconfigured: a value is wrong, or nothing is chosen.
    """
    from crawlog.commands.recrawl import RecrawlChoice
    from crawlog.streams.spans import span_s

    try:
        before = time.time() - span_s(given["older_than"]) if given["older_than"] else None
    except ValueError as error:
        raise Misconfigured(f"--older-than: {error}") from None
    statuses = tuple(filter(None, (one.strip() for one in given["status"].split(","))))
    choice = RecrawlChoice(urls, given["failed"], statuses, before)
    choice.check()
    return choice


def asked_again(
    settings: "Settings",
    reached: "Settings",
    job: str,
    choice: "RecrawlChoice",
    given: dict[str, Any],
    *,
    as_json: bool,
) -> int:
    """Has the chosen URLs fetched again, and prints how many they are."""
    import msgspec

    from crawlog.commands.recrawl import recrawl as does
    from crawlog.streams.fleet import ProgressReader
    from crawlog.streams.jobs import FleetReports

    with closing(ProgressReader(reached, FleetReports(), login_of(settings, reached))) as watch:
        look = while_up(settings, reached, watch.folds)
        done = does(reached, job, choice, execute=not given["dry_run"], report=tell, look=look)
    answer(*(_lines(done) if not as_json else [msgspec.json.encode(done).decode()]))
    return outcome.FINISHED


def _only_job(settings: "Settings") -> str:
    """Raises: Misconfigured: the log has several jobs, or none."""
    from crawlog.jobs.changes import list_jobs

    names = [one.name for one in list_jobs(settings)]
    if len(names) != 1:
        there = f"the log has {', '.join(names[:NAMED])}" if names else "the log has none"
        raise Misconfigured(f"of which job? Give --job NAME; {there}")
    return names[0]


def _lines(done: "Recrawl") -> list[str]:
    """What is asked for again, what is not and why, and what to do next."""
    lines = [
        f"{url} has no result in job {done.job}; `crawlog why {url}` has the reason" for url in done.unknown[:NAMED]
    ]
    if len(done.unknown) > NAMED:
        lines.append(f"{len(done.unknown) - NAMED:,} more URLs have no result")
    if done.waiting:
        lines.append(f"{counted(done.waiting, 'URL')} asked for again before, without a new result yet: left out")
    if done.lost:
        lines.append(f"{counted(done.lost, 'URL')} left out: the log no longer holds the request. Seed it anew.")
    verb = "would be asked for again" if done.is_plan else "asked for again"
    lines.append(f"{done.asked:,} of {counted(done.of, 'URL')} with a result in job {done.job} {verb}")
    if done.asked and not done.is_plan and done.state in ("stopped", "failed", "paused"):
        lines.append(f"the job is {done.state}: they wait for `crawlog jobs resume {done.job}`")
    return lines
