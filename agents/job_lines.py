"""Sends the worker's lines about jobs to crawl.logs: what their child processes print, what the worker says of them.

    worker's log ─► JobLines: limits ─► LinesSender, five times a second ─► crawl.logs

Lines are worth less than work: a record is given up after `GIVE_UP_MS`, nothing waits for the broker, and no error of
this producer ends the worker. Its own errors are about no job, so they never come here. It is made with the first line
and closed after `IDLE_S`, since an idle producer costs CPU.
"""

import asyncio
import time

import structlog

from crawlog.schemas import log_lines
from crawlog.streams import logs
from crawlog.streams.errors import AccessDenied, GiveUp
from crawlog.streams.log import JobLines, Producer, Topics
from crawlog.streams.worker import CrawlApp

log = structlog.get_logger()

EVERY_S = 0.2  # Time between two sends: `run` shows the lines as they come

MOST_OUTSTANDING = 64  # Records in flight, at most; further lines wait, then are lost

GIVE_UP_MS = 30_000  # Time after which a record that the broker did not take is given up

IDLE_S = 60.0  # Time without lines after which the producer is closed

LAST_S = 0.3  # Time that the last lines have at a stop or a rebalance

# Settings of a producer that may lose records.
UNSURE = {"enable.idempotence": False, "acks": "1", "message.timeout.ms": GIVE_UP_MS}


class LinesSender:
    """Sends what `lines` holds, until cancelled."""

    def __init__(self, app: CrawlApp, lines: JobLines) -> None:
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

    def _send(self, producer: Producer, record: log_lines.LogLines) -> None:
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


def attach(app: CrawlApp) -> None:
    """Make a stage's worker send lines about jobs."""
    lines = JobLines(app.worker_name, app.stage)
    logs.listen(lines.heard)
    sender = LinesSender(app, lines)
    app.on_revoking.append(sender.revoking)
    app.task(sender.run)
