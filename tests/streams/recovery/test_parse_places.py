"""Where parse goes on, and what it would leave out: pages that the log lost first, or that a move passed over."""

import pytest

from crawlog.streams.groups.commits import REPLAY_ALL, Position, ReplayPlan, is_planned
from crawlog.streams.recovery.parse_places import parse_place, ranges_text

OURS = Position(40, 50).metadata


@pytest.mark.parametrize(
    ("committed", "first", "reported", "start", "gone", "passed_over"),
    [
        ((40, OURS), 0, 39, 40, [], []),
        ((40, OURS), 40, 39, 40, [], []),
        ((40, OURS), 43, 39, 43, [40, 41, 42], []),
        ((90, ""), 0, 88, 88, [], [88, 89]),
        ((90, ""), 86, 84, 86, [84, 85], [86, 87, 88, 89]),
        ((90, ""), 0, 0, 0, [], list(range(90))),
        ((20, ""), 0, 88, 20, [], []),
        ((90, REPLAY_ALL), 0, 40, 90, [], []),
        ((20, ReplayPlan("j", 90).metadata), 0, 90, 20, [], []),
        (None, 0, 0, 0, [], []),
        (None, 0, 40, 0, [], []),
        (None, 3, 40, 3, [], []),
        (None, 3, 1, 3, [1, 2], []),
    ],
)
def test_parse_leaves_no_page_out_that_nobody_had_it_leave_out(
    committed: tuple[int, str] | None, first: int, reported: int, start: int, gone: list[int], passed_over: list[int]
) -> None:
    """A worker's commit and a replay hold. Another program's move holds as far back as it likes, forward never."""
    place = parse_place(committed, first, 100, reported)
    assert (place.start, list(place.gone), list(place.passed_over)) == (start, gone, passed_over)


@pytest.mark.parametrize(
    ("metadata", "planned"), [(OURS, True), (REPLAY_ALL, True), ("", False), ("moved by hand", False)]
)
def test_a_commit_tells_who_wrote_it(metadata: str, planned: bool) -> None:
    """Kafka's own tools write no metadata."""
    assert is_planned(metadata) is planned


def test_offsets_are_named_with_their_partitions() -> None:
    """The last one is named, too."""
    assert ranges_text({3: range(12, 41), 5: range(7, 8)}) == "offsets 12 to 40 of partition 3, 7 of partition 5"
