"""PostgreSQL: `-o postgresql://USER:PASSWORD@HOST/DATABASE/TABLE`, rows by COPY, exactly once.

One transaction: the rows of some keys into a temporary table → older rows of these keys deleted → upsert → the position
in `crawlog_outputs`, by compare-and-set. So the table has the rows up to the position, whatever dies; a worker that
lost its place meets another serial there, and its transaction is undone.

    _key, _n       primary key: hash of job and URL (with the request's identity); number of the item on its page
    _job _url      where the row is from
    _page          the page it was parsed from: partition << 40 | offset; -1: not seen since the crawl began again
    _rest          fields that fit no column
"""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import xxhash

from crawlog.streams.errors import CrawlError, Misconfigured

from .base import ANSWER_S, CONNECT_S, Store, lost_place, needed
from .changes import Feed, KeyRows, RowChanges
from .columns import OWN, Kind, cells, new_columns

if TYPE_CHECKING:
    import psycopg

TYPES: dict[Kind, str] = {
    "bool": "boolean",
    "int": "bigint",
    "float": "double precision",
    "text": "text",
    "json": "jsonb",
}

KINDS: dict[str, Kind] = {
    "boolean": "bool",
    "bigint": "int",
    "double precision": "float",
    "text": "text",
    "character varying": "text",
    "jsonb": "json",
    "json": "json",
}

POSITIONS = "crawlog_outputs"

ROW = ("_key", "_n", "_job", "_url", "_page")


class Postgres(Store):
    """See the module."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        address = urlsplit(spec.output)
        path, _, table = address.path.rpartition("/")
        self._schema, _, self._table = table.rpartition(".")
        self._uri = urlunsplit(("postgresql", address.netloc, path, address.query, ""))
        self._connection: psycopg.Connection[Any] | None = None
        self._columns: dict[str, Kind | None] = {}
        self._serial = ""
        if not re.fullmatch(r"[\w$]+", self._table) or not re.fullmatch(r"[\w$]*", self._schema):
            raise Misconfigured(
                f"{self.place}: name the table behind the database: postgresql://USER:PASSWORD@HOST/DATABASE/TABLE"
            )

    def check(self) -> None:
        """Connects, and looks at the table if it is there."""
        try:
            self._connect()
            self._see_columns()
        except Exception as error:
            raise self._told(error) from error
        finally:
            self.close()

    def open(self, feed: Feed) -> int:
        """Makes the table and the table of positions where they lack."""
        self.close()
        try:
            return self._opened(feed)
        except Exception as error:
            self.close()
            raise self._told(error) from error

    def write(self, changes: RowChanges) -> None:
        """One transaction, see the module."""
        try:
            self._write(changes)
        except Exception as error:
            self.close()
            raise self._told(error) from error

    def finish(self) -> None:
        """Deletes or marks the rows of the job that the crawl has not seen since it began again."""
        try:
            self._gone("_job = %s AND _page = -1", [self.spec.job])
            self._db.commit()
        except Exception as error:
            self.close()
            raise self._told(error) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    @property
    def _db(self) -> "psycopg.Connection[Any]":
        assert self._connection is not None
        return self._connection

    @property
    def _name(self) -> str:
        return f'"{self._schema}"."{self._table}"' if self._schema else f'"{self._table}"'

    def _connect(self) -> None:
        with needed("postgres"):
            import psycopg
        limits = f"-c statement_timeout={ANSWER_S}s -c lock_timeout={ANSWER_S}s"
        self._connection = psycopg.connect(
            self._uri, connect_timeout=CONNECT_S, options=limits, application_name="crawlog", keepalives_idle=CONNECT_S
        )

    def _opened(self, feed: Feed) -> int:
        self._connect()
        self._alter(
            f"CREATE TABLE IF NOT EXISTS {self._name} (_key text, _n integer, _job text NOT NULL, _url text NOT NULL,"
            " _page bigint NOT NULL, _rest jsonb, PRIMARY KEY (_key, _n))",
            f"CREATE TABLE IF NOT EXISTS {POSITIONS} (output text PRIMARY KEY, crawl text NOT NULL,"
            " serial text NOT NULL, position bigint NOT NULL)",
            *([f"ALTER TABLE {self._name} ADD COLUMN IF NOT EXISTS _gone timestamptz"] if self._marks else ()),
        )
        self._see_columns()
        self._serial = feed.serial
        row = self._db.execute(
            f"SELECT crawl, serial, position FROM {POSITIONS} WHERE output = %s FOR UPDATE", [self._output]
        ).fetchone()
        crawl, serial, position = row or (feed.crawl, "", 0)
        if crawl != feed.crawl:
            self._db.execute(f"UPDATE {self._name} SET _page = -1 WHERE _job = %s", [self.spec.job])
        if serial != feed.serial:
            position = 0
        self._db.execute(
            f"INSERT INTO {POSITIONS} VALUES (%s, %s, %s, %s) ON CONFLICT (output)"
            " DO UPDATE SET crawl = excluded.crawl, serial = excluded.serial, position = excluded.position",
            [self._output, feed.crawl, feed.serial, position],
        )
        self._db.commit()
        return int(position)

    @property
    def _output(self) -> str:
        return f"{self._name} {self.spec.job}"

    @property
    def _marks(self) -> bool:
        return self.spec.on_gone == "mark"

    def _alter(self, *statements: str) -> None:
        """Change tables, one worker at a time: IF NOT EXISTS does not hold against another one at the same moment."""
        self._db.execute("SELECT pg_advisory_xact_lock(hashtext('crawlog'))")
        for statement in statements:
            self._db.execute(statement)
        self._db.commit()

    def _see_columns(self) -> None:
        """Learn which columns the table has. Raises: Misconfigured: it is not one of crawlog's."""
        found = self._db.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [self._name],
        ).fetchall()
        types = dict(found)
        lacks = [name for name in (*ROW, "_rest") if name not in types]
        if types and lacks:
            raise Misconfigured(
                f"{self.place}: the table has no column {', '.join(lacks)}, so crawlog did not make it. Name a table"
                " that is not there yet, and make a view of it with the columns that you want"
            )
        self._columns = {name: KINDS.get(type_) for name, type_ in types.items() if name not in OWN}

    def _write(self, changes: RowChanges) -> None:
        keys = [(self._key(one), _page(one), one, one.rows()) for one in changes.keys]
        if more := new_columns((row for *_, rows in keys for row in rows), self._columns):
            self._alter(*(self._altered(name, kind) for name, kind in more.items()))
            self._see_columns()
        columns = [f'"{self._quoted(name)}"' for name in (*ROW, *self._columns, "_rest")]
        names = ", ".join(columns)
        self._db.execute(
            f"CREATE TEMPORARY TABLE staged ON COMMIT DROP AS SELECT {names} FROM {self._name} WITH NO DATA"
        )
        with self._db.cursor() as cursor:
            with cursor.copy(f"COPY staged ({names}) FROM STDIN") as copy:
                for key, page, one, rows in keys:
                    for number, row in enumerate(rows):
                        copy.write_row((key, number, self.spec.job, one.url, page, *cells(row, self._columns)))
            self._drop(keys)
            sets = ", ".join(f"{name} = excluded.{name}" for name in columns[2:])
            gone = ", _gone = NULL" if self._marks else ""
            cursor.execute(
                f"INSERT INTO {self._name} AS old ({names}) SELECT {names} FROM staged"
                f" ON CONFLICT (_key, _n) DO UPDATE SET {sets}{gone} WHERE old._page <= excluded._page"
            )
            cursor.execute(
                f"UPDATE {POSITIONS} SET position = %s WHERE output = %s AND serial = %s AND position = %s",
                [changes.end, self._output, self._serial, changes.start],
            )
            if cursor.rowcount != 1:
                raise lost_place(self)
        self._db.commit()

    def _drop(self, keys: "list[tuple[str, int, KeyRows, list[dict[str, object]]]]") -> None:
        """Rows that a page has no longer are gone: those behind its last item."""
        of = "_key = gone.key AND _n >= gone.rows AND _page <= gone.page"
        given = [[key for key, *_ in keys], [len(rows) for *_, rows in keys], [page for _, page, *_ in keys]]
        self._gone(of, given, "unnest(%s::text[], %s::integer[], %s::bigint[]) AS gone (key, rows, page)")

    def _gone(self, where: str, values: list[Any], source: str = "") -> None:
        if self.spec.on_gone == "delete":
            self._db.execute(f"DELETE FROM {self._name} {f'USING {source}' if source else ''} WHERE {where}", values)
        elif self._marks:
            of = f"FROM {source}" if source else ""
            self._db.execute(f"UPDATE {self._name} SET _gone = now() {of} WHERE {where} AND _gone IS NULL", values)

    def _altered(self, name: str, kind: Kind) -> str:
        column = f'"{self._quoted(name)}"'
        if name in self._columns:
            return f"ALTER TABLE {self._name} ALTER COLUMN {column} TYPE {TYPES[kind]}"
        return f"ALTER TABLE {self._name} ADD COLUMN IF NOT EXISTS {column} {TYPES[kind]}"

    def _quoted(self, name: str) -> str:
        return name.replace('"', '""')

    def _key(self, one: KeyRows) -> str:
        return xxhash.xxh3_128_hexdigest(self.spec.job.encode() + b" " + one.key)

    def _told(self, error: Exception) -> Exception:
        """What the user is told of an error: of the server, or that it is away."""
        if isinstance(error, CrawlError):
            return error
        text = " ".join(str(error).split())
        return Misconfigured(
            f"{self.place}: {text or type(error).__name__}\nIs the server up, and may this user write there? Nothing is"
            " lost: the rows are in the log, and are written when it answers."
        )


def _page(one: KeyRows) -> int:
    partition, offset = one.page
    return partition << 40 | offset
