"""From when on letters and lines that name a job are its own."""

from typing import Any

import pytest

from crawlog.schemas import control
from crawlog.schemas.control import JobCopy, Rewound
from crawlog.schemas.urls import JobSpec
from crawlog.streams.jobs import ControlState

AHEAD = JobSpec(at=500.0)
"""Submitted by a machine whose clock is ahead."""


@pytest.mark.parametrize(
    ("records", "epoch", "since"),
    [
        ([(JobCopy("j", AHEAD, 1), 200.0), (JobCopy("j", AHEAD, 1), 260.0)], 1, 200.0),  # an order changed it
        ([(JobCopy("j", JobSpec(), 0), 100.0), (JobCopy("j", AHEAD, 1), 200.0)], 1, 200.0),
        ([(Rewound(1, "j", AHEAD), 200.0), (JobCopy("j", AHEAD, 1), 260.0)], 1, 200.0),
        ([(Rewound(1, "k", AHEAD), 200.0), (JobCopy("j", AHEAD, 1), 260.0)], 1, 260.0),
        ([(JobCopy("j", AHEAD, 1), 900.0)], 1, 500.0),  # compaction left a late record
        ([(JobCopy("j", AHEAD, 0), 200.0)], 0, 0.0),
        ([(Rewound(2, "j", AHEAD), 300.0)], 1, 500.0),  # the next epoch begins
        ([], 1, 500.0),
    ],
)
def test_a_job_begins_with_its_first_record_in_the_log(
    records: list[tuple[Any, float]], epoch: int, since: float
) -> None:
    """By the broker's clock, which letters have too; a submission's clock that is ahead would hide the first ones."""
    times = ControlState()
    for record, at in records:
        times.take(control.key(record), record, at)
    assert times.since(JobCopy("j", AHEAD, epoch)) == since
