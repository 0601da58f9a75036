"""`crawlog topics`, `verify`, `repair`, `replay` and `kcat-config`: commands on the log and its states."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from crawlog import outcome
from crawlog.terminal import answer, table, tell

from .options import settings_of, settings_options
from .reach import check_log, existing_log, reachable_log, running_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crawlog.streams.log import TopicRow
    from crawlog.streams.settings import Settings


@click.command()
@click.option("--create", is_flag=True, help="Create those that are missing, verify the others.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a topic.")
@settings_options
def topics(create: bool, as_json: bool, **given: Any) -> int:
    """Show the topics: partitions, records, size, lag per consumer group; on a cluster the replicas too."""
    settings = settings_of(given)
    with reachable_log(settings) if create else existing_log(settings, needs_topics=False) as reached:
        from crawlog.streams.cluster import Admin
        from crawlog.streams.groups import known_sink_groups
        from crawlog.streams.log import ensure_topics, topic_rows

        if create:
            ensure_topics(reached, tell)
        admin = Admin(reached)
        rows = topic_rows(admin, known_sink_groups(admin))
    if as_json:
        for row in rows:
            answer(json.dumps(row._asdict()))
        return outcome.FINISHED
    if not rows:
        tell(f"no topics with the prefix {reached.kafka.prefix!r} yet; the first crawl creates them")
    answer(*topic_lines(rows))
    return outcome.FINISHED


def topic_lines(rows: "Sequence[TopicRow]") -> list[str]:
    """The topics, below them their replicas on a cluster, and the lag of each group: at most 80 columns."""
    topics = [("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "KEPT")]
    groups = [("GROUP", "READS", "STILL TO READ")]
    copies = [("TOPIC", "REPLICAS", "IN SYNC", "PARTITIONS LED, BY BROKER")]
    for row in rows:
        size = "" if row.size_bytes is None else f"{row.size_bytes / 1e6:,.1f} MB"
        topics.append((row.name, str(row.partitions), f"{row.records:,}", size, row.kept))
        groups += [(group, row.name, f"{count:,}") for group, count in row.lag.items()]
        led = ", ".join(f"{'NONE' if broker < 0 else broker}: {count}" for broker, count in row.leaders.items())
        copies.append((row.name, str(row.replicas), str(row.in_sync), led))
    is_cluster = len({broker for row in rows for broker in row.leaders}) > 1 or any(row.replicas > 1 for row in rows)
    below = [*table(copies, right=(1, 2)), ""] if is_cluster else []
    return [*table(topics, right=(1, 2, 3)), "", *below, *table(groups, right=(2,))]


@click.command()
@click.option("--rows", metavar="N", is_flag=False, flag_value=20, default=0, type=click.IntRange(0),
              help="Name the first N rows of a partition that differ (20).")  # fmt: skip
@click.option("--log", "is_of_log", is_flag=True,
              help="Check the log itself: each record's CRC and decoding; no page, no item is missing.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a partition, and one a finding.")
@settings_options
def verify(rows: int, is_of_log: bool, as_json: bool, **given: Any) -> int:
    """Fold the log again and compare with the state; workers may be running. Exit code 5: they differ.

    With --log the log is checked instead. Exit code 5: something is missing.
    """
    with existing_log(settings_of(given)) as reached:
        if is_of_log:
            return _verify_log(reached, as_json=as_json)
        from crawlog.commands.verify import verify as compare
        from crawlog.streams.state import verify as streams

        from . import stored_text

        verified = compare(reached, rows)
    if as_json:
        answer(*(streams.as_json(verdict).decode() for verdict in verified.verdicts))
    else:
        answer(*stored_text.verified_lines(verified))
    return outcome.FINISHED if verified.is_equal else outcome.DIFFERENT


def _verify_log(settings: "Settings", *, as_json: bool) -> int:
    """Reads the whole log, and reports missing records."""
    from msgspec.json import encode

    from crawlog.streams.recovery import Check, note_missing

    from . import stored_text

    check = Check(settings)
    if check.missing and not any(part.damaged for part in check.parts):
        note_missing(settings.run.data)
    if as_json:
        answer(*(encode(one).decode() for one in (*check.parts, *check.findings())))
    else:
        answer(*stored_text.check_lines(check))
    return outcome.DIFFERENT if check.missing else outcome.FINISHED


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what is damaged only; the default.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a partition.")
@settings_options
def repair(dry_run: bool, execute: bool, as_json: bool, **given: Any) -> int:
    """Cut the local engine's log before records that cannot be read; the next `run` restores the lost ones.

    On a cluster it names the brokers of the damaged partitions, and the steps for their operator.

    Exit code 5: something is damaged.
    """
    from . import arguments

    is_execution = arguments.is_execution(dry_run=dry_run, execute=execute)
    from crawlog.commands.verify import ON_A_CLUSTER, cut, cuts, placed

    settings = settings_of(given)
    if is_execution:
        check_log(settings)
        lines = cut(settings)  # without a broker: it may not start on damaged files
        for line in lines:
            answer(line)
        tell("the next `crawlog run`, the same command again, makes again what is gone")
        return outcome.FINISHED
    with existing_log(settings) as reached:
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


@click.command()
@click.option("--group", metavar="GROUP", required=True, help="parse, sink, fetch, or one sink by its id or FILE.")
@click.option("--job", metavar="NAME", default="", help="Of parse only this job's pages; of sink only its own.")
@click.option("--output", metavar="OUTPUT", default="", help="Of the sink of a job: only this output.")
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
@settings_options
def replay(
    group: str, job: str, output: str, topics: tuple[str, ...], dry_run: bool, execute: bool, **rest: Any
) -> int:
    """Move a group in its log, so that stored records are processed again; options as in kafka-consumer-groups.

    Example: crawlog replay --group parse --to-earliest --execute
    """
    from . import arguments

    kind, value = arguments.reset_target(rest)
    is_execution = arguments.is_execution(dry_run=dry_run, execute=execute)
    if job:
        arguments.job_name(job)
    settings = settings_of(rest)
    from crawlog.commands.replay import Replayed, ReplayOptions, is_of_fleet
    from crawlog.commands.replay import replay as move
    from crawlog.jobs.changes import refill_output
    from crawlog.streams.groups import check_group_name, offsets

    from . import stored_text

    order = ReplayOptions(group, kind, value, topics, is_execution, job, output)
    check_group_name(settings, group)
    with existing_log(settings) as reached:
        if not (output and is_of_fleet(reached, order)):
            replayed = move(reached, order, tell)
        else:
            if is_execution:
                refill_output(reached, job, output)
            replayed = Replayed([], [], output)
    plans = replayed.plans
    if rest["export"]:
        answer(*offsets.exported([(plan.group.name, plan.group.topic, plan.moves) for plan in plans]).splitlines())
    elif rest["as_json"]:
        answer(*(stored_text.plan_json(plan, order) for plan in plans))
    elif not replayed.refilled:
        answer(*stored_text.plan_lines(plans))
    tell(*stored_text.meaning(replayed, order))
    return outcome.FINISHED


@click.command("kcat-config")
@settings_options
def kcat_config(**given: Any) -> int:
    """Print the configuration that kcat needs for this log, with its password.

    Example: kcat -F <(crawlog kcat-config) -C -t crawl.items
    """
    from crawlog.streams.cluster import foreign_config

    for name, value in foreign_config(running_log(settings_of(given))).items():
        answer(f"{name}={value}")
    return outcome.FINISHED
