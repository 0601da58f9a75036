"""Two workers of one name: the later one is told from all others that lose their membership."""

from collections.abc import Sequence

import pytest

from crawlog.streams.worker.lease import Namesakes


@pytest.mark.parametrize(
    ("joined", "lost", "ends"),
    [
        ((100.0,), (101.5, 103.0, 104.5), True),
        ((100.0,), (107.0, 115.0, 124.0), True),  # each ends its requests first
        ((100.0, 118.0), (119.0, 120.0, 121.0), True),  # it counts from the first time
        ((100.0,), (101.5, 103.0), False),
        ((100.0,), (101.5, 112.0, 123.0), False),  # a broker that restarts again and again
        ((100.0,), (130.0, 131.0, 132.0, 133.0, 134.0), False),  # the earlier one
        ((100.0,), (101.5, 130.0, 131.0, 132.0), False),
        ((), (101.5, 103.0, 104.5), False),
    ],
)
def test_a_new_member_that_is_put_out_again_and_again_has_an_earlier_namesake(
    joined: Sequence[float], lost: Sequence[float], ends: bool
) -> None:
    """Once is no sign of one, and the earlier one goes on."""
    namesakes = Namesakes()
    for at in joined:
        namesakes.joined(at)
    assert [namesakes.lost(at) for at in lost] == [False] * (len(lost) - 1) + [ends]
