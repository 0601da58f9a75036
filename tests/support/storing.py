"""What each store of rows must do, whatever its server: a base class of tests, and a state that feeds it.

A test module derives `StoreContract`, and has the fixtures `address` (of a place that is empty) and `kept`, a function
that reads the rows back: {(url, number on the page): row}.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from crawlog.schemas import items
from crawlog.schemas.items import ItemsRecord
from crawlog.streams.cluster import LogIdentity
from crawlog.streams.errors import Misconfigured, RetryLater
from crawlog.streams.sink import SinkState, entry, sink_for, sink_of
from crawlog.streams.sink_groups import SinkSpec
from crawlog.streams.stores import Store, fill

LOG = LogIdentity("cluster", "topic")

Row = dict[str, object]
Kept = Callable[[], dict[tuple[str, int], Row]]


class Feeding:
    """A sink's state of one job, and how many records it took."""

    def __init__(self, data: Path, spec: SinkSpec) -> None:
        self.state = SinkState(data, spec, LOG)
        self.offset = 0

    def page(self, number: int, url: str, *rows: Row) -> None:
        """Folds the items of one page."""
        raws = [msgspec.Raw(json.dumps(row).encode()) for row in rows]
        value = items.encode(ItemsRecord(self.state.sink.job, url, (0, number), raws, self.state.sink.epoch))
        self.state.fold([(0, self.offset, entry(value, self.state.sink))])
        self.offset += 1


def feed(store: Store, state: SinkState, at: int) -> int:
    """Writes what the store lacks; returns its position."""
    while (changes := state.changes(at)).end > at:
        store.write(changes)
        at = changes.end
    return at


class StoreContract:
    """The tests of every store."""

    finds_gone = True  # Whether rows that a new crawl does not find are gone at its end

    marks = True  # Whether the store can mark rows that are gone

    @pytest.fixture
    def feeding(self, tmp_path: Path, address: str) -> Iterator[Feeding]:
        """A state that feeds the store."""
        made = Feeding(tmp_path / "data", sink_of("j", address))
        yield made
        made.state.close()

    @pytest.fixture
    def store(self, feeding: Feeding) -> Iterator[Store]:
        """The store."""
        made = sink_for(feeding.state.sink)
        assert isinstance(made, Store)
        yield made
        made.close()

    def test_the_store_has_the_newest_rows_of_each_url(self, feeding: Feeding, store: Store, kept: Kept) -> None:
        """A newer page replaces rows; rows that it has no longer go, and so do those of a page without items."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1}, {"n": 2})
        feeding.page(2, "http://b/", {"n": 3})
        feeding.page(3, "http://c/", {"n": 4})
        at = feed(store, feeding.state, at)
        assert kept() == {
            ("http://a/", 0): {"n": 1},
            ("http://a/", 1): {"n": 2},
            ("http://b/", 0): {"n": 3},
            ("http://c/", 0): {"n": 4},
        }
        feeding.page(4, "http://a/", {"n": 5})
        feeding.page(5, "http://b/")
        feed(store, feeding.state, at)
        store.finish()
        assert kept() == {("http://a/", 0): {"n": 5}, ("http://c/", 0): {"n": 4}}

    def test_a_store_goes_on_behind_what_it_has(self, feeding: Feeding, store: Store, kept: Kept) -> None:
        """Opened again, it gives the position of its last write; the same rows once more change nothing."""
        store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        changes = feeding.state.changes(0)
        store.write(changes)
        assert store.open(feeding.state.feed) == changes.end
        feeding.page(2, "http://b/", {"n": 2})
        feed(store, feeding.state, changes.end)
        again = feeding.state.feed._replace(serial="a state that was made again")
        assert store.open(again) == 0
        feed(store, feeding.state, 0)
        assert kept() == {("http://a/", 0): {"n": 1}, ("http://b/", 0): {"n": 2}}

    def test_a_worker_that_lost_its_place_writes_nothing(self, feeding: Feeding, store: Store, kept: Kept) -> None:
        """Another worker has opened the feed: the write of the first one is refused, and undone."""
        at = store.open(feeding.state.feed)
        feeding.page(1, "http://a/", {"n": 1})
        at = feed(store, feeding.state, at)
        other = sink_for(feeding.state.sink)
        assert isinstance(other, Store)
        other.open(feeding.state.feed._replace(serial="another machine"))
        feeding.page(2, "http://b/", {"n": 2})
        with pytest.raises(RetryLater, match="another sink worker"):
            feed(store, feeding.state, at)
        other.close()
        assert kept() == {("http://a/", 0): {"n": 1}}

    @pytest.mark.parametrize("on_gone", ["delete", "keep", "mark"])
    def test_rows_that_a_new_crawl_does_not_find_are_gone_at_its_end(
        self, tmp_path: Path, feeding: Feeding, store: Store, kept: Kept, on_gone: str
    ) -> None:
        """They stand until the job is finished; then they are deleted, stay, or are marked."""
        if on_gone == "mark" and not self.marks:
            pytest.skip("this store cannot mark rows")
        if on_gone == "delete" and not self.finds_gone:
            pytest.skip("this store does not know the rows that it has")
        feeding.page(1, "http://a/", {"n": 1})
        feeding.page(2, "http://b/", {"n": 2})
        fill(store, feeding.state)
        spec = msgspec.structs.replace(feeding.state.sink, epoch=1, on_gone=on_gone)
        new, made = Feeding(tmp_path / "new", spec), sink_for(spec)
        assert isinstance(made, Store)
        at = made.open(new.state.feed)
        new.page(9, "http://b/", {"n": 3})
        feed(made, new.state, at)
        assert kept() == {("http://a/", 0): {"n": 1}, ("http://b/", 0): {"n": 3}}
        made.finish()
        made.close()
        new.state.close()
        left = {} if on_gone == "delete" else {("http://a/", 0): {"n": 1}}
        assert kept() == {**left, ("http://b/", 0): {"n": 3}}

    def test_any_value_is_kept(self, feeding: Feeding, store: Store, kept: Kept) -> None:
        """Values of other types than those before them, nested ones, odd names, and integers of any size."""
        rows: list[Row] = [
            {"price": 1, "name": "a", "tags": ["x"], "ok": True},
            {"price": 1.5, "name": 7, "tags": {"y": [1]}, "ok": "no"},
            {"price": "dear", "name": None, "Name": "other case", "tags": "z", "x" * 70: 1},
            {"price": (1 << 70) + 1, "na\"me, 'x'": "quoted", "drop table t; --": 1, "": 2, "_key": "mine", "%s": "%d"},
            {"name": "nul \ufffd, é, \U0001f600, \u2028", "ok": False, "nothing": None},
        ]
        feeding.page(1, "http://a/", *rows)
        fill(store, feeding.state)
        found = kept()
        for number, row in enumerate(rows):
            there = {name: value for name, value in row.items() if value is not None}
            assert found["http://a/", number] == there, number

    def test_a_store_that_is_away_is_named_without_its_password(self, address: str) -> None:
        """The message has the place, and the next step."""
        if "@" not in address:
            pytest.skip("this store has no server")
        store = sink_for(sink_of("j", re.sub(r":[^:@/]+@", ":falsch@", address)))
        assert isinstance(store, Store)
        with pytest.raises(Misconfigured) as caught:
            store.check()
        assert "falsch" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value)
