"""Rows in MySQL: a real server of Debian's, MariaDB."""

import json
from collections.abc import Iterator

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink import sink_for, sink_of
from crawlog.streams.stores import MySql, Store, fill
from crawlog.streams.stores.columns import OWN
from tests.support.mariadb import MariaDbServer, mariadb_server
from tests.support.storing import Feeding, Kept, Row, StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    """One server for all tests here."""
    with mariadb_server() as made:
        yield made


@pytest.fixture
def address(server: MariaDbServer) -> str:
    """A table that is not there."""
    server.rows("DROP TABLE IF EXISTS items, crawlog_outputs")
    return f"{server.address}/items"


@pytest.fixture
def kept(server: MariaDbServer) -> Kept:
    """Reads the table."""

    def read() -> dict[tuple[str, int], Row]:
        return {(str(row["_url"]), int(str(row["_n"]))): _row(row) for row in server.table("items")}

    return read


def _row(stored: Row) -> Row:
    """A row as it was given: JSON decoded, booleans, an integer in a text, the rest beside the columns."""
    row = {name: value for name, value in stored.items() if name not in OWN and value is not None}
    if "tags" in row:
        row["tags"] = json.loads(str(row["tags"]))
    if row.get("name") == "7":
        row["name"] = 7
    rest: Row = json.loads(str(stored["_rest"] or "{}"))
    return row | rest


class TestMySql(StoreContract):
    """MySQL and MariaDB."""

    def test_columns_have_the_types_of_the_values(self, server: MariaDbServer, feeding: Feeding, store: Store) -> None:
        """Integers that become decimals widen their column; lists are JSON."""
        feeding.page(1, "http://a/", {"n": 1, "price": 2, "name": "x", "tags": [1], "ok": True})
        feeding.page(2, "http://b/", {"price": 2.5})
        fill(store, feeding.state)
        columns = "SELECT column_name, column_type FROM information_schema.columns WHERE table_name = 'items'"
        types = {name: kind for name, kind in server.rows(columns)}  # noqa: C416  # their types are known so
        assert {name: types[name] for name in ("n", "price", "name", "tags", "ok")} == {
            "n": "bigint(20)",
            "price": "double",
            "name": "longtext",
            "tags": "longtext",
            "ok": "tinyint(1)",
        }
        assert server.rows("SELECT json_value(tags, '$[0]') FROM items WHERE n = 1") == [("1",)]

    def test_fields_whose_names_mysql_holds_for_the_same_are_kept(
        self, feeding: Feeding, store: Store, kept: Kept
    ) -> None:
        """Case, accents, a space at the end, and characters beyond 16 bits go to `_rest`."""
        row: Row = {"size": 1, "Size": 2, "sizé": 3, "size ": 4, "\U0001f600": 5, "größe": 6}
        feeding.page(1, "http://a/", row)
        fill(store, feeding.state)
        assert kept() == {("http://a/", 0): row}

    def test_a_row_with_many_fields_and_long_texts_is_kept(self, feeding: Feeding, store: Store, kept: Kept) -> None:
        """InnoDB has room for some 190 long texts in a row; further fields go to `_rest`. Statements are split."""
        row: Row = {"long": "x" * 2_000_000, **{f"field{number}": "é" * 40 for number in range(200)}}
        feeding.page(1, "http://a/", row, row)
        fill(store, feeding.state)
        assert kept() == {("http://a/", 0): row, ("http://a/", 1): row}

    def test_a_value_that_does_not_fit_a_column_of_the_users_waits_for_room(
        self, server: MariaDbServer, feeding: Feeding, store: Store, kept: Kept
    ) -> None:
        """The server's message is passed on; nothing is cut, and it is written once the column is wide enough."""
        feeding.page(1, "http://a/", {"name": "a"})
        fill(store, feeding.state)
        server.rows("ALTER TABLE items MODIFY COLUMN name varchar(3)")
        feeding.page(2, "http://b/", {"name": "abcdef"})
        with pytest.raises(Misconfigured, match="Data too long for column 'name'"):
            fill(store, feeding.state)
        server.rows("ALTER TABLE items MODIFY COLUMN name varchar(30)")
        fill(store, feeding.state)
        assert kept() == {("http://a/", 0): {"name": "a"}, ("http://b/", 0): {"name": "abcdef"}}

    def test_a_table_of_the_users_own_is_refused(self, server: MariaDbServer, address: str) -> None:
        """The message names the columns that lack, and what to do."""
        server.rows("CREATE TABLE items (title text)")
        with pytest.raises(Misconfigured, match="has no column _key"):
            MySql(sink_of("j", address)).check()

    def test_an_address_without_a_table_or_of_an_unknown_option_is_refused(self, address: str) -> None:
        """The message shows the form of an address, or names the option."""
        with pytest.raises(Misconfigured, match="DATABASE/TABLE"):
            sink_of("j", "mysql://127.0.0.1")
        with pytest.raises(Misconfigured, match="colour"):
            MySql(sink_of("j", f"{address.replace('mysql', 'mariadb')}?colour=1")).check()

    def test_a_unique_index_of_the_users_refuses_a_row_rather_than_replace_another(
        self, server: MariaDbServer, feeding: Feeding
    ) -> None:
        """INSERT … ON DUPLICATE KEY UPDATE would put the row in the place of another page's."""
        feeding.page(1, "http://a/", {"n": 1})
        store = sink_for(feeding.state.sink)
        assert isinstance(store, MySql)
        fill(store, feeding.state)
        server.rows("ALTER TABLE items ADD UNIQUE (n)")
        feeding.page(2, "http://b/", {"n": 1})
        with pytest.raises(Misconfigured, match="Duplicate entry"):
            fill(store, feeding.state)
