"""The table of hosts that the service answers from."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.schemas import hosts as h
from crawlog.schemas.hosts import HostBucket, HostFigures
from crawlog.streams.hosts.table import KINDS, HostKind, HostTable, kinds_of, left_of


@dataclass
class Filled:
    """A table with some hosts, each in a bucket of its own."""

    hosts: list[HostFigures]
    table: HostTable = field(default_factory=HostTable)

    def __post_init__(self) -> None:
        for number, one in enumerate(self.hosts):
            self.table.take(h.key(1, number), h.encode(HostBucket([one])), 100.0)


@pytest.mark.parametrize(
    ("one", "kinds"),
    [
        (HostFigures("a", 5, delay_s=1.0), ()),
        (HostFigures("a", 61, delay_s=1.0), ("slow",)),
        (HostFigures("a", 61, delay_s=1.0, per_host=2), ()),
        (HostFigures("a", 61, delay_s=1.0, rests="block"), ()),
        (HostFigures("a", 1, next_at=200.0), ("slow",)),
        (HostFigures("a", results={"timeout": 1}, bad_row=1, last="timeout"), ("failing",)),
        (HostFigures("a", results={"200": 9, "500": 2}, bad_row=2, last="500"), ()),
        (HostFigures("a", results={"200": 9, "500": 3}, bad_row=3, last="500"), ("failing",)),
        (HostFigures("a", results={"200": 9, "403": 3}, bad_row=3, last="403"), ("banned",)),
        (HostFigures("a", results={"403": 1}, bad_row=1, last="403"), ("banned",)),
        (HostFigures("a", 1, rests="exits"), ("banned",)),
        (HostFigures("a", 99, delay_s=1.0, results={"429": 3}, bad_row=3, last="429"), ("slow", "banned")),
    ],
)
def test_what_is_wrong_with_a_host(one: HostFigures, kinds: tuple[str, ...]) -> None:
    """A 404 is a page's own; three bad results in a row are the host's, or all that it gave."""
    assert kinds_of(one, left_of(one, 100.0)) == kinds


def test_the_worst_hosts_come_first() -> None:
    """Banned, failing, slow; then those whose queues need longest."""
    hosts = [
        HostFigures("well", 3, delay_s=1.0),
        HostFigures("slow", 99, delay_s=1.0),
        HostFigures("slower", 99, delay_s=2.0),
        HostFigures("failing", results={"dns": 1}, bad_row=1, last="dns"),
        HostFigures("banned", results={"429": 1}, bad_row=1, last="429"),
    ]
    page = Filled(hosts).table.page()
    assert [one.host for one in page.hosts] == ["banned", "failing", "slower", "slow", "well"]
    assert page.counts == {"all": 5, "slow": 2, "failing": 1, "banned": 1}
    assert [one.partition for one in page.hosts] == [1] * 5
    assert [one.reported_at for one in page.hosts] == [100.0] * 5


def test_a_bucket_is_replaced_whole_and_a_tombstone_empties_it() -> None:
    """What a later record does not name is gone."""
    table = HostTable()
    table.take(b"0/7", h.encode(HostBucket([HostFigures("a", 1), HostFigures("b", 2)])), 1.0)
    table.take(b"0/8", h.encode(HostBucket([HostFigures("c", 1)])), 1.0)
    table.take(b"0/7", h.encode(HostBucket([HostFigures("b", 9)])), 2.0)
    assert [(one.host, one.queued) for one in table.page(sort="host").hosts] == [("b", 9), ("c", 1)]
    assert table.one("a") is None
    found = table.one("b")
    assert found is not None
    assert (found.queued, found.reported_at) == (9, 2.0)
    table.take(b"0/7", None, 3.0)
    assert [one.host for one in table.page().hosts] == ["c"]


@given(st.binary() | st.none(), st.binary() | st.none())
def test_what_a_stranger_writes_changes_nothing_else(key: bytes | None, value: bytes | None) -> None:
    """Any client may write to the topic."""
    filled = Filled([HostFigures("a", 1)])
    filled.table.take(key, value, 1.0)
    filled.table.take(b"1/300", h.encode(HostBucket([HostFigures("x", 1)])), 1.0)  # no such bucket
    assert filled.table.page().total == 1


_FIGURES = st.builds(
    HostFigures,
    host=st.text("abc", min_size=1, max_size=3),
    queued=st.integers(0, 200),
    delay_s=st.floats(0, 3),
    rate=st.floats(0, 9),
    bad_row=st.integers(0, 4),
    results=st.just({"200": 2}),
    last=st.sampled_from(["403", "timeout"]),
)


@given(
    st.lists(_FIGURES, max_size=20, unique_by=lambda one: one.host),
    st.sampled_from([None, *KINDS]),
    st.text("abc", max_size=2),
    st.integers(0, 5),
    st.integers(1, 5),
)
def test_a_page_is_that_of_a_plain_list(
    hosts: list[HostFigures], kind: HostKind | None, text: str, offset: int, limit: int
) -> None:
    """Filter, search, sort and paging, by SQL and by hand."""
    page = Filled(hosts).table.page(kind, text, "queued", offset, limit)
    fitting = [one for one in hosts if text in one.host and (not kind or kind in kinds_of(one, left_of(one, 100.0)))]
    fitting.sort(key=lambda one: (-one.queued, one.host))
    assert page.total == len(fitting)
    assert [one.host for one in page.hosts] == [one.host for one in fitting[offset : offset + limit]]
