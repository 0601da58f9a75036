"""The plan of a replay: as a table, as JSON, and in words."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from crawlog.commands.replay import Plan, Replayed, ReplayOptions, live_words

from .table import table

WORK = {
    "parse": ("pages", "parsed again"),
    "sink": ("item records", "taken again"),
    "fetch": ("records", "forgotten: what they found is crawled again in a new epoch"),
}
"""By stage: the name of the group's records, and the effect of a replay on them."""

NEXT = {
    "parse": "`crawlog run` of the job, the same command again, parses them and makes its FILE anew;"
    " `crawlog up` parses them too",
    "sink": "`crawlog run` of the job, the same command again, fills its FILE anew",
    "fetch": "`crawlog run` of the job, the same command again, or `crawlog up` goes on from there",
}

HEAD = ("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER", "RECORDS", "FROM", "TO")


def lines(plans: Sequence[Plan]) -> list[str]:
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


def as_json(plan: Plan, order: ReplayOptions) -> str:
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
