"""Which bucket of figures is written next."""

from hypothesis import given
from hypothesis import strategies as st

from crawlog.agents.frontier.host_reports import Round
from crawlog.schemas.hosts import BUCKETS


def _takes(turns: Round, count: int, asked: set[int], offset: int = 1) -> list[int | None]:
    taken = []
    for step in range(count):
        bucket = turns.take(asked, (offset, 0))
        if bucket is not None:
            turns.written[bucket] = float(step)
        taken.append(bucket)
    return taken


def test_at_rest_every_bucket_is_looked_at_once_and_no_more() -> None:
    """An idle frontier writes nothing: 10,000 finished jobs cost it nothing."""
    turns = Round()
    assert sorted(bucket for bucket in _takes(turns, BUCKETS, set()) if bucket is not None) == list(range(BUCKETS))
    assert _takes(turns, 5, set()) == [None] * 5
    assert _takes(turns, 1, set(), offset=2) == [0]


@given(st.sets(st.integers(0, BUCKETS - 1), min_size=1, max_size=5))
def test_busy_buckets_and_all_others_have_turns(asked: set[int]) -> None:
    """Few busy hosts are fresh within seconds, and hold up no other."""
    taken = _takes(Round(), 2 * BUCKETS, asked)
    assert set(taken) == set(range(BUCKETS))
    for start in range(0, len(taken) - 3 * len(asked), len(asked)):
        assert asked <= set(taken[start : start + 3 * len(asked)])


def test_a_bucket_with_a_rate_is_written_once_more() -> None:
    """After the last request its rate would stay for ever."""
    turns = Round()
    _takes(turns, BUCKETS, set())
    turns.unsettled.add(7)
    assert _takes(turns, 1, set()) == [7]
    turns.unsettled.discard(7)
    assert _takes(turns, 2, set()) == [None, None]


def test_a_command_makes_all_buckets_due() -> None:
    """It may hold hosts that nobody asks."""
    turns = Round()
    _takes(turns, BUCKETS, set())
    assert turns.take(set(), (1, 1)) is not None
