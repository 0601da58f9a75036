"""Small jobs on one `crawlog up`, in the short form of the benchmark: each ends with all its pages."""

import pytest

from bench.service_jobs import both, shown

pytestmark = [pytest.mark.broker, pytest.mark.slow]

JOBS = 5


@pytest.mark.long
def test_small_jobs_under_one_up_all_end_after_and_beside_each_other() -> None:
    """And the benchmark can say how fast."""
    ways = both(JOBS)
    assert [(way.name, way.finished) for way in ways] == [("after", JOBS), ("beside", JOBS)], shown(ways)
    for way in ways:
        assert len(way.first_s) == len(way.end_s) == JOBS
        assert {name.partition("-")[0] for name in way.rss} >= {"fetch", "parse"}
