"""How requests are counted by duration."""

from crawlog.schemas.progress import TOOK_S
from crawlog.streams.fetch.reported_jobs import Durations


def test_a_request_counts_below_the_first_bound_that_it_does_not_exceed() -> None:
    """The last place is for longer ones."""
    durations = Durations()
    for took_s in (0.0, TOOK_S[0], 0.006, TOOK_S[-1], 31.0):
        durations.note(took_s)
    assert durations.counts == [2, 1, *[0] * (len(TOOK_S) - 3), 1, 1]
    assert durations.sum_s == TOOK_S[0] + 0.006 + TOOK_S[-1] + 31.0
