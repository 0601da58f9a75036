"""Spiders of scrapy-redis, as projects have them, fed by a real Redis. The judge is what the site was asked for."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crawls import there
from tests.support.processes import crawlog, until
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sites import Answer, Threaded

__all__ = ["redis_server", "there"]  # fixtures

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SPIDER = """
from scrapy_redis.spiders import RedisSpider

class Books(RedisSpider):
    name = "books"
    custom_settings = {{
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "ITEM_PIPELINES": {{"scrapy_redis.pipelines.RedisPipeline": 300}},
        "REDIS_URL": "{url}",
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
        "ROBOTSTXT_OBEY": False,
        {more}
    }}

    def parse(self, response):
        yield {{"title": response.css("title::text").get()}}
"""


class Pages:
    """A site that has every page, and counts what it is asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._server = Threaded(self._answer)
        self.origin = self._server.origin
        self.close = self._server.close

    def _answer(self, path: str) -> Answer:
        self.asked[path] += 1
        return 200, "text/html", f"<title>{path}</title>".encode()


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A site of this test alone."""
    made = Pages()
    yield made
    made.close()


def options(tmp_path: Path, redis_server: RedisServer, more: str = "") -> list[object]:
    """Of a run of the spider, with more settings."""
    (tmp_path / "books.py").write_text(SPIDER.format(url=redis_server.url, more=more))
    return ["--spider", tmp_path / "books.py", "--data", tmp_path / "data", "-s", "network.allow_private=true"]


def test_urls_that_are_pushed_while_the_job_runs_are_fetched_once_until_it_is_stopped(
    tmp_path: Path, pages: Pages, redis_server: RedisServer, there: list[str]
) -> None:
    """Forty at the start, five after them; what is no URL is named. Its pipeline writes the items into Redis."""
    client, expected = redis_server.client, {f"/{number}" for number in range(45)}
    client.lpush("books:start_urls", *(f"{pages.origin}/{number}" for number in range(40)), "no URL")
    command = options(tmp_path, redis_server)
    process = crawlog("run", *command, "-o", tmp_path / "rows.jsonl", "--job", "books", *there)
    until(lambda: client.llen("books:items") == 40, "the first ones", process)
    client.lpush("books:start_urls", *(f"{pages.origin}/{number}" for number in range(40, 45)))
    until(lambda: client.llen("books:items") == 45, "the others", process)
    shown, _ = crawlog("jobs", "show", "books", *there).communicate()
    assert "its spider is fed until the job is stopped" in shown
    crawlog("jobs", "stop", "books", *there).communicate()
    _, errors = process.communicate()
    assert pages.asked == Counter(expected)
    assert "b'no URL' of Redis key books:start_urls is left out: ValueError" in errors
    rows = {json.loads(line)["title"] for line in (tmp_path / "rows.jsonl.partial").read_text().splitlines()}
    assert rows == {json.loads(item)["title"] for item in client.lrange("books:items", 0, -1)} == expected
    assert client.keys() == ["books:items"]
