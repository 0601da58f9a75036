"""SQLite: `-o sqlite:FILE`, rows in the table `items` of a file, exactly once; `sqlite:FILE?table=TABLE` names another.

The file has a write-ahead log while the job runs, so it can be read meanwhile. At the end all is in the file itself.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

from crawlog.streams.sink_groups import SinkSpec

from .base import CONNECT_S
from .columns import Kind
from .sql import Row, SqlStore


class Sqlite(SqlStore):
    """See the module."""

    form = "sqlite:FILE?table=TABLE"
    hint = "May you write that file, and does no other program keep it locked?"
    types: ClassVar[dict[str, str]] = {
        "bool": "boolean",
        "int": "bigint",
        "float": "double",
        "text": "text",
        "json": "json text",  # `json` alone would make numbers of texts
        "key": "text",
        "name": "text",
        "time": "text",
    }
    kinds: ClassVar[dict[str, Kind]] = {
        "boolean": "bool",
        "bigint": "int",
        "double": "float",
        "text": "text",
        "json text": "json",
    }
    columns = """SELECT name, lower(type) FROM pragma_table_info(trim(%s, '"'))"""
    begin = "BEGIN IMMEDIATE"
    lock = ("BEGIN IMMEDIATE",)
    widen = ""

    def __init__(self, spec: SinkSpec) -> None:
        self._file, _, query = spec.output.partition(":")[2].partition("?")
        super().__init__(spec, parse_qs(query).get("table", ["items"])[0])

    @classmethod
    def absolute(cls, output: str) -> str:
        scheme, _, rest = output.partition(":")
        file, mark, query = rest.partition("?")
        return f"{scheme}:{Path(file).absolute()}{mark}{query}"

    def finish(self) -> None:
        """Leaves no write-ahead log beside the file, if nobody reads."""
        super().finish()
        with self.reported():
            self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    def _connect(self) -> Any:
        connection = sqlite3.connect(self._file, timeout=CONNECT_S, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a power cut may undo transactions, never in part
        return connection

    def _run(self, statement: str, values: Sequence[object] | None = None) -> None:
        super()._run(statement if values is None else statement.replace("%s", "?"), values or ())

    def _run_each(self, statement: str, rows: Sequence[Row]) -> None:
        super()._run_each(statement.replace("%s", "?"), rows)

    def _put(self, names: list[str], rows: Iterator[Row], replaced: str) -> None:
        listed, marks = ", ".join(names), ", ".join("?" * len(names))
        tail = f" ON CONFLICT (_key, _n) DO UPDATE SET {replaced}" if replaced else ""
        self._cursor.executemany(f"INSERT INTO {self._name} ({listed}) VALUES ({marks}){tail}", rows)

    def _alter(self, parts: list[str]) -> None:
        for part in parts:
            self._run(f"ALTER TABLE {self._name} {part}")
