"""Jobs and workers of a fleet as text."""

import pytest

from crawlog.cli.fleet_text import output_text
from crawlog.streams.fleet import OutputView


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (
            OutputView("a.csv", "complete", 2, "/x/a.csv", worker="sink-0-m1-af0912"),
            "a.csv: complete, 2 rows in /x/a.csv, by worker sink-0-m1-af0912",
        ),
        (OutputView("shop", "complete", 2, "shop", worker="sink-0"), "shop: complete, 2 rows, by worker sink-0"),
        (
            OutputView("a.csv", "failed", error="the disk is full", worker="sink-0"),
            "a.csv: failed, 0 rows, by worker sink-0; the disk is full",
        ),
        (OutputView("a.csv", "writing", worker="sink-0"), "a.csv: writing, 0 rows"),
        (OutputView("a.csv", "complete", 1, "/x/a.csv"), "a.csv: complete, 1 row in /x/a.csv"),
    ],
)
def test_an_output_names_its_worker_with_its_place_or_its_error(view: OutputView, told: str) -> None:
    """Another machine may have a FILE at the same path. An output that is being written may be another worker's."""
    assert output_text(view) == told
