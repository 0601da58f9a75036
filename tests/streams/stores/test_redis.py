"""Rows in Redis: a real server of Debian's."""

import json
from collections.abc import Iterator

import pytest

from crawlog.streams.errors import Misconfigured, RetryLater
from crawlog.streams.sink import sink_for, sink_of
from crawlog.streams.stores import Redis, Store, fill
from tests.support.redis_server import RedisServer, running_redis
from tests.support.storing import Feeding, Kept, Row, StoreContract, feed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests here."""
    with running_redis(tmp_path_factory.mktemp("stores") / "redis", password="geheim") as made:
        yield made


@pytest.fixture
def address(server: RedisServer) -> str:
    """A hash that is not there."""
    server.client.flushall()
    return f"{server.url}/items?as=hash"


@pytest.fixture
def kept(server: RedisServer) -> Kept:
    """Reads the hash."""

    def read() -> dict[tuple[str, int], Row]:
        found = server.client.hgetall("items")
        rows = {(name.split()[1], int(name.split()[-1])): json.loads(row) for name, row in found.items()}
        return {at: {name: value for name, value in row.items() if value is not None} for at, row in rows.items()}

    return read


@pytest.fixture(params=["list", "stream"])
def queue(server: RedisServer, request: pytest.FixtureRequest) -> str:
    """The address of a list, and of a stream."""
    server.client.flushall()
    return f"{server.url}/queue:items" + ("" if request.param == "list" else "?as=stream")


def _queued(server: RedisServer) -> list[Row]:
    """What is in the queue, in order."""
    if server.client.type("queue:items") == "stream":
        return [json.loads(entry["row"]) for _, entry in server.client.xrange("queue:items")]
    return [json.loads(row) for row in server.client.lrange("queue:items", 0, -1)]


def _store(address: str) -> Store:
    made = sink_for(sink_of("j", address))
    assert isinstance(made, Store)
    return made


class TestRedis(StoreContract):
    """A hash in Redis."""

    marks = False

    def test_a_queue_has_each_row_once_in_order(self, server: RedisServer, feeding: Feeding, queue: str) -> None:
        """List and stream: a store that is opened again goes on; rows of a newer page come behind the old ones."""
        store = _store(queue)
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1}, {"n": 2})
        feed(store, feeding.state, at)
        at = store.open(feeding.state.feed)
        feeding.page(2, "http://b/", {"n": 3})
        feeding.page(3, "http://a/", {"n": 4})
        feed(store, feeding.state, at)
        store.finish()
        store.close()
        assert _queued(server) == [{"n": number} for number in (1, 2, 3, 4)]

    def test_a_worker_that_lost_its_place_queues_nothing(
        self, server: RedisServer, feeding: Feeding, queue: str
    ) -> None:
        """Another worker has opened the feed, on another machine: it queues all rows again, the first one none."""
        first, second = _store(queue), _store(queue)
        at = first.open(feeding.state.feed)
        assert second.open(feeding.state.feed._replace(serial="another machine")) == 0
        feeding.page(1, "http://a/", {"n": 1})
        with pytest.raises(RetryLater, match="another sink worker"):
            feed(first, feeding.state, at)
        feed(second, feeding.state, 0)
        second.close()
        assert _queued(server) == [{"n": 1}]

    @pytest.mark.parametrize("kind", ["list", "stream", "hash"])
    def test_a_key_of_another_type_loses_nothing(self, server: RedisServer, feeding: Feeding, kind: str) -> None:
        """It is refused at the start; if it changes later, the write fails whole, and is done when the key is free."""
        server.client.flushall()
        store = _store(f"{server.url}/items?as={kind}")
        at = store.open(feeding.state.feed)
        server.client.set("items", "mine")
        other = _store(f"{server.url}/items?as={kind}")
        with pytest.raises(Misconfigured, match=f"the key is a string, and rows are to be a {kind}"):
            other.check()
        feeding.page(1, "http://a/", {"n": 1})
        with pytest.raises(Misconfigured, match="WRONGTYPE"):
            feed(store, feeding.state, at)
        server.client.delete("items")
        fill(store, feeding.state)
        assert server.client.type("items") == kind

    def test_a_full_memory_loses_nothing(self, server: RedisServer, feeding: Feeding, queue: str) -> None:
        """The write fails whole; with more memory it is done, once."""
        store = _store(queue)
        rows: list[Row] = [{"n": number} for number in range(100)]
        feeding.page(1, "http://a/", *rows)
        try:
            at = store.open(feeding.state.feed)
            server.client.config_set("maxmemory", 1)
            with pytest.raises(Misconfigured, match="maxmemory"):
                feed(store, feeding.state, at)
        finally:
            server.client.config_set("maxmemory", 0)
        fill(store, feeding.state)
        assert _queued(server) == rows

    def test_a_killed_server_that_kept_its_data_has_each_row_once(
        self, server: RedisServer, feeding: Feeding, queue: str
    ) -> None:
        """Rows and position come back together; while it is away the message names it."""
        store = _store(queue)
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        at = feed(store, feeding.state, at)
        server.kill()
        feeding.page(2, "http://b/", {"n": 2})
        with pytest.raises(Misconfigured, match="Is the server up"):
            feed(store, feeding.state, at)
        server.start()
        fill(store, feeding.state)
        assert _queued(server) == [{"n": 1}, {"n": 2}]

    def test_two_jobs_share_a_hash(self, server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Each replaces and removes its own rows only."""
        server.client.flushall()
        for job in ("a", "b"):
            feeding = Feeding(tmp_path_factory.mktemp(job), sink_of(job, f"{server.url}/items?as=hash"))
            feeding.page(1, "http://a/", {"of": job})
            made = sink_for(feeding.state.sink)
            assert isinstance(made, Redis)
            fill(made, feeding.state)
            feeding.state.close()
        found = server.client.hgetall("items")
        assert {name: json.loads(row) for name, row in found.items()} == {
            "a http://a/ 0": {"of": "a"},
            "b http://a/ 0": {"of": "b"},
        }

    @pytest.mark.parametrize("rest", ["", "/0", "/items", "/0/", "/x/items", "/0/items?as=set"])
    def test_an_address_without_database_and_key_is_refused(self, rest: str) -> None:
        """The message shows the form of an address."""
        with pytest.raises(Misconfigured, match="name the database by its number"):
            sink_of("j", f"redis://127.0.0.1{rest}")
