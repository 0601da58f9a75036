"""A crawl that fills a store: whatever dies, the store has the rows of FILE at the end, each once."""

import json
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings import Settings
from crawlog.streams.stores.columns import OWN
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.mariadb import MariaDbServer, mariadb_server
from tests.support.postgres import PostgresServer, postgres_server

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
    spider = tmp_path / "items.py"
    spider.write_text(ITEMS)
    chance = random.Random(43)
    settings = {"fetch.concurrency": 64, "politeness.delay_s": 0.02}
    with server_of() as server, Cluster(tmp_path, hosts=200, pages=100, settings=settings) as crawl:
        crawl.start("--spider", str(spider), "-o", f"{server.address}/shop")
        away = [0.6, 0.3]
        while not crawl.reaches(1, 3.0) and crawl.is_running:
            if away and crawl.reaches(away[-1], 0.1):
                away.pop()
                server.stop()
                time.sleep(5)
                server.start()
            stage = chance.choice(KILLED)
            crawl.kill_broker() if stage == "broker" else crawl.kill(stage)
        summary = crawl.finish(600)
        rows = [json.loads(line) for line in crawl.output.read_text().splitlines()]
        assert {row["url"] for row in rows} == crawl.urls
        assert sorted(map(_item, server.table("shop"))) == sorted(map(_item, rows))
        assert len({(row["url"], row["number"]) for row in rows}) == len(rows) == summary["rows"]
        assert (summary["dead"], away) == (0, [])


def _item(row: dict[str, object]) -> tuple[object, ...]:
    tags = row["tags"] if isinstance(row["tags"], list) else json.loads(str(row["tags"]))
    return row["url"], row["number"], row["part"], *tags


def _url(row: dict[str, object]) -> str:
    return str(row["url"])


def _filled(rows: list[dict[str, object]], table: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows with null for each column that they do not have."""
    return [dict.fromkeys(table[0]) | {name: row[name] for name in row if name in table[0]} for row in rows]
