"""`crawlog verify`: compares every state on this machine with the fold of its log."""

import time
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from crawlog.streams.errors import Misconfigured
from crawlog.streams.state import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crawlog.streams.recovery import CheckFinding
    from crawlog.streams.settings import Settings

SHOWN = 20  # Findings that are listed at most; `--json` lists all


class Verified(msgspec.Struct):
    """The result of a second fold of the log."""

    verdicts: list[Verdict]
    took_s: float

    @property
    def is_equal(self) -> bool:
        return all(verdict.equal for verdict in self.verdicts)


def verify(settings: "Settings", rows: int) -> Verified:
    """Folds the log again, and compares the result with the states.

    Args:
        rows: Differing rows that are named at most for each partition.

    Raises: Misconfigured: there is no state.
    """
    from crawlog.streams import logs
    from crawlog.streams.state import verify as streams

    logs.configure("debug" if settings.log.level == "debug" else "warning")  # standard output is for answers
    state = settings.run.data / "state"
    if not state.is_dir():
        raise Misconfigured(f"there is no state in {state}: nothing was crawled with this data folder yet.")
    began = time.monotonic()
    verdicts = streams.verify(settings, state, rows)
    return Verified(verdicts, time.monotonic() - began)


def findings(found: "Iterable[CheckFinding]", missing: int) -> list[str]:
    """Lines about missing records: the first findings, then the total."""
    told = [str(one) for one in islice(found, SHOWN)]
    if missing > SHOWN:
        told.append(f"… and {missing - SHOWN:,} more; `crawlog verify --log --json` names all")
    if missing:
        told.append(f"missing: {missing:,}; `crawlog run` of the job, the same command again, or `crawlog up` mends it")
    return told
