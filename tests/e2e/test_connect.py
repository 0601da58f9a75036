"""Kafka Connect behind an output topic: a file by Kafka's own connector, a table by Debezium's for JDBC."""

import json
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.rows import dict_row

from crawlog.streams.cluster import foreign_config
from crawlog.streams.settings import Settings
from crawlog.streams.stores.columns import OWN
from tests.support.connect import connect
from tests.support.postgres import postgres_server
from tests.support.processes import crawlog, ended, until
from tests.support.sites import Threaded

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]


def page(path: str) -> tuple[int, str, bytes]:
    """Thirty pages, each leading to the next one."""
    number = int(path.rpartition("/")[2] or 0) if path.rpartition("/")[2].isdecimal() else 99
    return (
        (200, "text/html", b"<title>page %d</title><a href=/%d>" % (number, number + 1))
        if number < 30
        else (
            404,
            "text/html",
            b"",
        )
    )


def test_connect_has_each_row_of_the_topic_in_a_file_and_in_a_table(tmp_path: Path, cluster: Settings) -> None:
    """With the schema beside each row the connector makes the table; both have the rows of FILE."""
    login, rows = foreign_config(cluster), tmp_path / "rows.jsonl"
    user, password = (quote(login.get(f"sasl.{name}", ""), safe="") for name in ("username", "password"))
    topic = f"{cluster.kafka.prefix}rows"
    log = [
        "--bootstrap",
        cluster.kafka.bootstrap,
        "-s",
        f"kafka.prefix={cluster.kafka.prefix}",
        "--data",
        tmp_path / "data",
    ]
    given = ["-s", "network.allow_private=true", "-s", "politeness.delay_s=0.01", "--json", "-o", rows]
    given += [*log, "-o", f"kafka://{user}:{password}@{cluster.kafka.bootstrap}/{topic}"]
    site = Threaded(page)
    code, summary, said = ended(crawlog("run", f"{site.origin}/0", *given))
    site.close()
    assert (code, summary.get("rows")) == (0, 31), said
    copied = tmp_path / "copied"
    of_file = {
        "name": "file",
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": topic,
        "file": str(copied),
    }
    with postgres_server() as server:
        of_table = {
            "name": "table",
            "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
            "topics": topic,
            "connection.url": f"jdbc:postgresql://127.0.0.1:{server.port}/postgres",
            "connection.username": "postgres",
            "connection.password": "geheim",
            "collection.name.format": "pages",
            "insert.mode": "upsert",
            "primary.key.mode": "record_key",
            "delete.enabled": "true",
            "schema.evolution": "basic",
        }
        with connect(tmp_path, cluster, of_file, of_table):
            until(lambda: copied.exists() and len(copied.read_text().splitlines()) == 31, "the rows in the file")
            until(lambda: _count(server.address) == 31, "the rows in the table")
        with psycopg.connect(server.address, row_factory=dict_row) as connection:
            table = connection.execute("SELECT * FROM pages").fetchall()
    found = [{name: row[name] for name in row if name not in OWN and row[name] is not None} for row in table]
    wanted = [json.loads(line) for line in rows.read_text().splitlines()]
    wanted = [{name: row[name] for name in row if row[name] is not None} for row in wanted]
    assert sorted(found, key=lambda row: row["url"]) == sorted(wanted, key=lambda row: row["url"])


def _count(address: str) -> int:
    with psycopg.connect(address) as connection:
        there = connection.execute("SELECT to_regclass('pages')").fetchone()
        if there is None or there[0] is None:
            return 0
        counted = connection.execute("SELECT count(*) FROM pages").fetchone()
    return int(counted[0]) if counted is not None else 0
