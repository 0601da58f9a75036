"""Rows in MongoDB: a real server, FerretDB, and the driver of MongoDB's users."""

import json
from collections.abc import Iterator

import pytest

from crawlog.streams.errors import Misconfigured
from crawlog.streams.sink import sink_for, sink_of
from crawlog.streams.stores import MongoDB, fill, mongodb
from crawlog.streams.stores.columns import OWN
from tests.support.ferretdb import FerretServer, ferret_server
from tests.support.storing import Feeding, Kept, Row, StoreContract, feed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FerretServer]:
    """One server for all tests here."""
    with ferret_server(tmp_path_factory.mktemp("stores")) as made:
        yield made


@pytest.fixture
def address(server: FerretServer) -> str:
    """A collection that is not there."""
    server.client.drop_database("shop")
    return server.address("shop.items")


@pytest.fixture
def kept(server: FerretServer) -> Kept:
    """Reads the collection."""

    def read() -> dict[tuple[str, int], Row]:
        return {(str(one["_url"]), int(str(one["_n"]))): _row(one) for one in server.client["shop"]["items"].find()}

    return read


def _row(stored: Row) -> Row:
    """A row as it was given: the rest beside the fields."""
    row = {name: value for name, value in stored.items() if name not in (*OWN, "_id") and value is not None}
    rest: Row = json.loads(str(stored.get("_rest", "{}")))
    return row | {name: value for name, value in rest.items() if value is not None}


class TestMongoDB(StoreContract):
    """MongoDB."""

    def test_what_bson_cannot_have_is_kept_as_json(
        self, server: FerretServer, feeding: Feeding, store: MongoDB, kept: Kept, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Names with `$` and `.`, also inside; integers over 64 bits; deep nesting; a document that is too large."""
        monkeypatch.setattr(mongodb, "LARGE", 10_000)
        monkeypatch.setattr(mongodb, "MOST_BYTES", 50_000)
        deep: object = 1
        for _ in range(150):
            deep = {"a": deep}
        rows: list[Row] = [
            {"a.b": 1, "$set": 2, "plain": {"c": 3}, "in": {"d.e": 4}, "list": [{"$f": 5}], "_id": 6},
            {"big": 1 << 64, "small": -(1 << 63), "in": [1 << 70]},
            {"deep": deep, "plain": {"a": {"a": [1]}}},
            {"numbers": [1] * 6_000},
        ]
        feeding.page(1, "http://a/", *rows)
        fill(store, feeding.state)
        assert kept() == {("http://a/", number): row for number, row in enumerate(rows)}
        assert server.client["shop"]["items"].count_documents({"numbers": {"$exists": True}}) == 0

    def test_a_write_that_died_halfway_is_written_again(
        self, server: FerretServer, feeding: Feeding, store: MongoDB, kept: Kept
    ) -> None:
        """Rows without the position behind them: the same rows again replace themselves."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        feed(store, feeding.state, at)
        server.client["shop"]["crawlog_outputs"].update_one({}, {"$set": {"position": 0}})
        feeding.page(2, "http://b/", {"n": 2})
        assert store.open(feeding.state.feed) == 0
        feed(store, feeding.state, 0)
        assert kept() == {("http://a/", 0): {"n": 1}, ("http://b/", 0): {"n": 2}}

    def test_a_late_write_replaces_no_newer_page(self, feeding: Feeding, store: MongoDB, kept: Kept) -> None:
        """A worker that lost its place between its look and its writes: the rows of the newer page stay."""
        feeding.page(1, "http://a/", {"n": 1})
        old = feeding.state.changes(0)
        feeding.page(2, "http://a/", {"n": 2}, {"n": 3})
        fill(store, feeding.state)
        late = sink_for(feeding.state.sink)
        assert isinstance(late, MongoDB)
        late.open(feeding.state.feed._replace(serial="another machine"))
        late.write(old)
        late.close()
        assert kept() == {("http://a/", 0): {"n": 2}, ("http://a/", 1): {"n": 3}}

    def test_a_killed_server_loses_nothing(
        self, server: FerretServer, feeding: Feeding, store: MongoDB, kept: Kept
    ) -> None:
        """While it is away the message names it, without the password; then the rows are written."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        server.kill()
        with pytest.raises(Misconfigured, match=r"127\.0\.0\.1:(.|\n)*Is the server up") as caught:
            feed(store, feeding.state, at)
        assert "geheim" not in str(caught.value)
        server.start()
        fill(store, feeding.state)
        assert kept() == {("http://a/", 0): {"n": 1}}

    @pytest.mark.parametrize("address", ["mongodb://127.0.0.1/", "mongodb://127.0.0.1/shop"])
    def test_an_address_without_a_collection_is_refused(self, address: str) -> None:
        """The message shows the form of an address."""
        with pytest.raises(Misconfigured, match=r"DATABASE\.COLLECTION"):
            sink_of("j", address)
