"""The long crawl of `bench.soak`, short: killed whole at half, with nothing lost or doubled."""

from pathlib import Path

import pytest

from bench import soak
from tests.support.cluster import needs_site


@pytest.mark.broker
@pytest.mark.slow
@needs_site
@pytest.mark.long
def test_a_crawl_that_is_killed_at_half_is_measured_to_its_end(tmp_path: Path) -> None:
    """Every tenth of the pages has its line, and the rows are those of the site."""
    looks, wrong = soak.crawl(tmp_path, hosts=10, pages=60)
    assert not wrong, (tmp_path / "output.log").read_text()
    assert len(looks) == soak.PARTS + 1
    assert looks[-1].pages == 600
    assert all(look.fixed_ms > 0 for look in looks)
