"""`crawlog control`, `dead` and `workers`: the commands of an operator."""

from typing import Any, cast, get_args

import rich_click as click

from crawlog import outcome
from crawlog.schemas.control import WorkerAction
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import Command, CommandGroup, settings_of, settings_options
from .reach import existing_log, fleet_log, reachable_log

STAGES = ("fetch", "parse", "sink")
ORDERS = ("pause", "resume", "block", "unblock", "slow", "stop", "cancel", "clear", "rest", "list")


@click.command()
@click.argument("action", type=click.Choice(ORDERS), metavar="ACTION")
@click.option("--job", metavar="NAME", default="", help="Of a job.")
@click.option("--host", metavar="HOST", default="", help="http://name:port, name (any scheme) or .name (all below).")
@click.option("--stage", type=click.Choice(STAGES), default=None, help="Of a stage.")
@click.option("--exit", "exit_name", metavar="NAME", default="", help="Exit to pause, resume or rest, on all workers.")
@click.option(
    "--delay",
    metavar="S",
    type=click.FloatRange(0),
    default=0.0,
    help="For slow: seconds between requests; for rest: its length in seconds.",
)
@click.option("--json", "as_json", is_flag=True, help="For list: print one JSON object a command.")
@settings_options
def control(
    action: str, job: str, host: str, stage: str | None, exit_name: str, delay: float, as_json: bool, **given: Any
) -> int:
    """Pause, slow, block or stop what runs; cancel a job; clear a host's back-off; list what is in force.

    ACTION is one of pause, resume, block, unblock, slow, stop, cancel, clear, rest, list.
    """
    from crawlog.commands import control as commands
    from crawlog.jobs.changes import cancel_job

    from . import arguments
    from .operate_text import cancelled, command_json, command_lines, given_text

    settings = settings_of(given)
    if job:
        arguments.job_name(job)
    if action == "cancel" and (not job or host or stage or exit_name):
        raise Misconfigured("crawlog control cancel: name the job with --job NAME, and nothing else")
    command = (
        None if action in ("cancel", "list") else commands.wanted(action, job, host, stage or "", delay, exit_name)
    )
    if action == "list":
        with existing_log(settings) as reached:
            found = commands.listed(reached)
        answer(*(command_json(found) if as_json else command_lines(found)))
        return outcome.FINISHED
    with reachable_log(settings) as reached:
        from crawlog.streams.log import ensure_topics

        ensure_topics(reached, tell)
        if command:
            tell(given_text(commands.give(reached, command)))
        else:
            cancel_job(reached, job)
            tell(cancelled(job))
    return outcome.FINISHED


@click.group(cls=CommandGroup)
def dead() -> None:
    """Dead letters: records that could not be handled. List, show, redrive and lay them aside (drop)."""


def _choice_options(command: Command) -> Command:
    """Adds the options that filter letters."""
    for option in (
        click.option("--reason", metavar="TEXT", default="", help="Whose error holds this text."),
        click.option("--job", metavar="NAME", default="", help="Of this job."),
        click.option("--stage", metavar="STAGE", default="", help="Of this stage: frontier, parse, sink, control."),
    ):
        command = option(command)
    return command


@dead.command("list")
@_choice_options
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, help="The newest N (50).")
@click.option("--all", "handled", is_flag=True, help="Those that were redriven or laid aside, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a dead letter.")
@settings_options
def dead_list(stage: str, job: str, reason: str, limit: int, handled: bool, as_json: bool, **given: Any) -> int:
    """List the open dead letters by error, the commonest first: offset, time, job, URL."""
    from crawlog.commands.dead import listed
    from crawlog.streams.dead_letters import LetterChoice

    from .operate_text import list_json, list_lines

    with existing_log(settings_of(given)) as reached:
        found = listed(reached, LetterChoice(stage, job, reason), limit, handled=handled)
    answer(*(list_json(found) if as_json else list_lines(found)))
    return outcome.FINISHED


@dead.command("show")
@click.argument("offset", type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@settings_options
def dead_show(offset: int, as_json: bool, **given: Any) -> int:
    """Show one dead letter: headers, traceback, and the record as it was."""
    from crawlog.commands.dead import Dead, opened

    from .operate_text import show_json, show_lines

    with existing_log(settings_of(given)) as reached:
        found = opened(reached, Dead(reached).letter(offset))
    answer(*([show_json(found)] if as_json else show_lines(found)))
    return outcome.FINISHED


def _letters_options(command: Command) -> Command:
    """Adds the options that choose letters, and `--dry-run` and `--execute`."""
    for option in (
        click.option("--execute", is_flag=True, help="Do it."),
        click.option("--dry-run", is_flag=True, help="Say what would be done; the default."),
        click.option("--all", "every", is_flag=True, help="All that are open, by the filters."),
        click.argument("offsets", nargs=-1, type=click.IntRange(0), metavar="OFFSET…"),
    ):
        command = option(command)
    return _choice_options(command)


@dead.command("redrive")
@_letters_options
@settings_options
def dead_redrive(
    offsets: tuple[int, ...], every: bool, dry_run: bool, execute: bool, stage: str, job: str, reason: str, **given: Any
) -> int:
    """Send the records back to the stages that could not handle them, as they were."""
    from crawlog.commands.dead import check_choice, redriven
    from crawlog.streams.dead_letters import LetterChoice

    from . import arguments
    from .operate_text import redrive_lines

    is_execution = arguments.is_execution(dry_run=dry_run, execute=execute)
    check_choice(offsets, every=every)
    with existing_log(settings_of(given)) as reached:
        choice = LetterChoice(stage, job, reason, frozenset(offsets))
        answer(*redrive_lines(redriven(reached, choice, execute=is_execution, report=tell)))
    return outcome.FINISHED


@dead.command("drop")
@_letters_options
@settings_options
def dead_drop(
    offsets: tuple[int, ...], every: bool, dry_run: bool, execute: bool, stage: str, job: str, reason: str, **given: Any
) -> int:
    """Lay dead letters aside: they stay in the log, and are listed no more."""
    from crawlog.commands.dead import check_choice, dropped
    from crawlog.streams.dead_letters import LetterChoice

    from . import arguments
    from .operate_text import drop_lines

    is_execution = arguments.is_execution(dry_run=dry_run, execute=execute)
    check_choice(offsets, every=every)
    with existing_log(settings_of(given)) as reached:
        choice = LetterChoice(stage, job, reason, frozenset(offsets))
        answer(*drop_lines(dropped(reached, choice, execute=is_execution)))
    return outcome.FINISHED


@click.command()
@click.argument(
    "action", type=click.Choice(("list", "lost", *get_args(WorkerAction))), default="list", metavar="[ACTION]"
)
@click.argument("name", default="", metavar="[ID]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a worker.")
@settings_options
def workers(action: str, name: str, as_json: bool, **given: Any) -> int:
    """List the workers of all machines; pause or resume one; drain or stop one, which hands its partitions over first.

    ACTION is one of list (the default), lost (those that ended in the last hour), pause, resume, drain, stop. A paused
    worker keeps its partitions and handles nothing, until `resume` or its process ends. After `stop` a supervisor
    starts another process, after `drain` that of `crawlog up` does not.
    """
    import msgspec

    from crawlog.commands.fleet_workers import all_workers, list_workers, order_worker

    from . import fleet_text

    reached = fleet_log(settings_of(given))
    if action == "list" and as_json:
        answer(*(msgspec.json.encode(one).decode() for one in list_workers(reached)))
        return outcome.FINISHED
    if action in ("list", "lost"):
        found = all_workers(reached)
        lost = fleet_text.lost_lines(found.lost) if found.is_whole else [fleet_text.NOT_READ]
        if as_json:
            answer(*(msgspec.json.encode(one).decode() for one in found.lost))
        else:
            answer(*(fleet_text.worker_lines(found.living) if action == "list" else ()), *lost)
        return outcome.FINISHED
    if not name:
        raise Misconfigured(f"crawlog workers {action}: name the worker; `crawlog workers` lists them")
    order = cast("WorkerAction", action)
    tell(fleet_text.ordered_line(order_worker(reached, name, order), order))
    return outcome.FINISHED
