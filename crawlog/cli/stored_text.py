"""The plan of a replay, as a table, as JSON and in words; the result of `crawlog verify` as text."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from crawlog.commands.replay import Plan, Replayed, ReplayOptions, live_words
from crawlog.commands.verify import Verified, findings
from crawlog.streams.state import Verdict
from crawlog.terminal import table

if TYPE_CHECKING:
    from crawlog.streams.fold import DescribedRow
    from crawlog.streams.recovery import Check
    from crawlog.streams.state import Difference

# By stage: the name of the group's records, and the effect of a replay on them.
WORK = {
    "parse": ("pages", "parsed again"),
    "sink": ("item records", "taken again"),
    "fetch": ("records", "forgotten: what they found is crawled again in a new epoch"),
}

NEXT = {
    "parse": "`crawlog run` of the job, the same command again, parses them and makes its FILE anew;"
    " `crawlog up` parses them too",
    "sink": "`crawlog run` of the job, the same command again, fills its FILE anew",
    "fetch": "`crawlog run` of the job, the same command again, or `crawlog up` goes on from there",
}

HEAD = ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "RECORDS", "FROM", "TO")


def plan_lines(plans: Sequence[Plan]) -> list[str]:
    """The plan as a table."""
    rows: list[tuple[str, ...]] = [HEAD]
    for plan in plans:
        for move in plan.moves:
            times = [_time(at) for at in plan.times_ms.get(move.partition, ())] or ["", ""]
            before = "-" if move.before is None else str(move.before)
            count = f"{-move.records:,}" if move.is_skip else f"{move.records:,}"
            place = plan.group.name, plan.group.topic, str(move.partition)
            rows.append((*place, before, str(move.after), count, *times))
        span = [_time(at) for at in plan.span_ms or ()] or ["", ""]
        rows.append(("total", "", "", "", "", f"{plan.again - plan.skipped:,}", *span))
    return table(rows, right=(2, 3, 4, 5))


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plan_json(plan: Plan, order: ReplayOptions) -> str:
    """The plan of one group, one object on one line."""
    fields = ("partition", "before", "after", "records", "gone")
    found: dict[str, Any] = {
        "group": plan.group.name,
        "topic": plan.group.topic,
        "job": order.job,
        "executed": order.execute,
        "again": plan.again,
        "skipped": plan.skipped,
        "gone": plan.gone,
        "partitions": [
            {name: getattr(move, name) for name in fields} | {"times_ms": plan.times_ms.get(move.partition)}
            for move in plan.moves
        ],
    }
    return json.dumps(found)


def meaning(replayed: Replayed, order: ReplayOptions) -> list[str]:
    """The effect of the plan in words, and the next command."""
    told = [line for plan in replayed.plans for line in _meaning(plan, order)]
    if replayed.refilled:
        verb = "is" if order.execute else "would be"
        told.append(f"output {replayed.refilled} of job {order.job} {verb} emptied, and filled from the log again")
    if not order.execute:
        if replayed.live:
            told.append(f"{live_words(replayed.live)}: it must be stopped before --execute")
        told.append("dry run: nothing was changed; --execute does it")
    elif any(plan.again for plan in replayed.plans):
        told.append(f"next: {NEXT[replayed.plans[0].group.stage]}")
    return told


def _meaning(plan: Plan, order: ReplayOptions) -> list[str]:
    things, fate = WORK[plan.group.stage]
    if order.job and plan.group.stage == "parse":
        fate = f"read again: those of job {order.job} are parsed again, others passed over"
    of = f" ({plan.group.of})" if plan.group.of else ""
    verb = "are" if order.execute else "would be"
    lines = [f"{plan.group.name}{of}: {plan.again:,} {things} {verb} {fate}"]
    if all(move.before is None and not move.records for move in plan.moves):
        lines = [f"{plan.group.name}{of}: {plan.group.topic} holds no record there, so nothing to replay"]
    elif not plan.again and not plan.skipped:
        lines = [f"{plan.group.name}{of}: it is there already, so nothing changes"]
    if plan.skipped:
        lines.append(f"{plan.group.name}: {plan.skipped:,} {things} {verb} skipped")
    if plan.gone:
        most = "up to " if order.kind in ("to-datetime", "by-duration") else ""
        lines.append(f"{plan.group.name}: {most}{plan.gone:,} {things} are gone: {plan.group.topic} was trimmed")
    return lines


def check_lines(check: "Check") -> list[str]:
    """The table, the first findings, and the conclusion."""
    cells = [("TOPIC", "PARTITION", "OFFSETS", "RECORDS", "UNDECODABLE", "DAMAGED")]
    for part in check.parts:
        damaged = sum(end - start for start, end in part.damaged)
        offsets = f"{part.start:,}..{part.end:,}"
        cells.append(
            (part.topic, str(part.partition), offsets, f"{part.records:,}", f"{part.undecodable:,}", f"{damaged:,}")
        )
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    told = ["  ".join([topic.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip() for topic, *rest in cells]
    told += findings(check.findings(), check.missing)
    if any(part.damaged for part in check.parts):
        told.append("what cannot be read stays so: `crawlog repair` shows where to cut it off, before that `run`")
    if check.trimmed:
        told.append(f"{check.trimmed:,} pages were trimmed after they were parsed")
    if not check.missing:
        told.append("nothing is missing: every page that was fetched is in the log, and came to items or a dead letter")
    return told


def verified_lines(verified: Verified) -> list[str]:
    """The table, the rows that differ, and the conclusion."""
    verdicts = verified.verdicts
    head = ("PARTITION", "OFFSET", "RECORDS", "DIGEST", "VERDICT")
    cells = [head, *(_cells(verdict) for verdict in verdicts)]
    widths = [max(len(row[at]) for row in cells) for at in range(3)]
    told = [
        f"{number:>{widths[0]}}  {offset:>{widths[1]}}  {records:>{widths[2]}}  {digest:32}  {verdict}"
        for number, offset, records, digest, verdict in cells
    ]
    for verdict in verdicts:
        told += [line for one in verdict.rows for line in _difference(verdict.partition, one)]
    records = sum(verdict.records for verdict in verdicts)
    wrong = [str(verdict.partition) for verdict in verdicts if not verdict.equal]
    if not verdicts:
        told.append("no partition has a checkpoint yet")
    elif wrong:
        told.append(
            f"partitions {', '.join(wrong)} are not the fold of their log. --rows names what differs; a state that is "
            "deleted is built again by the next worker."
        )
    else:
        told.append(f"every state is the fold of its log: {records:,} records folded again in {verified.took_s:.1f} s")
    return told


def _cells(verdict: Verdict) -> tuple[str, str, str, str, str]:
    begun = f", begun at the snapshot of offset {verdict.begun:,}" if verdict.begun else ""
    said = f"equal{begun}" if verdict.equal else verdict.reason or f"DIFFERENT: the log folds to {verdict.folded}"
    return str(verdict.partition), f"{verdict.offset:,}", f"{verdict.records:,}", verdict.kept, said


def _difference(partition: int, one: "Difference") -> list[str]:
    row = one.kept or one.folded
    assert row is not None
    key = " ".join(f"{name}={value}" for name, value in row.key.items())
    return [f"{partition}: {row.kind} {key}", f"    kept    {_shown(one.kept)}", f"    folded  {_shown(one.folded)}"]


def _shown(row: "DescribedRow | None") -> str:
    return "no such row" if row is None else json.dumps(row.value, ensure_ascii=False)
