"""The result of `crawlog verify` as text."""

import json
from typing import TYPE_CHECKING

from crawlog.commands.verify import Verified, findings
from crawlog.streams.state import Verdict

if TYPE_CHECKING:
    from crawlog.streams.fold import DescribedRow
    from crawlog.streams.recovery import Check
    from crawlog.streams.state import Difference


def log_lines(check: "Check") -> list[str]:
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


def lines(verified: Verified) -> list[str]:
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
