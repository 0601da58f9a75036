"""`crawlog submit` and `jobs`: the jobs of a fleet."""

import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import rich_click as click

from crawlog import outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, tell

from .options import ON_FINISH, settings_of, settings_options
from .reach import existing_log, fleet_log
from .recrawling import choice_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from crawlog.jobs.follow import Before
    from crawlog.jobs.request import JobRequest, Value
    from crawlog.streams.fleet import JobView
    from crawlog.streams.settings import Settings

ACTIONS = ("list", "show", "logs", "pause", "resume", "stop", "cancel", "delete", "retry", "update", "top")

OF_COMMAND = ("kafka.", "engine.", "log.", "run.data")  # Settings that are of the command itself, not of the job

OF_DEPLOYED = (*OF_COMMAND, "security.trusted_keys")  # Those of a command that loads a deployed spider

DEPLOYED = "A spider of deployed code needs --project P; `crawlog projects list` names the projects."


@click.command()
@click.argument("urls", nargs=-1, metavar="URL|sitemap:URL…")
@click.option("-o", "--output", "outputs", metavar="NAME", multiple=True, help="Output of the workers: a plain name.")
@click.option("--depth", metavar="N", type=click.IntRange(0), help="Deepest link taken, counted from the seeds.")
@click.option("--max-pages", metavar="N", type=click.IntRange(1), help="End after about this many pages.")
@click.option(
    "--seeds",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="More URLs: one a line, JSON lines or a sitemap; - is stdin.",
)
@click.option("--spider", metavar="SPIDER", help="A spider of --project; on the local fleet also FILE.py[:Class].")
@click.option("--project", metavar="P", default="", help="Project that `crawlog deploy` has put into the log.")
@click.option("--version", metavar="V", default="", help="Its version (the newest one).")
@click.option("-a", "args", metavar="NAME=VALUE", multiple=True, help="Argument of the spider; may be repeated.")
@click.option("--job", metavar="NAME", default="", help="Name of the job; without it a hash of seeds and spider.")
@click.option(
    "--priority",
    metavar="N",
    type=click.IntRange(0, 9),
    help="Its share beside other jobs, 0 to 9: each step doubles it (5).",
)
@click.option("--paused", is_flag=True, help="It waits for `crawlog jobs resume NAME`.")
@click.option("--fresh", is_flag=True, help="Begin a known job again from its seeds, in a new epoch.")
@click.option("--after", metavar="JOB", multiple=True, help="Run when it has ended, or all of group:NAME. Repeatable.")
@click.option("--after-any", is_flag=True, help="With --after: run also if one failed, was cancelled or deleted.")
@click.option("--feed", metavar="JOB:FIELD", multiple=True, help="URLs in rows of this job are its seeds. Repeatable.")
@click.option("--on-finish", metavar="URL|NAME", multiple=True, help=ON_FINISH)
@click.option("--group", metavar="NAME", default="", help="Group that the job belongs to.")
@click.option("--wait", is_flag=True, help="Follow it to its end; exit codes as those of `run`.")
@click.option("--json", "as_json", is_flag=True, help="Print the job, or with --wait the summary, as one JSON object.")
@settings_options
def submit(wait: bool, as_json: bool, **given: Any) -> int:
    """Give a job to the workers of a running log, and return.

    Example: crawlog submit https://example.com --depth 2 -o pages.jsonl
    """
    from . import fleet_text

    began = time.time()
    settings, view, before = submitted(given, is_followed=wait)
    if wait:
        return followed(settings, view, before, as_json=as_json, began=began)
    answer(fleet_text.job_json(view) if as_json else view.name)
    if not as_json:
        tell(f"submitted: `crawlog jobs show {view.name}` tells how far it is")
    return outcome.FINISHED


def followed(
    settings: "Settings",
    view: "JobView",
    before: "Before",
    *,
    as_json: bool,
    began: float,
    outputs: tuple[str, ...] = (),
    on_finish: tuple[str, ...] = (),
) -> int:
    """Follows a job that was submitted; returns the exit code of a `run`."""
    from crawlog.jobs.joined import follow
    from crawlog.jobs.live import view as terminal_view

    from . import summary_text

    summary = follow(settings, view, before, terminal_view(), began=began, outputs=outputs, on_finish=on_finish)
    tell(*summary_text.lines(summary))
    if as_json:
        answer(summary_text.as_json(summary))
    return summary_text.exit_code(summary)


def submitted(
    given: dict[str, Any], *, is_followed: bool, is_run: bool = False, has_outputs: bool = False
) -> "tuple[Settings, JobView, Before]":
    """Submits the job that the values of the options describe; returns the settings of its log and what it had before.

    Args:
        is_followed: Whether to read what the log had before.
        is_run: Whether settings of workers are no error, since `run` may have workers of its own.
        has_outputs: Whether the command writes outputs by itself, so those of the spider's project are left out.

    Raises: Misconfigured: an option is wrong, or the fleet cannot run the spider.
    """
    from crawlog.jobs.follow import Before
    from crawlog.jobs.record import outputs_of
    from crawlog.jobs.request import LocalParts, checked
    from crawlog.jobs.run_checks import allow_spider
    from crawlog.jobs.submit import submit as act

    from . import arguments
    from .options import scrapy_apart

    urls, sitemaps = arguments.sitemaps_apart(given["urls"])
    scrapy = scrapy_apart(given)[1]
    own, request = requested(given | {"urls": urls}, is_run=is_run)
    settings, wanted = settings_of(own), checked(request)
    outputs_of(settings, wanted.outputs)  # a path is refused before a spider is loaded
    reached = fleet_log(settings)
    _check_workers(settings, is_followed=is_followed)
    named = None
    if wanted.spider and not wanted.project:
        _check_local(settings, wanted.spider)
        try:
            named = arguments.spider(wanted.spider, given["args"], scrapy, lambda: settings)
        except Misconfigured as error:
            if not wanted.spider.isidentifier():
                raise
            raise Misconfigured(f"{error}\n{DEPLOYED}") from None
        allow_spider(settings, named.ref.path if named else "")
    files = (str(arguments.existing_file(given["seeds"], "--seeds")),) if given["seeds"] else ()
    seeds = (*wanted.urls, *sitemaps, *files) if files or sitemaps else ()
    before = Before.read(reached) if is_followed else Before()
    facts = named.facts if named else None
    parts = LocalParts(seeds, msgspec.structs.replace(facts, feeds=()) if facts and has_outputs else facts)
    return reached, act(reached, wanted, parts=parts, say=tell), before


def requested(given: dict[str, Any], *, is_run: bool = False) -> "tuple[dict[str, Any], JobRequest]":
    """The values of `settings_options` of the command alone, and the job that the options of `submit` describe."""
    from crawlog.commands.named_spider import arguments_in
    from crawlog.jobs.request import JobRequest

    from .options import scrapy_apart

    given, scrapy = scrapy_apart(given)
    own, of_job = _apart(given, is_run=is_run)
    return own, JobRequest(
        urls=given["urls"],
        spider=given["spider"] or "",
        project=given["project"],
        version=given["version"],
        args=dict(arguments_in(given["args"])),
        settings=of_job | dict(scrapy),
        outputs=given["outputs"],
        job=given["job"] or "",
        max_pages=given["max_pages"],
        depth=given["depth"],
        priority=given["priority"],
        paused=given["paused"],
        fresh=given["fresh"],
        after=given["after"],
        after_any=given["after_any"],
        group=given["group"],
        feed=given["feed"],
        on_finish=given["on_finish"],
    )


def _apart(given: dict[str, Any], *, is_run: bool) -> "tuple[dict[str, Any], dict[str, Value]]":
    """The values of `settings_options` with the settings of the command alone, and those of the job."""
    from crawlog.streams.job_spec import job_keys
    from crawlog.streams.settings import SHORT, known_keys, parse_pairs

    keys = {pair: SHORT.get(name, name) for pair in given["pairs"] if (name := pair.partition("=")[0].strip())}
    of_command = OF_DEPLOYED if given["project"] else OF_COMMAND
    own = tuple(pair for pair, key in keys.items() if key.startswith(of_command))
    if is_run and (others := [key for key in keys.values() if key in known_keys().keys() - job_keys()]):
        workers = sorted(key for key in others if not key.startswith((*OF_COMMAND, "results.")))
        if workers:
            tell(f"-s {', '.join(workers)}: of workers, which run already, so it has no effect here")
        own = tuple(pair for pair, key in keys.items() if key in others)
    values = parse_pairs(pair for pair in given["pairs"] if pair not in own)
    return given | {"pairs": own}, {key: _plain(value) for key, value in values.items()}


def _plain(value: object) -> "Value":
    """A value of a setting as a submission has it."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _check_workers(settings: "Settings", *, is_followed: bool) -> None:
    """Says so where the log's only workers are those of a `run`, which fetch for its own job alone.

    Raises: Misconfigured: the command would wait for the end of a job that nobody crawls.
    """
    from crawlog.processes.hold import holder, same_log

    held = None if same_log(settings).kafka.bootstrap else holder(settings.run.data)
    if held is None or held.what != "run":
        return
    why = f"`crawlog run` (pid {held.pid}) holds {settings.run.data} and crawls its own job alone"
    if is_followed:
        raise Misconfigured(
            f"--wait: {why}.\nSubmit the job without --wait; when that run has ended, `crawlog up` crawls it."
        )
    tell(f"{why}: another job waits for `crawlog up`, when that run has ended")


def _check_local(settings: "Settings", spider: str) -> None:
    """Raises: Misconfigured: other machines' workers may get this job, and they have no such file."""
    from crawlog.processes.hold import same_log

    if same_log(settings).kafka.bootstrap:
        raise Misconfigured(
            f"--spider {spider}: workers of other machines have no such file: `crawlog deploy` puts its project into"
            " the log, then `crawlog submit --project P --spider NAME`"
        )


@click.command()
@click.argument("action", type=click.Choice(ACTIONS), default="list", metavar="[ACTION]")
@click.argument("name", default="", metavar="[NAME]")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1), default=1_000, help="For logs: the newest N lines (1000)."
)
@click.option("--follow", "-f", is_flag=True, help="For logs: go on with what comes.")
@click.option("--priority", metavar="N", type=click.IntRange(0, 9), help="For update: as of `submit`.")
@click.option("--version", metavar="V", default="", help="For update: another version of its project.")
@click.option("--parse-again", is_flag=True, help="For update: its stored pages are parsed again; nothing is fetched.")
@click.option("--interval", metavar="S", type=click.FloatRange(0.2), default=2.0, help="For top: seconds a frame (2).")
@click.option("--dead", is_flag=True, help="For retry: its dead letters go back to the stages.")
@choice_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a job, or a line.")
@settings_options
def jobs(
    action: str, name: str, limit: int, follow: bool, interval: float, dead: bool, as_json: bool, **given: Any
) -> int:
    """List the jobs of a log; show, pause, resume, stop, cancel, delete or update one; show what its spider logs.

    ACTION is one of list (the default), show, logs, pause, resume, stop, cancel, delete, retry, update, top. retry has
    URLs of the job fetched again: those of --failed, --status or --older-than; its --dead handles records that failed
    once more. update changes a job without fetching again: its code (--version), its settings (-s), its --priority.
    top shows the whole fleet, live on a terminal, else once.
    """
    from crawlog.jobs import changes

    from . import arguments, fleet_text

    if action == "update" and name:
        return _updated(arguments.job_name(name), given, as_json=as_json)
    settings = settings_of(given)
    if action in ("list", "top"):
        return _all(settings, interval if action == "top" else None, as_json=as_json)
    if not name:
        raise Misconfigured(f"crawlog jobs {action}: name the job; `crawlog jobs` lists them")
    arguments.job_name(name)
    if action == "logs":
        return _logs(settings, name, limit, follow=follow, as_json=as_json)
    if action == "show":
        with existing_log(settings) as reached:
            view = changes.show_job(reached, name)
        answer(*([fleet_text.job_json(view)] if as_json else fleet_text.job_details(view)))
        return outcome.FINISHED
    if action == "retry":
        return _retried(settings, name, given, dead=dead, as_json=as_json)
    return _changed(settings, action, name, as_json=as_json)


def _all(settings: "Settings", interval_s: float | None, *, as_json: bool) -> int:
    """Lists all jobs, or shows the fleet live with an interval."""
    from crawlog.jobs.changes import list_jobs

    from . import fleet_text

    if interval_s is not None:
        from . import top

        return top.show(fleet_log(settings), interval_s, as_json=as_json)
    with existing_log(settings) as reached:
        found = list_jobs(reached)
    answer(*([fleet_text.job_json(one) for one in found] if as_json else fleet_text.job_lines(found)))
    return outcome.FINISHED


def _updated(name: str, given: dict[str, Any], *, as_json: bool) -> int:
    """Gives a job other code, settings or priority; `-s` of the log's own address are of the command."""
    from crawlog.jobs.update import JobUpdate, update_job

    from . import fleet_text
    from .options import scrapy_apart

    given, scrapy = scrapy_apart(given)
    own, values = _apart(given | {"project": "of the job"}, is_run=False)
    update = JobUpdate(given["version"], values | dict(scrapy), given["priority"], given["parse_again"])
    with existing_log(settings_of(own)) as reached:
        view = update_job(reached, name, update, say=tell)
    if as_json:
        answer(fleet_text.job_json(view))
    else:
        tell(fleet_text.changed("update", view))
    return outcome.FINISHED


def _retried(settings: "Settings", name: str, given: dict[str, Any], *, dead: bool, as_json: bool) -> int:
    """Has records or URLs of a job handled again."""
    from .recrawling import asked_again, choice_of

    if dead and (given["failed"] or given["status"] or given["older_than"]):
        raise Misconfigured("--dead: of records; the other options choose URLs. Give them to another `jobs retry`.")
    choice = None if dead else choice_of(given)
    with existing_log(settings) as reached:
        if choice is not None:
            return asked_again(settings, reached, name, choice, given, as_json=as_json)
        from crawlog.commands.dead import redriven
        from crawlog.jobs.changes import check_job
        from crawlog.streams.dead_letters import LetterChoice

        from .operate_text import redrive_lines

        check_job(reached, name)
        done = redriven(reached, LetterChoice(job=name), execute=not given["dry_run"], report=tell)
    answer(*redrive_lines(done, "the same command without --dry-run does it"))
    return outcome.FINISHED


@click.command()
@click.argument("action", type=click.Choice(("add",)), metavar="add")
@click.argument("name")
@click.option("-o", "--output", "outputs", metavar="OUTPUT", multiple=True, required=True, help="As of `submit`.")
@click.option("--json", "as_json", is_flag=True, help="Print the job as JSON.")
@settings_options
def outputs(action: str, name: str, outputs: tuple[str, ...], as_json: bool, **given: Any) -> int:  # noqa: ARG001  # there is one action
    """Give a job further outputs, which are filled from the log; also a job that has finished.

    Example: crawlog outputs add shop -o shop.csv
    """
    from crawlog.jobs.changes import add_outputs
    from crawlog.jobs.record import outputs_of

    from . import arguments, fleet_text

    settings = settings_of(given)
    arguments.job_name(name)
    added = outputs_of(settings, outputs)
    with existing_log(settings) as reached:
        view = add_outputs(reached, name, added)
    if as_json:
        answer(fleet_text.job_json(view))
    else:
        tell(f"job {name} has the outputs {', '.join(one.name for one in view.outputs)}; `crawlog jobs show {name}`")
    return outcome.FINISHED


def _changed(settings: "Settings", action: str, name: str, *, as_json: bool) -> int:
    """Changes a job."""
    from crawlog.jobs import changes

    from . import fleet_text

    if action == "delete":
        with existing_log(settings) as reached:
            changes.delete_job(reached, name)
        tell(f"job {name} is deleted; its pages stay in the log until they expire")
        return outcome.FINISHED
    acts: dict[str, Callable[[Settings, str], JobView]] = {
        "pause": changes.pause_job,
        "resume": changes.resume_job,
        "stop": changes.stop_job,
        "cancel": changes.cancel_job,
    }
    with existing_log(settings) as reached:
        view = acts[action](reached, name)
    if as_json:
        answer(fleet_text.job_json(view))
    else:
        tell(fleet_text.changed(action, view))
    return outcome.FINISHED


def _logs(settings: "Settings", name: str, limit: int, *, follow: bool, as_json: bool) -> int:
    """Prints the lines of a job."""
    from crawlog.commands.job_logs import follow_job_log, job_log_lines, lines_end
    from crawlog.jobs.changes import check_job
    from crawlog.jobs.job_closing import last_lines

    from . import fleet_text

    with existing_log(settings) as reached:
        end = lines_end(reached)
        has_lines = False
        told = partial(job_log_lines, limit=limit, upto=end)
        for line in chain.from_iterable(part(reached, name) for part in (told, last_lines)):
            has_lines = True
            answer(fleet_text.log_line(line, as_json=as_json))
        if not has_lines:
            check_job(reached, name)
            tell(f"job {name} has no lines; they are kept for 7 days")
        for more in follow_job_log(reached, name, end) if follow else ():
            if more is not None:
                answer(fleet_text.log_line(more, as_json=as_json))
    return outcome.FINISHED
