"""`crawlog verify`: whether every state on this machine is the fold of its log, said in a table and an exit code."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import outcome
from .streams.errors import Misconfigured

if TYPE_CHECKING:
    from .streams.decoded import Row
    from .streams.settings import Settings
    from .streams.verify import Difference, Verdict


def verify(settings: "Settings", rows: int, *, as_json: bool, say: Callable[[str], None]) -> int:
    """Folds again, prints the verdicts; 0 when all states are equal, `outcome.DIFFERENT` when one is not."""
    from .streams import logs
    from .streams import verify as streams

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


def _shown(row: "Row | None") -> str:
    return "no such row" if row is None else json.dumps(row.value, ensure_ascii=False)
