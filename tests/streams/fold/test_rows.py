"""The state's rows: key order is fetch order, and a key can be read back."""

from hypothesis import given
from hypothesis import strategies as st

from crawlog.streams.fold import rows as r

SEQUENCES = st.integers(0, (1 << 64) - 1)
PRIORITIES = st.integers(-128, 127)
HASHES = st.integers(0, (1 << 64) - 1)


@given(st.tuples(PRIORITIES, SEQUENCES), st.tuples(PRIORITIES, SEQUENCES), st.booleans())
def test_key_order_is_fetch_order(one: tuple[int, int], other: tuple[int, int], lifo: bool) -> None:
    """The higher priority, then the older, or with LIFO the newer."""
    keys = [r.queue_key(1, 2, priority, sequence, lifo) for priority, sequence in (one, other)]
    order = [(-priority, -sequence if lifo else sequence) for priority, sequence in (one, other)]
    assert (keys[0] < keys[1]) == (order[0] < order[1])


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 65_535), HASHES, SEQUENCES)
def test_a_due_key_can_be_read_back(due_ms: int, job: int, host: int, sequence: int) -> None:
    """Both ways of one layout."""
    assert r.unpack_due(r.due_key(due_ms, job, host, sequence)) == (due_ms, job, host, sequence)
