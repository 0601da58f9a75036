"""`crawlog up`, `down`, `status`, `worker` and `engine`: the processes of this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click

from crawlog import outcome
from crawlog.terminal import answer, tell

from .options import CommandGroup, accept_skipped, settings_of, settings_options
from .reach import existing_log, running_log

if TYPE_CHECKING:
    from crawlog.streams.hosts import HostKind
    from crawlog.streams.settings import Settings
    from crawlog.streams.stages import Stage

STAGES = ("fetch", "parse", "sink", "service", "start", "exit")


@click.command()
@click.option("--workers", metavar="auto|fetch=F,parse=P", help="Worker processes per stage (auto: by the cores).")
@accept_skipped
@settings_options
def up(workers: str | None, accepts_skipped: bool, **given: Any) -> int:
    """Start the local engine and workers in the background."""
    from crawlog.processes.folder import prepare

    from . import arguments

    settings = settings_of(given, arguments.worker_counts(workers) if workers else {})
    prepare(settings.run.data)
    from crawlog.commands.up import up as start

    started = start(settings, accepts_skipped=accepts_skipped)
    answer(f"Apache Kafka   {started.bootstrap}")
    answer(f"workers        {started.workers}, logs in {started.data / 'logs'}")
    if started.service:
        token = "users: service.users" if settings.service.users else f"token: {started.data / 'run' / 'service.json'}"
        answer(f"service        {started.service}  ({token})")
    answer(f"data           {started.data}")
    answer("give a job     `crawlog submit URL… -o FILE.jsonl`; `crawlog jobs` shows how far it is")
    answer("stop it with   `crawlog down`")
    if started.refuses:
        tell(f"deployed code  {started.refuses}")
    return outcome.FINISHED


@click.command()
@settings_options
def down(**given: Any) -> int:
    """Stop what `up` started; the data stay."""
    from crawlog.commands.up import down as stop

    stopped = stop(settings_of(given))
    if stopped.was_up:
        tell(f"stopped; the data stay in {stopped.data}")
    elif stopped.broker:
        tell(f"stopped Apache Kafka (pid {stopped.broker}), which neither `run` nor `up` was using")
    else:
        tell(f"nothing runs on {stopped.data}")
    return outcome.FINISHED


def _hosts(kind: "HostKind | None", settings: "Settings", *, as_json: bool) -> int:
    from crawlog.commands.hosts import list_hosts

    from .hosts_text import SHOWN, host_answer

    with existing_log(settings) as reached:
        found = list_hosts(reached, kind, sys.maxsize if as_json else SHOWN)
    answer(*host_answer(found, as_json=as_json))
    return outcome.FINISHED


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --hosts one a host.")
@click.option(
    "--hosts",
    type=click.Choice(("all", "slow", "failing", "banned")),
    is_flag=False,
    flag_value="all",
    help="Show the hosts, the worst first: all, or those that are slow, failing or banned.",
)
@settings_options
def status(as_json: bool, hosts: "HostKind | Literal['all'] | None", **given: Any) -> int:
    """Show what runs on the data folder, and how far the jobs are; or the hosts of the fleet."""
    if hosts is not None:
        return _hosts(None if hosts == "all" else hosts, settings_of(given), as_json=as_json)
    from crawlog.commands.up import status as show

    from . import fleet_text

    found = show(settings_of(given))
    answer(*([fleet_text.status_json(found)] if as_json else fleet_text.status_lines(found)))
    return outcome.FINISHED


@click.command()
@click.argument("stage", type=click.Choice(STAGES))
@settings_options
def worker(stage: "Stage | Literal['service', 'start', 'exit']", **given: Any) -> int:
    """Run one worker, the HTTP service, the `start` of spiders, or an exit that lends this machine's addresses.

    A worker is the same as `faust -A crawlog.streams.app:STAGE worker`. The other three are no Faust apps.
    """
    from crawlog.processes.folder import prepare
    from crawlog.streams.log import ensure_topics
    from crawlog.streams.settings import for_stage

    settings = settings_of(given)
    if stage == "service":
        from crawlog.service import check_reach

        check_reach(settings)
    prepare(settings.run.data)
    settings = running_log(settings)
    ensure_topics(settings, tell)  # asks the cluster before Faust does, which would end with a traceback
    if stage == "service":
        from crawlog.service import serve

        serve(lambda: for_stage(settings, stage))
    if stage == "start":
        from crawlog.processes.start_process import run_starts

        run_starts(for_stage(settings, stage), tell)
        return outcome.FINISHED
    if stage == "exit":
        from crawlog.agents.exits import lend

        lend(for_stage(settings, stage), tell)
        return outcome.FINISHED
    from crawlog.streams.app import worker as work

    work(stage, lambda: for_stage(settings, stage))
    return outcome.FINISHED


@click.group(cls=CommandGroup)
def engine() -> None:
    """The local engine's files."""


@engine.command("fetch")
@click.option(
    "--to", "to", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), help="Not the cache, but DIR."
)
@settings_options
def engine_fetch(to: Path | None, **given: Any) -> int:
    """Fetch Apache Kafka's jars and verify their hashes, for machines without a network."""
    from crawlog.streams.engine import fetch_jars

    jars = fetch_jars(settings_of(given), to, tell)
    folder = jars[0].parent.absolute()
    size = sum(jar.stat().st_size for jar in jars)
    tell(f"{len(jars)} jars, {size / 1e6:.0f} MB, verified; use them with -s engine.maven_url={folder}")
    answer(str(folder))
    return outcome.FINISHED
