"""Sends dones to crawl.urls, a few in one record: for the broker a record costs more than its content.

A done is sent once its page is in the log. Its URL keeps its place of `fetch.concurrency` until the done is there too.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from crawlog.agents.client import CookieJars
from crawlog.agents.frontier import Stage
from crawlog.schemas import urls as u
from crawlog.streams import crash_points
from crawlog.streams.frontier import Task

from .jars_of_jobs import with_cookies

DONE_LINGER_S = 0.005
"""Time that a done waits for others of its partition, seconds."""

MANY_COOKIES = 20
"""A done with so many cookies ends its record: jars of 16 KiB would make a long one."""


_DONE_BYTES = 300
"""Largest encoded size of a done without its URL, its rule and its cookies."""

_Key = tuple[int, str, int]


class _Done(NamedTuple):
    task: Task
    result: u.Result


class DoneBatches:
    """Results on their way to crawl.urls, gathered per (partition, job, epoch).

    Args:
        jars: Where answers have left their cookies.
    """

    def __init__(self, stage: Stage, release: Callable[[Task], None], jars: CookieJars) -> None:
        self._stage = stage
        self._release = release
        self._jars = jars
        self._open: dict[_Key, list[_Done]] = {}
        self._bytes: dict[_Key, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: Task, result: u.Result) -> None:
        """Take a result; its task is released once the log has it."""
        key = (task.partition.fold.partition, task.job.name, task.epoch)
        gathered = self._open.setdefault(key, [])
        result = with_cookies(task, result, self._jars)
        gathered.append(_Done(task, result))
        self._bytes[key] = size = self._bytes.get(key, 0) + _DONE_BYTES + len(result.url) + len(result.rule)
        is_full = len(gathered) >= u.MAX_BATCH_URLS or size >= u.MAX_BATCH_BYTES
        if is_full or len(result.cookies) >= MANY_COOKIES:
            self._send(key)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DONE_LINGER_S, self.flush)

    def flush(self) -> None:
        """Send all that is gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._open):
            self._send(key)

    def _send(self, key: _Key) -> None:
        partition, job, epoch = key
        gathered = self._open.pop(key)
        del self._bytes[key]
        first = gathered[0].task
        shared = all(done.task.domain == first.domain for done in gathered)
        record = u.UrlsRecord(job=job, epoch=epoch, at=time.time(), results=[done.result for done in gathered])
        crash_points.point("fetch.done.sending")
        self._stage.producer.send(
            self._stage.names.urls,
            u.encode(record),
            key=first.domain.encode() if shared else None,
            partition=partition,
            on_delivery=partial(self._acknowledged, gathered),
        )

    def _acknowledged(self, gathered: list[_Done], _partition: int, _offset: int) -> None:
        crash_points.point("fetch.done.acknowledged")
        for done in gathered:
            self._release(done.task)
