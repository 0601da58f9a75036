"""A crawl that fills a store: whatever dies, the store has the rows of FILE at the end, each once."""

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from pyarrow import parquet

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings import Settings
from crawlog.streams.stores.columns import OWN
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.mariadb import MariaDbServer, mariadb_server
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.redis_server import running_redis

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]

Server = PostgresServer | MariaDbServer

ITEMS = """
from crawlog import Spider


class Items(Spider):
    version = "1"

    def parse(self, response):
        count = 2 + len(response.url) % 2
        for number in range(count):
            yield {"url": response.url, "number": number, "part": number / count, "tags": [response.url[-3:], number]}
        yield from response.follow_all(css="a")
"""

FIELDS = ["url", "number", "part", "tags"]

KILLED = ["fetch", "parse", "sink"] * 3 + ["broker"]


def test_a_table_has_the_rows_of_file_after_deaths_of_the_sink_worker_and_of_the_server(
    tmp_path: Path, cluster: Settings
) -> None:
    """The sink worker dies before and behind a transaction, and at any moment; PostgreSQL is killed, and is away."""
    spent = tmp_path / "spent"
    spent.mkdir()
    settings = {"fetch.concurrency": 8, "politeness.delay_s": 0.1} | log_of(cluster)
    with (
        postgres_server() as server,
        Cluster(tmp_path, hosts=10, pages=40, settings=settings) as crawl,
    ):
        crawl.environment = {VARIABLE: f"{spent} store.writing:1 store.written:1"}
        crawl.start("-o", f"{server.address}/pages")
        crawl.until(0.4)
        server.stop()
        crawl.until(0.6)
        crawl.kill("sink")
        server.start()
        crawl.until(0.9)
        server.stop()
        crawl.until(1)
        server.start()
        summary = crawl.finish()
        assert {file.name for file in spent.iterdir()} == {"store.writing", "store.written"}
        table = [{name: value for name, value in row.items() if name not in OWN} for row in server.table("pages")]
        rows = [json.loads(line) for line in crawl.output.read_text().splitlines()]
        assert sorted(table, key=_url) == sorted(_filled(rows, table), key=_url)
        assert {row["url"] for row in rows} == crawl.urls
        assert (summary["rows"], summary["dead"]) == (len(crawl.urls), 0)
        assert "geheim" not in crawl.said.read_text()


@pytest.mark.long
@pytest.mark.parametrize("server_of", [postgres_server, mariadb_server], ids=["postgres", "mysql"])
def test_a_table_has_50_000_items_each_once_while_a_process_is_killed_every_3_s_and_the_server_twice(
    tmp_path: Path, server_of: Callable[[], AbstractContextManager[Server]]
) -> None:
    """Items of 20,000 pages: the table has those of FILE, whose URLs are all pages of the site."""
    with server_of() as server, shop(tmp_path) as crawl:
        crawl.start("--spider", str(tmp_path / "items.py"), "-o", f"{server.address}/shop")
        rows = _killed(crawl, server.stop, server.start)
        assert sorted(map(_item, server.table("shop"))) == sorted(map(_item, rows))


@pytest.mark.long
def test_files_a_data_set_and_a_hash_have_50_000_items_each_once_while_a_process_is_killed_every_3_s(
    tmp_path: Path,
) -> None:
    """The same crawl into SQLite, Parquet files and Redis at once; Redis is killed twice."""
    with running_redis(tmp_path / "redis") as redis, shop(tmp_path) as crawl:
        stores = (f"sqlite:{tmp_path}/shop.db", f"file://{tmp_path}/shop/", f"{redis.url}/shop?as=hash")
        crawl.start("--spider", str(tmp_path / "items.py"), *(word for store in stores for word in ("-o", store)))
        wanted = sorted(map(_item, _killed(crawl, redis.kill, redis.start)))
        with sqlite3.connect(tmp_path / "shop.db") as database:
            table = database.execute("SELECT url, number, part, tags FROM items").fetchall()
        assert sorted(map(_item, (dict(zip(FIELDS, row, strict=True)) for row in table))) == wanted
        frame = parquet.read_table(tmp_path / "shop", partitioning=None).select(FIELDS).to_pylist()
        assert sorted(map(_item, frame)) == wanted
        assert sorted(_item(json.loads(row)) for row in redis.client.hvals("shop")) == wanted


@contextmanager
def shop(folder: Path) -> Iterator[Cluster]:
    """A crawl of 20,000 pages whose spider gives two or three items each."""
    (folder / "items.py").write_text(ITEMS)
    settings = {"fetch.concurrency": 64, "politeness.delay_s": 0.02}
    with Cluster(folder, hosts=200, pages=100, settings=settings) as crawl:
        yield crawl


def _killed(crawl: Cluster, stop: Callable[[], None], start: Callable[[], None]) -> list[dict[str, object]]:
    """Kills a process every 3 s, and the server twice; the rows of FILE at the end, which are complete."""
    chance = random.Random(43)
    away = [0.6, 0.3]
    while not crawl.reaches(1, 3.0) and crawl.is_running:
        if away and crawl.reaches(away[-1], 0.1):
            away.pop()
            stop()
            time.sleep(5)
            start()
        stage = chance.choice(KILLED)
        crawl.kill_broker() if stage == "broker" else crawl.kill(stage)
    summary = crawl.finish(600)
    rows: list[dict[str, object]] = [json.loads(line) for line in crawl.output.read_text().splitlines()]
    assert {row["url"] for row in rows} == crawl.urls
    assert len({(row["url"], row["number"]) for row in rows}) == len(rows) == summary["rows"]
    assert (summary["dead"], away) == (0, [])
    return rows


def _item(row: dict[str, object]) -> tuple[object, ...]:
    tags = row["tags"] if isinstance(row["tags"], list) else json.loads(str(row["tags"]))
    return row["url"], row["number"], row["part"], *tags


def _url(row: dict[str, object]) -> str:
    return str(row["url"])


def _filled(rows: list[dict[str, object]], table: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows with null for each column that they do not have."""
    return [dict.fromkeys(table[0]) | {name: row[name] for name in row if name in table[0]} for row in rows]
