"""`SqlStore`: what PostgreSQL, MySQL and SQLite share. Rows and position in one transaction: each is there once.

    BEGIN ─► the position in `crawlog_outputs`, by compare-and-set ─► which keys have rows ─► rows that are gone
          ─► new rows, and rows that replace others ─► COMMIT

The position comes first: its row is the lock of the feed. A worker that lost its place meets another serial there, and
writes nothing. Columns are added before the transaction, as MySQL ends one with each change of a table.

    _key, _n       primary key: hash of job and URL (with the request's identity); number of the item on its page
    _job _url      where the row is from
    _page          the page it was parsed from: partition << 40 | offset; -1: not seen since the crawl began again
    _rest          fields that fit no column, by name
    _gone          since when the page has the row no longer, with `results.on_gone=mark`
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink_groups import SinkSpec

from .base import Store, lost_place
from .changes import Feed, KeyRows, RowChanges
from .columns import OWN, Kind, RowCells, new_columns

POSITIONS = "crawlog_outputs"

ROW = ("_key", "_n", "_job", "_url", "_page")

Row = tuple[object, ...]


class _NewColumns(Exception):  # no error: the transaction is made again
    """Rows want columns that the table does not have."""


class SqlStore(Store):
    """See the module. A dialect has these attributes, and the abstract methods.

    Attributes:
        form: Of an address, for messages.
        types: The column of each kind of value; `name` of a short text that is compared exactly, `time` of a moment.
        kinds: The kind of each type that `columns` gives.
        columns: Query of name and type of each column that a table has, by its quoted name; nothing if it lacks.
        begin: Begins a transaction that writes.
        lock, unlock: Around changes of tables, of which each connection makes its own: begin and end a transaction, or
            take a lock by name.
        options: Behind each CREATE TABLE.
        new_value: Of a column, in the row that replaces another one.
        widen: Part of ALTER TABLE that makes a column of integers one of floats; empty if it takes them as it is.
    """

    form: ClassVar[str]
    types: ClassVar[dict[str, str]]
    kinds: ClassVar[dict[str, Kind]]
    columns: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    lock: ClassVar[tuple[str, ...]]
    unlock: ClassVar[str] = "COMMIT"
    options: ClassVar[str] = ""
    new_value: ClassVar[str] = "excluded.{}"
    widen: ClassVar[str]

    def __init__(self, spec: SinkSpec, table: str, schema: str = "") -> None:
        super().__init__(spec)
        if not re.fullmatch(r"[\w$]+", table) or not re.fullmatch(r"[\w$]*", schema):
            raise Misconfigured(f"{self.place}: name a table in the address: {self.form}")
        self._name = f'"{schema}"."{table}"' if schema else f'"{table}"'
        self._connection: Any = None  # of the DB-API, without transactions of its own
        self._cursor: Any = None
        self._columns: dict[str, Kind | None] = {}
        self._serial = ""

    @abstractmethod
    def _connect(self) -> Any:
        """A connection. Names are quoted by `"` there."""

    @abstractmethod
    def _put(self, names: list[str], rows: Iterator[Row], replaced: str) -> None:
        """Insert rows, of which there is one at least.

        Args:
            names: Of their columns, quoted.
            replaced: Assignments to these columns, of rows of which some are there already; empty if none is.
        """

    def _alter(self, parts: list[str]) -> None:
        if parts:
            self._run(f"ALTER TABLE {self._name} {', '.join(parts)}")

    def check(self) -> None:
        """Connects, and looks at the table if it is there."""
        try:
            with self.reported():
                self._open()
                self._see_columns()
        finally:
            self.close()

    def open(self, feed: Feed) -> int:
        """Makes the table and the table of positions where they lack."""
        self.close()
        with self.reported():
            self._open()
            self._make_tables()
            return self._opened(feed)

    def write(self, changes: RowChanges) -> None:
        """One transaction, see the module."""
        with self.reported():
            self._write(changes)

    def finish(self) -> None:
        """Deletes or marks the rows of the job that the crawl has not seen since it began again."""
        with self.reported():
            self._drop("_job = %s AND _page = -1", [(self.spec.job,)])

    def close(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _open(self) -> None:
        self._connection = self._connect()
        self._cursor = self._connection.cursor()

    def _run(self, statement: str, values: Sequence[object] | None = None) -> None:
        """Execute; a `%` is a placeholder only if there are values."""
        self._cursor.execute(statement, values)

    def _run_each(self, statement: str, rows: Sequence[Row]) -> None:
        self._cursor.executemany(statement, rows)

    @contextmanager
    def _altering(self) -> Iterator[None]:
        """For changes of tables, one worker at a time: IF NOT EXISTS does not hold against another at that moment."""
        for statement in self.lock:
            self._run(statement)
        yield
        self._run(self.unlock)

    def _make_tables(self) -> None:
        name, json, text = (self.types[kind] for kind in ("name", "json", "text"))
        with self._altering():
            self._run(
                f"CREATE TABLE IF NOT EXISTS {self._name} (_key {self.types['key']}, _n integer, _job {name} NOT NULL,"
                f" _url {text} NOT NULL, _page bigint NOT NULL, _rest {json}, PRIMARY KEY (_key, _n)){self.options}"
            )
            self._run(
                f"CREATE TABLE IF NOT EXISTS {POSITIONS} (output {name} PRIMARY KEY, crawl {name} NOT NULL,"
                f" serial {name} NOT NULL, position bigint NOT NULL){self.options}"
            )
            if "_gone" not in self._see_columns() and self.spec.on_gone == "mark":
                self._run(f"ALTER TABLE {self._name} ADD COLUMN _gone {self.types['time']}")

    def _opened(self, feed: Feed) -> int:
        """Take the feed over; returns its position."""
        self._serial, mine = feed.serial, [self._output]
        self._run(self.begin)
        self._run(f"SELECT crawl, serial, position FROM {POSITIONS} WHERE output = %s", mine)
        crawl, serial, position = self._cursor.fetchone() or (feed.crawl, "", 0)
        if crawl != feed.crawl:
            self._run(f"UPDATE {self._name} SET _page = -1 WHERE _job = %s", [self.spec.job])
        if serial != feed.serial:
            position = 0
        self._run(f"DELETE FROM {POSITIONS} WHERE output = %s", mine)
        self._run(f"INSERT INTO {POSITIONS} VALUES (%s, %s, %s, %s)", [*mine, feed.crawl, feed.serial, position])
        self._run("COMMIT")
        return int(position)

    @property
    def _output(self) -> str:
        return f"{self._name} {self.spec.job}"

    def _see_columns(self) -> Mapping[str, str]:
        """Learn which columns the table has; their types. Raises: Misconfigured: it is not one of crawlog's."""
        self._run(self.columns, [self._name])
        types: dict[str, str] = dict(self._cursor.fetchall())
        lacks = [name for name in (*ROW, "_rest") if name not in types]
        if types and lacks:
            raise Misconfigured(
                f"{self.place}: the table has no column {', '.join(lacks)}, so crawlog did not make it. Name a table"
                " that is not there yet, and make a view of it with the columns that you want"
            )
        self._columns = {name: self.kinds.get(type_) for name, type_ in types.items() if name not in OWN}
        return types

    def _add_columns(self, changes: RowChanges) -> None:
        """Add the columns that rows want, and widen those of integers."""
        rows = [row for one in changes.keys for row in one.rows()]
        with self._altering():
            self._see_columns()  # another worker may have added some
            wanted = new_columns(rows, self._columns)
            added = [
                f"ADD COLUMN {_quoted(name)} {self.types[kind]}"
                for name, kind in wanted.items()
                if name not in self._columns
            ]
            widened = [self.widen.format(_quoted(name)) for name in wanted if name in self._columns]
            self._alter([*added, *filter(None, widened)])
            self._columns |= wanted

    def _rows(self, keys: list[tuple[str, KeyRows]]) -> Iterator[Row]:
        """The rows as the table has them, converted while the server takes those before.

        Raises: _NewColumns: one has a value for which the table is to get a column.
        """
        cells = RowCells(self._columns)
        for key, one in keys:
            page, url = one.page_number, one.url
            for number, row in enumerate(one.rows()):
                values = cells.of(row)
                if values[-1] is not None and new_columns([row], self._columns):
                    raise _NewColumns
                yield (key, number, self.spec.job, url, page, *values)

    def _write(self, changes: RowChanges) -> None:
        try:
            self._transact(changes)
        except _NewColumns:
            self._run("ROLLBACK")
            self._add_columns(changes)
            self._transact(changes)

    def _transact(self, changes: RowChanges) -> None:
        self._run(self.begin)
        self._run(
            f"UPDATE {POSITIONS} SET position = %s WHERE output = %s AND serial = %s AND position = %s",
            [changes.end, self._output, self._serial, changes.start],
        )
        if self._cursor.rowcount != 1:
            raise lost_place(self)
        found = [(one.hash(self.spec.job), one) for one in changes.keys]
        there = self._there([key for key, _ in found])
        newest = [(key, one) for key, one in found if one.page_number >= there.get(key, (-1, 0))[0]]
        counted = [(key, one.row_count) for key, one in newest if key in there]
        if gone := [(key, count) for key, count in counted if there[key][1] >= count]:
            self._drop("_key = %s AND _n >= %s", gone)
        names = [_quoted(name) for name in (*ROW, *self._columns, "_rest")]
        filled = [(key, one) for key, one in newest if one.row_count]
        if new := [(key, one) for key, one in filled if key not in there]:
            self._put(names, self._rows(new), "")
        if known := [(key, one) for key, one in filled if key in there]:
            replaced = [f"{name} = {self.new_value.format(name)}" for name in names[2:]]
            marks = ["_gone = NULL"] if self.spec.on_gone == "mark" else []
            self._put(names, self._rows(known), ", ".join(replaced + marks))
        self._run("COMMIT")

    def _there(self, keys: list[str]) -> dict[str, tuple[int, int]]:
        """Newest page and greatest number of the rows that these keys have in the table."""
        if not keys:
            return {}
        listed = ", ".join(f"'{key}'" for key in keys)  # of hex digits
        self._run(f"SELECT _key, max(_page), max(_n) FROM {self._name} WHERE _key IN ({listed}) GROUP BY _key")
        return {key: (page, number) for key, page, number in self._cursor.fetchall()}

    def _drop(self, where: str, values: Sequence[Row]) -> None:
        """Do with rows that are gone as the output wants."""
        if self.spec.on_gone == "delete":
            self._run_each(f"DELETE FROM {self._name} WHERE {where}", values)
        elif self.spec.on_gone == "mark":
            change = f"UPDATE {self._name} SET _gone = CURRENT_TIMESTAMP WHERE {where} AND _gone IS NULL"
            self._run_each(change, values)


def _quoted(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'
