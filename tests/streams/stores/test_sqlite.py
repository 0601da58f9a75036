"""Rows in a file of SQLite."""

import json
import sqlite3
from pathlib import Path

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink import sink_of
from crawlog.streams.stores import Sqlite, Store, fill
from crawlog.streams.stores.columns import OWN
from tests.support.storing import Feeding, Kept, Row, StoreContract, feed


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A file that is not there."""
    return f"sqlite:{tmp_path}/rows.db?table=pages"


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """Reads the table."""

    def read() -> dict[tuple[str, int], Row]:
        connection = sqlite3.connect(tmp_path / "rows.db")
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute("SELECT * FROM pages")]
        connection.close()
        return {(row["_url"], row["_n"]): _row(row) for row in found}

    return read


def _row(stored: Row) -> Row:
    """A row as it was given: JSON decoded, an integer in a text, the rest beside the columns."""
    row = {name: value for name, value in stored.items() if name not in OWN and value is not None}
    if "tags" in row:
        row["tags"] = json.loads(str(row["tags"]))
    if row.get("name") == "7":
        row["name"] = 7
    rest: Row = json.loads(str(stored["_rest"] or "{}"))
    return row | rest


class TestSqlite(StoreContract):
    """SQLite."""

    def test_the_file_alone_has_all_rows_at_the_end(self, tmp_path: Path, feeding: Feeding, store: Store) -> None:
        """While rows are written others read; behind the last one nothing lies in a file beside it."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1, "tags": ["x"]})
        reader = sqlite3.connect(tmp_path / "rows.db")
        reader.execute("SELECT * FROM pages").fetchall()
        feed(store, feeding.state, at)
        assert reader.execute("SELECT n, json_extract(tags, '$[0]') FROM pages").fetchall() == [(1, "x")]
        reader.close()
        store.finish()
        assert (tmp_path / "rows.db-wal").stat().st_size == 0
        store.close()
        assert [file.name for file in tmp_path.glob("rows.db*")] == ["rows.db"]

    def test_a_locked_file_is_written_once_it_is_free(
        self, tmp_path: Path, feeding: Feeding, store: Store, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message names the file and the likely cause."""
        monkeypatch.setattr("crawlog.streams.stores.sqlite.CONNECT_S", 0.05)
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        other = sqlite3.connect(tmp_path / "rows.db")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Misconfigured, match=r"rows\.db.*: database is locked\nMay you write that file"):
            feed(store, feeding.state, at)
        other.close()
        fill(store, feeding.state)
        assert kept() == {("http://a/", 0): {"n": 1}}

    def test_rows_wait_while_the_disk_is_full(self, feeding: Feeding, store: Sqlite, kept: Kept) -> None:
        """Nothing of the transaction stays; all is written once there is room."""
        feeding.page(1, "http://a/", {"text": "x"})
        fill(store, feeding.state)
        feeding.page(2, "http://b/", {"text": "y" * 1_000_000})
        at = store.open(feeding.state.feed)
        store._run("PRAGMA max_page_count = 20")
        with pytest.raises(Misconfigured, match="database or disk is full"):
            feed(store, feeding.state, at)
        assert kept() == {("http://a/", 0): {"text": "x"}}
        fill(store, feeding.state)
        assert kept()["http://b/", 0] == {"text": "y" * 1_000_000}

    def test_a_file_of_something_else_is_refused(self, tmp_path: Path) -> None:
        """So are a folder that is not there, and a table of the user's own."""
        (tmp_path / "x.db").write_text("no database at all" * 100)
        with pytest.raises(Misconfigured, match="file is not a database"):
            Sqlite(sink_of("j", f"sqlite:{tmp_path}/x.db")).check()
        with pytest.raises(Misconfigured, match="unable to open database file"):
            Sqlite(sink_of("j", f"sqlite:{tmp_path}/nowhere/x.db")).check()
        own = sqlite3.connect(tmp_path / "own.db")
        own.execute("CREATE TABLE items (title text)")
        own.close()
        with pytest.raises(Misconfigured, match="has no column _key"):
            Sqlite(sink_of("j", f"sqlite:{tmp_path}/own.db")).check()
        with pytest.raises(Misconfigured, match="sqlite:FILE"):
            sink_of("j", f"sqlite:{tmp_path}/own.db?table=a b")

    def test_a_relative_path_is_of_the_commands_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers stand in another one."""
        monkeypatch.chdir(tmp_path)
        assert sink_of("j", "sqlite:x.db?table=t").output == f"sqlite:{tmp_path}/x.db?table=t"
