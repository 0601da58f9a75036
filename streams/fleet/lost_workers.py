"""Processes of workers that have ended within the last hour, and why. Pure.

last report of a process, `ended` set ────► stopped, drained, crashed ─┐
its supervisor's report for it ───────────► killed by …, exit code … ──┼─► LostWorker
no report for `GONE_S`, or another process of the name ──► silent ─────┘
"""

import msgspec

from crawlog.schemas.progress import VERSION, Progress

from .views import LostWorker

LOST_S = 3600.0  # How long a process that has ended is remembered, seconds

GONE_S = 15.0  # A worker without a report for this time is gone, seconds; a living one reports each second

MOST = 1_000  # Processes that are remembered, at most

SILENT = "silent"


class ReportSign(msgspec.Struct, tag_field="v", tag=VERSION):
    """What a report says of its process: an hour has very many of them, and the rest of each is not decoded."""

    worker: str
    stage: str
    pid: int = 0
    idle_stage: str = ""
    host: str = ""
    version: str = ""
    started: float = 0.0
    ended: str = ""


class SeenProcess(msgspec.Struct):
    """The reports of one process, as far as they matter here."""

    host: str
    version: str
    first_at: float
    at: float
    ended: str = ""


class LostWorkers:
    """The processes that reported.

    Attributes:
        seen: By stage, name, pid and start, the last one to report at the end.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str, int, float], SeenProcess] = {}

    def take(self, sign: ReportSign | Progress, at: float) -> None:
        """Takes a report that arrived at `at`, UTC epoch seconds."""
        if not sign.worker:
            return  # a replay wrote it
        who = sign.idle_stage or sign.stage, sign.worker, sign.pid, sign.started
        if sign.ended and not sign.started:  # its supervisor knows the pid alone
            who = next((one for one in reversed(self.seen) if one[:3] == who[:3]), who)
        seen = self.seen.pop(who, None)
        if seen is None:
            seen = SeenProcess(sign.host, sign.version, at, at)
        if len(self.seen) >= MOST:
            del self.seen[next(iter(self.seen))]
        seen.at, seen.ended = at, sign.ended or seen.ended
        self.seen[who] = seen  # the last one is the one that reported last

    def take_earlier(self, earlier: "LostWorkers") -> None:
        """Takes the processes that had reported before."""
        self.seen = earlier.seen | self.seen

    def views(self, now: float) -> list[LostWorker]:
        """The processes that have ended, the last one first; `now` is UTC epoch seconds."""
        newest: dict[tuple[str, str], float] = {}
        for (stage, name, _, _), seen in self.seen.items():
            newest[stage, name] = max(seen.first_at, newest.get((stage, name), 0.0))
        found = []
        for (stage, name, pid, started), seen in self.seen.items():
            is_replaced = seen.first_at < newest[stage, name]
            if now - seen.at <= LOST_S and (seen.ended or is_replaced or now - seen.at > GONE_S):
                why = seen.ended or SILENT
                found.append(LostWorker(name, stage, seen.host, pid, seen.version, started, seen.at, why, is_replaced))
        return sorted(found, key=lambda one: -one.lost_at)
