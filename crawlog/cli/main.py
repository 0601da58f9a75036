"""The command line: arguments in, one command of another module called, exit code out.

Each command imports what it runs inside itself, so that `--help` costs no Kafka client and `probe` starts no Faust.
Standard output carries answers, standard error all else.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import rich_click as click
from click.exceptions import NoArgsIsHelpError

from crawlog import __version__, outcome
from crawlog.streams.errors import Misconfigured
from crawlog.terminal import answer, hinted, repeat, tell

if TYPE_CHECKING:
    from crawlog.streams.log import Login, TopicRow
    from crawlog.streams.settings import Settings, Sources
    from crawlog.streams.stages import Stage

RESULT_SUFFIXES = (".jsonl", ".json", ".csv")
STAGES = ("fetch", "parse", "sink")
ORDERS = ("pause", "resume", "block", "unblock", "slow", "stop", "cancel", "list")

Command = TypeVar("Command", bound=Callable[..., Any])

click.rich_click.MAX_WIDTH = 120
click.rich_click.STYLE_HELPTEXT = ""


class _Commands(click.RichGroup):
    """A group in the order of its definition, which suggests the command that was likely meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            close = get_close_matches(args[0], self.commands, n=1)
            hint = f"Did you mean `crawlog {close[0]}`?" if close else f"There are: {', '.join(self.commands)}."
            raise click.UsageError(f"No such command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="crawlog")
def cli() -> None:
    """A web crawler whose only memory is a Kafka log."""


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of the console script."""
    outcome.open_streams()
    gc.set_threshold(50_000, 20, 100)  # looking for cycles is a seventh of an import's time
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(outcome.exit_code(lambda: _invoke(arguments), verbose=lambda: _is_verbose(arguments)))


def _invoke(arguments: list[str]) -> int:
    outcome.hear_interrupts()
    repeat({})
    try:
        code = cli.main(args=arguments, prog_name="crawlog", standalone_mode=False)
    except click.Abort:
        return outcome.INTERRUPTED
    except NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "", err=True)
        return outcome.USAGE
    except click.FileError as error:
        raise Misconfigured(error.format_message()) from None
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "crawlog"
        raise Misconfigured(f"{error.format_message()}\nSee `{path} --help`.") from None
    return code if isinstance(code, int) else outcome.FINISHED


def _is_verbose(arguments: list[str]) -> bool:
    before_operands = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return bool({"-v", "--verbose"} & set(before_operands))


# Options that several commands share.


def _settings_options(command: Command) -> Command:
    """`-s`, `--config`, `--data`, `--bootstrap`, `-v`: whatever needs settings takes them."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Log more; show the traceback of an error."),
        click.option("--bootstrap", metavar="HOST:PORT", help="Your Kafka cluster; without it crawlog runs its own."),
        click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help="Data folder (.crawlog)."),
        click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Settings file (crawlog.toml)."),
        click.option("-s", "pairs", metavar="KEY=VALUE", multiple=True, help="Set one setting; may be repeated."),
    ):
        command = option(command)
    return command


WHEREABOUTS = ("run.data", "kafka.bootstrap", "kafka.prefix")
"""Settings that say which crawl is meant."""


def _whereabouts(given: dict[str, Any]) -> dict[str, object]:
    """The options that say which crawl is meant, as they were given."""
    named = {f"--{name}": given[name] for name in ("data", "bootstrap", "config") if given[name] is not None}
    pairs = (pair.partition("=") for pair in given["pairs"])
    return named | {f"-s {key}=": value for key, _, value in pairs if key in WHEREABOUTS}


def _sources(
    given: dict[str, Any], flags: dict[str, object] | None = None, spider: "Mapping[str, object] | None" = None
) -> "Sources":
    """The sources of the settings, from the values of `_settings_options` and a command's own flags."""
    from crawlog.streams.settings import Sources

    repeat(_whereabouts(given))
    named = {"run.data": given["data"], "kafka.bootstrap": given["bootstrap"], **(flags or {})}
    if given["verbose"]:
        named["log.level"] = "debug"
    flagged = {key: value for key, value in named.items() if value is not None}
    return Sources(flags=flagged, pairs=given["pairs"], spider=spider or {}, config=given["config"])


def _settings(
    given: dict[str, Any], flags: dict[str, object] | None = None, spider: "Mapping[str, object] | None" = None
) -> "Settings":
    from crawlog.streams.settings import resolve

    return resolve(_sources(given, flags, spider)).settings


@contextmanager
def _reachable_log(settings: "Settings") -> Iterator["Settings"]:
    """The settings with a cluster that answers; the local engine is started when none runs.

    It is stopped after, unless `run` or `up` has come meanwhile and works with it.
    """
    from crawlog.processes.supervisor import holder, same_log
    from crawlog.streams.worker import logs

    logs.configure("error")  # standard output is for answers
    settings = same_log(settings)
    with outcome.stopped_by_signals():
        if settings.kafka.bootstrap:
            yield settings
            return
        from crawlog.processes.folder import prepare
        from crawlog.streams.engine import engine

        prepare(settings.run.data)
        local = engine.start(settings, settings.run.data, tell)
        try:
            yield local.point(settings)
        finally:
            if not local.adopted and holder(settings.run.data) is None:
                local.stop()


def _login(settings: "Settings", reached: "Settings") -> "Login | None":
    """For clients of the local engine that may outlive its broker; None for those of another cluster."""
    from crawlog.processes.supervisor import same_log
    from crawlog.streams.engine import engine

    if same_log(settings).kafka.bootstrap:
        return None
    return partial(engine.login, settings.run.data, reached.kafka.bootstrap)


@contextmanager
def _existing_log(settings: "Settings", *, needs_topics: bool = True) -> Iterator["Settings"]:
    """The same for commands that only look: they make no data folder, no log and no topics.

    Raises: Misconfigured: the folder holds no log. EngineError: the cluster has no topics of a crawl.
    """
    from crawlog.processes.supervisor import same_log
    from crawlog.streams.engine import engine
    from crawlog.streams.log import partitions

    settings = same_log(settings)
    if not settings.kafka.bootstrap and not engine.exists(settings.run.data):
        raise Misconfigured(
            f"there is no crawl in {settings.run.data}: the folder holds no log.\n"
            "Name the crawl's folder with --data DIR, or its cluster with --bootstrap HOST:PORT."
        )
    with _reachable_log(settings) as reached:
        if needs_topics:
            partitions(reached)
        yield reached


def _running_log(settings: "Settings") -> "Settings":
    """The settings with a cluster that runs; nothing is started."""
    from crawlog.processes.supervisor import same_log
    from crawlog.streams.engine import engine

    settings = same_log(settings)
    if settings.kafka.bootstrap:
        return settings
    local = engine.running(settings.run.data)
    if local is None:
        raise Misconfigured(
            f"no Kafka to work on: --bootstrap names no cluster, and no local engine runs on {settings.run.data}.\n"
            "Start one with `crawlog up`."
        )
    return local.point(settings)


# The commands, in the order of a user's way.


@cli.command()
@click.argument("urls", nargs=-1, metavar="URL…")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Results: .jsonl, .json, .csv or -."
)
@click.option("--depth", metavar="N", type=click.IntRange(0), help="Deepest link taken, counted from the seeds.")
@click.option("--max-pages", metavar="N", type=click.IntRange(1), help="End after about this many pages.")
@click.option("--workers", metavar="fetch=F,parse=P", help="Worker processes per stage (fetch=1,parse=1).")
@click.option(
    "--seeds", metavar="FILE", type=click.Path(path_type=Path), help="More URLs: one a line, or JSON lines; - is stdin."
)
@click.option("--spider", metavar="FILE.py[:Class]", help="Your spider; without one every link in scope is followed.")
@click.option("--job", metavar="NAME", help="Name of the job; without it a hash of seeds and spider.")
@click.option("--fresh", is_flag=True, help="Begin the job again from its seeds, in a new epoch.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@_settings_options
def run(
    urls: tuple[str, ...],
    output: Path | None,
    depth: int | None,
    max_pages: int | None,
    workers: str | None,
    seeds: Path | None,
    spider: str | None,
    job: str | None,
    fresh: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Crawl until finished. The same command again goes on where the crawl was.

    Example: crawlog run https://example.com --depth 2 -o pages.jsonl
    """
    from crawlog.processes.folder import prepare

    from . import arguments

    flags: dict[str, object] = {"run.depth": depth, "run.max_pages": max_pages}
    loaded = arguments.spider(spider) if spider else None
    flags |= arguments.worker_counts(workers) if workers else {}
    settings = _settings(given, flags, loaded.spider.settings if loaded else None)
    if not urls and not seeds:
        urls = tuple(loaded.spider.start_urls) if loaded else ()
    if job is not None:
        arguments.job_name(job)
    if not urls and not seeds and not job:
        raise Misconfigured("nothing to crawl: give a URL, or --seeds FILE\nSee `crawlog run --help`.")
    checked, logins = arguments.logins_apart(arguments.checked_urls(urls))
    if logins:
        settings = settings.with_logins(logins)
    if output:
        arguments.writable_file(output, RESULT_SUFFIXES)
    if seeds:
        arguments.existing_file(seeds, "--seeds")
    prepare(settings.run.data)
    from crawlog.commands.run import run as crawl

    return crawl(
        settings,
        checked,
        seeds_file=seeds,
        output=output,
        spider=loaded.path if loaded else "",
        spider_hash=loaded.digest if loaded else "",
        job=job,
        fresh=fresh,
        as_json=as_json,
        verbose=given["verbose"],
    )


@cli.command()
@click.option("--workers", metavar="fetch=F,parse=P", help="Worker processes per stage (fetch=1,parse=1).")
@_settings_options
def up(workers: str | None, **given: Any) -> int:
    """Start the local engine and workers in the background."""
    from crawlog.processes.folder import prepare

    from . import arguments

    settings = _settings(given, arguments.worker_counts(workers) if workers else {})
    prepare(settings.run.data)
    from crawlog.commands.up import up as start

    return start(settings)


@cli.command()
@_settings_options
def down(**given: Any) -> int:
    """Stop what `up` started; the data stay."""
    from crawlog.commands.up import down as stop

    return stop(_settings(given))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_settings_options
def status(as_json: bool, **given: Any) -> int:
    """Show what runs on the data folder, and how far the jobs are."""
    from crawlog.commands.up import status as show

    return show(_settings(given), as_json=as_json)


@cli.command()
@click.argument("stage", type=click.Choice(STAGES))
@_settings_options
def worker(stage: "Stage", **given: Any) -> int:
    """Run one Faust worker; the same as `faust -A crawlog.streams.app:STAGE worker`."""
    from crawlog.processes.folder import prepare
    from crawlog.streams.log import ensure
    from crawlog.streams.settings import for_stage

    settings = _settings(given)
    prepare(settings.run.data)
    settings = _running_log(settings)
    ensure(settings)  # asks the cluster before Faust does, whose answer would be a traceback
    from crawlog.streams.app import worker as work

    work(stage, lambda: for_stage(settings, stage))
    return outcome.FINISHED


@cli.group()
def engine() -> None:
    """The local engine's files."""


@engine.command("fetch")
@click.option(
    "--to", "to", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Not the cache, but DIR."
)
@_settings_options
def engine_fetch(to: Path | None, **given: Any) -> int:
    """Fetch Apache Kafka's jars and verify their hashes, for machines without a network."""
    from crawlog.streams.engine import fetch_jars

    jars = fetch_jars(_settings(given), to, tell)
    folder = jars[0].parent.absolute()
    size = sum(jar.stat().st_size for jar in jars)
    tell(f"{len(jars)} jars, {size / 1e6:.0f} MB, verified; use them with -s engine.maven_url={folder}")
    answer(str(folder))
    return outcome.FINISHED


@cli.command()
@click.argument("sources", nargs=-1, metavar="FILE|-|URL|sitemap:URL…")
@click.option("--from-log", metavar="PREFIX", help="Give the job all seeds that it has in the log of this prefix.")
@click.option("--job", metavar="NAME", required=True, help="Job that the URLs belong to, new or known.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@_settings_options
def seed(sources: tuple[str, ...], from_log: str | None, job: str, as_json: bool, **given: Any) -> int:
    """Produce URLs to crawl.urls: from text or JSON lines (gzipped too), standard input, a sitemap, or named here."""
    from . import arguments

    settings = _settings(given)
    arguments.job_name(job)
    arguments.seeds(sources, from_log)
    from crawlog.agents.seed import Source, collect, old_seeds, plant
    from crawlog.progress.picture import Picture
    from crawlog.progress.watch import Watch
    from crawlog.streams.log import Producer, ensure, said_rules

    with ExitStack() as stack:
        source = stack.enter_context(Source(sources, collect=lambda url: collect(settings, url, tell)))
        reached = stack.enter_context(_reachable_log(settings))
        if from_log:
            source = Source([str(stack.enter_context(old_seeds(reached, from_log, job)))])
        ensure(reached)
        began = time.monotonic()
        login = _login(settings, reached)
        with closing(Watch(reached, Picture(), login)) as watch:
            producer = Producer(reached, "crawlog-seed", login=login)
            said = said_rules(reached)
            seeded = plant(reached, producer, job, source, requests=said, report=tell, look=watch.folds)
            _tell_refused(reached, job, [source for source in sources if source.startswith(("http:", "https:"))])
        took_s = time.monotonic() - began
    if as_json:
        answer(json.dumps({"job": job, "urls": seeded.count, "bad": seeded.bad, "took_s": round(took_s, 3)}))
    else:
        bad = f", {outcome.counted(seeded.bad, 'line')} without a URL" if seeded.bad else ""
        answer(f"{outcome.counted(seeded.count, 'URL')} in job {job}, acknowledged in {took_s:.1f} s{bad}")
    return outcome.FINISHED


def _tell_refused(settings: "Settings", job: str, seeds: list[str]) -> None:
    """Say which seeds the job's record keeps from being asked, by their spelling alone."""
    from crawlog.commands.run import refused
    from crawlog.streams.log import Topics, known_job

    if lines := refused(seeds, allow_private=False):
        copy = known_job(settings, Topics(settings.kafka.prefix), job)
        if copy is not None and copy.spec.requests is not None and copy.spec.requests.allow_private is False:
            tell(*lines)


@cli.command()
@click.option("--create", is_flag=True, help="Create those that are missing, verify the others.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a topic.")
@_settings_options
def topics(create: bool, as_json: bool, **given: Any) -> int:
    """Show the topics: partitions, records, size, and lag per consumer group."""
    settings = _settings(given)
    with _reachable_log(settings) if create else _existing_log(settings, needs_topics=False) as reached:
        from crawlog.streams.log import Admin, describe, ensure, sinks_of

        if create:
            ensure(reached)
        rows = describe(reached, sinks_of(Admin(reached)))
    if as_json:
        for row in rows:
            answer(json.dumps(row._asdict()))
        return outcome.FINISHED
    if not rows:
        tell(f"no topics with the prefix {reached.kafka.prefix!r} yet; the first crawl creates them")
    answer(*topic_lines(rows))
    return outcome.FINISHED


def topic_lines(rows: "Sequence[TopicRow]") -> list[str]:
    """The topics, and below them how much each group has still to read: lines of at most 80 columns."""
    topics = [("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "KEPT")]
    groups = [("GROUP", "READS", "STILL TO READ")]
    for row in rows:
        size = "" if row.size_bytes is None else f"{row.size_bytes / 1e6:,.1f} MB"
        topics.append((row.name, str(row.partitions), f"{row.records:,}", size, row.kept))
        groups += [(group, row.name, f"{count:,}") for group, count in row.lag.items()]
    return [*_table(topics, right=(1, 2, 3)), "", *_table(groups, right=(2,))]


@cli.command()
@click.argument("action", type=click.Choice(ORDERS), metavar="ACTION")
@click.option("--job", metavar="NAME", default="", help="Of a job.")
@click.option("--host", metavar="HOST", default="", help="http://name:port, name (any scheme) or .name (all below).")
@click.option("--stage", type=click.Choice(STAGES), default=None, help="Of a stage.")
@click.option("--delay", metavar="S", type=click.FloatRange(0), default=0.0, help="For slow: seconds between requests.")
@click.option("--json", "as_json", is_flag=True, help="For list: print one JSON object a command.")
@_settings_options
def control(action: str, job: str, host: str, stage: str | None, delay: float, as_json: bool, **given: Any) -> int:
    """Pause, slow, block or stop what runs; cancel a job; list what is in force.

    ACTION is one of pause, resume, block, unblock, slow, stop, cancel, list.
    """
    from crawlog.commands import control as commands

    from . import arguments

    settings = _settings(given)
    if job:
        arguments.job_name(job)
    if action == "cancel" and (not job or host or stage):
        raise Misconfigured("crawlog control cancel: name the job with --job NAME, and nothing else")
    command = None if action in ("cancel", "list") else commands.wanted(action, job, host, stage or "", delay)
    if action == "list":
        with _existing_log(settings) as reached:
            answer(*commands.listing(reached, as_json=as_json))
        return outcome.FINISHED
    with _reachable_log(settings) as reached:
        from crawlog.streams.log import ensure

        ensure(reached)
        tell(commands.give(reached, command) if command else commands.cancel(reached, job))
    return outcome.FINISHED


@cli.command()
@click.argument("action", type=click.Choice(("make", "list")), default="make")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a snapshot.")
@_settings_options
def snapshot(action: str, as_json: bool, **given: Any) -> int:
    """Copy the states to where `snapshots.to` says, now, or list the copies; workers may be running."""
    from crawlog.commands.snapshot import snapshot as snapshots

    with _existing_log(_settings(given)) as reached:
        return snapshots(reached, action, as_json=as_json, say=answer, report=tell)


@cli.command()
@click.option("--rows", metavar="N", is_flag=False, flag_value=20, default=0, type=click.IntRange(0),
              help="Name the first N rows of a partition that differ (20).")  # fmt: skip
@click.option("--log", "is_of_log", is_flag=True,
              help="Check the log itself: each record's CRC and decoding; no page, no item is missing.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a partition, and one a finding.")
@_settings_options
def verify(rows: int, is_of_log: bool, as_json: bool, **given: Any) -> int:
    """Fold the log again and compare with the state; workers may be running. Exit code 5: they differ.

    With --log the log is checked instead. Exit code 5: something is missing.
    """
    from crawlog.commands.verify import verify as compare
    from crawlog.commands.verify import verify_log

    with _existing_log(_settings(given)) as reached:
        if is_of_log:
            return verify_log(reached, as_json=as_json, say=answer)
        return compare(reached, rows, as_json=as_json, say=answer)


@cli.command()
@click.argument("url")
@click.option("--at", metavar="TIME", help="As of then: 2026-11-21T10:30:00 (UTC), or epoch seconds.")
@click.option("--job", metavar="NAME", help="Only what happened in this job.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_settings_options
def why(url: str, at: str | None, job: str | None, as_json: bool, **given: Any) -> int:
    """Tell the life of one URL from the log: found by whom, dropped or refused why, each attempt, page and row."""
    from . import arguments

    settings = _settings(given)
    (url,), _ = arguments.logins_apart(arguments.checked_urls([url]))
    if job is not None:
        arguments.job_name(job)
    from crawlog.commands.why import moment
    from crawlog.commands.why import why as told

    until = moment(at, time.time()) if at else None
    with _existing_log(settings) as reached:
        answer(*told(reached, url, until, job or "", as_json=as_json, report=tell))
    return outcome.FINISHED


@cli.group(cls=_Commands)
def dead() -> None:
    """Dead letters: records that could not be handled. List, show, redrive and lay them aside (drop)."""


def _choice_options(command: Command) -> Command:
    """Which letters are meant."""
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
@_settings_options
def dead_list(stage: str, job: str, reason: str, limit: int, handled: bool, as_json: bool, **given: Any) -> int:
    """List the open dead letters by error, the commonest first: offset, time, job, URL."""
    from crawlog.commands.dead import listed
    from crawlog.streams.log import Choice

    with _existing_log(_settings(given)) as reached:
        answer(*listed(reached, Choice(stage, job, reason), limit, handled=handled, as_json=as_json))
    return outcome.FINISHED


@dead.command("show")
@click.argument("offset", type=click.IntRange(0))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_settings_options
def dead_show(offset: int, as_json: bool, **given: Any) -> int:
    """Show one dead letter: headers, traceback, and the record as it was."""
    from crawlog.commands.dead import shown

    with _existing_log(_settings(given)) as reached:
        answer(*shown(reached, offset, as_json=as_json))
    return outcome.FINISHED


def _letters_options(command: Command) -> Command:
    """Which letters something is done with, and whether it is."""
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
@_settings_options
def dead_redrive(
    offsets: tuple[int, ...], every: bool, dry_run: bool, execute: bool, stage: str, job: str, reason: str, **given: Any
) -> int:
    """Send the records back to the stages that could not handle them, as they were."""
    from crawlog.commands.dead import check_choice, redriven
    from crawlog.streams.log import Choice

    check_choice(offsets, every=every)
    with _existing_log(_settings(given)) as reached:
        choice = Choice(stage, job, reason, frozenset(offsets))
        answer(*redriven(reached, choice, execute=execute and not dry_run, report=tell))
    return outcome.FINISHED


@dead.command("drop")
@_letters_options
@_settings_options
def dead_drop(
    offsets: tuple[int, ...], every: bool, dry_run: bool, execute: bool, stage: str, job: str, reason: str, **given: Any
) -> int:
    """Lay dead letters aside: they stay in the log, and are listed no more."""
    from crawlog.commands.dead import check_choice, dropped
    from crawlog.streams.log import Choice

    check_choice(offsets, every=every)
    with _existing_log(_settings(given)) as reached:
        answer(*dropped(reached, Choice(stage, job, reason, frozenset(offsets)), execute=execute and not dry_run))
    return outcome.FINISHED


@cli.command()
@click.option("--dry-run", is_flag=True, help="Show what is damaged only; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a partition.")
@_settings_options
def repair(dry_run: bool, execute: bool, as_json: bool, **given: Any) -> int:
    """Cut the local engine's log before records that cannot be read; the next `run` makes again what is gone.

    Of a cluster's log it tells which brokers have the damaged partitions, and what their operator does.

    Exit code 5: something is damaged.
    """
    if dry_run and execute:
        raise Misconfigured("--dry-run and --execute are opposites: give one of them")
    from crawlog.commands.repair import ON_A_CLUSTER, cut, cuts, placed

    settings = _settings(given)
    if execute:
        lines = cut(settings)  # a broker may not even start on its damaged files
        for line in lines:
            answer(line)
        tell("the next `crawlog run`, the same command again, cuts the log, and makes again what is gone")
        return outcome.FINISHED
    with _existing_log(settings) as reached:
        found = cuts(reached)
        places = placed(reached, found) if settings.kafka.bootstrap else []
    for one in found:
        answer(json.dumps(one._asdict()) if as_json else str(one))
    if not found:
        tell("every record of the log can be read")
        return outcome.FINISHED
    if places:
        tell(*map(str, places), *ON_A_CLUSTER.splitlines())
    else:
        tell("`crawlog repair --execute` has the log cut there; stop `run` or `up` before")
    return outcome.DIFFERENT


@cli.command()
@click.option("--group", metavar="GROUP", required=True, help="parse, sink, fetch, or one sink by its id or FILE.")
@click.option("--job", metavar="NAME", default="", help="Of parse only this job's pages; of sink only its own.")
@click.option("--to-earliest", is_flag=True, help="To the log's first record.")
@click.option("--to-latest", is_flag=True, help="To the log's end: what lies before is skipped.")
@click.option("--to-current", is_flag=True, help="To where the group is; for --export.")
@click.option("--to-datetime", metavar="T", help="To the first record at or after T, ISO 8601; UTC without a zone.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="So long back from now, e.g. PT15M.")
@click.option("--shift-by", metavar="N", type=int, help="N records on, or back where N is negative.")
@click.option("--to-offset", metavar="N", type=int, help="To this offset.")
@click.option("--from-file", metavar="FILE", type=click.Path(path_type=Path), help="To the offsets of a CSV file.")
@click.option("--topic", "topics", metavar="TOPIC[:0,1]", multiple=True, help="Only these partitions.")
@click.option("--dry-run", is_flag=True, help="Show the plan only; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--export", is_flag=True, help="Print the plan as CSV for --from-file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a group.")
@_settings_options
def replay(group: str, job: str, topics: tuple[str, ...], dry_run: bool, execute: bool, **rest: Any) -> int:
    """Move a group in its log, so that what is stored is worked on again; options as in kafka-consumer-groups.

    Example: crawlog replay --group parse --to-earliest --execute
    """
    from . import arguments

    kind, value = arguments.reset_target(rest)
    if dry_run and execute:
        raise Misconfigured("--dry-run and --execute are opposites: give one of them")
    if job:
        arguments.job_name(job)
    settings = _settings(rest)
    from crawlog.commands.replay import Order
    from crawlog.commands.replay import replay as move
    from crawlog.streams.log import check_name

    order = Order(group, kind, value, topics, execute, rest["export"], rest["as_json"], job)
    check_name(settings, group)
    with _existing_log(settings) as reached:
        return move(reached, order, tell)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a finding.")
@_settings_options
def doctor(as_json: bool, **given: Any) -> int:
    """Check this machine and the cluster; each line says what to do next."""
    from crawlog.commands.doctor import examine

    findings = examine(_settings(given))
    for finding in findings:
        if as_json:
            answer(json.dumps(finding._asdict()))
            continue
        answer(hinted(f"{finding.status:4}  {finding.check:13}  {finding.found}"))
        if finding.advice:
            answer(hinted(f"      {'':13}  → {finding.advice}"))
    return outcome.ENGINE if any(finding.status == "fail" for finding in findings) else outcome.FINISHED


@cli.command()
@click.option("--origins", "with_origins", is_flag=True, help="Show who set each value.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a setting.")
@click.option("--markdown", is_flag=True, help="Print the reference of all settings.")
@_settings_options
def settings(with_origins: bool, as_json: bool, markdown: bool, **given: Any) -> int:
    """Show every setting as it is in force."""
    from crawlog.streams.settings import settings as known

    if markdown:
        answer(*known.reference().splitlines())
        return outcome.FINISHED
    found = known.origins(_sources(given))
    if as_json:
        for one in found:
            answer(json.dumps(one._asdict(), default=str))
        return outcome.FINISHED
    lines = [(one.key, known.shown(one.value), one.origin if with_origins else "") for one in found]
    answer(*_table(lines))
    return outcome.FINISHED


@cli.command("kcat-config")
@_settings_options
def kcat_config(**given: Any) -> int:
    """Print what kcat needs to reach the log, a password among it.

    Example: kcat -F <(crawlog kcat-config) -C -t crawl.items
    """
    from crawlog.streams.log import foreign_config

    for name, value in foreign_config(_running_log(_settings(given))).items():
        answer(f"{name}={value}")
    return outcome.FINISHED


@cli.command()
@click.argument("kind")
def probe(kind: str) -> int:
    """Ask the pure core: JSON lines in, JSON lines out, one answer a line, in order; no broker."""
    from crawlog.commands.probe import KINDS
    from crawlog.commands.probe import run as ask

    if kind not in KINDS:
        raise Misconfigured(f"no probe kind {kind!r}; there are: {', '.join(KINDS)}")
    return ask(kind, sys.stdin.buffer, sys.stdout.buffer)


def _table(lines: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Columns; two spaces between, none at the end of a line."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    rows = (
        [
            text.rjust(width) if at in right else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    )
    return ["  ".join(cells).rstrip() for cells in rows]
