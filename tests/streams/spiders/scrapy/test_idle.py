"""What an idle job asks of its spider: `spider_idle`, and a batch of a spider of scrapy-redis."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider  # type: ignore[import-untyped]  # it has no types

from crawlog.streams.errors import Misconfigured
from crawlog.streams.spiders.exchange import FEED, IDLE, CallResult
from crawlog.streams.spiders.scrapy import ScrapyRunner
from tests.support.adapting import SITE, runner_of
from tests.support.redis_server import RedisServer, redis_server

__all__ = ["redis_server"]  # a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Call to '__init__' function with deprecated:DeprecationWarning"),
]


class Waiting(Spider):
    """Does what the test wants when it is idle."""

    name = "waiting"
    start_urls = [f"{SITE}/first"]  # noqa: RUF012  # as users write it
    idle: Callable[["Waiting"], None]

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        """Connects."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.is_idle, signals.spider_idle)
        return spider

    def is_idle(self) -> None:
        """As the test wants."""
        type(self).idle(self)

    def parse(self, response: Any) -> Any:
        """Nothing."""


class Books(RedisSpider):  # type: ignore[misc]  # as above
    """As in scrapy-redis's documentation."""

    name = "books"
    redis_batch_size = 16

    def parse(self, response: Any) -> Any:
        """Nothing."""


class Crawled(RedisCrawlSpider):  # type: ignore[misc]  # as above
    """With rules."""

    name = "crawled"


Ask = Callable[[bytes], Any]


@asynccontextmanager
async def asked(runner: ScrapyRunner) -> AsyncIterator[Ask]:
    """Asks the runner's `start`, which has given all, for one part; None at its end."""
    async with aclosing(runner.start()) as parts:
        result = await anext(parts)
        while not result.waits:
            result = await anext(parts)

        async def ask(wish: bytes) -> CallResult | None:
            try:
                return await parts.asend(wish)
            except StopAsyncIteration:
                return None

        yield ask


def paths(result: CallResult | None) -> list[str]:
    """The paths of the requests of a part."""
    assert result is not None
    return [out.url.removeprefix(SITE) for out in result.requests]


def raised(error: Exception) -> Callable[[Any], None]:
    """Raises this."""

    def idle(_: Any) -> None:
        raise error

    return idle


async def test_a_spider_that_does_not_close_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends by the engine is sent each time, though it is the same."""

    def idle(self: Any) -> None:
        self.crawler.engine.crawl(Request(f"{SITE}/again", dont_filter=True))
        raise DontCloseSpider

    monkeypatch.setattr(Waiting, "idle", idle, raising=False)
    runner = runner_of(Waiting)
    assert runner.facts.is_fed
    async with asked(runner) as ask:
        assert paths(await ask(FEED)) == []
        first, second = await ask(IDLE), await ask(IDLE)
        assert paths(first) == paths(second) == ["/again"]
        assert first.requests[0].id != second.requests[0].id
        assert first.waits
        assert not first.warnings, "a handler may change its spider"


@pytest.mark.parametrize(
    ("idle", "reason"), [(lambda _: None, ""), (raised(CloseSpider("enough")), "enough"), (raised(KeyError()), "")]
)
async def test_a_spider_that_lets_itself_be_closed_ends_its_start(
    monkeypatch: pytest.MonkeyPatch, idle: Callable[[Any], None], reason: str
) -> None:
    """As the engine of Scrapy closes it, after an error too."""
    monkeypatch.setattr(Waiting, "idle", idle, raising=False)
    async with asked(runner_of(Waiting)) as ask:
        last = await ask(IDLE)
        assert last.closes == reason
        assert await ask(IDLE) is None


async def test_the_engine_closes_the_spider(monkeypatch: pytest.MonkeyPatch) -> None:
    """As extensions do that count how often a spider is idle."""
    monkeypatch.setattr(Waiting, "idle", lambda self: self.crawler.engine.close_spider(self, "idle"), raising=False)
    async with asked(runner_of(Waiting)) as ask:
        assert (await ask(IDLE)).closes == "idle"


def redis_runner(server: RedisServer, kind: type[Spider] = Books, **settings: Any) -> ScrapyRunner:
    """A spider of scrapy-redis with this server."""
    return runner_of(kind, {"REDIS_URL": server.url, "SCHEDULER": "scrapy_redis.scheduler.Scheduler", **settings})


def push(server: RedisServer, kind: str, *entries: str) -> None:
    """As a master does."""
    for number, entry in enumerate(entries):
        if kind == "list":
            server.client.rpush("books:start_urls", entry)
        elif kind == "set":
            server.client.sadd("books:start_urls", entry)
        else:
            server.client.zadd("books:start_urls", {entry: -number})


KINDS: dict[str, dict[str, Any]] = {
    "list": {},
    "set": {"REDIS_START_URLS_AS_SET": True},
    "zset": {"REDIS_START_URLS_AS_ZSET": True},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_is_taken_and_kept_until_the_next_wish(redis_server: RedisServer, kind: str) -> None:
    """The wish says that the log has its requests. The first ones of a list and of a sorted set come first."""
    push(redis_server, kind, *(f"{SITE}/{n}" for n in range(40)))
    async with asked(redis_runner(redis_server, **KINDS[kind])) as ask:
        given, sizes = list[str](), list[int]()
        while batch := paths(await ask(FEED)):
            assert redis_server.client.lrange("books:start_urls:crawlog:job", 1, -1) == [f"{SITE}{p}" for p in batch]
            given += batch
            sizes.append(len(batch))
        assert sizes == [16, 16, 8]
        assert given == [f"/{n}" for n in range(40)] or kind == "set"
        assert sorted(given) == sorted(f"/{n}" for n in range(40))
        assert redis_server.client.keys() == []
        assert paths(await ask(IDLE)) == []


async def test_a_batch_that_a_kill_interrupts_is_given_again_with_the_same_identities(
    redis_server: RedisServer,
) -> None:
    """So the job knows what it has of it. A later entry of an equal URL is another one."""
    push(redis_server, "list", f"{SITE}/a", f"{SITE}/a", f"{SITE}/b")
    async with asked(redis_runner(redis_server)) as ask:
        before = (await ask(FEED)).requests
    push(redis_server, "list", f"{SITE}/a")
    async with asked(redis_runner(redis_server)) as ask:
        assert (await ask(FEED)).requests == before
        [later] = (await ask(FEED)).requests
    assert len({out.id for out in (*before, later)}) == 4


async def test_two_processes_that_give_one_batch_lose_none(redis_server: RedisServer) -> None:
    """The slower one does not delete what the other one has taken since."""
    push(redis_server, "list", *(f"{SITE}/{n}" for n in range(20)))
    async with asked(redis_runner(redis_server)) as one, asked(redis_runner(redis_server)) as other:
        first = paths(await one(FEED))
        assert paths(await other(FEED)) == first
        assert paths(await one(FEED)) == [f"/{n}" for n in range(16, 20)]
        assert paths(await other(FEED)) == [f"/{n}" for n in range(16, 20)]


async def test_an_entry_without_a_request_is_named_and_the_others_are_given(redis_server: RedisServer) -> None:
    """Scrapy loses the rest of the batch."""
    data = json.dumps({"url": f"{SITE}/form", "method": "post", "meta": {"a": 1}, "key": "x"})
    push(redis_server, "list", "no url", f"{SITE}/a", '{"no": 1}', "[1]", "http://[x", "ftp://a.test/", data)
    async with asked(redis_runner(redis_server)) as ask:
        result = await ask(FEED)
        assert paths(result) == ["/a", "/form"]
        assert result.requests[1].request.meta == {"a": 1}
        assert result.requests[1].request.body == b"key=x"
        named = [line for line in result.warnings if "is left out: " in line]
        assert ["no url" in named[0], '"no"' in named[1], "[1]" in named[2], "[x" in named[3]] == [True] * 4
        assert "ftp://a.test/" in named[4]
        assert result.stats["redis/entries_left_out"] == 5
        assert not result.error


async def test_redis_that_is_away_is_waited_for(redis_server: RedisServer) -> None:
    """The spider is not closed, as Scrapy would: at the start, within a round, and when it is idle."""
    redis_server.stop()
    async with asked(redis_runner(redis_server)) as ask:
        for wish in (FEED, IDLE):
            result = await ask(wish)
            assert result.waits
            assert "books:start_urls cannot be read: Error 111 connecting" in result.warnings[0]
        redis_server.start()
        push(redis_server, "list", f"{SITE}/a")
        assert paths(await ask(FEED)) == ["/a"]


async def test_a_wrong_password_is_named(redis_server: RedisServer) -> None:
    """In the server's words."""
    redis_server.client.config_set("requirepass", "right")
    async with asked(redis_runner(redis_server, REDIS_PARAMS={"password": "wrong"})) as ask:
        result = await ask(FEED)
        assert "invalid username-password pair" in result.warnings[0]
        assert "REDIS_PARAMS" in result.warnings[0]


async def test_max_idle_time_ends_the_feed(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds after the last entry."""
    push(redis_server, "list", f"{SITE}/a")
    clock = [1000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    async with asked(redis_runner(redis_server, MAX_IDLE_TIME_BEFORE_CLOSE=30)) as ask:
        clock[0] += 100
        assert paths(await ask(FEED)) == ["/a"]
        clock[0] += 20
        assert (await ask(IDLE)).waits
        clock[0] += 20
        assert await ask(IDLE) is not None
        assert await ask(IDLE) is None


def test_a_crawl_spider_of_scrapy_redis_is_fed_too() -> None:
    """Its rules follow the links."""
    assert runner_of(Crawled).facts.is_fed


NOTED = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_PERSIST": True,
    "SCHEDULER_FLUSH_ON_START": True,
    "SCHEDULER_QUEUE_KEY": "%(spider)s:r",
    "SCHEDULER_DUPEFILTER_KEY": "%(spider)s:d",
    "SCHEDULER_IDLE_BEFORE_CLOSE": 10,
    "SCHEDULER_SERIALIZER": "scrapy_redis.picklecompat",
}


def test_settings_of_scrapy_redis_are_mapped_with_a_note() -> None:
    """A project of a tutorial starts."""
    notes = runner_of(Waiting, NOTED).facts.notes
    assert [name for name in NOTED if not any(note.startswith(name) for note in notes)] == []


@pytest.mark.parametrize(
    ("queue", "order"), [("PriorityQueue", "lifo"), ("FifoQueue", "fifo"), ("SpiderQueue", "fifo")]
)
def test_the_class_of_the_queue_is_the_order(queue: str, order: str) -> None:
    """Of requests of one priority."""
    settings = runner_of(Waiting, {"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}"}).facts.settings
    assert settings["frontier.order"] == order


def test_another_scheduler_is_refused() -> None:
    """One that crawlog does not know may send other requests."""
    with pytest.raises(Misconfigured, match="SCHEDULER"):
        runner_of(Waiting, {"SCHEDULER": "project.Scheduler"})
