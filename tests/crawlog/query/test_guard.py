"""SQL of a user reads the tables and nothing else: attempts on a database that is locked as for a query."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from crawlog.query.duck import connected, lock, named_tables
from crawlog.streams.errors import Misconfigured

SECRET = pa.table({"a": ["a table of this process"]})

OUTSIDE = {
    "file by name": "FROM '{data}/x.csv'",
    "file as text": "FROM read_text('{data}/x.csv')",
    "file as bytes": "FROM read_blob('{data}/x.csv')",
    "csv": "FROM read_csv('{data}/x.csv')",
    "json": "FROM read_json('{data}/x.csv')",
    "lines": "FROM read_ndjson_objects('{data}/x.csv')",
    "kept file": "FROM read_parquet('{data}/x.parquet')",
    "its metadata": "FROM parquet_metadata('{data}/x.parquet')",
    "sniffer": "FROM sniff_csv('{data}/x.csv')",
    "glob": "FROM glob('{data}/*')",
    "database": "FROM read_duckdb('{data}/x.db')",
    "attach": "ATTACH '{data}/x.db'",
    "http": "FROM read_csv('http://127.0.0.1:9/x.csv')",
    "s3": "FROM read_parquet('s3://bucket/x.parquet')",
    "sqlite": "FROM sqlite_scan('{data}/x.db', 't')",
    "postgres": "FROM postgres_scan('host=127.0.0.1', 'public', 't')",
    "copy": "COPY (SELECT 1) TO '{data}/new.csv'",
    "copy explained": "EXPLAIN ANALYZE COPY (SELECT 1) TO '{data}/new.csv'",
    "copy in a function": "FROM query('COPY (SELECT 1) TO ''{data}/new.csv''')",
    "export": "EXPORT DATABASE '{data}/new'",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "load a file": "LOAD '{data}/x.duckdb_extension'",
    "set": "SET enable_external_access = true",
    "set memory": "SET memory_limit = '1TB'",
    "reset": "RESET lock_configuration",
    "pragma": "PRAGMA memory_limit = '1TB'",
    "log file": "CALL enable_logging(storage_path = '{data}/new')",
    "log": "FROM enable_logging()",
    "kept secret": "CREATE PERSISTENT SECRET s (TYPE http)",
    "environment": "SELECT getenv('HOME')",
    "variable": "FROM SECRET",
    "memory": "FROM arrow_scan(1::POINTER, 2::POINTER, 3::POINTER)",
}
"""What no setting of DuckDB lets through."""

NO_QUERY = {
    "two": "SELECT 1; SELECT 2",
    "none": "",
    "comment": "-- nothing",
    "create": "CREATE TABLE t AS SELECT 1",
    "drop": "DROP VIEW pages",
    "insert": "INSERT INTO pages VALUES (1)",
    "copy": "COPY pages TO 'x.csv'",
    "set": "SET threads = 1",
    "use": "USE memory",
}
"""What changes things, if only in memory."""


@pytest.mark.parametrize("sql", OUTSIDE.values(), ids=OUTSIDE)
def test_sql_reaches_nothing_but_the_tables(sql: str, tmp_path: Path) -> None:
    """DuckDB itself refuses, and nothing new lies in the folder; the registered table, a file's, can be read."""
    (tmp_path / "x.csv").write_text("a\n1\n")
    pyarrow.parquet.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    with connected(64) as connection:
        connection.register("pages", pyarrow.dataset.dataset(tmp_path / "x.parquet"))
        lock(connection)
        assert connection.execute("FROM pages").fetchall() == [(1,)]
        with pytest.raises(duckdb.Error):
            connection.execute(sql.format(data=tmp_path)).fetchall()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.parquet"]


@pytest.mark.parametrize("sql", NO_QUERY.values(), ids=NO_QUERY)
def test_what_is_not_one_query_is_refused(sql: str) -> None:
    """Before a record is read."""
    with pytest.raises(Misconfigured, match="a query is one SELECT"):
        named_tables(sql)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("FROM rows", ["rows"]),
        ("SELECT 'rows' AS dead -- urls\nFROM Pages", ["pages"]),
        ("SELECT 1 FROM pages JOIN urls USING (url) WHERE reason <> 'rows'", ["pages", "urls"]),
        ("WITH pages AS (SELECT 1) FROM pages", []),
        ("DESCRIBE jobs", ["jobs"]),
        ("SUMMARIZE dead", ["dead"]),
        ("PIVOT pages ON status USING count(*)", ["pages"]),
        ("SHOW TABLES", []),
        ("EXPLAIN SELECT * FROM (SELECT 1 WHERE EXISTS (FROM rows))", ["rows"]),
    ],
)
def test_the_tables_of_a_query_are_those_that_its_sql_names(sql: str, names: list[str]) -> None:
    """A name in a text or a comment is none."""
    assert named_tables(sql) == names
