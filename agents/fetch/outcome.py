"""Writes the result of a URL to the log: its page to crawl.pages and, once that is acknowledged, its done.

final answer ─► crawl.pages ─► acknowledged: the body's memory is free ─► its done (`dones.py`) ─► crawl.urls
again, refused ─────────────────────────────────────────────────────────► its done, without a page
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from crawlog.agents.frontier import OwnedFrontier
from crawlog.schemas import pages as pg
from crawlog.streams import crash_points
from crawlog.streams.errors import GiveUp
from crawlog.streams.fetch import outcome
from crawlog.streams.http import Answer, HeldBytes, validators

from .dones import DoneBatches

if TYPE_CHECKING:
    from crawlog.agents.client import CookieJars
    from crawlog.schemas.urls import Result
    from crawlog.streams.fetch import Again, Pressure, Unasked
    from crawlog.streams.frontier import Task
    from crawlog.streams.http import Validators

log = structlog.get_logger()


class _Sent(NamedTuple):
    """A page in flight to the log, and what its acknowledgement needs."""

    task: "Task"
    result: "Result"
    held: HeldBytes
    known: "Validators | None" = None


class Outcomes:
    """Writes the results of URLs.

    Args:
        pressure: Counts each acknowledged page.
        release: Called with each task whose done is acknowledged.
        jars: Where answers have left their cookies.
    """

    def __init__(
        self, stage: OwnedFrontier, pressure: "Pressure", release: Callable[["Task"], None], jars: "CookieJars"
    ) -> None:
        self._stage = stage
        self._worker = stage.app.worker_name
        self._pressure = pressure
        self._dones = DoneBatches(stage, release, jars)
        self.flush = self._dones.flush

    def refused(self, task: "Task", end: "Unasked") -> None:
        """Write that the URL must not be requested; with a page for the errback of its request, if it has one."""
        now = time.time()
        result = outcome.refused(task, end, now)
        if task.request is None or not task.request.errback:
            self._dones.add(task, result)
            return
        answer = Answer(None, end.reason)
        self._send_page(outcome.page(task, answer, now, worker=self._worker), b"", "", _Sent(task, result, answer.held))

    def failed(self, task: "Task", reason: str) -> None:
        self.final(task, Answer(None, reason), time.time())

    def again(self, task: "Task", answer: Answer, again: "Again", now: float, rest_s: float) -> None:
        """Write that another attempt follows; the body is dropped."""
        answer.held.give()
        self._dones.add(task, outcome.done(task, answer, now, rest_s, again))

    def final(self, task: "Task", answer: Answer, now: float, rest_s: float = 0.0) -> None:
        """Write the page, then its done once the log has it."""
        meta = outcome.page(task, answer, now, rest_s, self._worker)
        result = outcome.done(task, answer, now, rest_s)
        body = answer.body if meta.kept else b""
        self._stage.pages += 1
        self._stage.bytes += len(body)
        if result.status == "failed":
            log.warning("failed", job=task.job.name, url=task.row.url, reason=result.reason, attempts=result.attempt)
        try:
            is_known = outcome.is_plain(task) and not answer.rendered  # else they describe another page than this
            known = answer.validators if is_known else None
            self._send_page(meta, body, answer.coding, _Sent(task, result, answer.held, known))
        except GiveUp as error:
            cut = msgspec.structs.replace(result, reason=error.reason)
            self._send_page(outcome.without_body(meta, error.reason), b"", "", _Sent(task, cut, answer.held))

    def _send_page(self, meta: pg.PageMeta, body: bytes, coding: str, sent: _Sent) -> None:
        task = sent.task
        crash_points.point("fetch.page.sending")
        self._stage.producer.send(
            self._stage.names.pages,
            body,
            key=task.domain.encode(),
            partition=task.partition.fold.partition,
            headers=pg.headers(meta, coding if body else ""),
            on_delivery=partial(self._paged, sent, len(body)),
        )

    def _paged(self, sent: _Sent, size_bytes: int, partition: int, offset: int) -> None:
        crash_points.point("fetch.page.acknowledged")
        task, result, held, known = sent
        held.give()  # until now the producer had a copy of the body
        if known is not None:
            if known.offset == validators.UNWRITTEN:
                known = msgspec.structs.replace(known, offset=offset, epoch=task.epoch)
            task.partition.remember(validators.key(task.job.name, task.row.url), validators.pack(known))
        self._pressure.wrote(partition, offset, size_bytes)
        self._dones.add(task, msgspec.structs.replace(result, page=(partition, offset), bytes=size_bytes))
