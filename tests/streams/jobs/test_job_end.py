"""How a job that has ended is told of."""

import pytest

from crawlog.streams.jobs import OPERATOR, how_ended, is_final


@pytest.mark.parametrize(
    ("state", "reason", "told", "is_whole"),
    [
        ("finished", "", ("finished", ""), True),
        ("cancelled", "", ("cancelled", ""), False),
        ("failed", "spider_broken", ("failed", ""), False),
        ("stopped", "max_pages", ("max_pages", ""), True),
        ("stopped", OPERATOR, ("stopped", ""), False),
        ("stopped", "", ("stopped", ""), False),
        ("stopped", "cancelled", ("closed", "cancelled"), True),
        ("stopped", "stopped", ("closed", "stopped"), True),
    ],
)
def test_a_stopped_job_reached_its_limit_was_closed_or_stopped(
    state: str, reason: str, told: tuple[str, str], *, is_whole: bool
) -> None:
    """A spider may give any reason, also one of our states. Only the operator's stop and worse ends leave rows out."""
    assert how_ended(state, reason) == told
    assert is_final(state, reason) == is_whole
