"""Stores: rows a second into each one, beside the store's own bulk load of the same rows into the same table.

    python -m bench.stores                 50,000 items of 20,000 pages, five rounds; writes its section of RESULTS.md
    python -m bench.stores --only mysql    one store
    python -m bench.stores --short         2,000 pages, one round

crawlog reads the rows of a sink's state, as a worker does, makes the table and its columns, and writes rows and
positions. The bulk load has its rows as tuples in memory, and a table with columns and primary key. Both run in turn on
one server. A further store is a line of `STORES`: its server, and how it loads.
"""

import argparse
import gc
import json
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import msgspec
import psycopg
import xxhash

from bench.results import options_of, run_as, section, table, versions
from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.sink import SinkState, entry, sink_for, sink_of
from crawlog.streams.stores import Store, fill
from tests.support.ferretdb import ferret_server
from tests.support.mariadb import mariadb_server  # the servers of the tests
from tests.support.postgres import postgres_server
from tests.support.redis_server import running_redis
from tests.support.synthetic_site import WORK

PAGES = 20_000
ROUNDS = 5
LEAST = 0.5  # Of the bulk load's pace
FOLDER = WORK / "runs" / "stores"
JOB = "bench"

Rows = list[tuple[object, ...]]


class Place(NamedTuple):
    """A store that runs.

    Attributes:
        address: As `-o` takes it.
        empty: Remove the tables.
        bulk: Make the table of crawlog's, empty, and then give a function that loads rows.
        rows: How many the table has.
    """

    address: str
    empty: Callable[[], object]
    bulk: Callable[[Rows], Callable[[], object]]
    rows: Callable[[], int]


def item(page: int, number: int) -> dict[str, object]:
    """An item as a shop's spider gives it: 400 bytes of JSON."""
    return {
        "id": page * 10 + number,
        "title": f"Article {page} of some length, number {number}",
        "price": page % 9973 + 0.25 * number,
        "stock": page % 17,
        "available": page % 3 > 0,
        "tags": ["outdoor", f"group-{page % 89}", f"brand-{page % 31}"],
        "text": "A sentence about the article that its page has. " * 5,
    }


def url(page: int) -> str:
    """The URL of a page."""
    return f"https://www.shop-{page % 500}.example/articles/of-some-length-{page}.html"


def listed(page: int) -> list[dict[str, object]]:
    """The items of a page: two or three."""
    return [item(page, number) for number in range(2 + page % 2)]


def state_of(address: str, pages: int) -> SinkState:
    """A sink's state with all rows."""
    spec = sink_of(JOB, address)
    state = SinkState(FOLDER / "data", spec, LogIdentity("cluster", "topic"))
    for first in range(0, pages, 2_000):
        records = []
        for page in range(first, min(first + 2_000, pages)):
            raws = [msgspec.Raw(json.dumps(one).encode()) for one in listed(page)]
            value = items.encode(ItemsRecord(JOB, url(page), (0, page), raws, 0))
            records.append((0, page, entry(value, spec)))
        state.fold(records)
    return state


def tuples(pages: int) -> Rows:
    """The rows as the table has them, in the order of crawlog's columns."""
    found: Rows = []
    for page in range(pages):
        key = xxhash.xxh3_128_hexdigest(f"{JOB} {url(page)}".encode())
        for number, one in enumerate(listed(page)):
            values = [json.dumps(value) if isinstance(value, list) else value for value in one.values()]
            found.append((key, number, JOB, url(page), page, None, *values))
    return found


@contextmanager
def postgres() -> Iterator[Place]:
    """PostgreSQL, by COPY."""
    with postgres_server() as server, psycopg.connect(server.address, autocommit=True) as at:

        def bulk(rows: Rows) -> Callable[[], object]:
            at.execute("CREATE TABLE bulk (LIKE items INCLUDING ALL)")

            def load() -> None:
                with at.cursor() as cursor, cursor.copy("COPY bulk FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)

            return load

        yield Place(
            f"{server.address}/items",
            lambda: at.execute("DROP TABLE IF EXISTS items, bulk, crawlog_outputs"),
            bulk,
            lambda: int(at.execute("SELECT count(*) FROM items").fetchall()[0][0]),
        )


@contextmanager
def mysql() -> Iterator[Place]:
    """MariaDB, by PyMySQL's multi-row INSERT, in one transaction."""
    with mariadb_server() as server, server.connect() as at, at.cursor() as cursor:

        def bulk(rows: Rows) -> Callable[[], object]:
            cursor.execute("CREATE TABLE bulk LIKE items")

            def load() -> None:
                at.begin()
                cursor.executemany(f"INSERT INTO bulk VALUES ({', '.join(['%s'] * len(rows[0]))})", rows)
                at.commit()

            return load

        yield Place(
            f"{server.address}/items",
            lambda: cursor.execute("DROP TABLE IF EXISTS items, bulk, crawlog_outputs"),
            bulk,
            lambda: int(str(server.rows("SELECT count(*) FROM items")[0][0])),
        )


@contextmanager
def sqlite() -> Iterator[Place]:
    """SQLite, by executemany, in one transaction."""
    file, other = FOLDER / "rows.db", FOLDER / "bulk.db"

    def query(statement: str) -> Any:
        with closing(sqlite3.connect(file)) as at:
            return at.execute(statement).fetchall()[0][0]

    def empty() -> None:
        for path in (*FOLDER.glob("rows.db*"), *FOLDER.glob("bulk.db*")):
            path.unlink()

    def bulk(rows: Rows) -> Callable[[], object]:
        with closing(sqlite3.connect(other)) as at:
            at.execute("PRAGMA journal_mode=WAL")
            at.execute(query("SELECT sql FROM sqlite_master WHERE name = 'items'"))

        def load() -> None:
            with closing(sqlite3.connect(other)) as at, at:
                at.execute("PRAGMA synchronous=NORMAL")
                at.executemany(f"INSERT INTO items VALUES ({', '.join('?' * len(rows[0]))})", rows)

        return load

    yield Place(f"sqlite:{file}", empty, bulk, lambda: int(query("SELECT count(*) FROM items")))


@contextmanager
def mongodb() -> Iterator[Place]:
    """FerretDB, by insert_many, into a collection with the same index."""
    with ferret_server(FOLDER) as server:
        at = server.client["bench"]

        def bulk(rows: Rows) -> Callable[[], object]:
            at["bulk"].create_index("_key")
            own = ("_key", "_n", "_job", "_url", "_page", "_rest", *item(0, 0))
            documents = [{"_id": f"{row[0]}-{row[1]}"} | dict(zip(own, row, strict=True)) for row in rows]
            for document in documents:
                document["tags"] = json.loads(str(document["tags"]))
            return lambda: at["bulk"].insert_many(documents, ordered=False)

        yield Place(
            server.address("bench.items"),
            lambda: server.client.drop_database("bench"),
            bulk,
            lambda: at["items"].count_documents({}),
        )


@contextmanager
def redis() -> Iterator[Place]:
    """Redis, by RPUSH of JSON, 1,000 rows in a pipeline."""
    with running_redis(FOLDER / "redis") as server:

        def bulk(rows: Rows) -> Callable[[], object]:
            texts = [json.dumps(dict(zip(item(0, 0), row[6:], strict=True))) for row in rows]

            def load() -> None:
                for first in range(0, len(texts), 1000):
                    pipeline = server.client.pipeline(transaction=False)
                    for text in texts[first : first + 1000]:
                        pipeline.rpush("bulk", text)
                    pipeline.execute()

            return load

        yield Place(f"{server.url}/items", server.client.flushall, bulk, lambda: int(server.client.llen("items")))


STORES = {
    "postgres": (postgres, "PostgreSQL, COPY"),
    "mysql": (mysql, "MariaDB, multi-row INSERT"),
    "sqlite": (sqlite, "SQLite, executemany"),
    "mongodb": (mongodb, "FerretDB (MongoDB's protocol), insert_many"),
    "redis": (redis, "Redis list, pipelined RPUSH"),
}


def timed(call: Callable[[], object]) -> float:
    """How long it takes, seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, pages: int, rounds: int) -> list[tuple[float, float]]:
    """Rows a second of each round, crawlog's and the bulk load's. Exits if rows lack."""
    rows = tuples(pages)
    found = []
    with STORES[name][0]() as place:
        state = state_of(place.address, pages)
        gc.freeze()  # the tuples are not a worker's
        for _ in range(rounds):
            place.empty()
            store = sink_for(state.sink)
            assert isinstance(store, Store)
            ours = timed(lambda store=store: fill(store, state))  # type: ignore[misc]  # mypy has no such default
            if place.rows() != len(rows):
                sys.exit(f"{name}: {place.rows():,} rows of {len(rows):,}")
            load = place.bulk(rows)
            found.append((len(rows) / ours, len(rows) / timed(load)))
        state.close()
    return found


def main() -> int:
    """Fills all stores; 1 if one is slower than `LEAST` at full size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="2,000 pages, one round; nothing is written")
    parser.add_argument("--only", choices=STORES, help="one store")
    args = options_of(parser)
    pages, rounds = (2_000, 1) if args.short else (PAGES, ROUNDS)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    lines, slow = [], []
    for name in [args.only] if args.only else STORES:
        found = measure(name, pages, rounds)
        ratio = statistics.median(ours / theirs for ours, theirs in found)
        paces = [f"{statistics.median(column):,.0f}" for column in zip(*found, strict=True)]
        lines.append([STORES[name][1], *paces, f"{ratio:.2f}", f"{min(a / b for a, b in found):.2f}"])
        slow += [name] if ratio < LEAST else []
    body = table(["store, its bulk load", "rows/s of crawlog", "rows/s of the bulk load", "ratio", "least"], lines)
    print(body)
    if args.write:
        facts = {"run": run_as("stores"), "versions": str(versions(["psycopg", "PyMySQL"]))}
        facts["rows"] = f"{len(tuples(pages)):,} of {pages:,} pages; medians of {rounds} rounds"
        section("stores", "Stores: rows a second beside the store's own bulk load", body, facts)
    if slow and not args.short:
        print(f"below {LEAST} of the bulk load: {', '.join(slow)}", file=sys.stderr)
    return int(bool(slow) and not args.short)


if __name__ == "__main__":
    sys.exit(main())
