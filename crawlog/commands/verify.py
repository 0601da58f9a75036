"""`crawlog verify`: whether every state on this machine is the fold of its log; with `--log`, whether the log is whole.

Both are said in a table and an exit code.
"""

import json
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from crawlog import outcome
from crawlog.streams.errors import Misconfigured

if TYPE_CHECKING:
    from crawlog.streams.fold import DescribedRow
    from crawlog.streams.log import Check, CheckFinding
    from crawlog.streams.settings import Settings
    from crawlog.streams.state import Difference, Verdict


def verify(settings: "Settings", rows: int, *, as_json: bool, say: Callable[[str], None]) -> int:
    """Folds again, prints the verdicts; 0 when all states are equal, `outcome.DIFFERENT` when one is not."""
    from crawlog.streams.state import verify as streams
    from crawlog.streams.worker import logs

    logs.configure("debug" if settings.log.level == "debug" else "warning")  # standard output is for answers
    state = settings.run.data / "state"
    if not state.is_dir():
        raise Misconfigured(f"there is no state in {state}: nothing was crawled with this data folder yet.")
    began = time.monotonic()
    verdicts = streams.verify(settings, state, rows)
    took_s = time.monotonic() - began
    if as_json:
        for verdict in verdicts:
            say(streams.as_json(verdict).decode())
    else:
        for line in lines(verdicts, took_s):
            say(line)
    return outcome.FINISHED if all(verdict.equal for verdict in verdicts) else outcome.DIFFERENT


SHOWN = 20
"""Findings that are told one by one; `--json` tells all."""


def verify_log(settings: "Settings", *, as_json: bool, say: Callable[[str], None]) -> int:
    """Reads the whole log, prints what is missing; 0 when nothing is, else `outcome.DIFFERENT`."""
    from msgspec.json import encode

    from crawlog.streams.log import Check

    check = Check(settings)
    if as_json:
        for one in (*check.parts, *check.findings()):
            say(encode(one).decode())
    else:
        for line in log_lines(check):
            say(line)
    return outcome.DIFFERENT if check.missing else outcome.FINISHED


def log_lines(check: "Check") -> list[str]:
    """The table, the first findings, and what it comes to."""
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
        told.append(f"{check.trimmed:,} pages were trimmed, as log.pages_keep_days says")
    if not check.missing:
        told.append("nothing is missing: every page that was fetched is in the log, and came to items or a dead letter")
    return told


def findings(found: "Iterable[CheckFinding]", missing: int) -> list[str]:
    """What is missing, the first ones one by one."""
    told = [str(one) for one in islice(found, SHOWN)]
    if missing > SHOWN:
        told.append(f"… and {missing - SHOWN:,} more; `crawlog verify --log --json` names all")
    if missing:
        told.append(f"missing: {missing:,}; `crawlog run` of the job, the same command again, gets back what it can")
    return told


def lines(verdicts: "list[Verdict]", took_s: float) -> list[str]:
    """The table, the rows that differ, and what it comes to."""
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
        told.append(f"every state is the fold of its log: {records:,} records folded again in {took_s:.1f} s")
    return told


def _cells(verdict: "Verdict") -> tuple[str, str, str, str, str]:
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
