"""PostgreSQL: `-o postgresql://USER:PASSWORD@HOST/DATABASE/TABLE`, rows by COPY, exactly once.

COPY takes new rows straight into the table. Rows that replace others come into a temporary table, and from there.
"""

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from crawlog.streams.sink_groups import SinkSpec

from .base import ANSWER_S, CONNECT_S, needed
from .columns import Kind
from .sql import Row, SqlStore


class Postgres(SqlStore):
    """See the module."""

    form = "postgresql://USER:PASSWORD@HOST/DATABASE/TABLE"
    types: ClassVar[dict[str, str]] = {
        "bool": "boolean",
        "int": "bigint",
        "float": "double precision",
        "text": "text",
        "json": "jsonb",
        "key": "text",
        "name": "text",
        "time": "timestamptz",
    }
    kinds: ClassVar[dict[str, Kind]] = {
        "boolean": "bool",
        "bigint": "int",
        "double precision": "float",
        "text": "text",
        "character varying": "text",
        "jsonb": "json",
        "json": "json",
    }
    columns = (
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    lock = ("BEGIN", "SELECT pg_advisory_xact_lock(hashtext('crawlog'))")
    widen = "ALTER COLUMN {} TYPE double precision"

    def __init__(self, spec: SinkSpec) -> None:
        address = urlsplit(spec.output)
        path, _, table = address.path.rpartition("/")
        schema, _, table = table.rpartition(".")
        super().__init__(spec, table, schema)
        self._uri = urlunsplit(("postgresql", address.netloc, path, address.query, ""))

    def _connect(self) -> Any:
        with needed("postgres"):
            import psycopg
        return psycopg.connect(
            self._uri,
            autocommit=True,
            connect_timeout=CONNECT_S,
            options=f"-c statement_timeout={ANSWER_S}s -c lock_timeout={ANSWER_S}s",
            application_name="crawlog",
            keepalives_idle=CONNECT_S,
        )

    def _put(self, names: list[str], rows: Iterator[Row], replaced: str) -> None:
        listed, into = ", ".join(names), "staged" if replaced else self._name
        if replaced:
            like = f"SELECT {listed} FROM {self._name} WITH NO DATA"
            self._run(f"CREATE TEMPORARY TABLE staged ON COMMIT DROP AS {like}")
        with self._cursor.copy(f"COPY {into} ({listed}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        if replaced:
            self._run(
                f"INSERT INTO {self._name} ({listed}) SELECT {listed} FROM staged"
                f" ON CONFLICT (_key, _n) DO UPDATE SET {replaced}"
            )
