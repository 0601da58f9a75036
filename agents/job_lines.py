"""Lines about jobs, from a process's log to crawl.logs: what child processes print, what the worker reports of them.

    log.info(…, job=…) ─► JobLines.heard (any thread): limits ─► take ─┬─► LinesSender, 5 times a second ─► crawl.logs
                                   those of `start`, with its requests └─► crawlog/processes/starting.py

An event is about a job if it has a field `job`. What limits leave out is counted in the next record.
Lines are worth less than work: a record is given up after `GIVE_UP_MS`, nothing waits for the broker, and no error of
this producer ends the worker. Its own errors are about no job, so they never come here. It is made with the first line
and closed after `IDLE_S`, since an idle producer costs CPU.
"""

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from crawlog.schemas import log_lines
from crawlog.schemas.log_lines import MAX_LINE, MAX_LINES, LogLine, LogLines
from crawlog.streams import logs
from crawlog.streams.errors import AccessDenied, GiveUp
from crawlog.streams.line_rate import LineRate
from crawlog.streams.log import Producer, Topics
from crawlog.streams.printable import escaped

if TYPE_CHECKING:
    from crawlog.streams.worker import CrawlApp

log = structlog.get_logger()

PRINTED = "spider_printed"  # The event of a line that a child process printed, in the field `line`

LINES_S, BURST = 50.0, 500  # Lines of one job a second, and at once

WORKER_LINES_S, WORKER_BURST = 500.0, 5_000  # Lines of one worker a second, and at once; so many are held at most

RECORD_CHARS = 200_000  # Characters of one record, about

MOST_JOBS = 1_000  # Jobs whose rate is remembered

_HIDDEN = frozenset({"job", "event", "level", "time", "url", "exception", "line"})
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")

EVERY_S = 0.2  # Time between two sends: `run` shows the lines as they come

MOST_OUTSTANDING = 64  # Records in flight, at most; further lines wait, then are lost

GIVE_UP_MS = 30_000  # Time after which a record that the broker did not take is given up

IDLE_S = 60.0  # Time without lines after which the producer is closed

LAST_S = 0.3  # Time that the last lines have at a stop or a rebalance

# Settings of a producer that may lose records.
UNSURE = {"enable.idempotence": False, "acks": "1", "message.timeout.ms": GIVE_UP_MS}


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
        self._rates: dict[str, LineRate] = {}
        self._rate = LineRate(WORKER_LINES_S, WORKER_BURST, now())

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
        rate = self._rates.pop(job, None) or LineRate(LINES_S, BURST, now)
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


class LinesSender:
    """Sends what `lines` holds, until cancelled."""

    def __init__(self, app: "CrawlApp", lines: JobLines) -> None:
        self._app = app
        self._lines = lines
        self._topic = Topics(app.crawl.kafka.prefix).logs
        self._producer: Producer | None = None
        self._used_s = 0.0
        self._told: set[str] = set()

    async def run(self) -> None:
        """Send, sleep. An error is only logged: otherwise Faust would end the worker."""
        while True:
            try:
                self.send()
            except Exception as error:  # noqa: BLE001  # whatever it is, lines about jobs are not worth a worker
                self._tell(f"{type(error).__name__}: {error}")
            await asyncio.sleep(EVERY_S)

    def send(self) -> None:
        """Send the lines that wait, as far as the broker keeps up."""
        producer, now = self._producer, time.monotonic()
        if producer is not None:
            producer.poll()
            if not producer.outstanding and now - self._used_s > IDLE_S:
                self._producer = None
                return
        room = MOST_OUTSTANDING - (producer.outstanding if producer is not None else 0)
        for record in self._lines.take(room) if room > 0 else ():
            self._producer = producer = producer or self._made()
            self._used_s = now
            self._send(producer, record)

    def _send(self, producer: Producer, record: LogLines) -> None:
        try:
            producer.send(self._topic, log_lines.encode(record), key=record.job.encode(), partition=0)
        except GiveUp as error:
            self._lines.lose(record)
            self._tell(str(error))

    async def revoking(self, _partitions: set[int]) -> None:
        """Send the last lines: the worker may stop after this."""
        self.send()
        if self._producer is not None:
            await asyncio.to_thread(self._producer.flush, LAST_S)

    def _made(self) -> Producer:
        client_id = f"{self._app.worker_name}-lines"
        return Producer(
            self._app.crawl, client_id, linger_ms=50, on_fatal=self._tell, on_denied=self._denied, extra=dict(UNSURE)
        )

    def _denied(self, error: AccessDenied) -> None:
        self._tell(str(error))

    def _tell(self, error: str) -> None:
        """Say once what is wrong."""
        kind = error[:40]
        if kind not in self._told:
            self._told.add(kind)
            log.warning("lines_not_sent", error=error[:500])


def attach(app: "CrawlApp") -> None:
    """Make a stage's worker send lines about jobs."""
    lines = JobLines(app.worker_name, app.stage)
    logs.listen(lines.heard)
    sender = LinesSender(app, lines)
    app.on_revoking.append(sender.revoking)
    app.task(sender.run)
