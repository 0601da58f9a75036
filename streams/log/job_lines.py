"""Lines about jobs, on their way from a process's log to crawl.logs. Never waits, never fails its caller.

    log.info(…, job=…) ─► JobLines.heard (any thread): limits ─► take: records ─┬─► agents/job_lines.py
                                              those of `start`, with its requests └─► processes/starting.py

An event is about a job if it has a field `job`. What limits leave out is counted, and the next record says so.
"""

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from crawlog.schemas.log_lines import MAX_LINE, MAX_LINES, LogLine, LogLines
from crawlog.streams.printable import escaped

PRINTED = "spider_printed"  # The event of a line that a child process printed, in the field `line`

LINES_S, BURST = 50.0, 500  # Lines of one job a second, and at once

WORKER_LINES_S, WORKER_BURST = 500.0, 5_000  # Lines of one worker a second, and at once; so many are held at most

RECORD_CHARS = 200_000  # Characters of one record, about

MOST_JOBS = 1_000  # Jobs whose rate is remembered

_HIDDEN = frozenset({"job", "event", "level", "time", "url", "exception", "line"})
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")


class _Rate:
    """A token bucket."""

    def __init__(self, lines_s: float, burst: int, now: float) -> None:
        self._lines_s, self._burst = lines_s, burst
        self._left, self._at = float(burst), now

    def has_room(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._lines_s)
        self._at = now
        return self._left >= 1.0

    def use(self) -> None:
        self._left -= 1.0


class JobLines:
    """The lines that wait for crawl.logs.

    Args:
        now: A steady clock, seconds.
    """

    def __init__(self, worker: str, stage: str, now: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._stage, self._now = worker, stage, now
        self._lock = threading.Lock()
        self._lines: dict[str, deque[LogLine]] = {}
        self._count = 0
        self._lost: dict[str, int] = {}
        self._rates: dict[str, _Rate] = {}
        self._rate = _Rate(WORKER_LINES_S, WORKER_BURST, now())

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take an event of the log, if it is about a job."""
        job = event.get("job")
        if isinstance(job, str) and job:
            self.add(job, line_of(event))

    def add(self, job: str, line: LogLine) -> None:
        """Take a line about a job, or count it as lost."""
        with self._lock:
            if self._count < WORKER_BURST and self._has_room(job):
                self._lines.setdefault(job, deque()).append(line)
                self._count += 1
            else:
                self._lost[job] = self._lost.get(job, 0) + 1

    def lose(self, record: LogLines) -> None:
        """Count the lines of a record that could not be sent."""
        with self._lock:
            self._lost[record.job] = self._lost.get(record.job, 0) + len(record.lines) + record.lost

    def take(self, most: int = 100) -> list[LogLines]:
        """The records to be sent now, `most` at most; the other lines wait."""
        records: list[LogLines] = []
        with self._lock:
            for job in list(self._lines | self._lost):
                while len(records) < most and (job in self._lines or job in self._lost):
                    records.append(self._record(job))
        return records

    def _record(self, job: str) -> LogLines:
        lines, chars = self._lines.get(job, deque()), 0
        taken = list[LogLine]()
        while lines and len(taken) < MAX_LINES and chars < RECORD_CHARS:
            taken.append(lines.popleft())
            chars += len(taken[-1].text)
        if not lines:
            self._lines.pop(job, None)
        self._count -= len(taken)
        return LogLines(job, self._worker, self._stage, tuple(taken), lost=self._lost.pop(job, 0))

    def _has_room(self, job: str) -> bool:
        now = self._now()
        rate = self._rates.pop(job, None) or _Rate(LINES_S, BURST, now)
        self._rates[job] = rate  # the last one that was used stands at the end
        if len(self._rates) > MOST_JOBS:
            del self._rates[next(iter(self._rates))]
        if not (rate.has_room(now) and self._rate.has_room(now)):
            return False
        rate.use()
        self._rate.use()
        return True


def line_of(event: Mapping[str, Any]) -> LogLine:
    """The line of an event: what a child printed, or the event as its source and the fields as its text."""
    name, url = str(event.get("event", "")), str(event.get("url", ""))
    if name == PRINTED:
        text = str(event.get("line", ""))[:MAX_LINE]
        return LogLine(time.time(), text, _printed_level(text))
    fields = [f"{key}={value}" for key, value in event.items() if key not in _HIDDEN]
    text = escaped(" ".join(fields).replace("\n", " ⏎ "))
    if event.get("exception"):
        text += "\n" + "\n".join(escaped(line) for line in str(event["exception"]).splitlines())
    return LogLine(time.time(), text[:MAX_LINE], str(event.get("level", "info")), name, url[:MAX_LINE])


def _printed_level(text: str) -> str:
    """The level that a line of Python's `logging` names near its beginning, as Scrapy's lines do."""
    found = _LEVEL.search(text, 0, 120)
    return found[1].lower() if found else "info"
