"""How fast jobs go: the pages and rows that reports have added in the last minute. Pure.

report ─► what did it add to what the partition, or the worker, had reported? ─► a sum each 5 s ─► JobPace, a minute

What a first report counts may be older, so it adds nothing. A new owner of a partition reports the same fold, so it
adds only what is new.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from crawlog.schemas.progress import JobCounts, Progress
from crawlog.streams.jobs import FleetReports, ended

OVER_S = 60.0  # Time over which a pace is taken, seconds

EVERY_S = 5.0  # Time that one sum is of


class JobPace(msgspec.Struct, frozen=True):
    """What a job does in a minute, by the reports of the last one.

    Attributes:
        over_s: Time that it is taken over: less than a minute of a job that was met just now; 0 of one that rests.
    """

    pages: float = 0.0
    rows: float = 0.0
    over_s: float = 0.0


STILL = JobPace()


class Paces:
    """The paces of all jobs.

    Attributes:
        since: Arrival of the first report, UTC epoch seconds; 0 before.
    """

    def __init__(self) -> None:
        self.since = 0.0
        self._sums: dict[str, deque[tuple[int, int, int]]] = {}
        self._met_at: dict[str, float] = {}

    def take(self, report: Progress, at: float, known: FleetReports) -> set[str]:
        """Takes the next report, before the reports that are known have it; returns the jobs whose counts it changes.

        Args:
            at: Its arrival, UTC epoch seconds.
        """
        self.since = self.since or at
        changed = set()
        for job, pages, rows in _added(report, known):
            changed.add(job)
            if pages > 0 or rows > 0:
                self._add(job, at, pages, rows)
        return changed

    def _add(self, job: str, at: float, pages: int, rows: int) -> None:
        sums, turn = self._sums.get(job), int(at / EVERY_S)
        if sums is None or _has_rested(sums, at):
            sums = self._sums[job] = deque(maxlen=int(OVER_S / EVERY_S) + 1)
            self._met_at[job] = at
        if sums and sums[-1][0] >= turn:  # greater: the broker's clock was set back
            turn, before, rows_before = sums.pop()
            pages, rows = pages + before, rows + rows_before
        sums.append((turn, pages, rows))

    def of(self, job: str, now: float) -> JobPace:
        """The pace of a job."""
        known = self._sums.get(job)
        if known is None:
            return STILL
        if _has_rested(known, now):
            del self._sums[job], self._met_at[job]
            return STILL
        met_at = max(self.since, self._met_at[job] - EVERY_S)  # what was added at first took that long
        over_s = min(OVER_S, max(now - met_at, EVERY_S))
        sums = [one for one in known if one[0] * EVERY_S > now - over_s - EVERY_S]
        if not sums:
            return STILL
        pages, rows = (round(sum(one[at] for one in sums) * 60.0 / over_s, 1) for at in (1, 2))
        return JobPace(pages, rows, round(over_s, 1))


def _has_rested(sums: deque[tuple[int, int, int]], now: float) -> bool:
    """Whether all sums of a job are too old to count; what it adds next begins a new pace."""
    return now - sums[-1][0] * EVERY_S > OVER_S + EVERY_S


def _added(report: Progress, known: FleetReports) -> Iterator[tuple[str, int, int]]:
    """The jobs whose counts a report changes, with the pages and the rows that it adds."""
    before = known.newest.get((report.stage, report.partition))
    counted = before.jobs if before is not None else {}
    for job, counts in report.jobs.items():
        was = counted.get(job)
        if was == counts:
            continue
        is_new = before is not None and not before.is_partial if was is None else was.epoch < counts.epoch
        since = was if was is not None and was.epoch == counts.epoch else JobCounts() if is_new else counts
        yield job, ended(counts) - ended(since), 0
    remarked = known.remarks.get((report.worker, report.pid), {})
    for job, remarks in report.remarks.items():
        seen = remarked.get(job)
        if seen != remarks:
            yield job, 0, remarks.rows - seen.rows if seen is not None and seen.epoch == remarks.epoch else 0
