"""MySQL and MariaDB: `-o mysql://USER:PASSWORD@HOST/DATABASE/TABLE`, rows by multi-row INSERT, exactly once.

A query of the address goes to PyMySQL: `?ssl_ca=/etc/ca.pem`, `?unix_socket=/run/mysqld/mysqld.sock`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from crawlog.streams.sink_groups import SinkSpec

from .base import ANSWER_S, CONNECT_S, needed
from .columns import Kind
from .sql import Row, SqlStore

STATEMENT_CHARS = 500_000  # Of one INSERT: well below `max_allowed_packet`, 16 MiB unless the server has another

MODE = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES"  # Strict: a value that does not fit is an error, not cut


class MySql(SqlStore):
    """See the module."""

    form = "mysql://USER:PASSWORD@HOST/DATABASE/TABLE"
    types: ClassVar[dict[str, str]] = {
        "bool": "boolean",
        "int": "bigint",
        "float": "double",
        "text": "longtext",
        "json": "json COMMENT 'json'",  # to MariaDB it is a longtext
        "key": "char(32) CHARACTER SET ascii COLLATE ascii_bin",
        "name": "varchar(300) COLLATE utf8mb4_bin",
        "time": "datetime",
    }
    kinds: ClassVar[dict[str, Kind]] = {
        "json": "json",
        "tinyint(1)": "bool",
        "bigint": "int",
        "double": "float",
        "longtext": "text",
        "mediumtext": "text",
        "text": "text",
        "varchar": "text",
    }
    columns = (
        "SELECT column_name, CASE WHEN column_comment = 'json' THEN 'json' WHEN column_type = 'tinyint(1)' THEN"
        " column_type ELSE data_type END FROM information_schema.columns"
        " WHERE table_schema = database() AND table_name = trim(BOTH '\"' FROM %s) ORDER BY ordinal_position"
    )
    lock = (f"SELECT GET_LOCK('crawlog', {ANSWER_S})",)
    unlock = "SELECT RELEASE_LOCK('crawlog')"
    options = " ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4"
    new_value = "VALUES({})"
    widen = "MODIFY COLUMN {} double"

    def __init__(self, spec: SinkSpec) -> None:
        self._address = urlsplit(spec.output)
        self._database, _, table = self._address.path[1:].rpartition("/")
        super().__init__(spec, table)

    def _connect(self) -> Any:
        with needed("mysql"):
            import pymysql
        address = self._address
        options: dict[str, Any] = {
            "host": address.hostname or "localhost",
            "port": address.port or 3306,
            "user": unquote(address.username or ""),
            "password": unquote(address.password or ""),
            "database": unquote(self._database),
        }
        return pymysql.connect(
            **options | dict(parse_qsl(address.query)),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_S,
            read_timeout=ANSWER_S,
            write_timeout=ANSWER_S,
            sql_mode=MODE,
            init_command=f"SET time_zone = '+00:00', innodb_lock_wait_timeout = {ANSWER_S}",
        )

    def _put(self, names: list[str], rows: Iterator[Row], replaced: str) -> None:
        tail = f" ON DUPLICATE KEY UPDATE {replaced}" if replaced else ""
        for values in _statements(rows):
            self._run(f"INSERT INTO {self._name} ({', '.join(names)}) VALUES {values}{tail}")


def _statements(rows: Iterator[Row]) -> Iterator[str]:
    """The rows as SQL, so many at a time as one statement may have."""
    texts: list[str] = []
    size = 0
    for row in rows:
        text = f"({','.join([_literal(value) for value in row])})"
        if texts and size + len(text) > STATEMENT_CHARS:
            yield ",".join(texts)
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    yield ",".join(texts)


def _literal(value: object) -> str:
    """SQL of a value; no backslash escapes anything (`MODE`)."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else repr(value)
