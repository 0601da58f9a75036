"""What is asked of a spider after `start`: scrapy-redis's next batch, and `spider_idle` when the job has nothing left.

    wish of the process that runs `start`                         taken list in Redis: `REDIS_KEY:crawlog:JOB`
      few requests wait ─► a batch of Redis, popped into it ─► `make_request_from_data` ─► requests ─► the log
      nothing is left ──► `spider_idle` ─► DontCloseSpider: asked again; else `start` has ended

Each wish comes after the log has acknowledged the requests before it. Only then is the taken list deleted, so a batch
that a kill interrupts is given once more. Its requests have the same identities then: the job knows those that it has.
Processes that run the `start` of one job share the list, and each deletes the batch alone that it has given.
"""

import logging
import sys
import time
from typing import Any
from uuid import uuid4

import xxhash
from scrapy import signals
from scrapy.exceptions import CloseSpider, DontCloseSpider

from ..exchange import IDLE, SpiderRef
from .crawler import IdleEngine, StandInCrawler, reason_of
from .scraping import Origin, Scraping

log = logging.getLogger(__name__)

# Pops a batch into the taken list, behind its number; gives the batch that is taken already, if there is one.
_TAKE = """
local taken = redis.call('LRANGE', KEYS[2], 0, -1)
if #taken > 0 then return taken end
local kind, count, batch = ARGV[1], tonumber(ARGV[2]), {}
if kind == 'list' then
  batch = redis.call('LRANGE', KEYS[1], 0, count - 1)
  redis.call('LTRIM', KEYS[1], count, -1)
elseif kind == 'set' then
  batch = redis.call('SPOP', KEYS[1], count)
else
  batch = redis.call('ZREVRANGE', KEYS[1], 0, count - 1)
  redis.call('ZREMRANGEBYRANK', KEYS[1], -count, -1)
end
if #batch == 0 then return batch end
redis.call('RPUSH', KEYS[2], ARGV[3])
for _, entry in ipairs(batch) do redis.call('RPUSH', KEYS[2], entry) end
return redis.call('LRANGE', KEYS[2], 0, -1)
"""

_DROP = "if redis.call('LINDEX', KEYS[1], 0) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


class RedisQueue:
    """The Redis key of a spider of scrapy-redis, whose `fetch_data` gives one entry of the taken batch at a time.

    Args:
        spider: After `setup_redis`.
        kind: What the key holds: `list`, `set` or `zset`.
    """

    def __init__(self, spider: Any, kind: str, job: str) -> None:
        self.name = spider.redis_key
        self._spider = spider
        self._kind = kind
        self._taken_key = f"{spider.redis_key}:crawlog:{job}"
        self._batch: Any = b""
        self._entry: list[Any] = []
        self._is_away = False
        spider.fetch_data = self._fetch

    def _fetch(self, *_: object) -> list[Any]:
        """The entry that is due; nothing where the spider asks by itself: what it popped so could be lost."""
        entry, self._entry = self._entry, []
        return entry

    def take(self) -> list[Any] | str:
        """Drop the batch before, whose requests are in the log, and take the next one: its number, then its entries.

        Returns: Nothing where the key is empty; a line where Redis does not answer.
        """
        server = self._spider.server
        try:
            if self._batch:
                server.eval(_DROP, 1, self._taken_key, self._batch)
                self._batch = b""
            count = max(1, self._spider.redis_batch_size)
            taken: list[Any] = server.eval(_TAKE, 2, self.name, self._taken_key, self._kind, count, uuid4().hex)
        except Exception as error:  # noqa: BLE001  # of the project's client, which may be any
            told = f"Redis key {self.name} cannot be read: {' '.join(str(error).split()) or type(error).__name__}"
            told += "; it is asked again until it answers (REDIS_URL, REDIS_HOST, REDIS_PARAMS)"
            self._is_away = True
            return told
        if self._is_away:
            self._is_away = False
            log.warning("Redis key %s can be read again", self.name)
        if taken:
            self._batch = taken[0]
            self._spider.spider_idle_start_time = int(time.time())  # `spider_idle` sees an empty key always
        return taken

    def give(self, entry: Any) -> str:
        """Have the spider schedule the requests of one entry. Returns: Its error; empty without one."""
        self._entry = [entry]
        try:
            self._spider.schedule_next_requests()
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            return f"{type(error).__name__}: {error}"
        return ""


def queue_of(spider: Any, job: str) -> RedisQueue | None:
    """The queue of a spider of scrapy-redis that pops as scrapy-redis does; else None: `spider_idle` does its work."""
    mixin: Any = getattr(sys.modules.get("scrapy_redis.spiders"), "RedisMixin", None)
    if mixin is None or not isinstance(spider, mixin) or type(spider).next_requests is not mixin.next_requests:
        return None
    pops: dict[str, Any] = {
        "list": spider.pop_list_queue,
        "set": spider.server.spop,
        "zset": spider.pop_priority_queue,
    }
    own = type(spider).pop_list_queue is mixin.pop_list_queue and (
        type(spider).pop_priority_queue is mixin.pop_priority_queue
    )
    return next((RedisQueue(spider, kind, job) for kind, pop in pops.items() if own and pop == spider.fetch_data), None)


class IdleRounds:
    """Asks a spider for more, one round at a time."""

    def __init__(self, crawler: StandInCrawler, scraping: Scraping, ref: SpiderRef) -> None:
        self._crawler = crawler
        self._scraping = scraping
        self._ref = ref
        self._queue = queue_of(crawler.spider, ref.job)
        scraping.opened()  # what that changed in the spider is not a callback's

    async def round(self, wish: bytes) -> bool:
        """Ask for more, as a wish allows it. Returns: Whether to ask again; else `start` has ended.

        Args:
            wish: `FEED` where few requests wait, `IDLE` where the job has nothing left; else nothing is asked.
        """
        if not wish:
            return True
        self._engine = self._crawler.idle_engine = IdleEngine()
        try:
            return await self._asked(wish)
        finally:
            self._crawler.idle_engine = None
            self._scraping.opened()

    async def _asked(self, wish: bytes) -> bool:
        if self._queue is not None:
            taken = self._queue.take()
            if isinstance(taken, str):
                self._scraping.result.warnings.append(taken)
                return True
            if taken:
                await self._give(self._queue, taken)
                return True
        return await self._idle() if wish == IDLE else True

    async def _give(self, queue: RedisQueue, taken: list[Any]) -> None:
        """Make the requests of a batch. An entry without a request is named in the job's log."""
        self._begin(taken[0])
        for entry in taken[1:]:
            before = len(self._scraping.result.requests)
            error = queue.give(entry)
            error = await self._send() or error
            if error or len(self._scraping.result.requests) == before:
                told = " ".join((error or "no request came of it").split())
                self._scraping.result.warnings.append(f"{entry!r:.500} of Redis key {queue.name} is left out: {told}")
                self._crawler.stats.inc_value("redis/entries_left_out")

    async def _idle(self) -> bool:
        self._begin(uuid4().hex)
        told = await self._crawler.signals.send_catch_log_async(
            signals.spider_idle, spider=self._crawler.spider, dont_log=(DontCloseSpider, CloseSpider)
        )
        raised = [getattr(said, "value", said) for _, said in told]
        gave = bool(self._engine.scheduled)
        if error := await self._send():
            self._scraping.result.warnings.append(f"spider_idle: {error}")
        closes = self._engine.closes
        stays = any(isinstance(one, DontCloseSpider) for one in raised)
        if self._queue is not None:  # Redis may be away just now
            stays |= any(isinstance(one, Exception) and not isinstance(one, CloseSpider) for one in raised)
        if not closes and (gave or stays):
            return True
        closes = closes or next((reason_of(one) for one in raised if isinstance(one, CloseSpider)), "")
        self._scraping.result.closes = self._scraping.result.closes or closes
        return False

    def _begin(self, number: object) -> None:
        text = number.decode() if isinstance(number, bytes) else number
        parent = xxhash.xxh3_64_intdigest(f"{self._ref.job} {self._ref.epoch} {text}".encode()) or 1
        self._scraping.begin(Origin(parent))

    async def _send(self) -> str:
        """Send what `engine.crawl` got. Returns: The first error; empty without one."""
        scheduled, first = self._engine.scheduled, ""
        while scheduled:
            try:
                await self._scraping.request(scheduled.pop(0))
            except Exception as error:  # noqa: BLE001  # of a middleware of the project, or it cannot travel
                first = first or f"{type(error).__name__}: {error}"
        return first
