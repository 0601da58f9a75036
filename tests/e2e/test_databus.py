"""One job that fills several stores at once: each has all rows at the end, whoever dies, and none holds another up."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings import Settings
from crawlog.streams.stores.columns import OWN
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.ferretdb import ferret_server
from tests.support.mariadb import mariadb_server
from tests.support.processes import until
from tests.support.redis_server import running_redis

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long, needs_site]


def test_mysql_and_redis_have_a_jobs_rows_though_one_is_away(tmp_path: Path, cluster: Settings) -> None:
    """MySQL is killed, and away until Redis has all rows; the sink worker dies before and behind a write."""
    (spent := tmp_path / "spent").mkdir()
    settings = {"fetch.concurrency": 8, "politeness.delay_s": 0.1} | log_of(cluster)
    with (
        mariadb_server() as mysql,
        running_redis(tmp_path / "redis", password="geheim") as redis,
        Cluster(tmp_path, hosts=10, pages=40, settings=settings) as crawl,
    ):
        crawl.environment = {VARIABLE: f"{spent} store.writing:1 store.written:1"}
        crawl.start("-o", f"{mysql.address}/pages", "-o", f"{redis.url}/pages")
        crawl.until(0.3)
        mysql.stop()
        crawl.until(0.5)
        crawl.kill("sink")
        until(lambda: redis.client.llen("pages") >= len(crawl.urls), "Redis has all rows")
        mysql.start()
        summary = crawl.finish()
        assert {file.name for file in spent.iterdir()} == {"store.writing", "store.written"}
        rows = _rows(crawl)
        assert {str(row["url"]) for row in rows} == crawl.urls
        assert _sorted(json.loads(row) for row in redis.client.lrange("pages", 0, -1)) == _sorted(rows)
        assert _sorted(mysql.table("pages")) == _sorted(rows)
        assert (summary["rows"], summary["dead"]) == (len(crawl.urls), 0)
        assert "geheim" not in crawl.said.read_text()


def test_documents_a_hash_and_a_stream_have_the_rows_of_file_after_deaths_of_their_servers(
    tmp_path: Path, cluster: Settings
) -> None:
    """Both servers are killed while rows come, and the sink worker before and behind a write, and at any moment."""
    (spent := tmp_path / "spent").mkdir()
    settings = {"fetch.concurrency": 8, "politeness.delay_s": 0.1} | log_of(cluster)
    with (
        ferret_server(tmp_path) as mongodb,
        running_redis(tmp_path / "redis", password="geheim") as redis,
        Cluster(tmp_path, hosts=10, pages=40, settings=settings) as crawl,
    ):
        crawl.environment = {VARIABLE: f"{spent} store.writing:1 store.written:1"}
        stores = (mongodb.address("shop.pages"), f"{redis.url}/hash?as=hash", f"{redis.url}/stream?as=stream")
        crawl.start(*(word for store in stores for word in ("-o", store)))
        crawl.until(0.3)
        mongodb.kill()
        crawl.until(0.5)
        crawl.kill("sink")
        redis.kill()
        mongodb.start()
        crawl.until(0.7)
        redis.start()
        mongodb.kill()
        crawl.until(1)
        mongodb.start()
        summary = crawl.finish()
        rows = _rows(crawl)
        assert {str(row["url"]) for row in rows} == crawl.urls
        assert _sorted(mongodb.client["shop"]["pages"].find()) == _sorted(rows)
        assert _sorted(json.loads(row) for row in redis.client.hvals("hash")) == _sorted(rows)
        assert _sorted(json.loads(entry["row"]) for _, entry in redis.client.xrange("stream")) == _sorted(rows)
        assert (summary["rows"], summary["dead"]) == (len(crawl.urls), 0)
        assert "geheim" not in crawl.said.read_text()


def _rows(crawl: Cluster) -> list[dict[str, Any]]:
    """The rows of FILE."""
    return [json.loads(line) for line in crawl.output.read_text().splitlines()]


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By URL, without the store's own fields and those without a value."""
    plain = [{name: row[name] for name in row if name not in (*OWN, "_id") and row[name] is not None} for row in rows]
    return sorted(plain, key=lambda row: str(row["url"]))
