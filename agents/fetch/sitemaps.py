"""Sends the Sitemap lines of a robots.txt to parse.

Only parse writes founds. So fetch writes these lines to crawl.pages, as a record of kind `robots`. It waits for the
acknowledgement before any URL of the host can be done: so a crawl cannot finish without the sitemaps.
"""

import asyncio
import time
from typing import TYPE_CHECKING

from crawlog.schemas import pages as pg
from crawlog.streams.url import serialise

if TYPE_CHECKING:
    from crawlog.streams.fetch import Pressure
    from crawlog.streams.frontier import Task
    from crawlog.streams.log import Producer

TOLD_HOSTS = 100_000
"""Hosts whose sitemaps were sent, about 20 MB; at this number all of them are forgotten."""


class Sitemaps:
    """Sends each host's sitemaps to parse, once for each job in a worker's life.

    A restart, or two tasks at a time, send them again; parse ignores known ones.
    """

    def __init__(self, producer: "Producer", topic: str, pressure: "Pressure") -> None:
        self._producer = producer
        self._topic = topic
        self._pressure = pressure
        self._told: set[tuple[str, int, str]] = set()

    async def told(self, task: "Task") -> None:
        """Send the sitemaps of this URL's host if its job wants them; returns once the log has them."""
        rules, spec = task.host.rules, task.job.spec
        if not spec.sitemaps or not task.manner.rules.robots or rules is None or not rules.sitemaps:
            return
        key = (task.job.name, task.epoch, task.host.key)
        if key in self._told:
            return
        url = serialise(f"{task.host.key}/robots.txt")
        meta = pg.PageMeta(
            url, task.job.name, rev=spec.rev, epoch=task.epoch, http=200, fetched_at=time.time(), kind="robots"
        )
        await self._sent(task, meta, "\n".join(rules.sitemaps).encode("utf-8", "replace"))
        if len(self._told) >= TOLD_HOSTS:
            self._told.clear()
        self._told.add(key)

    async def _sent(self, task: "Task", meta: pg.PageMeta, lines: bytes) -> None:
        in_log: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acknowledged(partition: int, offset: int) -> None:
            self._pressure.wrote(partition, offset, len(lines))
            if not in_log.done():
                in_log.set_result(None)

        self._producer.send(
            self._topic,
            lines,
            key=task.domain.encode(),
            partition=task.partition.fold.partition,
            headers=[(pg.HEADER, pg.encode(meta))],
            on_delivery=acknowledged,
        )
        await in_log
