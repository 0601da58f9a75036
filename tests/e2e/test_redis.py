"""Spiders of scrapy-redis, as projects have them, fed by a real Redis. The judge is what the site was asked for."""

import contextlib
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.brokers import Lossy, lossy
from tests.support.cluster import needs_site
from tests.support.crawls import there
from tests.support.deployed import ENVIRON
from tests.support.processes import LIMIT_S, Process, crawlog, done, until
from tests.support.redis_server import RedisServer, redis_server
from tests.support.sites import Answer, Threaded
from tests.support.synthetic_site import Site

__all__ = ["lossy", "redis_server", "there"]  # fixtures

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
        yield {{"url": response.url, "title": response.css("title::text").get()}}
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
    titles = {json.loads(line)["title"] for line in (tmp_path / "rows.jsonl.partial").read_text().splitlines()}
    assert titles == {json.loads(item)["title"] for item in client.lrange("books:items", 0, -1)} == expected
    assert client.keys() == ["books:items"]


URLS = 10_000
"""That the master pushes."""


class Machine:
    """A data folder with workers on a log of somebody else's.

    Args:
        stages: Of its workers; none for those of `up`, which runs `start` and pipelines too.
    """

    def __init__(self, data: Path, bootstrap: str, *stages: str) -> None:
        self.data = data
        self._stages = stages
        self._there = ["--data", data, "--bootstrap", bootstrap, "-s", "kafka.prefix=three."]
        named = {"network.allow_private": "true", "run.fetch_workers": 1, "run.parse_workers": 1}
        self._settings = [f"-s{key}={value}" for key, value in named.items()]
        self._workers: list[Process] = []

    def start(self, *settings: str) -> None:
        """Starts its workers, with these settings from now on."""
        self._settings += settings
        env, nowhere = os.environ | ENVIRON, subprocess.DEVNULL
        if not self._stages:
            done(crawlog("up", *self._there, *self._settings, env=env))
        options = [*self._there, *self._settings]
        self._workers = [
            crawlog("worker", stage, *options, env=env, stdout=nowhere, stderr=nowhere) for stage in self._stages
        ]

    def does(self, *words: object) -> str:
        """What a command says on standard output."""
        process = crawlog(*words, *self._there, env=os.environ | ENVIRON)
        out, err = process.communicate()
        assert process.returncode == 0, (out, err)
        return out

    def kill(self) -> None:
        """Kill -9: the supervisor, its workers, and the processes of spiders."""
        pids = [worker.pid for worker in self._workers]
        if not self._stages:
            pids = [json.loads((self.data / "run" / "holder.json").read_text())["pid"]]
        every = [one for pid in pids for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
        for one in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(every, timeout=LIMIT_S)


@needs_site
@pytest.mark.long
def test_three_machines_fetch_each_url_that_a_master_pushes_whatever_is_killed(
    tmp_path: Path, redis_server: RedisServer, lossy: Lossy
) -> None:
    """All workers, the broker, all processes of spiders: twice. Each URL has one row, and an item in Redis or more."""
    client, project = redis_server.client, tmp_path / "shop"
    (project / "shop" / "spiders").mkdir(parents=True)
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (project / "shop" / "settings.py").write_text('SPIDER_MODULES = ["shop.spiders"]\n')
    options(project / "shop" / "spiders", redis_server)
    first = Machine(tmp_path / "first", lossy.bootstrap)
    others = [Machine(tmp_path / name, lossy.bootstrap, "fetch", "parse") for name in ("second", "third")]
    with Site(30, URLS // 29, flags={"bytes": 500, "links": 2}) as site:
        urls = sorted(site.urls())[:URLS]
        assert len(urls) == URLS
        first.start()
        first.does("deploy", project, "--project", "shop", "--version", "1")
        key = first.does("key", "show").strip()
        for machine in others:
            machine.start(f"-ssecurity.trusted_keys={key}")
        job = ["--project", "shop", "--spider", "books", "--job", "books", "-o", "books.jsonl"]
        first.does("submit", *job, "-s", "network.allow_private=true")
        client.lpush("books:start_urls", *urls)
        for share in (0.3, 0.6):
            until(lambda: site.stats().unique >= share * URLS, f"{share} of the pages")  # noqa: B023  # at once
            lossy.kill()
            for machine in (first, *others):
                machine.kill()
            lossy.start()
            for machine in (first, *others):
                machine.start()
        until(lambda: len(items(redis_server)) == URLS, "all items")
        stats = site.stats()
        until(lambda: Counter(urls) in rows(tmp_path), "all rows, each once")
    first.does("jobs", "stop", "books")
    for machine in others:
        machine.kill()
    first.does("down")
    assert set(client.keys()) == {"books:items"}
    told = f"{stats.duplicates} requests and {client.llen('books:items') - URLS} items were repeated"
    print(told)  # noqa: T201  # for bench/NOTES.md


def rows(folder: Path) -> list[Counter[str]]:
    """The rows in each file of the job's output, by URL."""
    files = [path.read_text().splitlines() for path in folder.rglob("books.jsonl.partial")]
    return [Counter(json.loads(line)["url"] for line in lines) for lines in files]


def items(redis_server: RedisServer) -> Counter[str]:
    """The items in Redis, by the URL of their page."""
    return Counter(json.loads(item)["url"] for item in redis_server.client.lrange("books:items", 0, -1))
