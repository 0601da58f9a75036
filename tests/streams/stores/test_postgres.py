"""Rows in PostgreSQL: a real server of Debian's."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import dict_row

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink import sink_for, sink_of
from crawlog.streams.stores import Postgres, fill
from crawlog.streams.stores.columns import OWN
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.storing import Feeding, Kept, Row, StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One server for all tests here."""
    with postgres_server() as made:
        yield made


@pytest.fixture
def address(server: PostgresServer) -> str:
    """A table that is not there."""
    with psycopg.connect(server.address) as connection:
        connection.execute("DROP TABLE IF EXISTS items, crawlog_outputs")
    return f"{server.address}/items"


@pytest.fixture
def kept(server: PostgresServer) -> Kept:
    """Reads the table."""

    def read() -> dict[tuple[str, int], Row]:
        with psycopg.connect(server.address, row_factory=dict_row) as connection:
            found = connection.execute("SELECT * FROM items").fetchall()
        return {(row["_url"], row["_n"]): _row(row) for row in found}

    return read


def _row(stored: Row) -> Row:
    """A row as it was given: the rest beside the columns, integers of a wide column and JSON in a text as they were."""
    row = {name: value for name, value in stored.items() if name not in OWN and value is not None}
    if row.get("name") == "7":
        row["name"] = 7
    rest = stored["_rest"] or {}
    assert isinstance(rest, dict)
    return row | rest


class TestPostgres(StoreContract):
    """PostgreSQL."""

    def test_columns_have_the_types_of_the_values(
        self, server: PostgresServer, feeding: Feeding, store: Postgres
    ) -> None:
        """Integers that become decimals widen their column; lists are jsonb."""
        feeding.page(1, "http://a/", {"n": 1, "price": 2, "name": "x", "tags": [1], "ok": True})
        feeding.page(2, "http://b/", {"price": 2.5})
        fill(store, feeding.state)
        columns = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'items'"
        types = {name: kind for name, kind in server.rows(columns)}  # noqa: C416  # their types are known so
        assert {name: types[name] for name in ("n", "price", "name", "tags", "ok")} == {
            "n": "bigint",
            "price": "double precision",
            "name": "text",
            "tags": "jsonb",
            "ok": "boolean",
        }

    def test_a_table_of_the_users_own_is_refused(self, server: PostgresServer, address: str) -> None:
        """The message names the columns that lack, and what to do."""
        with psycopg.connect(server.address) as connection:
            connection.execute("CREATE TABLE items (title text)")
        with pytest.raises(Misconfigured, match="has no column _key"):
            Postgres(sink_of("j", address)).check()

    def test_an_address_without_a_table_is_refused(self) -> None:
        """The message shows the form of an address."""
        with pytest.raises(Misconfigured, match="DATABASE/TABLE"):
            sink_of("j", "postgresql://127.0.0.1")

    def test_the_user_may_add_columns(self, server: PostgresServer, feeding: Feeding) -> None:
        """A column that was added by hand, of another type, takes the values that it can."""
        feeding.page(1, "http://a/", {"n": 1})
        store = sink_for(feeding.state.sink)
        assert isinstance(store, Postgres)
        fill(store, feeding.state)
        with psycopg.connect(server.address) as connection:
            connection.execute("ALTER TABLE items ADD COLUMN seen timestamptz")
        feeding.page(2, "http://b/", {"n": 2, "seen": "2026-01-01"})
        fill(store, feeding.state)
        assert server.rows("SELECT n, seen, _rest FROM items ORDER BY n") == [
            (1, None, None),
            (2, None, {"seen": "2026-01-01"}),
        ]
