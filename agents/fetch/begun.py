"""Requests that are never sent twice: the log says that one begins before it is sent.

    its turn at the address ─► `began` → crawl.urls ─► acknowledged ─► the request

So after a kill the next owner knows that the server may have received it. It does not send it again: without a page the
URL ends as failed, `interrupted`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from crawlog.agents.client import LeaseLost
from crawlog.schemas import urls as u
from crawlog.streams import crash_points
from crawlog.streams.fetch import outcome

if TYPE_CHECKING:
    from crawlog.agents.frontier import Stage
    from crawlog.streams.frontier import Task
    from crawlog.streams.http import Answer


class Begun:
    """Writes that requests begin."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage

    async def first(self, task: "Task", send: Callable[[], Awaitable["Answer"]]) -> "Answer":
        """The answer to a request that is sent once the log says that it begins.

        Raises: LeaseLost: nothing was sent.
        """
        if not self._stage.may_ask():
            raise LeaseLost
        acknowledged = asyncio.get_running_loop().create_future()
        record = u.RequestsRecord(task.job.name, task.epoch, time.time(), results=[outcome.began(task, time.time())])
        crash_points.point("fetch.began.sending")
        self._stage.producer.send(
            self._stage.names.urls,
            u.encode(record),
            key=task.domain.encode(),
            partition=task.partition.fold.partition,
            on_delivery=partial(_acknowledged, acknowledged),
        )
        await acknowledged
        crash_points.point("fetch.began.acknowledged")
        return await send()


def _acknowledged(waiting: "asyncio.Future[None]", _partition: int, _offset: int) -> None:
    if not waiting.done():  # cancelled: the request was aborted
        waiting.set_result(None)
