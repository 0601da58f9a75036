"""The HTTP service against its own description, by schemathesis."""

from pathlib import Path

import pytest

from bench.api_fuzz import fleet, fuzz

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.long]


def test_what_the_api_takes_and_answers_is_as_described(tmp_path: Path) -> None:
    """For some seconds; `python -m bench.api_fuzz` takes minutes."""
    with fleet(tmp_path / "data") as place:
        found = fuzz(place, 8, tmp_path, "coverage,fuzzing")
        assert found.is_clean, found.said
