"""DuckDB over the tables: without files, network, extensions and settings, so that any SQL only reads.

    1 the SQL is one query → 2 the tables that it names are extended → 3 a database in memory has a view of each of them
    → 4 its settings are locked → 5 the SQL runs

The guard is DuckDB's own: `enable_external_access=false` and `lock_configuration=true`. It opens no Parquet file: it
reads Arrow data sets that Python has opened.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crawlog.streams.errors import Misconfigured

from . import tables
from .kept_table import Say, alike
from .log_tables import LogTables, folder_of, read_log
from .tables import QUEUES

if TYPE_CHECKING:
    from crawlog.streams.settings import Settings

BATCH_ROWS = 10_000  # Rows of a batch of an answer

THREADS = 4  # At most

# The view of a table that is read from the log; each takes the rows that count.
VIEWS = {"rows": tables.ROWS, "pages": tables.PAGES, "urls": tables.URLS, "dead": tables.DEAD, "jobs": "{kept}"}

NEWEST = {"rows": tables.NEWEST_ITEMS, "urls": tables.NEWEST_RESULTS}

ALLOWED = ("SELECT", "EXPLAIN", "MULTI")  # Statements; a PIVOT is a MULTI

# Settings of DuckDB; the last one forbids every further one.
GUARD = (
    "python_enable_replacements=false",
    "allow_community_extensions=false",
    "autoinstall_known_extensions=false",
    "autoload_known_extensions=false",
    "allow_persistent_secrets=false",
    "TimeZone='UTC'",
    "enable_external_access=false",
    "lock_configuration=true",
)


class QueryAnswer:
    """What SQL gave.

    Attributes:
        types: Of the columns, as DuckDB names them.
        schema: The columns, as an Arrow schema.
        raw: Jobs whose rows, as far as they were asked for, are items as scraped: their pipelines make others.
    """

    def __init__(self, connection: Any, relation: Any, raw: Sequence[str]) -> None:
        self.types = [str(one) for one in relation.types]
        self.raw = raw
        self._connection = connection
        self._reader = relation.to_arrow_reader(BATCH_ROWS)
        self.schema = self._reader.schema

    @property
    def columns(self) -> list[str]:
        """Their names, each one once: `n`, `n_1`."""
        names: list[str] = []
        for name in self.schema.names:
            several = (f"{name}_{number}" for number in count(1))
            names.append(name if name not in names else next(one for one in several if one not in names))
        return names

    def batches(self) -> Iterator[Any]:
        """The rows, as Arrow record batches; once. Raises: Misconfigured: the SQL failed at a row."""
        import duckdb

        try:
            yield from self._reader
        except (duckdb.Error, OSError) as error:  # Arrow's own errors are such, too
            raise _told(error) from error
        finally:
            self._reader.close()
            self._connection.close()

    def rows(self) -> Iterator[list[Any]]:
        """The rows, as Python values; once. Raises: as `batches`."""
        for batch in self.batches():
            yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def ask(
    settings: "Settings", sql: str, job: str = "", *, first: int = 0, most: int | None = None, say: Say = lambda _: None
) -> QueryAnswer:
    """The answer to SQL over the tables, which are extended from the log before.

    Args:
        settings: With the address of a running log.
        job: Only what is of this job; empty for all.
        first, most: A page of the rows: its first one, and its largest number of rows. Give the SQL an ORDER BY.
        say: Is told how the reading of the log goes on.

    Raises: Misconfigured: the SQL is wrong, or more than a query; DuckDB is not installed. UnknownName: no such job.
        EngineError: the log cannot be read.
    """
    return answered(settings, read_log(settings, named_tables(sql), job, say), sql, job, first=first, most=most)


def answered(
    settings: "Settings", found: LogTables, sql: str, job: str = "", *, first: int = 0, most: int | None = None
) -> QueryAnswer:
    """The same of what was read before; it needs no log."""
    found.check(job)
    duckdb = load()
    connection = connected(settings.query.memory_mb)
    try:
        if re.match(r"\s*show\s+(all\s+)?tables\b", sql, re.IGNORECASE):
            for name in tables.NAMES:
                connection.register(name, tables.empty("pages"))
        else:
            _Views(connection, folder_of(settings), found, job).make()
        lock(connection)
        raw = sorted(one.name for one in found.jobs if one.is_raw and job in ("", one.name) and "rows" in found.tables)
        try:
            relation = connection.sql(sql)
            return QueryAnswer(connection, relation if most is None else relation.limit(most, first), raw)
        except duckdb.Error as error:
            raise _told(error, connection, sql) from error
    except BaseException:
        connection.close()
        raise


def connected(memory_mb: int) -> Any:
    """A new database in memory, with a limit; it writes nothing to a disk."""
    limits = {"threads": min(THREADS, os.cpu_count() or 1), "memory_limit": f"{memory_mb}MiB", "temp_directory": ""}
    return load().connect(config=limits)


def lock(connection: Any) -> None:
    """Shuts a database off from everything outside, for good."""
    for setting in GUARD:
        connection.execute(f"SET {setting}")


def load() -> Any:
    """DuckDB. Raises: Misconfigured: it is not installed."""
    try:
        import duckdb
        import pyarrow.dataset  # noqa: F401  # the other library of the extra
    except ImportError as error:
        raise Misconfigured(
            f"`crawlog query` needs DuckDB and Arrow ({error}): `pip install 'crawlog[query]'` installs both"
        ) from error
    return duckdb


def named_tables(sql: str) -> list[str]:
    """The tables that SQL names. Raises: Misconfigured: it is not one query, or no SQL."""
    duckdb = load()
    with duckdb.connect() as connection:
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise _told(error) from error
        return _named(connection, sql, statements)


def _named(connection: Any, sql: str, statements: Sequence[Any]) -> list[str]:
    import duckdb

    kinds = [one.type.name for one in statements]
    if len(kinds) != 1 or kinds[0] not in ALLOWED:
        what = f"these are {len(kinds)} statements" if len(kinds) != 1 else f"this is {kinds[0]}"
        raise Misconfigured(f"a query is one SELECT (or FROM, WITH, PIVOT, DESCRIBE, SUMMARIZE, EXPLAIN); {what}")
    words = re.findall(r"\w+", re.sub(r"'[^']*'|--.*", "", sql))
    found = {word.lower() for word in words} & set(tables.NAMES)
    with suppress(duckdb.Error):  # a join that names a column, before there are tables
        found &= {name.lower() for name in connection.get_table_names(sql)}
    return sorted(found)


def _told(error: Exception, connection: Any = None, sql: str = "") -> Misconfigured:
    """The error for the user: what DuckDB says, with the line, and what to do."""
    import duckdb

    if connection is not None:
        try:
            connection.execute(sql)  # its error names the line, that of a relation does not
        except duckdb.Error as again:
            error = again
    lines = str(error).splitlines()
    text = "\n".join(line for line in lines if line.strip() and not ("Table with" in lines[0] and "Did you" in line))
    then = (
        f"Tables: {', '.join(tables.NAMES)}. `crawlog query 'DESCRIBE pages'` names the columns of one; a name that is"
        ' an SQL word, such as "offset", stands in double quotes.'
    )
    if isinstance(error, duckdb.PermissionException):
        then = "A query reads the tables of the crawl alone: no files, no network, no extensions, no settings."
    elif isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory" in text:
        then = "Take fewer rows or columns, or allow it more memory with -s query.memory_mb=N (MiB)."
    return Misconfigured(f"the SQL cannot be run: {text}\n{then}")


class _Views:
    """The views of one query, of what was read."""

    def __init__(self, connection: Any, folder: Path, found: LogTables, job: str) -> None:
        self._connection = connection
        self._folder = folder
        self._found = found
        self._job = job
        chosen = [one for one in found.jobs if job in ("", one.name)]
        self._register("$jobs", ("job", "since"), [(one.name, one.since) for one in chosen])
        ranges = ("job", "low", "high", "epoch")
        self._register("$voids", ranges, [(one.name, *void) for one in chosen for void in one.voids])
        self._register("$skipped", ranges, [(one.name, *skip) for one in chosen for skip in found.skipped])

    def make(self) -> None:
        """Makes a view of each table that was read."""
        of_known_job = 'SEMI JOIN "$jobs" j ON t.job = j.job'
        counts = {
            "rows": self._counting('"$job"', '"$page"', "$voids"),
            "pages": self._counting("job", '"$page"', "$voids"),
            "urls": self._counting("job", '"$at"', "$skipped"),
            "dead": 'WHERE "$of" IS NOT NULL OR t.job IN (SELECT job FROM "$jobs")' if self._job else "",
            "jobs": of_known_job,
            QUEUES: of_known_job,
        }
        found = self._found.tables
        parts = {name: f"SELECT t.* FROM ({self._union(name)}) t {counts.get(name, '')}" for name in found}
        for name in found.keys() & VIEWS.keys():
            texts = {"kept": parts[name], "queues": parts.get(QUEUES), "again": parts.get(f"{name}{tables.AGAIN}")}
            newest = NEWEST[name].format(**texts) if found.get(f"{name}{tables.AGAIN}") else ""
            self._connection.execute(f"CREATE VIEW {name} AS {VIEWS[name].format(**texts, newest=newest)}")

    def _counting(self, job: str, at: str, ranges: str) -> str:
        """SQL that keeps what counts: of the chosen jobs, since they began, and not cancelled by a rewind."""
        since = f'JOIN "$jobs" j ON t.{job} = j.job AND t."$epoch" >= j.since'
        if not self._connection.execute(f'FROM "{ranges}" LIMIT 1').fetchall():
            return since  # the next condition takes longer than most queries
        return f"""{since} WHERE NOT EXISTS (FROM "{ranges}" v WHERE v.job = t.{job} AND t."$epoch" < v.epoch
            AND t.{at} >= v.low AND t.{at} < v.high)"""

    def _union(self, name: str) -> str:
        """SQL of all rows of a table's files. Columns of one name have one type, the wider one."""
        from pyarrow import dataset

        paths = [self._folder / path for path, job in self._found.tables[name] if not job or self._job in ("", job)]
        parts = [tables.empty(name), *(dataset.dataset(found, schema=schema) for schema, found in alike(paths))]
        for number, part in enumerate(parts):
            self._connection.register(f"{name}${number}", part)
        return " UNION ALL BY NAME ".join(f'SELECT * FROM "{name}${number}"' for number in range(len(parts)))

    def _register(self, name: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        import pyarrow as pa

        kinds = [pa.string(), *[pa.int64()] * (len(columns) - 1)]
        arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
        self._connection.register(name, pa.table(dict(zip(columns, arrays, strict=True))))
