"""The overlay: a reader sees the rows on disk and the changes as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.fold import rows as r
from crawlog.streams.fold.overlay import InMemory, Rows, digest

KEYS = st.sampled_from([b"q%02d" % n for n in range(20)])
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=2), st.booleans()), max_size=40)


@given(CHANGES, st.sampled_from([b"q", b"q0", b"q1"]), st.sampled_from([b"", b"q05", b"q15"]))
def test_a_scan_sees_rows_and_changes_as_one(
    changes: list[tuple[bytes, bytes | None, bool]], prefix: bytes, start: bytes
) -> None:
    """Written or not, replaced or deleted: as a plain dict would have them."""
    base = InMemory()
    rows, plain = Rows(base), dict[bytes, bytes]()
    for key, value, written in changes:
        rows.put(key, value) if value is not None else rows.delete(key)
        plain |= {key: value} if value is not None else {}
        if value is None:
            plain.pop(key, None)
        if written:
            base.write(rows.taken())
    expected = sorted((key, value) for key, value in plain.items() if key.startswith(prefix) and key >= start)
    assert list(rows.scan(prefix, start)) == expected
    assert [rows.get(key) for key, _ in expected] == [value for _, value in expected]


@given(CHANGES, st.integers(1, 5))
def test_a_queue_is_scanned_in_parts(changes: list[tuple[bytes, bytes | None, bool]], limit: int) -> None:
    """From any row on, so many rows, changes included."""
    base = InMemory()
    rows, plain = Rows(base), dict[bytes, bytes]()
    prefix = r.queue_key(1, 2, 127, 0, lifo=False)[: r.QUEUE_PREFIX_BYTES]
    for tail, value, written in changes:
        key = prefix + tail
        rows.put_ordered(key, value) if value is not None else rows.delete(key)
        plain |= {key: value} if value is not None else {}
        if value is None:
            plain.pop(key, None)
        if written:
            base.write(rows.taken())
    start = prefix + b"q10"
    expected = sorted((key, value) for key, value in plain.items() if key >= start)[:limit]
    assert rows.scan_queue(prefix, start, limit) == expected


def test_a_queue_ends_where_the_next_one_starts() -> None:
    """Another host's rows lie right behind."""
    rows = Rows(InMemory([(r.queue_key(1, host, 0, 1, lifo=False), b"") for host in (2, 3)]))
    prefix = r.queue_key(1, 2, 127, 0, lifo=False)[: r.QUEUE_PREFIX_BYTES]
    assert len(rows.scan_queue(prefix, prefix, 10)) == 1


def test_a_queue_that_was_dropped_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job begun again may have a million old rows on disk, and asks for its queue before the next checkpoint."""
    old, new = (r.queue_key(1, 2, 0, sequence, lifo=False) for sequence in (1, 2))
    base = InMemory([(old, b"")])
    rows = Rows(base)
    rows.drop(r.of_job(b"q", 1))
    rows.put_ordered(new, b"new")
    monkeypatch.setattr(base, "rows", None)
    prefix = old[: r.QUEUE_PREFIX_BYTES]
    assert rows.scan_queue(prefix, prefix, 10) == [(new, b"new")]


@pytest.mark.parametrize("rows", [[(b"a", b"bc")], [(b"ab", b"c")], [(b"a", b"b"), (b"c", b"")], []])
def test_digests_tell_states_apart(rows: list[tuple[bytes, bytes]]) -> None:
    """Lengths are part of it."""
    others = [[(b"a", b"bc")], [(b"ab", b"c")], [(b"a", b"b"), (b"c", b"")], []]
    assert [digest(other) == digest(rows) for other in others].count(True) == 1
