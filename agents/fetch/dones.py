"""What fetch writes to crawl.urls: dones, and that a request begins which is never sent twice.

Dones go a few in one record: for the broker a record costs more than its content. A done is sent once its page is in
the log. Its URL keeps its place of `fetch.concurrency` until the done is there too.

    a request with `once`: its turn at the address ─► `began` → crawl.urls ─► acknowledged ─► the request

So after a kill the next owner knows that the server may have received it. It does not send it again: without a page the
URL ends as failed, `interrupted`.

The worst race: the worker ends between a page and its done.

    1  The page of URL U is acknowledged. The worker is stopped before it sends the done.
    2  Parse takes the page. Its founds are in crawl.urls, ahead of any done of U.
    3  The next owner folds: U still has its row. Before it dispatches, it reads the last pages of crawl.pages, finds
       that of U, and writes the done (`streams/fetch/lost_dones.py`). U is not requested again.
    4  The stopped worker goes on, and sends its done, too. U has no row any more, so the fold drops that one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from crawlog.agents.client import CookieJars, LeaseLost, StoredJar
from crawlog.agents.frontier import OwnedFrontier
from crawlog.schemas import urls as u
from crawlog.streams import crash_points
from crawlog.streams.fetch import outcome
from crawlog.streams.frontier import Task

if TYPE_CHECKING:
    from crawlog.streams.http import Answer

DONE_LINGER_S = 0.005  # Time that a done waits for others of its partition, seconds

MANY_COOKIES = 20  # A done with so many cookies ends its record: jars of 16 KiB would make a long one


_DONE_BYTES = 300  # Largest encoded size of a done without its URL, its rule and its cookies

_Key = tuple[int, str, int]


class _Done(NamedTuple):
    task: Task
    result: u.Result


class DoneBatches:
    """Results on their way to crawl.urls, gathered per (partition, job, epoch).

    Args:
        jars: Where answers have left their cookies.
    """

    def __init__(self, stage: OwnedFrontier, release: Callable[[Task], None], jars: CookieJars) -> None:
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


# Requests that are never sent twice.


class Begun:
    """Writes that requests begin."""

    def __init__(self, stage: OwnedFrontier) -> None:
        self._stage = stage

    async def first(self, task: Task, send: Callable[[], Awaitable["Answer"]]) -> "Answer":
        """The answer to a request that is sent once the log says that it begins.

        Raises: LeaseLost: nothing was sent.
        """
        if not self._stage.may_ask():
            raise LeaseLost
        acknowledged = asyncio.get_running_loop().create_future()
        record = u.UrlsRecord(task.job.name, task.epoch, time.time(), results=[outcome.began(task, time.time())])
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


# The rows of cookie jars in the states of this worker's partitions, and what dones say of jars.


class JarsOfJobs:
    """Finds the row of a jar in a live partition; no other partition's jars are read."""

    def __init__(self, stage: OwnedFrontier) -> None:
        self._stage = stage

    def __call__(self, job: str, url: str, name: str) -> StoredJar | None:
        """As `crawlog.agents.client.cookie_jars.RowOf`."""
        if not self._stage.live:
            return None
        place = self._stage.place(url)
        partition = self._stage.live.get(place.partition)
        known = partition.fold.jobs.get(job) if partition is not None else None
        if partition is None or known is None:
            return None
        rows = partition.fold.dones.jars
        return StoredJar(
            rows.mark,
            known.epoch,
            lambda: rows.read(known.number, place.domain_hash, name),
            self._stage.ownerships.get(place.partition),
        )


def with_cookies(task: Task, result: u.Result, jars: CookieJars) -> u.Result:
    """A done with the cookies that changed in its jar; without any where the job keeps none."""
    request = task.request
    if request is not None and not request.keeps_cookies:
        return result
    name = request.jar if request is not None else ""
    changed = jars.changes(task.job.name, task.row.url, name)
    if not changed or not task.policy.rules.cookies or task.epoch != task.job.epoch:
        return result
    return msgspec.structs.replace(result, jar=name, cookies=changed)
