"""A crawl that fills a store: whatever dies, the store has the rows of FILE at the end, each once."""

import json
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from crawlog.streams.crash_points import VARIABLE
from crawlog.streams.settings import Settings
from crawlog.streams.stores.columns import OWN
from tests.support.cluster import Cluster, log_of, needs_site
from tests.support.postgres import postgres_server

pytestmark = [pytest.mark.broker, pytest.mark.slow, needs_site]


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
        with psycopg.connect(server.address, row_factory=dict_row) as connection:
            found = connection.execute("SELECT * FROM pages").fetchall()
        table = [{name: value for name, value in row.items() if name not in OWN} for row in found]
        rows = [json.loads(line) for line in crawl.output.read_text().splitlines()]
        assert sorted(table, key=_url) == sorted(_filled(rows, table), key=_url)
        assert {row["url"] for row in rows} == crawl.urls
        assert (summary["rows"], summary["dead"]) == (len(crawl.urls), 0)
        assert "geheim" not in crawl.said.read_text()


def _url(row: dict[str, object]) -> str:
    return str(row["url"])


def _filled(rows: list[dict[str, object]], table: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows with null for each column that they do not have."""
    return [dict.fromkeys(table[0]) | {name: row[name] for name in row if name in table[0]} for row in rows]
