"""What a URL ends as, on its way to the log: its page to crawl.pages and, once the log has that, its done.

final answer ─► crawl.pages ─► acknowledged: the body's room goes back ─► its done (`dones.py`) ─► crawl.urls
again, refused ─────────────────────────────────────────────────────────► its done, without a page
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.agents.frontier import Stage
from crawlog.schemas import pages as pg
from crawlog.streams import crash_points
from crawlog.streams.errors import GiveUp
from crawlog.streams.fetch import outcome
from crawlog.streams.http import Answer, HeldBytes, validators

from .dones import DoneBatches

if TYPE_CHECKING:
    from crawlog.schemas.urls import Result
    from crawlog.streams.fetch import Again, Pressure, Unasked
    from crawlog.streams.frontier import Task
    from crawlog.streams.http import Validators


class _Sent(NamedTuple):
    """A page on its way to the log, with what follows once it is there."""

    task: "Task"
    result: "Result"
    held: HeldBytes
    known: "Validators | None" = None


class Outcomes:
    """Writes what became of URLs.

    Args:
        pressure: Is told of each page that the log has.
        release: Called with each task whose done the log has.
    """

    def __init__(self, stage: Stage, pressure: "Pressure", release: Callable[["Task"], None]) -> None:
        self._stage = stage
        self._pressure = pressure
        self._dones = DoneBatches(stage, release)
        self.flush = self._dones.flush

    def refused(self, task: "Task", end: "Unasked") -> None:
        """Nobody may ask for it."""
        self._dones.add(task, outcome.refused(task, end, time.time()))

    def failed(self, task: "Task", reason: str) -> None:
        """It is not asked for, or no answer came of it."""
        self.final(task, Answer(None, reason), time.time())

    def again(self, task: "Task", answer: Answer, again: "Again", now: float, rest_s: float) -> None:
        """Another attempt follows; nobody needs the body."""
        answer.held.give()
        self._dones.add(task, outcome.done(task, answer, now, rest_s, again))

    def final(self, task: "Task", answer: Answer, now: float, rest_s: float = 0.0) -> None:
        """Write the page, then its done once the log has it."""
        meta = outcome.page(task, answer, now)
        result = outcome.done(task, answer, now, rest_s)
        body = answer.body if answer.kept else b""
        self._stage.pages += 1
        self._stage.bytes += len(body)
        try:
            known = None if answer.rendered else answer.validators  # they speak of what scripts began with
            self._send_page(meta, b"" if answer.location else body, _Sent(task, result, answer.held, known))
        except GiveUp as error:
            cut = msgspec.structs.replace(result, reason=error.reason)
            self._send_page(outcome.without_body(meta, error.reason), b"", _Sent(task, cut, answer.held))

    def _send_page(self, meta: pg.PageMeta, body: bytes, sent: _Sent) -> None:
        task = sent.task
        crash_points.point("fetch.page.sending")
        self._stage.producer.send(
            self._stage.names.pages,
            body,
            key=task.domain.encode(),
            partition=task.partition.fold.partition,
            headers=[(pg.HEADER, pg.encode(meta))],
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
        self._dones.add(task, msgspec.structs.replace(result, page=(partition, offset)))
