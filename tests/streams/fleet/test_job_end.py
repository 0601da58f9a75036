"""How a job that has ended is told of."""

import pytest

from crawlog.streams.fleet import OPERATOR, how_ended


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("finished", "", ("finished", "")),
        ("cancelled", "", ("cancelled", "")),
        ("stopped", "max_pages", ("max_pages", "")),
        ("stopped", OPERATOR, ("stopped", "")),
        ("stopped", "", ("stopped", "")),
        ("stopped", "cancelled", ("closed", "cancelled")),
        ("stopped", "stopped", ("closed", "stopped")),
    ],
)
def test_a_stopped_job_reached_its_limit_was_closed_or_stopped(state: str, reason: str, told: tuple[str, str]) -> None:
    """A spider may give any reason, also one of our states."""
    assert how_ended(state, reason) == told
