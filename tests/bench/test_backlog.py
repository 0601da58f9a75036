"""A crawl with seeds before it that is killed whole, twice: `python -m bench.backlog --short`, with short waits."""

from pathlib import Path

import pytest

from bench import backlog

LIMIT_S = 60.0
"""Longest of each wait in it; none takes more than 20 s on a machine with a load of 20."""


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_a_crawl_with_many_seeds_goes_on_when_everything_is_killed(tmp_path: Path) -> None:
    """Requests come again after either kill, and a seeder that was under way ends: all of its URLs are folded."""
    result = backlog.measure(tmp_path, urls=20_000, hosts=2_000, limit_s=LIMIT_S)
    assert len(result.first_s) == 2
    assert max(result.first_s) < LIMIT_S
